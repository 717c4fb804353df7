"""Generation: the policy decodes completions, in a process of its own."""
