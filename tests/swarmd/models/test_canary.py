"""The canary's text: the same tokens wherever the same tokenizer is, and enough of them."""

from pathlib import Path

import pytest
from random_models import make_tokenizer

import swarmd.models
from swarmd.models.canary import MOST_TOKENS, canary_tokens
from swarmd.models.tokenization import Tokenizer, load_tokenizer

TINY = Path(swarmd.models.__file__).parent / "tiny"


@pytest.mark.parametrize(
    "tokenizer",
    [load_tokenizer(TINY), make_tokenizer(), make_tokenizer(begin=True)],
    ids=["tiny", "chat", "begin"],
)
def test_the_text_has_as_many_tokens_as_it_may_have_and_the_same_each_time(tokenizer: Tokenizer) -> None:
    token_ids = canary_tokens(tokenizer)
    assert len(token_ids) == MOST_TOKENS
    assert len(set(token_ids)) > 5
    assert max(token_ids) < len(tokenizer)
    assert canary_tokens(tokenizer) == token_ids


def test_a_tokenizer_that_makes_one_token_of_it_still_has_something_to_compare() -> None:
    class OneToken:
        bos_token_id = None

        def encode(self, text: str, **_: object) -> list[int]:
            return [7]

    assert canary_tokens(OneToken()) == (7, 7)  # type: ignore[arg-type]
