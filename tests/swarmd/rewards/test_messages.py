import msgspec

from swarmd.rewards.messages import INITIALISE, REGENERATE, SCORE, ScoreReason, ScoreReply, VerifierSettings
from swarmd.tasks.manifest import Manifest


def test_settings_survive_the_wire():
    settings = VerifierSettings(Manifest.load("tiny").tasks, True, 10.0, 2_000_000_000)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=INITIALISE.request_type) == settings


def test_reply_survives_the_wire_with_its_reasons():
    reply = ScoreReply("q", (0.0, 1.0), (ScoreReason.TIMEOUT, None))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=SCORE.reply_type)
    assert again == reply
    assert ScoreReason(again.reasons_G[0]) is ScoreReason.TIMEOUT


def test_methods_have_names_of_their_own():
    assert len({INITIALISE.name, REGENERATE.name, SCORE.name}) == 3
