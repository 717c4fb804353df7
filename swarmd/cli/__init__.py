"""Command line: one module per command; each parses before it imports anything heavy."""
