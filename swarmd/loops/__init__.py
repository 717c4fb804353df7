"""The loops of a node, one a module, each readable aloud. None waits for another's round."""
