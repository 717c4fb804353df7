"""Downloading models, against a hub of our own on the loopback address."""

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub
from huggingface_hub import constants
from random_models import make_model_folder, weight_files

from swarmd.errors import ConfigError, HubError, ModelNotFoundError, SwarmdError
from swarmd.models import hub
from swarmd.models.folder_check import check_folder
from swarmd.models.resolve import resolve

NAME = "Somebody/Model"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "single": make_model_folder(root / "single"),
        "sharded": make_model_folder(root / "sharded", kind="llama", tied=False, shards=3, pad=False),
    }


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]) -> Iterator[FakeHub]:
    with FakeHub().running() as fake:
        fake.add(NAME, folders["single"])
        point_at(fake.url, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield fake


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does in a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def quiet(name: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def refused(error: type[SwarmdError], said: str, name: str = NAME) -> None:
    """Fetching fails in one line and quickly, and nothing counts as here."""
    began = time.monotonic()
    with pytest.raises(error, match=said) as caught:
        resolve(name, quiet)
    assert time.monotonic() - began < 30
    assert "\n" not in str(caught.value)
    assert hub.cached_folder(name) is None


def test_a_model_is_fetched_whole_and_then_used_without_the_hub(
    served: FakeHub, folders: dict[str, Path]
) -> None:
    told: list[tuple[int, int]] = []
    found = resolve(NAME, lambda name, done, total: told.append((done, total)))
    size = (folders["single"] / "model.safetensors").stat().st_size
    assert told[-1] == (size, size)
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == {
        path.name: path.read_bytes() for path in folders["single"].iterdir()
    }
    check_folder(found.path)
    served.asked.clear()
    assert resolve(NAME, quiet) == found == resolve(NAME)
    assert served.asked == []


def test_offline_a_model_on_disk_is_used_and_another_is_one_line(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = resolve(NAME, quiet)
    served.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve(NAME, quiet) == found
    refused(HubError, "HF_HUB_OFFLINE is set", "Somebody/Other")
    assert served.asked == []


def test_all_shards_of_a_model_are_fetched(served: FakeHub, folders: dict[str, Path]) -> None:
    served.add(NAME, folders["sharded"])
    found = resolve(NAME, quiet)
    assert len(weight_files(found.path)) > 2
    assert all((found.path / name).is_file() for name in weight_files(found.path))


def test_only_what_a_model_needs_is_fetched(served: FakeHub) -> None:
    served.repositories[NAME] |= {
        "pytorch_model.bin": b"pickle",
        "modeling_evil.py": b"import os",
        "consolidated.safetensors": b"twice",
        "original/params.json": b"{}",
        "onnx/model.safetensors": b"other",
    }
    found = resolve(NAME, quiet)
    assert not {"pytorch_model.bin", "modeling_evil.py", "consolidated.safetensors", "original", "onnx"} & {
        path.name for path in found.path.iterdir()
    }


def test_a_short_break_is_bridged(served: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    served.drop_after, served.drops = 20_000, 2
    check_folder(resolve(NAME, quiet).path)
    assert len([asked for asked in served.asked if asked[2].startswith("bytes=")]) == 2


def test_a_broken_download_goes_on_where_it_was(served: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    served.drop_after = 0
    refused(HubError, "cannot be reached")
    # So much of it had come before the connection died for good.
    weights = served.repositories[NAME]["model.safetensors"]
    (part,) = Path(constants.HF_HUB_CACHE).glob("*/blobs/*.part")
    part.write_bytes(weights[:50_000])
    served.drop_after = None
    served.asked.clear()
    found = resolve(NAME, quiet)
    assert (found.path / "model.safetensors").read_bytes() == weights
    assert ("GET", f"/{NAME}/resolve/{COMMIT}/model.safetensors", "bytes=50000-") in served.asked
    assert list(Path(constants.HF_HUB_CACHE).glob("*/blobs/*.part")) == []


def test_a_file_that_arrives_damaged_is_not_kept(served: FakeHub) -> None:
    served.damaged = True
    refused(HubError, r"model\.safetensors of hub model Somebody/Model came damaged")
    assert list(Path(constants.HF_HUB_CACHE).glob("*/blobs/*.part")) == []
    served.damaged = False
    check_folder(resolve(NAME, quiet).path)


def test_a_file_damaged_on_disk_is_found_and_fetched_anew(served: FakeHub) -> None:
    found = resolve(NAME, quiet)
    assert hub.drop_damaged(found.path) == ()
    blob = (found.path / "model.safetensors").resolve()
    original = blob.read_bytes()
    blob.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    assert hub.drop_damaged(found.path) == ("model.safetensors",)
    assert hub.cached_folder(NAME) is None
    assert (resolve(NAME, quiet).path / "model.safetensors").read_bytes() == original


@pytest.mark.parametrize(
    ("refusal", "error", "said"),
    [
        ((403, "GatedRepo"), HubError, "is gated: accept its terms on the hub and log in"),
        ((401, "GatedRepo"), HubError, "is gated"),
        ((403, ""), HubError, "does not give hub model Somebody/Model to this account"),
        ((401, "RepoNotFound"), ModelNotFoundError, "no model Somebody/Model on the hub, or it is private"),
        ((404, "RepoNotFound"), ModelNotFoundError, "no model Somebody/Model on the hub"),
        ((503, ""), HubError, r"fails for model Somebody/Model \(HTTP status 503\).*HF_ENDPOINT"),
    ],
)
def test_a_hub_that_refuses_is_one_line_and_one_question(
    served: FakeHub, refusal: tuple[int, str], error: type[SwarmdError], said: str
) -> None:
    served.refusal = refusal
    refused(error, said)
    assert len(served.asked) == 1


def test_a_hub_that_is_silent_or_away_is_given_up_in_seconds(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.silent = True
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.5)
    refused(HubError, "cannot be reached")
    assert len(served.asked) == 1
    for endpoint in ("http://127.0.0.1:9", "http://no.such.invalid"):
        point_at(endpoint, monkeypatch)
        refused(HubError, "fetch it on another machine")


def test_a_repository_with_pickles_only_is_refused_before_anything_large_is_fetched(served: FakeHub) -> None:
    files = served.repositories[NAME]
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    refused(ModelNotFoundError, "has no safetensors weights .there are pickled ones")
    assert not any("pytorch_model" in path for _, path, _ in served.asked)


@pytest.mark.parametrize("name", ["../../evil.safetensors", "/tmp/evil.safetensors", "a/b.safetensors"])
def test_an_index_that_leads_out_of_the_model_is_refused(
    served: FakeHub, folders: dict[str, Path], name: str
) -> None:
    served.add(NAME, folders["sharded"])
    index = json.loads(served.repositories[NAME]["model.safetensors.index.json"])
    index["weight_map"]["lm_head.weight"] = name
    served.repositories[NAME]["model.safetensors.index.json"] = json.dumps(index).encode()
    served.repositories[NAME][name] = b"evil"
    refused(ConfigError, "which is none inside the model")
    assert not list(Path(constants.HF_HUB_CACHE).parent.rglob("evil*"))


def test_an_index_that_names_what_is_not_there_is_one_line(served: FakeHub, folders: dict[str, Path]) -> None:
    served.add(NAME, folders["sharded"])
    del served.repositories[NAME][weight_files(folders["sharded"])[0]]
    refused(ModelNotFoundError, "lacks model-00001-of-")


def test_a_hub_whose_hashes_are_paths_is_refused(served: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_hub.COMMIT", "../../../evil")
    refused(HubError, "what is no hash")


def test_without_room_on_the_disk_nothing_large_is_begun(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_SPARE_BYTES", 1 << 60)
    refused(HubError, "GB are free in .*hub: free some, or set HF_HOME")
    assert not any(path.endswith("model.safetensors") for _, path, _ in served.asked)


def test_a_disk_that_fills_meanwhile_is_one_line_and_gets_its_room_back(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(url: str, target: object, **_: object) -> None:
        if url.endswith("model.safetensors"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(url, target, **_)

    real = hub.http_get
    monkeypatch.setattr(hub, "http_get", fill)
    refused(HubError, "No space left on device.*set HF_HOME")
    assert list(Path(constants.HF_HUB_CACHE).glob("*/blobs/*.part")) == []


def test_a_cache_that_cannot_be_written_is_one_line(served: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("a file")
    with pytest.raises(HubError, match="cannot be written"):
        resolve(NAME, quiet)


def test_a_misspelt_name_is_refused_with_the_nearest_known_one(served: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean qwen2\.5-0\.5b"):
        resolve("Qwen/Qwen2.5-0.5", quiet)
