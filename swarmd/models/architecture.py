"""The shape of the bundled models: Qwen2, small enough to learn on two CPU cores.

About 0.9 million parameters. Twice or four times as many cost 1.5 to 2.5 times the time and did
not learn faster on the `tiny` tasks.
"""

from __future__ import annotations

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from swarmd.models.resolve import MANIFEST_KEY

__all__ = ["CONTEXT_TOKENS", "VOCABULARY_SIZE", "new_model", "tiny_config"]

CONTEXT_TOKENS = 512
"""Prompt and completion together. The longest prompt of the `tiny` tasks is below 200."""
VOCABULARY_SIZE = 960
"""At most; a corpus with few different words gives less."""


def tiny_config(vocabulary_size: int, end_token_id: int, manifest: str) -> Qwen2Config:
    """For a tokenizer of `vocabulary_size` tokens; `manifest` is noted as the one it was made for."""
    return Qwen2Config(
        vocab_size=vocabulary_size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=0.05,
        tie_word_embeddings=True,
        rope_theta=10_000.0,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=end_token_id,
        pad_token_id=end_token_id,
        dtype=torch.float32,
        **{MANIFEST_KEY: manifest},
    )


def new_model(config: Qwen2Config, seed: int) -> Qwen2ForCausalLM:
    """A model with random weights. Leaves torch's global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)
