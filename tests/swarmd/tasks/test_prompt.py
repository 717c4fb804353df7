import pytest

from swarmd.tasks.manifest import Manifest
from swarmd.tasks.prompt import extract_answer, render


def test_plain_prompt_puts_the_question_between_the_marks():
    prompt = render("1 + 1 =", Manifest.load("tiny"))
    assert prompt.style == "plain"
    assert prompt.text == "<question>1 + 1 =<answer>"
    assert prompt.system is None


def test_chat_prompt_carries_the_system_text():
    manifest = Manifest.load("sapo-nine")
    prompt = render("1 + 1 =", manifest)
    assert prompt.style == "chat"
    assert prompt.text == "1 + 1 ="
    assert prompt.system == manifest.prompt.system
    assert "<answer>" in prompt.system


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("42", "42"),
        ("  42\n", "42"),
        ("I think <answer> 42 </answer> is right", "42"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer>1</answer> and </answer>", "1</answer> and"),
        ("<answer>42", "<answer>42"),
        ("42</answer>", "42</answer>"),
        ("</answer>42<answer>", "</answer>42<answer>"),
        ("<answer></answer>", ""),
        ("", ""),
    ],
)
def test_answer_stands_between_the_last_pair_or_is_all_of_it(completion, answer):
    assert extract_answer(completion) == answer


def test_answer_keeps_its_inner_lines():
    assert extract_answer("<answer>\n0 1\n1 0\n</answer>") == "0 1\n1 0"
