"""`swarmd` and `python -m swarmd`. Parses before anything heavy is imported."""

from __future__ import annotations

import sys

from swarmd.cli.app import run_command_line

__all__ = ["main"]


def main() -> None:
    """Run the command named in sys.argv and exit with its code."""
    sys.exit(run_command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
