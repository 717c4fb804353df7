from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from swarmd.models.vocabulary import ANSWER_MARK, END_TOKEN, QUESTION_MARK, train_tokenizer

TEXTS = ["Which weekday is it? Thursday", "Input: 7 7 0\n1 2 3", "Give 5/35 of (P ∧ ¬Q)", ">+++[<+>-]<."] * 20


@pytest.fixture(scope="module")
def tokenizer() -> Qwen2Tokenizer:
    return train_tokenizer(TEXTS, vocabulary_size=400, context_tokens=512)


def test_text_comes_back_as_it_went_in(tokenizer: Qwen2Tokenizer) -> None:
    for text in (*TEXTS, "é ∨\x00 unseen  words\n\n", " leading", "trailing \n"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_cell_of_a_grid_is_one_token(tokenizer: Qwen2Tokenizer) -> None:
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode("7 0 1\n2", add_special_tokens=False)]
    assert tokens == ["7", " 0", " 1", "\n", "2"]


def test_digits_never_share_a_token(tokenizer: Qwen2Tokenizer) -> None:
    assert len(tokenizer.encode("20250", add_special_tokens=False)) == 5


def test_prompt_marks_are_one_ordinary_token_each(tokenizer: Qwen2Tokenizer) -> None:
    tokens = tokenizer.encode(f"{QUESTION_MARK}7{ANSWER_MARK}", add_special_tokens=False)
    assert len(tokens) == 3
    assert tokenizer.decode(tokens, skip_special_tokens=True) == f"{QUESTION_MARK}7{ANSWER_MARK}"


def test_only_the_end_token_is_special(tokenizer: Qwen2Tokenizer) -> None:
    assert tokenizer.all_special_tokens == [END_TOKEN]
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""


def test_the_vocabulary_is_no_larger_than_asked(tokenizer: Qwen2Tokenizer) -> None:
    assert max(tokenizer.get_vocab().values()) < 400


def test_same_texts_give_the_same_tokenizer(tokenizer: Qwen2Tokenizer) -> None:
    again = train_tokenizer(TEXTS, vocabulary_size=400, context_tokens=512)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_a_saved_tokenizer_is_loaded_the_same_for_a_qwen2_model(
    tokenizer: Qwen2Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    for text in TEXTS:
        assert loaded.encode(text) == tokenizer.encode(text)
