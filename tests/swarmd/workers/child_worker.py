"""The worker that the tests start. Its methods do on demand what real workers do by misfortune."""

import os
import subprocess
import sys
import time

import msgspec

from swarmd.errors import CheckpointError, SwarmdError
from swarmd.workers.framing import Method
from swarmd.workers.process import handle, report_progress, serve, worker_argument_fd


class Text(msgspec.Struct, frozen=True):
    value: str


class Number(msgspec.Struct, frozen=True):
    value: float


ECHO = Method("echo", Text, Text)
SLEEP = Method("sleep", Number, Number)
REFUSE = Method("refuse", Text, Text)
REFUSE_FOR_GOOD = Method("refuse_for_good", Text, Text)
WORK = Method("work", Text, Text, is_work=True)
CRASH = Method("crash", Text, Text)
FORK = Method("fork", Text, Number)
EXIT_SLOWLY = Method("exit_slowly", Number, Number)
UNKNOWN = Method("unknown", Text, Text)


def sleep(request: Number) -> Number:
    time.sleep(request.value)
    return request


def refuse(request: Text) -> Text:
    raise SwarmdError(request.value)


def refuse_for_good(request: Text) -> Text:
    raise CheckpointError(request.value)


def crash(request: Text) -> Text:
    raise RuntimeError(request.value)


def fork(request: Text) -> Number:
    """Leaves a grandchild behind."""
    return Number(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)


def main() -> None:
    fd = worker_argument_fd()
    report_progress("warming up")
    if words := os.environ.get("CHILD_DIES_SAYING"):
        print("a line before", file=sys.stderr)
        print(words, file=sys.stderr)
        sys.exit(3)
    handlers = [
        handle(ECHO, lambda request: request),
        handle(WORK, lambda request: request),
        handle(SLEEP, sleep),
        handle(REFUSE, refuse),
        handle(REFUSE_FOR_GOOD, refuse_for_good),
        handle(CRASH, crash),
        handle(FORK, fork),
    ]
    serve(fd, handlers)
    print("served", flush=True)
    if seconds := os.environ.get("CHILD_LINGERS_SECONDS"):
        time.sleep(float(seconds))


if __name__ == "__main__":
    main()
