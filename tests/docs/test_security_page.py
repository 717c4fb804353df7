"""Each claim of the security page names tests, and each test it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
# A table of claims begins with this line.
CLAIMS = "| Claim | Shown by |"


def page() -> str:
    return (ROOT / "docs" / "security.md").read_text()


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


def claims() -> list[str]:
    rows: list[str] = []
    in_claims = False
    for line in page().splitlines():
        in_claims = line.startswith("|") and (in_claims or line == CLAIMS)
        if in_claims and line != CLAIMS and not line.startswith("|---"):
            rows.append(line)
    return rows


def test_every_test_named_on_the_page_exists() -> None:
    named = NAMED.findall(page())
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(path)]
    assert named
    assert not missing


def test_every_claim_names_a_test() -> None:
    assert claims()
    assert not [row for row in claims() if not NAMED.search(row.split("|")[2])]
