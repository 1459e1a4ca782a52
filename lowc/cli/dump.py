"""``lowc dump FILE.py:FN --stage STAGE``: what a function is at one stage of the compiler."""

import argparse
from typing import Any

from lowc.cli import arguments
from lowc.cli.compilation import Compiled, compile_all
from lowc.cli.load import load
from lowc.errors import LowcError
from lowc.options import Options

STAGES = ("graph", "lowering", "loops", "machine", "llvm", "asm", "ptx", "sass", "host")

CODE = ("llvm", "asm", "ptx", "sass")


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "dump",
        help="show a function at one stage",
        description="Shows what a function is at one stage of the compiler.",
    )
    arguments.add_function(parser)
    parser.add_argument("--stage", choices=STAGES, default="loops", help="default: loops, the fused kernels")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    fn, inputs = load(chosen.place)
    options = arguments.options(chosen)
    gpu = arguments.gpu(chosen)
    report = compile_all(
        fn, inputs, options, dynamic=chosen.dynamic or None, backward=not chosen.inference, gpu=gpu
    )
    if not report.graphs:
        raise LowcError(
            f"{chosen.place} gives no graph to compile", hint="lowc explain says where Dynamo stopped"
        )
    comment = {"llvm": ";", "ptx": "//", "sass": "//"}.get(chosen.stage, "#")
    for compiled in report.graphs:
        if len(report.graphs) > 1:
            print(f"{comment} ---- {compiled.graph.name}")
        print(text(compiled, chosen.stage, options), end="")
    return 0


def text(compiled: Compiled, stage: str, options: Options) -> str:
    """The text of ``compiled`` at ``stage``; raises LowcError if it has none, CodegenError for a kernel without code."""
    from lowc.ir.graph_printer import print_graph
    from lowc.ir.printer import print_module

    if stage == "graph":
        return print_graph(compiled.graph)
    if stage == "loops":
        return print_module(compiled.fused)
    if stage == "machine":
        return print_module(compiled.machine)
    if stage in CODE:
        return _gpu_code(compiled, stage) if compiled.result.gpu else _cpu_code(compiled, stage, options)
    found = [content for name, _, content in compiled.result.texts if name == stage]
    if not found:
        raise LowcError(f"graph {compiled.graph.name} has nothing to show at stage {stage}")
    return found[-1].rstrip("\n") + "\n"


def _cpu_code(compiled: Compiled, stage: str, options: Options) -> str:
    if stage in ("ptx", "sass"):
        raise LowcError(
            f"graph {compiled.graph.name} is on the CPU and has no {stage}",
            hint="--target sm_90 compiles it for a GPU, which need not be there; asm shows the CPU's code",
        )
    from lowc.backends import x86

    return x86.stages(compiled.target, options)[{"llvm": ".ll", "asm": ".s"}[stage]](compiled.machine)


def _gpu_code(compiled: Compiled, stage: str) -> str:
    """What was made for a GPU, fallbacks included."""
    from lowc.backends.nvptx import assembler

    ptx = compiled.result.artifact.code if compiled.result.artifact else b""
    if stage == "asm":
        raise LowcError(
            f"graph {compiled.graph.name} is for a GPU and has no assembly of a CPU", hint="--stage ptx or --stage sass"
        )
    if not ptx:
        raise LowcError(
            f"graph {compiled.graph.name} has no kernels", hint="lowc explain says what is left to ATen, and why"
        )
    if stage == "llvm":
        return next(content for name, kind, content in reversed(compiled.result.texts) if (name, kind) == ("nvptx", "ll"))
    if stage == "ptx":
        return ptx.decode().strip("\n") + "\n"
    return assembler.disassemble(assembler.assemble(ptx, compiled.target.cpu).cubin).strip("\n") + "\n"
