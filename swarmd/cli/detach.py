"""`swarmd start --detach`: the node goes on in a session of its own, and the command returns once the
node answers, or with the node's own error if it does not come up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import typer

from swarmd.cli.failures import report_failure
from swarmd.errors import SwarmdError
from swarmd.paths import Home

__all__ = ["detach"]

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 120.0


def detach(home: Home, run: Callable[[], int], patience_seconds: float = _PATIENCE_SECONDS) -> int:
    """Run `run` in a background process; return the exit code of the starting command.

    The background process has no terminal. What it prints goes to logs/start.log, made anew at each
    start; the node's own log is rotated as ever. Call before any thread is started.
    """
    output = home.logs / "start.log"
    # Left by a killed run: it would look like an answer.
    home.control_socket.unlink(missing_ok=True)
    process_id = os.fork()
    if process_id == 0:
        _become_background(output, run)
    deadline = time.monotonic() + patience_seconds
    while not home.control_socket.exists():
        ended, status = os.waitpid(process_id, os.WNOHANG)
        if ended:
            return _report_early_end(os.waitstatus_to_exitcode(status), output)
        if time.monotonic() > deadline:
            raise SwarmdError(
                f"the node (process id {process_id}) does not answer after {patience_seconds:g} s: "
                f"see `swarmd logs --home {home.folder}`"
            )
        time.sleep(_POLL_SECONDS)
    typer.echo(f"node runs with process id {process_id}; stop it with `swarmd stop --home {home.folder}`")
    return 0


def _become_background(output: Path, run: Callable[[], int]) -> None:
    """In the forked process: leave the terminal, run the node, end the process."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)
    code = 1
    try:
        code = run()
    except SwarmdError as error:
        code = report_failure(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = 0
    finally:
        # Not sys.exit: the frames below belong to the command that was started.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report_early_end(code: int, output: Path) -> int:
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("swarmd: ") if lines else "the node ended without a word"
    return report_failure(last, code if code >= 0 else 1) if code else 0
