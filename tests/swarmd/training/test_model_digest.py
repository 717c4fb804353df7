import shutil

import pytest

from swarmd.errors import TrainingError
from swarmd.training.model_digest import model_digest


def test_files_that_are_no_weights_of_the_model_do_not_count(model_folder):
    before = model_digest(model_folder)
    shutil.copy(model_folder / "model.safetensors", model_folder / "consolidated.safetensors")
    (model_folder / "README.md").write_text("new")
    assert model_digest(model_folder) == before


def test_other_weights_and_other_lengths_are_other_models(model_folder):
    before = model_digest(model_folder)
    path = model_folder / "model.safetensors"
    data = path.read_bytes()
    digests = {before}
    for changed in (data[:-1] + bytes([data[-1] ^ 1]), data + b"\0"):
        path.write_bytes(changed)
        digests.add(model_digest(model_folder))
    assert len(digests) == 3


def test_a_folder_without_weights_is_one_line(tmp_path):
    with pytest.raises(TrainingError, match="there are no safetensors weights"):
        model_digest(tmp_path)
