"""Writes a model folder: configuration, safetensors weights, tokenizer.

Weights are stored as float16 to keep the package small; `config.json` says float32, which is what
they are loaded as.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

__all__ = ["round_to_stored_precision", "save_model_folder"]


def save_model_folder(folder: Path, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer) -> None:
    """Write everything that `from_pretrained` needs into `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tied = "lm_head.weight"  # The same memory as the embeddings; the loader ties it again.
    tensors = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != tied
    }
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    _sort_keys(folder / "config.json")


def round_to_stored_precision(model: Qwen2ForCausalLM) -> None:
    """Make the weights in memory equal to what a reader of the saved folder gets."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.float16))


def _sort_keys(path: Path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
