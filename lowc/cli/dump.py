"""``lowc dump FILE.py:FN --stage STAGE``: what a function is at one stage of the compiler."""

import argparse
from typing import Any

from lowc.cli import arguments
from lowc.cli.compilation import Compiled, compile_all
from lowc.cli.load import load
from lowc.errors import LowcError

# For each stage the dump that shows it, by name ("" for any) and extension; the last one counts.
STAGES = {
    "graph": ("graph", "graph"),
    "lowering": ("lowering", "lowc"),
    "loops": ("", "lowc"),
    "machine": ("legalise", "lowc"),
    "llvm": ("", "ll"),
    "asm": ("", "s"),
    "host": ("host", "py"),
}


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "dump", help="show a function at one stage", description="Shows what a function is at one stage of the compiler."
    )
    arguments.add_function(parser)
    parser.add_argument("--stage", choices=tuple(STAGES), default="loops", help="default: loops, the fused kernels")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    fn, inputs = load(chosen.place)
    report = compile_all(
        fn, inputs, arguments.options(chosen), dynamic=chosen.dynamic or None, backward=not chosen.inference
    )
    if not report.graphs:
        raise LowcError(f"{chosen.place} gives no graph to compile", hint="lowc explain says where Dynamo stopped")
    comment = ";" if chosen.stage == "llvm" else "#"
    for compiled in report.graphs:
        if len(report.graphs) > 1:
            print(f"{comment} ---- {compiled.graph.name}")
        print(text(compiled, chosen.stage), end="")
    return 0


def text(compiled: Compiled, stage: str) -> str:
    """The text of ``compiled`` at ``stage``; raises LowcError if the graph has none (e.g. no kernel, hence no assembly)."""
    from lowc.ir.printer import print_graph, print_module

    if stage == "graph":
        return print_graph(compiled.graph)
    if stage == "loops":
        return print_module(compiled.fused)
    name, extension = STAGES[stage]
    found = [content for n, e, content in compiled.texts if e == extension and name in ("", n)]
    if not found:
        raise LowcError(f"graph {compiled.graph.name} has nothing to show at stage {stage}: every op of it is a call of ATen")
    return found[-1].rstrip("\n") + "\n"
