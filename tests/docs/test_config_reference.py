"""The documentation says what the code does: generated tables, flags, error lines."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from swarmd.cli.start import start
from swarmd.config_sources import known_keys

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_reference", DOCS / "config_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_has_a_row_with_a_meaning_for_every_key(hook: ModuleType) -> None:
    reference = hook.reference()
    for key in known_keys():
        section, field = key.split(".")
        table = reference.split(f"## {section}\n")[1].split("\n## ")[0]
        row = next(line for line in table.splitlines() if line.startswith(f"| `{field}` |"))
        assert row.split(" | ")[3].removesuffix(" |").endswith(".")


def test_reference_shows_bounds_choices_and_defaults(hook: ModuleType) -> None:
    reference = hook.reference()
    assert "| `peer_share` | number, > 0, ≤ 1 | `0.5` |" in reference
    assert "| `strict` | `true` or `false` | `true` |" in reference
    assert '| `engine` | `auto` or `vllm` or `transformers` | `"auto"` |' in reference
    assert '| `listen` | list of texts | `["/ip4/0.0.0.0/tcp/31337"]` |' in reference


def test_page_carries_the_mark_that_the_hook_fills(hook: ModuleType) -> None:
    page = (DOCS / "configuration.md").read_text()
    filled = hook.on_page_markdown(page)
    assert hook.MARK not in filled
    assert "## training" in filled
    assert hook.on_page_markdown("another page") == "another page"


def test_every_flag_of_start_is_documented() -> None:
    page = (DOCS / "running-a-node.md").read_text()
    documented = set(re.findall(r"^\| `(--[a-z-]+)", page, flags=re.MULTILINE))
    assert documented == flags_of_start()


def flags_of_start() -> set[str]:
    import typer

    app = typer.Typer()
    app.command()(start)
    command = typer.main.get_command(app)
    names = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    return names - {"--install-completion", "--show-completion"}
