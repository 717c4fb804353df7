"""The generator process of swarmd, with an engine that takes SAMPLE_SECONDS or longer for a call."""

from __future__ import annotations

import os
import time
from typing import Any

from swarmd.entrypoints import generator
from swarmd.generation.engines import open_engine
from swarmd.generation.messages import SampleReply, SampleRequest

SECONDS = float(os.environ.get("SAMPLE_SECONDS", "0"))


class _SlowedEngine:
    def __init__(self, *arguments: Any) -> None:
        self._engine = open_engine(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def sample(self, request: SampleRequest) -> SampleReply:
        began = time.monotonic()
        reply = self._engine.sample(request)
        time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))
        return reply


if __name__ == "__main__":
    generator.open_engine = _SlowedEngine  # type: ignore[assignment]
    generator.main()
