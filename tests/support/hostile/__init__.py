"""A hostile peer: what it says, how it behaves, and the stage on which it meets a real node."""
