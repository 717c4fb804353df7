"""Which exceptions mean that a model folder cannot be loaded: the libraries share no base class."""

from __future__ import annotations

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

__all__ = ["LOADING_ERRORS"]

LOADING_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)
"""What transformers, tokenizers and safetensors raise for files that are damaged, foreign or of another
version. Only for a call that does nothing but load."""
