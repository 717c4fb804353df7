"""Simulation: a whole swarm in one process, with the rooms and the loops of the daemon."""
