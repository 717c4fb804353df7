"""Text to tokens and back, the same way in the generator and in the trainer.

Both processes load the tokenizer of the model folder here, so that a prompt has the same tokens
where it is sampled from and where it is trained on. Completions that came as text are encoded
without special tokens: a peer's text can never smuggle in an end or role token. The end token is
appended only when the author's decoding really stopped, so that the end of an answer is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from jinja2 import TemplateError
from transformers import AutoTokenizer

from swarmd.errors import ModelError, SwarmdError
from swarmd.models.loading import LOADING_ERRORS
from swarmd.types import FinishReason, Prompt

__all__ = [
    "Tokenizer",
    "decode_completion",
    "encode_completion",
    "encode_prompt",
    "end_token_id",
    "fingerprint",
    "load_tokenizer",
]

_TEMPLATE_ERRORS = (
    TemplateError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What a chat template can raise: it is a program, of whoever made the model, in Jinja's sandbox."""


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that swarmd uses."""

    eos_token_id: int | None
    bos_token_id: int | None

    def __len__(self) -> int: ...

    def encode(
        self, text: str, *, add_special_tokens: bool = ..., split_special_tokens: bool = ...
    ) -> list[int]:
        """Token ids of `text`."""

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = ...,
        clean_up_tokenization_spaces: bool = ...,
    ) -> str:
        """Text of `token_ids`."""

    def get_vocab(self) -> dict[str, int]:
        """All tokens, added ones included, with their ids."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """The conversation as one text, in the model's own chat format."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read the tokenizer of a model folder. Never asks the network, never runs code of the folder.

    Raises:
        ModelError: the folder has no tokenizer that transformers can read, or it has no end token.
    """
    try:
        tokenizer = cast(
            Tokenizer,
            AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False),
        )
    except LOADING_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"cannot read the tokenizer of {path}: {reason}") from error
    end_token_id(tokenizer)
    return tokenizer


def end_token_id(tokenizer: Tokenizer) -> int:
    """Id of the token that ends a completion.

    Raises:
        ModelError: the tokenizer names none.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError("the model's tokenizer has no end-of-sequence token (eos_token); set one")
    return int(tokenizer.eos_token_id)


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Token ids that the policy continues; at least one.

    plain: the text as it stands, after the begin token if the tokenizer puts one before every text.
    chat: through the model's chat template, as an optional system message and one user message,
    with the generation prompt appended.

    Raises:
        SwarmdError: unknown style, no chat template, a template that refuses, or an empty prompt.
    """
    if prompt.style == "plain":
        token_ids = [*_begin_tokens(tokenizer), *tokenizer.encode(prompt.text, add_special_tokens=False)]
    elif prompt.style == "chat":
        # The template writes the special tokens itself, the begin token included.
        token_ids = list(tokenizer.encode(_apply_chat_template(tokenizer, prompt), add_special_tokens=False))
    else:
        raise SwarmdError(f"unknown prompt style {prompt.style!r}, expected plain or chat")
    if not token_ids:
        raise SwarmdError("the prompt is empty")
    return token_ids


def encode_completion(tokenizer: Tokenizer, text: str, finish_reason: FinishReason) -> list[int]:
    """Token ids of a completion that came as text, with this tokenizer's end token when it stopped.

    Special tokens spelled out in `text` are encoded as ordinary characters. May be empty, when the
    text is empty and decoding was cut off.
    """
    token_ids = list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    if finish_reason is FinishReason.STOP:
        token_ids.append(end_token_id(tokenizer))
    return token_ids


def decode_completion(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Text of sampled tokens, without special tokens and without tidying of spaces."""
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def fingerprint(tokenizer: Tokenizer) -> str:
    """Hex SHA-256 of everything that decides which tokens a text becomes, and which one ends it.

    Two nodes whose fingerprints agree can compare per-token log-probabilities. Vocabulary, merges,
    added tokens, normalisation and splitting count; how to pad, truncate or decode does not.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts: dict[str, Any] = {"end": tokenizer.eos_token_id, "begin": _begin_tokens(tokenizer)}
    if backend is None:
        parts["class"] = type(tokenizer).__name__
        parts["vocabulary"] = tokenizer.get_vocab()
    else:
        serialised: dict[str, Any] = json.loads(backend.to_str())
        parts |= {
            key: serialised.get(key) for key in ("model", "added_tokens", "normalizer", "pre_tokenizer")
        }
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _begin_tokens(tokenizer: Tokenizer) -> list[int]:
    if tokenizer.bos_token_id is None:
        return []
    of_empty_text = tokenizer.encode("", add_special_tokens=True)
    return [tokenizer.bos_token_id] if of_empty_text[:1] == [tokenizer.bos_token_id] else []


def _apply_chat_template(tokenizer: Tokenizer, prompt: Prompt) -> str:
    messages = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
    messages.append({"role": "user", "content": prompt.text})
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except _TEMPLATE_ERRORS as error:
        raise SwarmdError(
            f"prompt style chat needs a model with a chat template, and this one fails: {error}; "
            "use style plain"
        ) from error
