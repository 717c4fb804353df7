"""A model whose chat template does nothing but burn time, on a real node. Jinja's sandbox does not stop it:
the deadline of the process that renders it does.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.models.resolve import resolve
from swarmd.tasks.manifest import Manifest

pytestmark = pytest.mark.timeout(900)

BOMB = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_never_ends_ends_the_node_with_one_line_that_names_the_generator(
    make_node: Callable[..., Any], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(resolve("tiny").path, tmp_path / "model"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": BOMB}))
    tiny = Manifest.load("tiny")
    manifest = tmp_path / "chat.toml"
    prompt = msgspec.structs.replace(tiny.prompt, style="chat")
    manifest.write_text(msgspec.structs.replace(tiny, prompt=prompt).to_toml())
    node = make_node(
        "bombed",
        *("--isolated", "--swarm", str(manifest)),
        *("--set", "generation.timeout_seconds=2", "--set", "schedule.eval_every_rounds=0"),
        *("--set", "workers.max_fast_failures=2", "--set", "workers.restart_min_seconds=0.1"),
        model=str(model),
    ).start()
    assert node.process.wait(500) == 1
    last = node.printed().strip().splitlines()[-1]
    assert last.startswith("swarmd: generator worker failed 2 times")
    assert "did not answer sample within 2 s" in last
    assert "Traceback" not in node.printed()
