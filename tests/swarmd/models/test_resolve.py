import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from swarmd.errors import ModelNotFoundError
from swarmd.models.resolve import cached_folder, resolve

HUB_ID = "Qwen/Qwen3-0.6B"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_model(folder: Path, weights: str = "model.safetensors", config: str = "{}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "tokenizer.json").write_text("{}")
    (folder / weights).write_bytes(b"")
    return folder


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub address where nothing answers."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return cache


def put_in_cache(cache: Path, hub_id: str) -> Path:
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return make_model(repository / "snapshots" / COMMIT)


def run_python(code: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_bundled_names_resolve_to_complete_folders() -> None:
    for name in ("tiny", "tiny-weak"):
        found = resolve(name)
        assert (found.name, found.manifest_hint) == (name, "tiny")
        assert resolve(str(found.path)).manifest_hint == "tiny"


def test_a_folder_resolves_to_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    found = resolve("mine")
    assert (found.path, found.name, found.manifest_hint) == (tmp_path / "mine", "mine", "sapo-nine")


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ModelNotFoundError, match=r"no model 'tyni': .*did you mean tiny\?") as caught:
        resolve("tyni")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_folder_with_pickled_weights_only_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, weights="pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match="no safetensors weights"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_an_incomplete_folder_is_refused_naming_what_is_missing(tmp_path: Path, missing: str) -> None:
    (make_model(tmp_path) / missing).unlink()
    with pytest.raises(ModelNotFoundError, match=f"it has no {missing}"):
        resolve(str(tmp_path))


def test_a_corrupt_configuration_is_one_line(tmp_path: Path) -> None:
    make_model(tmp_path, config="{")
    with pytest.raises(ModelNotFoundError, match=r"cannot read .*config\.json") as caught:
        resolve(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_hub_model_on_disk_is_used_without_the_network(hub_cache: Path) -> None:
    folder = put_in_cache(hub_cache, HUB_ID)
    assert cached_folder(HUB_ID) == folder
    for name in ("qwen3-0.6b", HUB_ID):
        found = resolve(name)
        assert (found.path, found.name, found.manifest_hint) == (folder, name, "sapo-nine")


def test_a_download_that_was_cut_short_does_not_count_as_on_disk(hub_cache: Path) -> None:
    (put_in_cache(hub_cache, HUB_ID) / "model.safetensors").unlink()
    assert cached_folder(HUB_ID) is None


def test_without_leave_to_download_a_missing_model_says_how_to_fetch_it(hub_cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=f"swarmd model fetch {HUB_ID}"):
        resolve(HUB_ID)


def test_resolving_a_bundled_model_imports_nothing_heavy() -> None:
    done = run_python(
        "import sys; from swarmd.models.resolve import resolve; resolve('tiny')\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n",
        {},
    )
    assert done.stdout.strip() == "[]"
