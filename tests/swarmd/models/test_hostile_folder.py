"""Model folders made by somebody who wants to run code, or read files, where they are loaded."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from swarmd.errors import ModelError, SwarmdError
from swarmd.generation.model import load_model
from swarmd.models.folder_check import check_folder, missing_part
from swarmd.models.resolve import resolve
from swarmd.models.tokenization import encode_prompt, load_tokenizer
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
