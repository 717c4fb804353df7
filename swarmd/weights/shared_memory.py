"""The weight channel in POSIX shared memory: as fast as copying, for processes of one machine."""

from __future__ import annotations

from swarmd.weights.host import HostReader, HostWriter
from swarmd.weights.segment import Segment

__all__ = ["KIND", "WeightReader", "WeightWriter"]

KIND = "shared_memory"


class WeightWriter(HostWriter):
    """The trainer's end of a channel in shared memory."""

    kind = KIND
    medium = Segment


class WeightReader(HostReader):
    """The generator's end of a channel in shared memory."""

    kind = KIND
    medium = Segment
