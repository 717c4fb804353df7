"""Gossip: rollout groups to and from peers, node records, and catching up after joining late."""
