import json
import shutil
from pathlib import Path

import pytest
from tokenizers import processors

import swarmd.models
from swarmd.errors import SwarmdError
from swarmd.models.tokenization import (
    decode_completion,
    encode_completion,
    encode_prompt,
    end_token_id,
    fingerprint,
    load_tokenizer,
)
from swarmd.types import FinishReason, Prompt

TINY = Path(swarmd.models.__file__).parent / "tiny"

CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def tokenizer():
    return load_tokenizer(TINY)


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def test_plain_prompt_is_tokenized_as_it_stands(tokenizer):
    text = "<question>1 + 1<answer>"
    assert encode_prompt(tokenizer, Prompt(style="plain", text=text)) == tokenizer.encode(text)
    assert decode_completion(tokenizer, encode_prompt(tokenizer, Prompt(style="plain", text=text))) == text


def test_plain_prompt_starts_with_the_begin_token_where_the_tokenizer_puts_one(tokenizer):
    begin = tokenizer.eos_token_id
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<end> $A", special_tokens=[("<end>", begin)]
    )
    token_ids = encode_prompt(tokenizer, Prompt(style="plain", text="1"))
    assert token_ids == [begin, *tokenizer.encode("1", add_special_tokens=False)]


def test_chat_prompt_goes_through_the_template_with_the_generation_prompt(tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE
    token_ids = encode_prompt(tokenizer, Prompt(style="chat", text="Hi", system="Be brief"))
    assert decode_completion(tokenizer, token_ids) == "[system]Be brief[user]Hi[assistant]"
    token_ids = encode_prompt(tokenizer, Prompt(style="chat", text="Hi"))
    assert decode_completion(tokenizer, token_ids) == "[user]Hi[assistant]"


def test_chat_prompt_without_a_template_names_the_cure(tokenizer):
    with pytest.raises(SwarmdError, match="use style plain"):
        encode_prompt(tokenizer, Prompt(style="chat", text="Hi"))


@pytest.mark.parametrize("prompt", [Prompt(style="plain", text=""), Prompt(style="poem", text="Hi")])
def test_prompt_that_is_no_prompt_is_refused(tokenizer, prompt):
    with pytest.raises(SwarmdError):
        encode_prompt(tokenizer, prompt)


def test_stopped_completion_gets_the_end_token_and_a_cut_one_does_not(tokenizer):
    cut = encode_completion(tokenizer, "42", FinishReason.LENGTH)
    stopped = encode_completion(tokenizer, "42", FinishReason.STOP)
    assert end_token_id(tokenizer) not in cut
    assert stopped == [*cut, end_token_id(tokenizer)]


def test_end_token_spelled_out_by_a_peer_is_ordinary_text(tokenizer):
    token_ids = encode_completion(tokenizer, "4<end>2", FinishReason.LENGTH)
    assert end_token_id(tokenizer) not in token_ids
    assert decode_completion(tokenizer, token_ids) == "4<end>2"


def test_encoding_a_peers_text_does_not_change_how_prompts_are_encoded(tokenizer):
    prompt = Prompt(style="plain", text="<end>1")
    before = encode_prompt(tokenizer, prompt)
    encode_completion(tokenizer, "<end>", FinishReason.STOP)
    assert encode_prompt(tokenizer, prompt) == before


@pytest.mark.parametrize("text", ["", " a  b ", "x , y .", "日本\n\n☃ 12.5", "\x00\t"])
def test_completion_text_survives_encoding_and_decoding_unchanged(tokenizer, text):
    assert decode_completion(tokenizer, encode_completion(tokenizer, text, FinishReason.STOP)) == text


def test_fingerprint_is_the_same_for_a_copy_and_after_use(tokenizer, folder):
    before = fingerprint(tokenizer)
    tokenizer.encode("text", truncation=True, max_length=3)
    encode_completion(tokenizer, "text", FinishReason.STOP)
    assert fingerprint(tokenizer) == before == fingerprint(load_tokenizer(folder))


def test_fingerprint_changes_with_whatever_changes_tokens_or_the_end_token(tokenizer, folder):
    path = folder / "tokenizer.json"
    original = json.loads(path.read_text())

    def fingerprint_after(change) -> str:
        changed = json.loads(json.dumps(original))
        change(changed)
        path.write_text(json.dumps(changed))
        return fingerprint(load_tokenizer(folder))

    def swap_two_tokens(serialised):
        vocabulary = serialised["model"]["vocab"]
        first, second = list(vocabulary)[20:22]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    def drop_a_merge(serialised):
        serialised["model"]["merges"].pop()

    def normalise(serialised):
        serialised["normalizer"] = {"type": "Lowercase"}

    prints = {fingerprint_after(change) for change in (dict, swap_two_tokens, drop_a_merge)}
    # transformers replaces parts of the file by what the model's own class says; a plain one does not.
    _use_plain_class(folder)
    prints.add(fingerprint_after(normalise))
    tokenizer.eos_token = "<answer>"
    assert len(prints | {fingerprint(tokenizer)}) == 5


def test_folder_without_a_tokenizer_is_one_clear_line(tmp_path):
    with pytest.raises(SwarmdError, match="cannot read the tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_corrupt_tokenizer_file_is_one_clear_line(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(SwarmdError, match="cannot read the tokenizer") as caught:
        load_tokenizer(folder)
    assert "\n" not in str(caught.value)


def test_tokenizer_without_an_end_token_is_refused(folder):
    _use_plain_class(folder, eos_token=None)
    with pytest.raises(SwarmdError, match="eos_token"):
        load_tokenizer(folder)


def _use_plain_class(folder, **options):
    (folder / "config.json").unlink()
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | options
    path.write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))
