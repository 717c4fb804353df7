import pytest
import torch

from swarmd.errors import WeightChannelError
from swarmd.weights.layout import ALIGNMENT_BYTES, plan_layout


def test_tensors_are_aligned_and_do_not_overlap():
    layout = plan_layout(
        {"a": torch.zeros(3), "b": torch.zeros(100, dtype=torch.bfloat16), "c": torch.zeros(1)}
    )
    end = 0
    for place in layout.places:
        assert place.offset_bytes % ALIGNMENT_BYTES == 0
        assert place.offset_bytes >= end
        end = place.offset_bytes + place.size_bytes
    assert layout.slot_bytes >= end
    assert [place.size_bytes for place in layout.places] == [12, 200, 4]


def test_tied_tensors_are_stored_once():
    embedding = torch.zeros(10, 4)
    layout = plan_layout({"embed": embedding, "other": torch.zeros(2), "head": embedding})
    assert [place.name for place in layout.places] == ["embed", "other"]
    assert layout.aliases == {"head": "embed"}


def test_views_of_one_storage_that_differ_are_both_stored():
    storage = torch.zeros(10)
    layout = plan_layout({"front": storage[:5], "back": storage[5:], "all": storage})
    assert layout.aliases == {}
    assert len(layout.places) == 3


def test_empty_tensors_are_not_taken_for_one_another():
    assert plan_layout({"a": torch.zeros(0), "b": torch.zeros(0)}).aliases == {}


def test_nothing_to_publish_is_refused():
    with pytest.raises(WeightChannelError, match="no weights"):
        plan_layout({})


def test_element_type_that_cannot_be_stored_is_named():
    with pytest.raises(WeightChannelError, match="w has element type complex64"):
        plan_layout({"w": torch.zeros(1, dtype=torch.complex64)})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": torch.zeros(3)}, "other tensors.*b"),
        ({"a": torch.zeros(3), "b": torch.zeros(2), "c": torch.zeros(1)}, "other tensors.*c"),
        ({"a": torch.zeros(4), "b": torch.zeros(2)}, r"a is float32\[4\], expected float32\[3\]"),
        ({"a": torch.zeros(3), "b": torch.zeros(2).half()}, "b is float16"),
    ],
)
def test_other_tensors_than_planned_are_refused(changed, message):
    layout = plan_layout({"a": torch.zeros(3), "b": torch.zeros(2)})
    with pytest.raises(WeightChannelError, match=message):
        layout.check(changed)


def test_tensors_that_are_no_longer_tied_are_refused():
    embedding = torch.zeros(4)
    layout = plan_layout({"embed": embedding, "head": embedding})
    layout.check({"embed": embedding, "head": embedding})
    with pytest.raises(WeightChannelError, match="head no longer shares"):
        layout.check({"embed": embedding, "head": embedding.clone()})
