"""``lowc view FILE.py:FN -o page.html``: every stage of a function side by side, in one file for a browser."""

import argparse
import sys
from pathlib import Path
from typing import Any

from lowc.cli import arguments
from lowc.cli.compilation import compile_all
from lowc.cli.load import load
from lowc.errors import LowcError


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "view",
        help="every stage of a function side by side, in one page for a browser",
        description="Writes one HTML page that needs nothing else: your lines, the ops of the graphs, and each kernel as "
        "loops, bound to the machine, as LLVM IR and as assembly or PTX; what belongs together is highlighted. Kernels and "
        "calls of ATen have their bytes and FLOPs and, on the CPU, the time that they took.",
    )
    arguments.add_function(parser, short=False)
    parser.add_argument("-o", "--output", metavar="PAGE.html", required=True, help="the file to write")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    from lowc.cli.page.model import build
    from lowc.cli.page.render import render

    fn, inputs = load(chosen.place)
    options = arguments.options(chosen)
    path = Path(chosen.output)
    if not path.parent.is_dir():
        raise LowcError(f"there is no folder {path.parent} for {path.name}", hint="make it, or give another place to -o")
    report = compile_all(
        fn,
        inputs,
        options,
        dynamic=chosen.dynamic or None,
        backward=not chosen.inference,
        gpu=arguments.gpu(chosen),
        measure=True,
    )
    if not report.graphs:
        raise LowcError(
            f"{chosen.place} gives no graph to compile", hint="lowc explain says where Dynamo stopped"
        )
    file, _, name = chosen.place.rpartition(":")
    page = build(f"{Path(file).name}:{name}", report, options)
    text = render(page, _made_by())
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LowcError(f"{path} cannot be written: {error.strerror}", hint="give another place to -o") from error
    print(f"{path}: {len(text.encode()) / 1e6:.2f} MB, {len(page.codes)} kernels", file=sys.stderr)
    return 0


def _made_by() -> str:
    from lowc.cli.versions import versions

    return f"lowc view: {versions()}"
