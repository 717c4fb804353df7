"""The generator process of a node, whose weights go wrong as often as the file SPOIL says, each time
after it has loaded new ones. Nothing complains: the process itself does not notice.
"""

import os
from pathlib import Path

import torch

from swarmd.entrypoints import generator
from swarmd.generation.messages import LoadWeightsReply, LoadWeightsRequest
from swarmd.generation.transformers import TransformersEngine

SPOIL = Path(os.environ["SPOIL"])
load_weights = TransformersEngine.load_weights


@torch.no_grad()
def load_and_spoil(engine: TransformersEngine, request: LoadWeightsRequest) -> LoadWeightsReply:
    reply = load_weights(engine, request)
    if times := int(SPOIL.read_text()):
        SPOIL.write_text(str(times - 1))
        engine._model.model.norm.weight.mul_(1.5)
    return reply


TransformersEngine.load_weights = load_and_spoil  # type: ignore[method-assign]

if __name__ == "__main__":
    generator.main()
