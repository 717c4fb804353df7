"""Completions that want to be run, or to cost more than they are worth: a dataset and a text each.

The scorers of these datasets evaluate what they score, or do arithmetic with it.
"""

CANARY = "swarmd-poisoned"
"""Part of the name of everything that a completion tries to make."""

_CODE = (
    f"__import__('os').system('touch /tmp/{CANARY}-file; sleep 600 # {CANARY}-process')"
    f" or open('/tmp/{CANARY}-open','w').write('x')"
)

POISON: dict[str, tuple[str, str]] = {
    "code": ("binary_matrix", _CODE),
    "code in a list": ("binary_matrix", f"[[{_CODE}]]"),
    "code by attribute": (
        "binary_matrix",
        "[c for c in ().__class__.__base__.__subclasses__() if c.__name__=='Popen'][0](['touch','/tmp/"
        f"{CANARY}-popen'])",
    ),
    "time": ("binary_matrix", "9**9**9**9"),
    "loop": ("binary_matrix", "[x for x in iter(int, 1)]"),
    "memory": ("binary_matrix", "'x'*(10**12)"),
    "memory slowly": ("binary_matrix", "[[0]*10**9 for _ in range(10**9)]"),
    "depth": ("binary_matrix", "[" * 1000),
    "exit": ("binary_matrix", "__import__('os')._exit(0)"),
    "kill": ("binary_matrix", "__import__('os').kill(__import__('os').getppid(), 9)"),
    "fraction": ("fraction_simplification", "9" * 1000 + "/" + "1" * 20),
    "arithmetic": ("basic_arithmetic", "9**9**9**9"),
}
