"""`swarmd` and `python -m swarmd`. Parses before anything heavy is imported."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

from swarmd.terminal import has_terminal

__all__ = ["main"]

_INTERRUPTED_EXIT_CODE = 130
_REMIND_SECONDS = 0.5


def main() -> None:
    """Run the command named in sys.argv and exit with its code."""
    interruption = _Interruption()
    # Before the first import that takes time: a signal then is an order to end, not a traceback.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # As nohup has it.
            signal.signal(number, interruption.on_signal)
    try:
        from swarmd.cli.app import run_command_line

        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED_EXIT_CODE
    finally:
        interruption.rest()
    if interruption.happened and _starts_a_node():
        # A node that is asked to stop has done what it was asked, whatever else an extension module that
        # was being imported made of it.
        code = 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # Nobody can read the rest any more.
            if stream is not None:
                stream.flush()
    # Taking the libraries apart takes seconds on a busy machine, and frees nothing that the kernel would not.
    # Nor does CPython get to end by SIGINT, as it does after an interrupt in the exec() of a string.
    os._exit(code)


class _Interruption:
    """Signals until a command has its own way with them."""

    happened = False
    _number: int = signal.SIGINT

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and _starts_a_node() and not has_terminal():
            return  # A service that is told to reload, and has not read its configuration yet.
        self.happened = True
        if _starts_a_node():
            # An extension module that is being imported may swallow what is raised here.
            self._number = number
            signal.signal(signal.SIGALRM, self._remind)
            signal.setitimer(signal.ITIMER_REAL, _REMIND_SECONDS, _REMIND_SECONDS)
        raise KeyboardInterrupt

    def rest(self) -> None:
        """Somebody has heard, or the command is over."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _remind(self, number: int, frame: FrameType | None) -> None:
        if signal.getsignal(self._number) == self.on_signal:
            raise KeyboardInterrupt
        self.rest()
        # By now the node has its own way with it.
        signal.raise_signal(self._number)


def _starts_a_node() -> bool:
    return "start" in sys.argv[1:2]


if __name__ == "__main__":
    main()
