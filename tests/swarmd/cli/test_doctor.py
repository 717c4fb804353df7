import json
import os
import socket
import time

import pytest

from swarmd.cli import machine_findings
from swarmd.cli.app import run_command_line
from swarmd.cli.doctor import describe
from swarmd.cli.findings import Finding
from swarmd.identity import Identity
from swarmd.monitor.status import ClockStatus, LastKnown, NodeStatus, save_last_known
from swarmd.rewards.probe import SandboxReport


@pytest.fixture
def doctor(home, capsys):
    """Runs the command; returns its exit code and {name: finding}."""

    def run(*arguments):
        code = run_command_line(["doctor", "--home", str(home.folder), "--json", *arguments])
        document = json.loads(capsys.readouterr().out)
        assert document["can_start"] == (code == 0)
        return code, {finding["name"]: finding for finding in document["findings"]}

    return run


def test_machine_that_is_right_can_start_a_node_and_stays_as_it_was(home, doctor):
    code, findings = doctor("--set", "swarm.listen=/ip4/127.0.0.1/tcp/0")
    assert code == 0
    names = "python libraries gpu memory clock sandbox home disk identity config engine model listen"
    assert set(names.split()) <= set(findings)
    assert "seccomp" in findings["sandbox"]["text"]
    assert not home.folder.exists()


def test_each_finding_is_one_line_for_a_person(home, capsys):
    code = run_command_line(["doctor", "--home", str(home.folder), "--set", "swarm.isolated=true"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[-1] == "a node can start here"
    assert all(line.startswith(("ok ", "warning ")) for line in lines[:-1])
    assert describe(Finding("a", "error", "b\nc", "do d")) == "ERROR    a: b?c; do d"


@pytest.mark.parametrize(
    ("arguments", "name", "words"),
    [
        (["--set", "rollout.group_size=none"], "config", "rollout.group_size"),
        (["--set", "model.name=nobody"], "model", "nobody"),
        (["--set", "swarm.manifest=nowhere"], "model", "nowhere"),
        (["--set", "swarm.listen=here"], "config", "here"),
        (["--set", "model.device=tpu"], "config", "tpu"),
    ],
)
def test_what_start_would_refuse_is_an_error_with_its_reason(doctor, arguments, name, words):
    code, findings = doctor(*arguments)
    assert code == 1
    assert findings[name]["level"] == "error"
    assert words in findings[name]["text"]


def test_taken_port_is_a_warning(doctor):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, findings = doctor("--set", f"swarm.listen=/ip4/127.0.0.1/tcp/{port}")
    assert code == 0
    assert findings["listen"]["level"] == "warning"
    assert f"port {port} is taken" in findings["listen"]["text"]


def test_model_that_would_have_to_be_fetched_is_a_warning_and_is_not_fetched(doctor, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    _, findings = doctor("--set", "model.name=nobody/nothing")
    assert findings["model"]["level"] == "warning"
    assert findings["model"]["remedy"] == "swarmd model fetch nobody/nothing"


def test_key_that_others_can_read_is_a_warning_and_a_broken_one_an_error(home, doctor):
    home.prepare()
    identity = Identity.create(home.identity_key)
    assert doctor()[1]["identity"]["text"] == identity.peer_id
    home.identity_key.chmod(0o644)
    assert doctor()[1]["identity"]["remedy"] == f"chmod 600 {home.identity_key}"
    home.identity_key.write_bytes(b"no key")
    code, findings = doctor()
    assert code == 1
    assert findings["identity"]["level"] == "error"


def test_home_that_cannot_be_is_an_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run_command_line(["doctor", "--home", str(tmp_path / "file" / "home"), "--json"]) == 1
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["home"]["level"] == "error"


def test_home_of_a_running_node_is_an_error_that_says_how_to_stop_it(home, node, doctor):
    node("answers")
    code, findings = doctor()
    assert code == 1
    assert findings["home"]["remedy"] == f"stop it with `swarmd stop --home {home.folder}`"


def test_clock_before_the_installation_is_an_error(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert machine_findings.clock().level == "error"


def test_clock_that_differed_from_the_peers_when_the_node_last_ran_is_a_warning(home, doctor):
    home.prepare()
    for skew, level in ((-42.0, "warning"), (0.4, "ok"), (None, "ok")):
        status = NodeStatus(
            peer_id="p",
            swarm="s",
            swarm_id="i",
            model="m",
            state="training",
            clock=ClockStatus(skew_seconds=skew, peers=3),
        )
        save_last_known(home.status_file, LastKnown(status))
        finding = doctor()[1]["clock"]
        assert finding["level"] == level
        assert ("42 s behind the peers'" in finding["text"]) == (level == "warning")


def test_little_room_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_findings, "LITTLE_MEMORY_BYTES", 1e18)
    monkeypatch.setattr(machine_findings, "LITTLE_DISK_BYTES", 1e18)
    monkeypatch.setattr(machine_findings, "LITTLE_SHARED_BYTES", 1e18)
    findings = [machine_findings.memory(), machine_findings.disk(tmp_path), machine_findings.shared_memory()]
    assert [finding.level for finding in findings] == ["warning"] * 3
    assert machine_findings.shared_memory(tmp_path / "none").level == "warning"


def test_missing_library_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(machine_findings, "_required", lambda: {"torch", "no-such-library"})
    [finding] = machine_findings.libraries()
    assert (finding.level, finding.text) == ("error", "not installed: no-such-library")


def test_missing_layer_is_named_with_what_could_be_reached(monkeypatch):
    report = SandboxReport(("rlimits",), ("landlock: no such call",), ("files",))
    monkeypatch.setattr(machine_findings, "probe_sandbox", lambda: report)
    finding = machine_findings.sandbox()
    assert finding.level == "warning"
    assert "landlock: no such call" in finding.text
    assert "could reach: files" in finding.text


def test_home_of_another_user_is_no_traceback(tmp_path, capsys):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    # As root this home can be written; as a user it cannot. Neither ends in an exception.
    assert run_command_line(["doctor", "--home", str(closed / "home"), "--json"]) == (os.geteuid() != 0)
