"""Tasks: what the swarm agreed to work on, and each node's own stream of questions from it."""
