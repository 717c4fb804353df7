"""swarmd: a peer-to-peer daemon whose nodes post-train language models together."""

__version__ = "0.1.0"
