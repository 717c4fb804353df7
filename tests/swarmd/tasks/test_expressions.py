import pytest
import reasoning_gym
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sympy.parsing.sympy_parser import parse_expr

from swarmd.tasks.expressions import MAX_CHARACTERS, read_algebra, read_arithmetic

X, C = sympy.symbols("x C")
SYMBOLS = {"x": X, "C": C}

NOT_ARITHMETIC = [
    "",
    "24 # 1 2 3 4",  # The scorers count the numbers that they find in the text.
    "0x18",
    "0b11000",
    "1_8 + 6",
    "1e1",
    "24j",
    "x",
    "sqrt(16)",
    "24 if 1 else 2",
    "(24, 1)",
    "2\n4",
    "'24'",
    "1 < 2",
    "7 // 2",
    "7 % 2",
    "2 ^ 3",
    "4!",
    "9**9**9",
    "(9**999)**999",
    "(" * 5000,
    "1+" * MAX_CHARACTERS + "1",
    "__import__('os').getpid()",
    "٣ + ٤",
]
NOT_ALGEBRA = [
    "x.diff(x)",
    "x.__class__",
    "Integral(x, x)",
    "Integral(x)",
    "diff(x)",
    "simplify(x)",
    "eval(x)",
    "lambda: x",
    "[x for x in x]",
    "exp(x)(x)",
    "exp(*x)",
    "exp(x, x)",
    "exp(evaluate=x)",
    "getattr(x)",
    "x[0]",
    "x if x else x",
    "x**10000",
    "xy",
    "f'{x}'",
    "(x := 1)",
]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2*3", 7),
        (" (5 - 1) / 3 ", sympy.Rational(4, 3)),
        ("-3**2", -9),
        ("2**-2", sympy.Rational(1, 4)),
        ("7.5*2", sympy.Float(15)),
        ("+4 - -4", 8),
    ],
)
def test_arithmetic_has_its_exact_value(text, value):
    assert read_arithmetic(text) == value


@pytest.mark.parametrize("text", NOT_ARITHMETIC)
def test_what_is_not_plain_arithmetic_is_refused(text):
    with pytest.raises(ValueError, match=r"not|range"):
        read_arithmetic(text)


@pytest.mark.parametrize("text", NOT_ALGEBRA)
def test_what_is_not_plain_algebra_is_refused(text):
    with pytest.raises(ValueError, match=r"not|range"):
        read_algebra(text, SYMBOLS)


@pytest.mark.parametrize(
    "text",
    [
        "x**2/2 + C",
        "exp(2*x)*sin(x) - cos(3*x)/4",
        "sqrt(x + 1)**3",
        "E**x + pi",
        "ln(x) + asin(x/2)",
        "-x/(1 + x)",
    ],
)
def test_algebra_is_what_sympy_makes_of_it(text):
    assert read_algebra(text, SYMBOLS) == parse_expr(text, local_dict=dict(SYMBOLS))


@given(st.text(max_size=60) | st.text("0123456789.+-*/() xCE", max_size=40))
def test_any_text_is_an_expression_or_a_value_error(text):
    for read in (read_arithmetic, lambda answer: read_algebra(answer, SYMBOLS)):
        try:
            value = read(text)
        except ValueError:
            continue
        assert isinstance(value, sympy.Expr)


@pytest.mark.parametrize(
    ("dataset", "least"),
    [
        ("countdown", 1.0),
        ("puzzle24", 1.0),
        ("polynomial_multiplication", 1.0),
        ("simple_integration", 1.0),
        # The rest hand back the integral that was asked for, which is not taken for an answer.
        ("intermediate_integration", 0.7),
    ],
)
def test_right_answers_of_the_datasets_are_in_the_grammar(dataset, least):
    import swarmd.tasks.reasoning_gym  # noqa: F401 - it puts the readers in place

    tasks = reasoning_gym.create_dataset(dataset, seed=3, size=20)
    scores = []
    for index in range(20):
        entry = tasks[index]
        answer = entry["answer"] if entry["answer"] is not None else entry["metadata"]["example_answer"]
        scores.append(tasks.score_answer(str(answer), entry))
    assert sum(scores) / len(scores) >= least
