"""The weight channel in a file of the node's home, for where shared memory is too small or absent.

The bytes stay in the page cache as long as there is memory for it. The file also outlives the trainer
and the node: whoever starts again finds the last version.
"""

from __future__ import annotations

from swarmd.weights.channel_file import ChannelFile
from swarmd.weights.host import HostReader, HostWriter

__all__ = ["KIND", "FileReader", "FileWriter"]

KIND = "file"


class FileWriter(HostWriter):
    """The trainer's end of a channel in a file."""

    kind = KIND
    medium = ChannelFile


class FileReader(HostReader):
    """The generator's end of a channel in a file."""

    kind = KIND
    medium = ChannelFile
