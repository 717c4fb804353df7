"""The generator process: joins the engine with the weight channel and answers the daemon."""

from __future__ import annotations

from swarmd.errors import GenerationError
from swarmd.generation.engines import open_engine
from swarmd.generation.generator import Engine
from swarmd.generation.messages import (
    CANARY,
    INITIALISE,
    LOAD_WEIGHTS,
    SAMPLE,
    CanaryReply,
    CanaryRequest,
    GeneratorReady,
    GeneratorSettings,
    LoadWeightsReply,
    LoadWeightsRequest,
    SampleReply,
    SampleRequest,
)
from swarmd.weights.channel import attach
from swarmd.workers.process import handle, report_progress, serve, worker_argument_fd

__all__ = ["main"]


class _Generator:
    """Holds the engine from the first call on."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def initialise(self, settings: GeneratorSettings) -> GeneratorReady:
        report_progress("loading model")
        self._engine = open_engine(settings, attach)
        return self._engine.ready

    def sample(self, request: SampleRequest) -> SampleReply:
        return self._loaded().sample(request)

    def load_weights(self, request: LoadWeightsRequest) -> LoadWeightsReply:
        return self._loaded().load_weights(request)

    def canary(self, request: CanaryRequest) -> CanaryReply:
        return self._loaded().canary()

    def close(self) -> None:
        """Let go of the engine and its processes."""
        if self._engine is not None:
            self._engine.close()

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise GenerationError("the generator has not been initialised")
        return self._engine


def main() -> None:
    """Serve until the daemon stops or closes the socket."""
    generator = _Generator()
    serve(
        worker_argument_fd(),
        [
            handle(INITIALISE, generator.initialise),
            handle(SAMPLE, generator.sample),
            handle(LOAD_WEIGHTS, generator.load_weights),
            handle(CANARY, generator.canary),
        ],
    )
    generator.close()


if __name__ == "__main__":
    main()
