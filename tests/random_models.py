"""Model folders as they come from the hub, with random weights: real architectures, a real tokenizer, and
nothing downloaded. Small ones take a fraction of a second; `QWEN2_5_HALF_BILLION` has the exact shape of
Qwen2.5-0.5B (988 MB in bfloat16).
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

END, TURN_END = "<|endoftext|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
QWEN2_5_HALF_BILLION = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
_KINDS: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
_MERGES = [("t", "h"), ("th", "e"), ("i", "s"), ("a", "n"), ("an", "s"), ("1", "0")]


def make_tokenizer(*, chat: bool = True, pad: bool = True, begin: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE of some 270 tokens. An instruct model's has a chat template and ends with its turn;
    `begin` puts a begin token before every text, as Llama's does.
    """
    # Not trained: training breaks ties by chance, and two folders would differ.
    tokens = [END, "<|im_start|>", TURN_END, "<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [first + second for first, second in _MERGES]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=_MERGES))
    backend.add_special_tokens(tokens[:4])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END if chat else END,
        pad_token=END if pad else None,
        bos_token="<s>" if begin else None,
        add_bos_token=begin,
        model_max_length=512,
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(
    tokenizer: PreTrainedTokenizerFast, *, kind: str = "qwen2", tied: bool = True, seed: int = 0, **shape: Any
) -> PreTrainedModel:
    """A model of the architecture `kind` (qwen2, qwen3, llama), `shape` laid over the small one."""
    config_type, model_type = _KINDS[kind]
    values = {"vocab_size": len(tokenizer)} | SMALL | shape
    config = config_type(
        **values,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_type(config)
    # As instruct models have it: the end of the turn and the end of the text both end a completion.
    model.generation_config.eos_token_id = sorted(
        {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END)}
    )
    return model.eval()


def make_model_folder(
    folder: Path,
    *,
    kind: str = "qwen2",
    tied: bool = True,
    chat: bool = True,
    pad: bool = True,
    begin: bool = False,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **shape: Any,
) -> Path:
    """Write a model as the hub holds it; with several `shards` its weights are split, with an index."""
    tokenizer = make_tokenizer(chat=chat, pad=pad, begin=begin)
    model = make_model(tokenizer, kind=kind, tied=tied, seed=seed, **shape).to(dtype)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    model.save_pretrained(folder, max_shard_size=size if shards == 1 else -(-size // shards))
    tokenizer.save_pretrained(folder)
    return folder


def weight_files(folder: Path) -> list[str]:
    """Names of the weight files of a folder, as its index has them."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    return sorted(set(json.loads(index.read_text())["weight_map"].values()))
