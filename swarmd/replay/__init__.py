"""Replay: a bounded buffer of rollout groups and the rule that says which of them to learn from."""
