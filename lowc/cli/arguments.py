"""Arguments that several subcommands share."""

import argparse
from dataclasses import replace
from typing import Any

from lowc.options import ROWS, Options, parse
from lowc.target import Target


def add_function(parser: argparse.ArgumentParser) -> None:
    """FILE.py:FN, how to trace it, and compiler options."""
    parser.add_argument(
        "place", metavar="FILE.py:FN", help="function or module; inputs come from FN_inputs() or inputs()"
    )
    parser.add_argument("--inference", action="store_true", help="under no_grad: no backward graph")
    parser.add_argument("--dynamic", action="store_true", help="all sizes symbolic")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="NAME=VALUE",
        help="a compiler option: " + ", ".join(row.name for row in ROWS),
    )  # fmt: skip


def target(options: Options) -> Target:
    """The Target that ``options.isa`` asks for; "interp" has none, what is shown is then for this processor."""
    from lowc.backends import x86

    return x86.detect(replace(options, isa="auto") if options.isa == "interp" else options)


def options(chosen: argparse.Namespace) -> Options:
    """The options given by ``-o``; raises OptionError for names and values that are not known."""
    given: dict[str, Any] = {}
    defaults = {row.name: row.default for row in ROWS}
    for item in chosen.option:
        name, _, value = item.partition("=")
        on_off = isinstance(defaults.get(name), bool) and value.lower() in ("", "1", "true", "0", "false")
        given[name] = value.lower() in ("", "1", "true") if on_off else value
    return parse(None, given)
