import dataclasses
import json
import os
import subprocess
import sys

import pytest
from reasoning_gym.factory import DATASETS

from swarmd.errors import ConfigError
from swarmd.tasks.datasets import FILE_KEYS, UNREPRODUCIBLE, check_dataset, dataset_keys, nearest
from swarmd.tasks.manifest import Manifest

NINE = sorted(Manifest.load("sapo-nine").task_digests)
HASH_DEPENDENT = sorted(name for name, why in UNREPRODUCIBLE.items() if "hash seed" in why)

_PRINT_QUESTIONS = """
import contextlib, io, json, sys
import reasoning_gym
with contextlib.redirect_stdout(io.StringIO()):
    questions = {
        name: [reasoning_gym.create_dataset(name, seed=2**40, size=size)[2]["question"] for size in (3, 4)]
        for name in sys.argv[1:]
    }
print(json.dumps(questions))
"""


_OPEN_WHAT_IS_NAMED = """
import contextlib, dataclasses, io, json, sys
import reasoning_gym
from reasoning_gym.factory import DATASETS

NAME, now, found = "../swarmdcanary", None, set()

def hook(event, arguments):
    watched = now is not None and event in ("open", "import", "exec", "compile")
    if watched and "swarmdcanary" in str(arguments):
        found.add(now)

sys.addaudithook(hook)
for name, (_, config) in DATASETS.items():
    for field in dataclasses.fields(config):
        if field.name in ("seed", "size") or not field.init:
            continue
        for value in (NAME, [NAME], {NAME: 1.0}):
            if "str" not in str(field.type):
                break
            now = (name, field.name)
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                reasoning_gym.create_dataset(name, seed=1, size=1, **{field.name: value})[0]
            now = None
print(json.dumps(sorted(found)))
"""


@pytest.fixture(scope="module")
def questions_by_hash_seed():
    """For two hash seeds: dataset -> the question of index 2 in a dataset of size 3 and in one of size 4."""
    command = [sys.executable, "-c", _PRINT_QUESTIONS, *NINE, *HASH_DEPENDENT]
    processes = [
        subprocess.Popen(
            command, env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    return [json.loads(process.communicate()[0]) for process in processes]


def test_table_agrees_with_the_installed_library():
    from_library = {
        name: tuple(
            sorted(f.name for f in dataclasses.fields(config) if f.init and f.name not in ("seed", "size"))
        )
        for name, (_, config) in DATASETS.items()
    }
    assert dict(dataset_keys()) == from_library


@pytest.mark.parametrize("name", NINE)
def test_question_of_the_nine_is_the_same_under_another_hash_seed_and_size(name, questions_by_hash_seed):
    one, other = (questions[name] for questions in questions_by_hash_seed)
    assert one == other
    assert one[0] == one[1]


@pytest.mark.parametrize("name", HASH_DEPENDENT)
def test_dataset_marked_as_hash_dependent_really_differs_between_processes(name, questions_by_hash_seed):
    one, other = (questions[name] for questions in questions_by_hash_seed)
    assert one != other


def test_unreproducible_dataset_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"here\.dataset: ransom_note cannot be regenerated .* hash seed"):
        check_dataset("here", "ransom_note", {})


def test_nearest_word_is_suggested_only_when_there_is_one():
    assert nearest("basic_arithmetc", dataset_keys()) == " (did you mean 'basic_arithmetic'?)"
    assert nearest("zzzzzz", dataset_keys()) == ""


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "..", "a/b", "a\\b", ".hidden", "", 7, ["x"]]
)
def test_file_of_a_manifest_never_leaves_the_folder(name):
    with pytest.raises(ConfigError, match=r"here\.config\.data_file: must be the name of one"):
        check_dataset("here", "spell_backward", {"data_file": name})


def test_file_of_the_library_is_taken():
    check_dataset("here", "spell_backward", {"data_file": "words3to10.txt"})


def test_every_key_by_which_a_dataset_reads_a_file_is_known():
    """Its value is put in place of each text that a configuration takes, and files opened are watched."""
    done = subprocess.run(
        [sys.executable, "-c", _OPEN_WHAT_IS_NAMED], capture_output=True, text=True, check=True, timeout=240
    )
    assert {tuple(pair) for pair in json.loads(done.stdout)} == FILE_KEYS
