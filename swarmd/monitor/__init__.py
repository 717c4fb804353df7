"""Monitor: what the node is doing, for people and for machines."""
