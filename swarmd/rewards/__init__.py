"""Rewards: completions are scored by the task's own verifier, in processes that can do no harm."""
