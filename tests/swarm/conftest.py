"""Fixtures for tests with real node processes."""

from node_fixtures import free_ports, gone, make_node, one_thread

__all__ = ["free_ports", "gone", "make_node", "one_thread"]
