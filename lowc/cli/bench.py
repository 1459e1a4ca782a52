"""``lowc bench FILE.py:FN``: how long a call takes, compiled by lowc, in eager, and compiled by Inductor."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any

from lowc.cli import arguments
from lowc.cli.load import load
from lowc.errors import LowcError
from lowc.options import ROWS, Options

if TYPE_CHECKING:
    from lowc.frontend.sides import Side

SIDES = "lowc,eager,inductor"
WIDTH = 16


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="time a function: lowc, eager and Inductor",
        description="Times calls of a function (with its backward pass, where there is one) as lowc, eager and Inductor run "
        "it: medians of rounds in which they take turns. A side that cannot run here, as Inductor without a C++ compiler, is "
        "named with the reason.",
    )
    parser.add_argument(
        "place", metavar="FILE.py:FN", help="function or module; inputs come from FN_inputs() or inputs()"
    )
    parser.add_argument("--sides", default=SIDES, help="eager and backends of torch.compile (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--inference", action="store_true", help="under no_grad: no backward pass")
    parser.add_argument("--dynamic", action="store_true", help="all sizes symbolic")
    parser.add_argument("--png", metavar="FILE", default="", help="write the chart there as well (needs matplotlib)")
    arguments.add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    names = [name.strip() for name in chosen.sides.split(",") if name.strip()]
    if not names or chosen.rounds < 1:
        raise LowcError("there is nothing to time", hint=f"--sides {SIDES} --rounds 15")
    pyplot = _pyplot() if chosen.png else None
    given = changed(arguments.options(chosen))
    fn, inputs = load(chosen.place)
    from lowc.dynamo import lowc_backend
    from lowc.frontend.sides import run_sides

    try:
        sides = run_sides(
            fn,
            inputs,
            list(dict.fromkeys(names)),
            given,
            backends={"lowc": lowc_backend},
            rounds=chosen.rounds,
            dynamic=chosen.dynamic or None,
            backward=not chosen.inference,
        )
    except LowcError:
        raise
    except Exception as error:
        raise LowcError(
            f"the function raises {type(error).__name__}: {error}", hint="call it without torch.compile"
        ) from error
    show(chosen.place, sides)
    if pyplot is not None:
        draw(pyplot, chosen.place, sides, chosen.png)
    return 0 if any(side.times for side in sides) else 1


def changed(options: Options) -> dict[str, Any]:
    """The options that are not as they are by default, for ``torch.compile``."""
    usual = Options()
    return {row.name: value for row in ROWS if (value := getattr(options, row.name)) != getattr(usual, row.name)}


def show(place: str, sides: Sequence["Side"]) -> None:
    """Prints a table with a bar for each side."""
    from rich import box
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    console = Console()
    longest = max((median(side.times) for side in sides if side.times), default=0.0)
    eager = next((median(side.times) for side in sides if side.name == "eager" and side.times), None)
    table = Table(title=place, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("", min_width=WIDTH)
    for name in ("median", "speed-up", "first call", "differs by"):
        table.add_column(name, justify="right", no_wrap=True)
    for side in sides:
        if side.error:
            continue
        middle = median(side.times)
        table.add_row(
            side.name,
            Bar(longest, 0, middle, width=WIDTH),
            shown(middle),
            f"{eager / middle:.2f}x" if eager else "",
            shown(side.first),
            "" if side.difference is None or side.name == "eager" else f"{side.difference:.1e}",
        )
    if longest:
        console.print(table)
    for side in sides:
        if side.error:
            console.print(f"{side.name} cannot run here: {side.error}", highlight=False, markup=False, soft_wrap=True)


def shown(seconds: float) -> str:
    """Three digits, as "1.23 s", "12.3 ms" or "123 us"."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e6:#.3g}".rstrip(".") + " us"


def _pyplot() -> Any:
    """matplotlib, drawing into files; raises LowcError if it is not installed."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise LowcError(
            f"--png needs matplotlib, which cannot be imported: {error}",
            hint="pip install matplotlib (or lowc[plot]), or do without --png",
        ) from error


def draw(pyplot: Any, place: str, sides: Sequence["Side"], path: str) -> None:
    """The medians as horizontal bars, with the range of the middle half of the rounds; raises LowcError if ``path`` cannot be
    written."""
    timed = [side for side in reversed(sides) if side.times]
    middles = [median(side.times) * 1e3 for side in timed]
    ordered = [sorted(side.times) for side in timed]
    quarters = [(t[len(t) // 4] * 1e3, t[(3 * len(t)) // 4] * 1e3) for t in ordered]
    spread = [
        [max(0.0, m - low) for m, (low, _) in zip(middles, quarters)],
        [max(0.0, high - m) for m, (_, high) in zip(middles, quarters)],
    ]
    figure, axes = pyplot.subplots(figsize=(7, 1 + 0.5 * len(timed)), layout="constrained")
    try:
        axes.barh([side.name for side in timed], middles, xerr=spread)
        axes.set_xlabel("milliseconds a call (median; lines: the middle half of the rounds)")
        axes.set_title(place)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise LowcError(f"{path} cannot be written: {error}", hint="give another file to --png") from error
    finally:
        pyplot.close(figure)
