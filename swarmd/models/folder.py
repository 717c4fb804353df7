"""Writes a model folder: configuration, safetensors weights, tokenizer.

Weights are stored as float16 to keep the package small; `config.json` says float32, which is what
they are loaded as. All is written beside the folder first, so that a full disk cannot leave half of it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from swarmd.errors import SwarmdError

__all__ = ["save_model_folder"]

_TIED = "lm_head.weight"
"""The same memory as the embeddings; the loader ties it again."""


def save_model_folder(folder: Path, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer) -> None:
    """Write everything that transformers loads into `folder`, which is created; other files in it stay.

    Raises SwarmdError when it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
            staging = Path(name)
            _write(staging, model, tokenizer)
            for path in sorted(staging.iterdir()):
                path.chmod(0o644)
                path.replace(folder / path.name)
    except OSError as error:
        raise SwarmdError(f"cannot write the model to {folder}: {error.strerror or error}") from error


def _write(folder: Path, model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer) -> None:
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tensors = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != _TIED
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    values = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
