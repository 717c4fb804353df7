"""From a sampling request to prompt tokens, the same for every engine, with what no engine can do
refused before it begins.
"""

from __future__ import annotations

from swarmd.errors import GenerationError
from swarmd.generation.messages import SampleRequest
from swarmd.models.tokenization import Tokenizer, encode_prompt

__all__ = ["encode_prompts"]


def encode_prompts(request: SampleRequest, tokenizer: Tokenizer, context_tokens: int) -> list[list[int]]:
    """The token ids of each prompt of the request.

    Raises:
        GenerationError: the sizes make no sense, or a prompt leaves no room in the model's context.
    """
    if request.group_size < 1 or request.max_new_tokens < 1 or request.temperature < 0:
        raise GenerationError(
            "group_size and max_new_tokens must be at least 1 and temperature at least 0, got "
            f"{request.group_size}, {request.max_new_tokens} and {request.temperature}"
        )
    prompts = [encode_prompt(tokenizer, prompt) for prompt in request.prompts]
    for token_ids in prompts:
        if len(token_ids) >= context_tokens:
            raise GenerationError(
                f"a prompt has {len(token_ids)} tokens, the model's context holds {context_tokens} "
                "with the completion"
            )
    return prompts
