import json
import os

import msgspec
import pytest
from sample_status import sample_peers, sample_status

from swarmd.monitor.status import LastKnown, load_last_known, save_last_known

CONTRACT = {
    "peer_id", "swarm", "swarm_id", "model", "state", "round", "policy_version", "uptime_seconds",
    "addresses", "peers", "reward", "buffer", "workers", "versions",
}  # fmt: skip


def as_json(value):
    return json.loads(msgspec.json.encode(value))


def test_status_has_the_fields_of_the_contract():
    status = as_json(sample_status())
    assert set(status) >= CONTRACT
    assert set(status["reward"]) >= {"local_mean", "external_mean", "eval"}
    assert set(status["buffer"]) >= {"local", "external", "bytes", "rejected"}
    assert set(status["workers"]["trainer"]) >= {"pid", "state", "restarts"}
    assert status["peers"] == 2


def test_a_peer_has_the_fields_of_the_contract():
    expected = {
        "peer_id", "name", "model", "round", "addresses", "accepted", "rejected", "last_seen_seconds"
    }  # fmt: skip
    assert set(as_json(sample_peers())[0]) >= expected


def test_external_share_is_of_the_trained_groups():
    assert sample_status().external_share == pytest.approx(212 / 480)
    assert sample_status(trained_groups=0, external_groups=0).external_share == 0.0


def test_the_last_known_state_comes_back_as_stopped(tmp_path):
    path = tmp_path / "status.json"
    save_last_known(path, LastKnown(sample_status(waiting_for="groups"), sample_peers()))
    loaded = load_last_known(path)
    assert loaded.status.state == "stopped"
    assert loaded.status.round == 60
    assert loaded.status.peers == 0
    assert loaded.status.waiting_for == ""
    assert {worker.state for worker in loaded.status.workers.values()} == {"stopped"}
    assert {worker.pid for worker in loaded.status.workers.values()} == {None}
    assert loaded.peers == sample_peers()


def test_saving_replaces_the_file_and_leaves_no_draft(tmp_path):
    path = tmp_path / "status.json"
    save_last_known(path, LastKnown(sample_status(round=1)))
    save_last_known(path, LastKnown(sample_status(round=2)))
    assert load_last_known(path).status.round == 2
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_failed_save_keeps_the_old_state(tmp_path):
    path = tmp_path / "status.json"
    save_last_known(path, LastKnown(sample_status(round=1)))
    blocked = tmp_path / f".status.json.{os.getpid()}"
    blocked.symlink_to("/dev/full")
    with pytest.raises(OSError, match="space"):
        save_last_known(path, LastKnown(sample_status(round=2)))
    assert load_last_known(path).status.round == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"status": {}}', b"\xff"])
def test_an_unreadable_last_state_is_none(tmp_path, content):
    path = tmp_path / "status.json"
    path.write_bytes(content)
    assert load_last_known(path) is None
    assert load_last_known(tmp_path / "absent.json") is None
