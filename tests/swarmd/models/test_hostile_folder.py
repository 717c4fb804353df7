"""Model folders made by somebody who wants to run code, or read files, where they are loaded."""

import json
import pickle
import shutil
import struct
from pathlib import Path

import pytest
import torch

from swarmd.errors import ConfigError, ModelError, SwarmdError
from swarmd.generation.model import load_model
from swarmd.models.folder_check import check_folder, missing_part
from swarmd.models.resolve import MANIFEST_KEY, resolve
from swarmd.models.shape import read_shape
from swarmd.models.tokenization import encode_prompt, load_tokenizer
from swarmd.tasks.manifest import Manifest
from swarmd.types import Prompt

TINY = resolve("tiny").path
CHAT = Prompt("chat", "1 + 1 = ?")


class RunsWhenUnpickled:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.fixture
def mark(tmp_path):
    """A file that hostile code would make."""
    return tmp_path / "mark"


@pytest.fixture
def folder(tmp_path):
    """A copy of a good model, to be made a bad one."""
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def load_weights(folder):
    return load_model(str(folder), torch.float32)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "training_args.bin"])
def test_pickled_weights_are_never_opened(folder, mark, name):
    (folder / name).write_bytes(pickle.dumps(RunsWhenUnpickled(mark)))
    load_tokenizer(folder)
    check_folder(folder)
    (folder / "model.safetensors").unlink()
    assert "safetensors weights" in missing_part(folder)
    with pytest.raises(SwarmdError):
        resolve(str(folder))
    assert not mark.exists()


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_that_comes_with_a_folder_is_not_run(folder, mark, where):
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Evil: pass\n")
    names = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", None],
    }
    change(folder / where, auto_map=names, tokenizer_class="Evil")
    for load in (load_tokenizer, load_weights):
        try:
            load(folder)
        except SwarmdError:
            continue
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/etc/passwd", "a/../../b.safetensors", "..", "x.bin", "..\\b.safetensors"],
)
def test_index_that_names_a_file_outside_the_folder_is_refused(folder, name):
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SwarmdError, match="none inside the model"):
        check_folder(folder)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('touch MARK').read() }}",
        "{{ lipsum.__globals__['os'].system('touch MARK') }}",
        "{{ self.__init__.__globals__ }}",
        "{% include 'MARK' %}",
        "{% import 'os' as os %}",
        "{{ ('{0.__class__.__init__.__globals__}').format(cycler) }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('MARK', 'w') }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_chat_template_runs_in_a_sandbox(folder, mark, template):
    change(folder / "tokenizer_config.json", chat_template=template.replace("MARK", str(mark)))
    tokenizer = load_tokenizer(folder)
    with pytest.raises(SwarmdError, match="chat template"):
        encode_prompt(tokenizer, CHAT)
    assert not mark.exists()


def test_tokenizer_that_names_a_file_elsewhere_is_refused_or_reads_nothing(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    change(folder / "tokenizer_config.json", tokenizer_file=str(secret), vocab_file=str(secret))
    try:
        tokenizer = load_tokenizer(folder)
    except ModelError:
        return
    assert tokenizer.encode("1 + 1") == load_tokenizer(TINY).encode("1 + 1")


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("nest", [lambda value: value, lambda value: {"text_config": value}])
def test_kernel_that_a_configuration_wants_from_the_hub_is_refused(folder, key, nest):
    change(folder / "config.json", **nest({key: "somebody/kernel"}))
    with pytest.raises(ConfigError, match="code from elsewhere"):
        check_folder(folder)


@pytest.mark.parametrize("hint", ["/etc/hostname", "../swarm.toml", "swarm.toml", "\x1b[31m"])
def test_manifest_that_a_model_names_is_a_built_in_one_and_no_file(folder, tmp_path, monkeypatch, hint):
    (tmp_path / "swarm.toml").write_text(Manifest.load("tiny").to_toml())
    monkeypatch.chdir(tmp_path)
    change(folder / "config.json", **{MANIFEST_KEY: hint})
    with pytest.raises(ConfigError, match="no built-in manifest"):
        Manifest.chosen(None, resolve(str(folder)).manifest_hint)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"hidden_size": ' + "9" * 5_000 + "}",
        '{"a": 1e999, "b": "\x1b"}',
        "[1]",
    ],
    ids=["arrays", "objects", "digits", "control", "no object"],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_json_that_is_a_bomb_is_one_line(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(SwarmdError):
        check_folder(resolve(str(folder)).path)


def test_json_of_any_size_is_not_read(folder):
    with (folder / "tokenizer.json").open("w") as file:
        file.truncate(10**12)
    with pytest.raises(SwarmdError, match="larger than"):
        check_folder(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [10**18] * 1000, "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, -8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [float("nan"), float("inf")]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0]},
        [],
    ],
)
def test_header_that_lies_about_its_tensors_is_refused(folder, entry):
    header = json.dumps({"a": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ConfigError, match="safetensors"):
        check_folder(folder)


@pytest.mark.parametrize("size", [10**4000, -1, 2**63, 1e308, "\x1b[31m", None, [1], True])
def test_sizes_that_no_model_has_are_none(folder, size):
    change(folder / "config.json", hidden_size=size, vocab_size=size, num_hidden_layers=size)
    assert read_shape(folder) is None


def test_link_of_a_folder_to_a_device_or_to_itself_is_no_model(folder):
    for target in ("/dev/zero", "config.json"):
        (folder / "config.json").unlink(missing_ok=True)
        (folder / "config.json").symlink_to(target)
        with pytest.raises(SwarmdError, match=r"no config\.json"):
            resolve(str(folder))
