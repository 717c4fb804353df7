"""What is deployed cannot all be run here. It is checked by the tools and schemas of those who run it."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarmd.config_sources import load_config
from swarmd.monitor.metrics import NodeCollector
from swarmd.monitor.status import (
    BufferStatus,
    CanaryStatus,
    ClockStatus,
    NodeStatus,
    ProcessStatus,
    RewardStatus,
    TrainingStatus,
    WorkerStatus,
)

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SCRIPTS = Path(sysconfig.get_path("scripts"))


def accepted(*command: str | Path) -> str:
    """What a checker prints, which must have found nothing wrong."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def manifests() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "swarmd.yaml").read_text())
    return {document["kind"]: document for document in documents}


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_the_dockerfile_has_no_findings_and_runs_as_nobody_in_particular() -> None:
    accepted(SCRIPTS / "hadolint", "--failure-threshold", "style", DEPLOY / "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text()
    base = text.split(" AS base\n")[1].split("\nFROM ")[0]
    # What getpass asks for where the uid has no name, as torch does before it compiles.
    assert re.search(r"^ENV (.*\\\n)*.*\bUSER=swarmd\b", base, re.MULTILINE)
    for target in ("cpu", "cuda"):
        assert f"\nFROM base AS {target}\n" in text
        stage = base + text.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert "\nUSER 10001:0\n" in stage
        assert "\nHEALTHCHECK " in stage
        assert "\nSTOPSIGNAL SIGTERM\n" in stage


def test_compose_fits_its_schema_and_the_nodes_have_room_to_share_weights() -> None:
    accepted(SCRIPTS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
    services = compose()["services"]
    nodes = {name: service for name, service in services.items() if service["image"] == "swarmd:cpu"}
    assert set(nodes) == {"bootstrap", "node1", "node2", "node3"}
    for service in nodes.values():
        assert service["shm_size"] == "2gb"
        assert service["stop_grace_period"] == "20s"
    assert {"prometheus", "grafana"} <= set(services)


def test_prometheus_scrapes_every_node_of_the_composition_where_it_listens() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    services = compose()["services"]
    port = services["node1"]["environment"]["SWARMD_MONITOR__METRICS_LISTEN"].rpartition(":")[2]
    nodes = [name for name, service in services.items() if service["image"] == "swarmd:cpu"]
    assert sorted(targets) == sorted(f"{name}:{port}" for name in nodes)


def measured() -> set[str]:
    """Names of all that a node measures."""
    status = NodeStatus(
        peer_id="p",
        swarm="s",
        swarm_id="i",
        model="m",
        state="training",
        reward=RewardStatus(local_mean=0.0, external_mean=0.0, eval=0.0),
        buffer=BufferStatus(rejected={"stale": 1}),
        training=TrainingStatus(grad_norm=0.0, entropy=0.0, sampler_kl=0.0, step_seconds=0.0),
        canary=CanaryStatus(state="good", version=1, difference=0.0, tolerance=0.001),
        workers={"trainer": WorkerStatus(pid=1, state="ready", restarts=0)},
        processes=(ProcessStatus("daemon", 1, 1, 1, 1),),
        clock=ClockStatus(skew_seconds=0.0, peers=1),
    )
    return {sample.name for family in NodeCollector(lambda: status).collect() for sample in family.samples}


def test_the_dashboard_draws_only_what_a_node_measures() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "swarmd.json").read_text())
    used = set(re.findall(r"\bswarmd_\w+", json.dumps(dashboard["panels"])))
    assert used
    assert used <= measured()


def test_alerts_watch_only_what_a_node_measures_and_prometheus_reads_them() -> None:
    folder = DEPLOY / "prometheus"
    (group,) = yaml.safe_load((folder / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["alert"].startswith("Swarmd")
        assert "$labels.instance" in rule["annotations"]["summary"]
        assert set(re.findall(r"\bswarmd_\w+", rule["expr"])) <= measured(), rule["alert"]
    (name,) = yaml.safe_load((folder / "prometheus.yml").read_text())["rule_files"]
    mounts = compose()["services"]["prometheus"]["volumes"]
    assert f"./prometheus/{name}:/etc/prometheus/{name}:ro" in mounts


def test_kubernetes_manifests_fit_their_schemas() -> None:
    printed = accepted(SCRIPTS / "kubernetes-validate", "--strict", DEPLOY / "kubernetes" / "swarmd.yaml")
    assert printed.count(" passed ") == len(manifests()) == 4


def test_a_pod_gets_its_shared_memory_probes_and_time_to_save() -> None:
    pod = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    (node,) = pod["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(node)
    shared = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shared["emptyDir"]["medium"] == "Memory"
    assert {"name": "shm", "mountPath": "/dev/shm"} in node["volumeMounts"]
    assert pod["terminationGracePeriodSeconds"] > 15
    config = manifests()["ConfigMap"]["data"]["config.toml"]
    assert "metrics_listen" in config


@pytest.mark.parametrize("unit", ["systemd/swarmd.service", "systemd/user/swarmd.service"])
def test_the_unit_is_understood_and_waits_as_long_as_the_contract_says(unit: str, tmp_path: Path) -> None:
    # The program is not where the unit looks for it; one that is there stands in.
    text = (DEPLOY / unit).read_text()
    checked = tmp_path / "swarmd.service"
    checked.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    assert accepted("systemd-analyze", "verify", checked) == ""
    values = dict(re.findall(r"(?m)^(\w+)=(.*)$", text))
    assert values["Type"] == "notify"
    assert float(values["WatchdogSec"]) >= 30
    assert float(values["TimeoutStopSec"]) > 15
    assert values["RestartPreventExitStatus"] == "2 3"


def test_the_system_unit_is_closed_as_far_as_a_node_can_be() -> None:
    # systemd's scale: 0 is closed, 10 is open. What is left: network, memory it compiles into, devices.
    accepted(
        "systemd-analyze",
        "security",
        "--offline=true",
        "--threshold=30",
        DEPLOY / "systemd" / "swarmd.service",
    )


@pytest.mark.parametrize("path", sorted((DEPLOY / "config").glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_configuration_is_right_and_says_whom_it_is_for(path: Path) -> None:
    assert path.read_text().startswith("# ")
    assert load_config(config_file=path).sources
