"""The generator process of swarmd, with an engine that tells when it generates."""

from __future__ import annotations

from announcements import announced

from swarmd.entrypoints import generator
from swarmd.generation.messages import SampleReply, SampleRequest
from swarmd.generation.transformers import TransformersEngine

sample = TransformersEngine.sample


def announced_sample(engine: TransformersEngine, request: SampleRequest) -> SampleReply:
    with announced("generating"):
        return sample(engine, request)


if __name__ == "__main__":
    TransformersEngine.sample = announced_sample  # type: ignore[method-assign]
    generator.main()
