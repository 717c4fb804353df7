"""A model folder of Qwen2.5-0.5B's exact shape, as the hub holds it, with random weights: 494 million
parameters in bfloat16, tied, a byte-level vocabulary of 151,665 tokens in a table of 151,936, and a
generation config that would change the policy if anybody followed it.
"""

from itertools import islice, product
from pathlib import Path

import torch
from random_models import CHAT_TEMPLATE, END, QWEN2_5_HALF_BILLION, TURN_END
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

BASE_TOKENS = 151_643
ADDED_TOKENS = 22
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGIT_LOGIT = 12.0
"""By about how much a digit's logit is larger than another token's; ln(151936 / 10) makes them even."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """As many tokens as Qwen2.5's, with its special ones in their places. Its merges are not learned: every
    pair of bytes is a token, and so are the first of the triples.
    """
    singles = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(product(singles, singles))
    triples = ((first + second, third) for (first, second), third in product(merges, singles))
    merges += islice(triples, BASE_TOKENS - len(singles) - len(merges))
    tokens = [*singles, *(first + second for first, second in merges)]
    backend = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=merges))
    backend.add_special_tokens([END, "<|im_start|>", TURN_END, *(f"<|added_{n}|>" for n in range(3, 22))])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=TURN_END, pad_token=END, model_max_length=131_072
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    assert len(tokenizer) == BASE_TOKENS + ADDED_TOKENS
    return tokenizer


@torch.no_grad()
def make_model_folder(folder: Path) -> Path:
    """Write the folder. A third or more of what the model says are digits, so that rewards differ within a
    group.
    """
    tokenizer = make_tokenizer()
    end, turn_end = tokenizer.convert_tokens_to_ids([END, TURN_END])
    config = Qwen2Config(
        **QWEN2_5_HALF_BILLION,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=turn_end,
        dtype=torch.bfloat16,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Qwen2ForCausalLM(config)
        finally:
            torch.set_default_dtype(torch.float32)
        common_H = torch.nn.functional.normalize(torch.randn(config.hidden_size), dim=0).bfloat16()
    # All tokens have a part of the embedding in common. Where layers add little to it, it makes most of
    # the last hidden state, whose length is the root of its size; digits have more of it than others.
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter *= 0.01
    embedding_VH = model.get_input_embeddings().weight
    embedding_VH += common_H
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    embedding_VH[digits] += common_H * (_DIGIT_LOGIT / config.hidden_size**0.5)
    model.generation_config = GenerationConfig(
        bos_token_id=end,
        eos_token_id=[turn_end, end],
        pad_token_id=end,
        do_sample=True,
        repetition_penalty=1.1,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
