import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.tasks.toml_writer import write_toml

# TOML text is Unicode without surrogates.
_texts = st.text(st.characters(exclude_categories=["Cs"]))
_leaves = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | _texts
_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_texts, _values, max_size=5))
def test_what_is_written_reads_back_the_same(tables):
    assert tomllib.loads(write_toml(tables)) == tables


def test_tables_and_arrays_of_tables_get_headers():
    text = write_toml(
        {"prompt": {"style": "plain"}, "name": "x", "tasks": [{"dataset": "a"}, {"dataset": "b"}]}
    )
    assert text == (
        'name = "x"\n\n[prompt]\nstyle = "plain"\n\n[[tasks]]\ndataset = "a"\n\n[[tasks]]\ndataset = "b"\n'
    )


def test_a_value_without_a_toml_form_is_refused():
    with pytest.raises(TypeError, match="NoneType"):
        write_toml({"a": None})


def test_no_character_that_a_terminal_would_obey_is_written():
    text = "\x1b[31m \x9b31m \u202e \x7f \U000e0001 é 語"
    written = write_toml({"a": text, text: 1})
    assert written.replace("\n", "").isprintable()
    assert tomllib.loads(written) == {"a": text, text: 1}
