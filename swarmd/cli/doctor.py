"""`swarmd doctor`: what this machine offers a node, and what to do about what it lacks. Nothing is
downloaded, no library that takes seconds is imported, and the home is left as it was.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import typer

from swarmd.cli.columns import printable
from swarmd.cli.examination import examine
from swarmd.cli.findings import Finding
from swarmd.cli.options import ConfigOption, HomeOption, JsonOption, SetOption, chosen_home

__all__ = ["doctor"]

_MARKS: dict[Literal["ok", "warning", "error"], str] = {
    "ok": "ok     ",
    "warning": "warning",
    "error": "ERROR  ",
}


def doctor(
    home: HomeOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether a node could start here, and say what to do. Exit code 1 when it could not."""
    findings = examine(chosen_home(home), config, settings or ())
    can_start = not any(finding.level == "error" for finding in findings)
    if as_json:
        document = {"can_start": can_start, "findings": findings}
        typer.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        for finding in findings:
            typer.echo(describe(finding))
        typer.echo("a node can start here" if can_start else "a node cannot start here")
    raise typer.Exit(0 if can_start else 1)


def describe(finding: Finding) -> str:
    """One line: how it stands, what was found, and the remedy."""
    line = f"{_MARKS[finding.level]}  {finding.name}: {finding.text}"
    return printable(f"{line}; {finding.remedy}" if finding.remedy else line)
