"""The command ``lowc``: one file for each subcommand, which adds its arguments and runs."""

import argparse
import sys
from collections.abc import Sequence

from lowc.cli import bench, bisect, cache, compile, dump, explain, link, opt, reduce, run, view
from lowc.cli.versions import versions
from lowc.errors import LowcError

COMMANDS = (dump, explain, view, bench, bisect, reduce, opt, cache, compile, run, link)
REQUIRED = ("torch", "llvmlite", "numpy", "rich", "filelock", "platformdirs")
"""What pip installs with lowc, and ``pip install --no-deps`` does not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 after an error of the user's making, which is printed on at most a dozen lines."""
    parser = argparse.ArgumentParser(prog="lowc", description="The tensor compiler lowc: look inside, compile models to files.")
    parser.add_argument("--version", action="store_true", help="versions of lowc and of what it stands on")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    chosen = parser.parse_args(arguments)
    if chosen.version:
        print(versions())
        return 0
    if not hasattr(chosen, "run"):
        parser.print_help()
        return 2
    try:
        return chosen.run(chosen)
    except LowcError as error:
        lines = f"lowc: {error}".splitlines()
        print("\n".join(lines[:12]), file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in REQUIRED:
            raise
        print(f"lowc: this command needs {error.name}, which is not installed", file=sys.stderr)
        print("  try: pip install lowc, with what it depends on; lowc run and lowc link need numpy alone", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, a pager that was closed) wants no more.
        sys.stderr.close()
        return 0
