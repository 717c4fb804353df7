"""The whole node as a user without any right, on a root that is read-only, as in a container. Needs root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
HOME = "/mnt/home"
NOBODY = (
    "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
)


def script(python: str) -> str:
    """A node's start, status and doctor, where all but /mnt, /tmp and /dev/shm is closed to writing.

    The interpreter may lie in a folder that nobody else may enter, such as root's home: in this mount
    namespace that folder holds nothing else, and may be entered.
    """
    needed = dict.fromkeys((sys.base_prefix, sys.prefix, str(ROOT)))
    covered = {folder: above for folder in needed if (above := to_cover(Path(folder))) is not None}
    return "\n".join(
        [
            "set -e",
            "mount -t tmpfs -o mode=1777 tmpfs /mnt",
            *(f"mkdir /mnt/{i}; mount --bind {folder} /mnt/{i}" for i, folder in enumerate(covered)),
            *(f"mount -t tmpfs -o mode=1777 tmpfs {above}" for above in {"/tmp", *covered.values()}),
            *(f"mkdir -p {folder}; mount --bind /mnt/{i} {folder}" for i, folder in enumerate(covered)),
            "mount -o remount,bind,ro /",
            "export HOME=/mnt TMPDIR=/mnt; cd /mnt",
            f"! {NOBODY} touch /refused 2>/dev/null || exit 9",
            f"{NOBODY} {python} -m swarmd start --isolated --rounds 2 --home {HOME} >&2",
            f"{NOBODY} {python} -m swarmd status --json --home {HOME}",
            f"{NOBODY} {python} -m swarmd doctor --json --home {HOME}",
        ]
    )


def to_cover(folder: Path) -> str | None:
    """The topmost folder above that others may not enter, or /tmp, which is empty in a container."""
    above = reversed(folder.parents)
    return next((str(each) for each in above if str(each) == "/tmp" or not each.stat().st_mode & 1), None)


def test_a_node_trains_and_scores_behind_all_layers_as_a_user_without_rights() -> None:
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script(sys.executable)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    status, doctor = (json.loads(document) for document in split(done.stdout))
    assert (status["state"], status["round"]) == ("stopped", 2)
    assert {"rlimits", "no_new_privs", "seccomp"} <= set(status["sandbox"])
    (finding,) = (each for each in doctor["findings"] if each["name"] == "sandbox")
    assert all(layer in finding["text"] for layer in status["sandbox"])


def split(printed: str) -> tuple[str, str]:
    """The status is one line; what the doctor says has several."""
    first, _, rest = printed.partition("\n")
    return first, rest
