"""What a reload changes in rooms that are built and run."""

from types import SimpleNamespace
from typing import Any

from swarmd.config_sources import load_config
from swarmd.gossip.peers import PeerBook
from swarmd.replay.samplers import uniform
from swarmd.replay.screens import BatchShare, TextLimits
from swarmd.rooms import Rooms, replay_buffer, text_limits
from swarmd.tasks.manifest import Manifest
from swarmd.tasks.source import TaskSource


async def nothing(*arguments: Any) -> None:
    """Stands in for what is awaited."""


def test_a_batch_is_drawn_by_the_share_of_the_newest_configuration() -> None:
    config, manifest = load_config().config, Manifest.load("tiny")
    worker = SimpleNamespace(trainer=None)
    network = SimpleNamespace(peers=PeerBook("me"))
    rooms = Rooms(
        config,
        "me",
        manifest,
        worker,  # type: ignore[arg-type]
        replay_buffer(config),
        TaskSource(manifest, "me", 0),
        network,  # type: ignore[arg-type]
        uniform,
    )
    loop = rooms.train_loop(nothing)
    assert loop.sampler.share == BatchShare("off", 0.5)
    rooms.renew(load_config(assignments=["screens.batch_share=drop", "screens.batch_share_most=0.2"]).config)
    assert loop.sampler.share == BatchShare("drop", 0.2)


def test_the_limits_of_the_text_screens_are_those_of_the_configuration() -> None:
    config = load_config(assignments=["screens.long=drop", "screens.long_factor=2"]).config
    assert text_limits(config) == TextLimits("drop", 2.0, "warn", 0.2)
