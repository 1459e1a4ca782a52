"""Arguments that several subcommands share."""

import argparse
from typing import TYPE_CHECKING, Any

from lowc.options import MODES, ROWS, Options, parse

if TYPE_CHECKING:
    from lowc.backends.nvptx.devices import Model


def add_function(parser: argparse.ArgumentParser, short: bool = True) -> None:
    """FILE.py:FN, how to trace it, and compiler options; ``short``: as in ``add_options``."""
    parser.add_argument(
        "place", metavar="FILE.py:FN", help="function or module; inputs come from FN_inputs() or inputs()"
    )
    parser.add_argument("--inference", action="store_true", help="under no_grad: no backward graph")
    parser.add_argument("--dynamic", action="store_true", help="all sizes symbolic")
    add_target(parser)
    add_options(parser, short)


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", metavar="sm_NN", default="",
        help="compile for this GPU (sm_70 to sm_121), which need not be there, and run in ATen (default: where the inputs are)",
    )  # fmt: skip


def gpu(chosen: argparse.Namespace) -> "Model | None":
    """The GPU that ``--target`` names; raises OptionError if it is not known."""
    if not chosen.target:
        return None
    from lowc.backends.nvptx.devices import model

    return model(chosen.target)


def add_options(parser: argparse.ArgumentParser, short: bool = True) -> None:
    """``short``: ``-o`` is ``--option``, not the command's output."""
    parser.add_argument(
        *(("-o",) if short else ()), "--option", action="append", default=[], metavar="NAME=VALUE",
        help="a compiler option: " + ", ".join(row.name for row in ROWS),
    )  # fmt: skip
    parser.add_argument("--mode", choices=MODES, default=None, help="of torch.compile; max-autotune measures whose ops are")


def options(chosen: argparse.Namespace) -> Options:
    """The options given by ``-o``; raises OptionError for names and values that are not known."""
    given: dict[str, Any] = {}
    defaults = {row.name: row.default for row in ROWS}
    for item in chosen.option:
        name, _, value = item.partition("=")
        on_off = isinstance(defaults.get(name), bool) and value.lower() in ("", "1", "true", "0", "false")
        number = type(defaults.get(name)) is int and value.isdecimal()
        given[name] = value.lower() in ("", "1", "true") if on_off else int(value) if number else value
    return parse(chosen.mode, given)
