"""Workers: the child processes of a node: how they start, talk, are watched and end."""
