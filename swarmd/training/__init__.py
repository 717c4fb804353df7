"""Training: group-relative policy optimisation steps, in a process of its own."""
