"""The promises of every engine, kept by the transformers engine. tests/vllm holds vLLM to the same ones."""

from collections.abc import Iterator

import pytest
from engine_contract import *  # noqa: F403
from engine_contract import MakeModel, Served, open_served

from swarmd.models.tokenization import Tokenizer


@pytest.fixture(scope="module", params=["tied", "untied"])
def served(request, make_model: MakeModel, tokenizer: Tokenizer, tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    served = open_served("transformers", request.param, folder, make_model, tokenizer)
    yield served
    served.engine.close()
