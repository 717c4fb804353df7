"""The generator process of a node, of which something goes wrong as often as the file SPOIL says. Nothing
complains: the process itself does not notice.

The file has two numbers: how many times weights are to be spoilt after they were loaded, and in how many
replies one log-probability is to be no number.
"""

import math
import os
from pathlib import Path

import msgspec
import torch

from swarmd.entrypoints import generator
from swarmd.generation.messages import LoadWeightsReply, LoadWeightsRequest, SampleReply, SampleRequest
from swarmd.generation.transformers import TransformersEngine

SPOIL = Path(os.environ["SPOIL"])
load_weights, sample = TransformersEngine.load_weights, TransformersEngine.sample


def spoils(place: int) -> bool:
    """Whether it is to happen now; counts it."""
    times = [int(number) for number in SPOIL.read_text().split()]
    if not times[place]:
        return False
    times[place] -= 1
    SPOIL.write_text(" ".join(map(str, times)))
    return True


@torch.no_grad()
def load_and_spoil(engine: TransformersEngine, request: LoadWeightsRequest) -> LoadWeightsReply:
    reply = load_weights(engine, request)
    if spoils(0):
        engine._model.model.norm.weight.mul_(1.5)
    return reply


def sample_and_spoil(engine: TransformersEngine, request: SampleRequest) -> SampleReply:
    reply = sample(engine, request)
    if request.temperature == 0 or not spoils(1):
        return reply
    replace, (first, *groups) = msgspec.structs.replace, reply.groups
    one, *others = first.completions_G
    broken = replace(one, logprobs_T=(math.nan, *one.logprobs_T[1:]))
    return replace(reply, groups=(replace(first, completions_G=(broken, *others)), *groups))


TransformersEngine.load_weights = load_and_spoil  # type: ignore[method-assign]
TransformersEngine.sample = sample_and_spoil  # type: ignore[method-assign]

if __name__ == "__main__":
    generator.main()
