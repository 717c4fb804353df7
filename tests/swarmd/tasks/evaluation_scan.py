"""Run as a program: finds the datasets whose scorer runs an answer as code, or reads or starts what an answer
names. It looks at the library as it is installed, without swarmd's readers, through Python's audit events.
Prints {dataset: [event, ...]} as JSON.
"""

import contextlib
import io
import json
import sys
from collections import defaultdict

import reasoning_gym
from reasoning_gym.factory import DATASETS

WORD = "swarmdcanary"
FORMS = (
    "{}",
    "[{}]",
    "({}, 1)",
    "1 + {}",
    "{{{}}}",
    '{{"a": {}}}',
    "{}=1",
    "{},1",
    "1/{}",
    "{0}\n{0}",
    "0x{}",
)
OUTWARD = ("subprocess.", "os.", "socket.", "ctypes.", "pickle.", "shutil.", "urllib.", "pty.", "syslog.")

found = defaultdict(set)
scoring = None


def words(code):
    for constant in (*code.co_names, *code.co_varnames, *code.co_consts):
        if isinstance(constant, str):
            yield constant
        elif hasattr(constant, "co_names"):
            yield from words(constant)


def hook(event, arguments):
    if scoring is None:
        return
    if event == "exec":
        seen = any(WORD in word for word in words(arguments[0]))
    elif event in ("open", "import"):
        seen = WORD in str(arguments)
    else:
        seen = event.startswith(OUTWARD) and event not in ("os.listdir", "os.scandir")
    if seen:
        found[scoring].add(event)


def answers(right):
    yield from (form.format(WORD) for form in FORMS)
    # Some scorers look only at what resembles an answer.
    yield f"{right} {WORD}"
    yield right[:-1] + WORD + right[-1:]


def main():
    global scoring
    sys.addaudithook(hook)
    for name in sorted(set(DATASETS) - {"composite"}):  # It is made of the others.
        dataset = reasoning_gym.create_dataset(name, seed=5, size=1)
        entry = dataset[0]
        for answer in answers(str(entry["answer"])):
            scoring = name
            with contextlib.suppress(Exception):
                dataset.score_answer(answer, entry)
            scoring = None


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):
        main()
    print(json.dumps({name: sorted(events) for name, events in found.items()}))
