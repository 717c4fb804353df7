"""Our own mistakes, as exceptions. A peer's mistake is never one of these: it is a verdict.

Each class carries the exit code that the command line ends with when nothing catches it.
"""


class SwarmdError(Exception):
    """Base of all errors that swarmd raises on purpose. The message is one line for a person:
    what happened, what was expected, what to do.
    """

    exit_code = 1


class ConfigError(SwarmdError):
    """A flag, key or value is wrong. Raised before anything heavy is imported."""

    exit_code = 2


class ModelNotFoundError(ConfigError):
    """A model name that is neither known, nor a folder, nor on disk."""


class ModelError(SwarmdError):
    """The files of a model are damaged, or of a kind that cannot be loaded here."""


class HubError(SwarmdError):
    """The model hub cannot be reached or refuses, or what came from it cannot be used."""


class MemoryShortError(SwarmdError):
    """The machine has less memory free than a model is estimated to need."""


class HomeError(SwarmdError):
    """The home cannot be made or written: full disk, read-only, no permission."""


class HomeInUseError(SwarmdError):
    """Another running node holds this home or this identity."""

    exit_code = 3


class IdentityFileError(SwarmdError):
    """The identity file cannot be read or is not an Ed25519 key. It is left untouched."""

    exit_code = 3


class NetworkError(SwarmdError):
    """p2pd could not start or a listen address could not be taken."""


class WorkerError(SwarmdError):
    """A worker process failed: it died, hung past its deadline, or answered with an error."""


class WorkerRefusalError(WorkerError):
    """The worker answered a call with an error of its own, and lives on."""

    def __init__(self, message: str, error: str, reason: str) -> None:
        super().__init__(message)
        self.error = error
        """Name of the error's class in this module."""
        self.reason = reason
        """The worker's own words."""


class WorkerBudgetError(WorkerError):
    """A worker failed too often in too short a time; the node gives up."""


class CheckpointError(SwarmdError):
    """A checkpoint is torn, corrupt, or of another model."""


class WeightChannelError(SwarmdError):
    """The weight channel could not be created, attached or read."""


class TrainingError(SwarmdError):
    """A model that cannot be trained here, or a batch that no training step can be made of."""


class GenerationError(SwarmdError):
    """A model that cannot be sampled from here, or a request that it cannot answer."""


class SamplingRuleError(SwarmdError):
    """The sampling rule that the operator named failed, or answered what no rule may."""
