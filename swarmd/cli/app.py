"""The command line as a whole. Only the module of the command that was asked for is imported, so
`swarmd --help` is quick. Every expected failure ends as one line on stderr and its exit code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer
from typer.exceptions import TyperException

import swarmd
from swarmd.cli.failures import report_failure
from swarmd.errors import SwarmdError

__all__ = ["COMMANDS", "Command", "build_app", "run_command_line"]

_USAGE_EXIT_CODE = 2
_INTERRUPTED_EXIT_CODE = 130


@dataclass(frozen=True)
class Command:
    """One command: where it lives, and its line in the help."""

    name: str
    module: str
    """Module under swarmd.cli. It has a typer `app` with subcommands, or a function of the command's name."""
    help: str
    panel: str


_RUNNING = "Running a node"
_WATCHING = "Watching it"
_TRYING = "Trying things out"
_PARTS = "Identity, config, swarms, models, tasks"

COMMANDS = (
    Command("start", "start", "Run a node in the foreground.", _RUNNING),
    Command("stop", "stop", "Stop a running node; it saves a checkpoint first.", _RUNNING),
    Command("checkpoint", "checkpoint", "Have a running node save a checkpoint now.", _RUNNING),
    Command("status", "status", "Show what a node does, or its last known state.", _WATCHING),
    Command("peers", "peers", "List the peers a node has heard from.", _WATCHING),
    Command("logs", "logs", "Print a node's log.", _WATCHING),
    Command("doctor", "doctor", "Check whether a node could start here, and say what to do.", _WATCHING),
    Command("simulate", "simulate", "Simulate swarms and compare ways of sharing.", _TRYING),
    Command("report", "report", "Compare the arms of simulated swarms in tables and plots.", _TRYING),
    Command("config", "config", "Show or check the configuration.", _PARTS),
    Command("identity", "identity", "Show or make a node's identity.", _PARTS),
    Command("swarm", "swarm", "Make, show and identify swarm manifests.", _PARTS),
    Command("model", "model", "List models; make the bundled ones.", _PARTS),
    Command("task", "task", "Show one task, or score a completion of it.", _PARTS),
)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command. Returns its exit code: 0 done, 1 failed, 2 wrong usage, 3 in use.

    Raises KeyboardInterrupt when the command was broken off.
    """
    given = list(arguments) or ["--help"]
    app = build_app(next((word for word in given if not word.startswith("-")), None))
    try:
        result = typer.main.get_command(app).main(args=given, prog_name="swarmd", standalone_mode=False)
    except SwarmdError as error:
        return report_failure(str(error), error.exit_code)
    except TyperException as error:
        return _wrong_usage(error)
    except BrokenPipeError:
        # The reader of a pipe has seen enough; there is nobody left to tell.
        sys.stdout = None
        return 0
    if result == _INTERRUPTED_EXIT_CODE:
        # What typer makes of Ctrl-C.
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def build_app(selected: str | None) -> typer.Typer:
    """The typer application with the selected command in full, the others by name and help only."""
    app = typer.Typer(
        name="swarmd",
        help="Run a node of a swarm that post-trains language models together.",
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ) -> None:
        """Run a node of a swarm that post-trains language models together."""

    for command in COMMANDS:
        if command.name == selected:
            _add_in_full(app, command)
        else:
            app.command(command.name, help=command.help, rich_help_panel=command.panel)(_stub())
    return app


def _add_in_full(app: typer.Typer, command: Command) -> None:
    module = importlib.import_module(f"swarmd.cli.{command.module}")
    sub_app = getattr(module, "app", None)
    if isinstance(sub_app, typer.Typer):
        app.add_typer(sub_app, name=command.name, help=command.help, rich_help_panel=command.panel)
    else:
        function: Callable[..., None] = getattr(module, command.name)
        app.command(command.name, rich_help_panel=command.panel)(function)


def _stub() -> Callable[[], None]:
    def stands_for_a_command() -> None:
        """Never run: a command that is called is added in full."""

    return stands_for_a_command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"swarmd {swarmd.__version__}")
        raise typer.Exit


def _wrong_usage(error: TyperException) -> int:
    message = error.format_message().strip()
    context = getattr(error, "ctx", None)
    if not message:
        # A group without a subcommand: typer has printed its help.
        return _USAGE_EXIT_CODE
    if context is not None:
        message += f" (see `{context.command_path} --help`)"
    return report_failure(message, _USAGE_EXIT_CODE)
