"""``lowc explain FILE.py:FN``: the kernels of a function, what was fused into them, every call of ATen with the reason, and why
further calls (``FN_calls()``) were compiled anew."""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lowc.cli import arguments, cost
from lowc.cli.compilation import Compiled, Report, compile_all
from lowc.cli.launches import LaunchLine, launches
from lowc.cli.load import load_calls
from lowc.ir import arithmetic
from lowc.ir.nodes import Extern, Launch, Module


@dataclass(frozen=True, slots=True)
class KernelLine:
    """``ops``: ATen ops fused into the kernel, each with its user line ("" if unknown)."""

    name: str
    ops: tuple[tuple[str, str], ...]
    cost: cost.Cost


@dataclass(frozen=True, slots=True)
class ExternLine:
    target: str
    because: str
    where: str
    cost: cost.Cost


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="kernels, fusions, calls of ATen and graph breaks of a function",
        description="Lists the kernels of a function and its backward pass with their fused ops, bytes and FLOPs, the ops that "
        "are calls of ATen and why, and where Dynamo broke the graph; for a GPU also how the kernels are launched.",
    )
    arguments.add_function(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    fn, (inputs, *more) = load_calls(chosen.place)
    show(
        compile_all(
            fn,
            inputs,
            arguments.options(chosen),
            dynamic=chosen.dynamic or None,
            backward=not chosen.inference,
            gpu=arguments.gpu(chosen),
            more=more,
        )
    )
    return 0


def kernels(module: Module) -> list[KernelLine]:
    """One line for each launch of a module at level LOOPS."""
    return [
        KernelLine(step.kernel.name, tuple(map(_op_and_line, step.origin)), cost.of_kernel(step.kernel))
        for step in module.steps
        if isinstance(step, Launch)
    ]


def externs(module: Module) -> list[ExternLine]:
    """One line for each call of ATen."""
    return [
        ExternLine(
            step.target,
            step.because,
            next((w for _, w in map(_op_and_line, step.origin) if w), ""),
            cost.of_extern(step),
        )
        for step in module.steps
        if isinstance(step, Extern) and not arithmetic.is_size(step)
    ]


def show(report: Report) -> None:
    """Prints the report as tables."""
    from rich.console import Console

    console = Console()
    for compiled in report.graphs:
        for table in _tables(compiled.graph.name, compiled.fused):
            console.print(table)
        for line in _measured(compiled):
            console.print(line, highlight=False, soft_wrap=True)
        if compiled.result.gpu and compiled.result.artifact and compiled.result.artifact.entries:
            table, source = _launches(compiled)
            console.print(table)
            console.print(source, highlight=False, soft_wrap=True)
        made, called = kernels(compiled.fused), externs(compiled.fused)
        total = sum(k.cost.bytes for k in made)
        ops = sum(len(k.ops) for k in made)
        console.print(
            f"{_many(ops, 'op')} in {_many(len(made), 'kernel')} moving {_si(total)}B; {_many(len(called), 'call')} of ATen\n",
            highlight=False,
        )
    if not report.graphs:
        console.print("No graph reached lowc.")
    for reason, where in report.breaks:
        console.print(f"[bold]Graph break[/]: {_escape(reason)}", highlight=False, soft_wrap=True)
        if where:
            console.print(f"  at {_escape(where)}", highlight=False, soft_wrap=True)
    if not report.breaks:
        console.print("No graph breaks.")
    for reason, where in report.recompiles:
        console.print(f"[bold]Recompiled[/]: {_escape(reason)}", highlight=False, soft_wrap=True)
        if where:
            console.print(f"  {_escape(where)}", highlight=False, soft_wrap=True)
    for reason in report.unsupported:
        console.print(f"[bold]Run by torch as it is[/]: {_escape(reason)}", highlight=False, soft_wrap=True)


def _tables(name: str, module: Module) -> Iterator[Any]:
    from rich.table import Table

    if made := kernels(module):
        table = Table(title=f"{name}: kernels", title_justify="left", show_lines=False)
        _columns(table, "kernel", "fused ops", ">bytes", ">FLOPs", "at")
        for line in made:
            table.add_row(
                _escape(line.name),
                _counted(op for op, _ in line.ops),
                _si(line.cost.bytes),
                _si(line.cost.flops),
                _span(line.ops),
            )
        yield table
    if called := externs(module):
        table = Table(title=f"{name}: calls of ATen", title_justify="left")
        _columns(table, "op", ">calls", "because", ">bytes", ">FLOPs", "at")
        alike: dict[tuple[str, str, str], list[cost.Cost]] = {}
        for line in called:
            alike.setdefault((line.target, line.because, _line(line.where)), []).append(line.cost)
        for (target, because, where), costs in alike.items():
            moved, flops = sum(c.bytes for c in costs), sum(c.flops for c in costs)
            numbers = _si(moved), _si(flops) if flops else ""
            table.add_row(target, str(len(costs)), _escape(because), *numbers, _escape(where))
        yield table


def _measured(compiled: Compiled) -> Iterator[str]:
    """One line for each choice of ``mode="max-autotune"``."""
    targets = {node.name: node.target for node in compiled.graph.nodes}
    for whose, names in (("lowc's own", compiled.decided.own), ("a library's", compiled.decided.left)):
        kinds: dict[tuple[str, str], list[str]] = {}
        for name, why in names.items():
            kinds.setdefault((targets[name], why), []).append(name)
        for (target, why), alike in kinds.items():
            yield f"{target} ({', '.join(alike[:3])}{', …' if len(alike) > 3 else ''}) {whose}, {why}"


def _launches(compiled: Compiled) -> tuple[Any, str]:
    """The kernels as a GPU gets them, and for which one, by whose word."""
    from rich.table import Table

    gpu, cpu = compiled.result.gpu, compiled.target.cpu
    assert gpu is not None
    lines, source = launches(compiled.result, cpu)
    table = Table(title=f"{compiled.graph.name}: launches on {cpu}", title_justify="left")
    _columns(table, "kernel", ">blocks", ">threads", ">shared", ">registers", ">spills", "occupancy", ">bytes", ">at least")
    for line in lines:
        table.add_row(
            _escape(line.name) + (f" x{line.times}" if line.times > 1 else ""),
            line.blocks,
            " x ".join(str(n) for n in line.threads if n > 1) or "1",
            str(line.shared),
            str(line.usage.registers) if line.usage else "?",
            _spills(line),
            f"{line.occupancy[0]:.0%} ({line.occupancy[1]})" if line.occupancy else "?",
            _si(line.bytes),
            "?" if line.seconds is None else f"{line.seconds * 1e6:.3g} us",
        )
    speed = f", {_si(gpu.bandwidth)}B/s" if gpu.bandwidth else ""
    return table, f"{cpu} as in {gpu.name} ({gpu.processors} multiprocessors{speed}); {source}"


def _spills(line: LaunchLine) -> str:
    """Bytes that a thread stores and loads for want of registers; the driver only knows a bound."""
    if line.usage is None:
        return "?"
    return f"<= {line.usage.local}" if line.usage.spilled is None else str(line.usage.spilled)


def _columns(table: Any, *names: str) -> None:
    """Adds columns; those named with a ">" are numbers."""
    for name in names:
        table.add_column(
            name.removeprefix(">"), justify="right" if name[0] == ">" else "left", overflow="fold"
        )


def _op_and_line(origin: str) -> tuple[str, str]:
    """An origin is "node = aten.op.overload  # file.py:12 in forward: code", where the last part may be missing."""
    what, _, where = origin.partition("  # ")
    return what.rpartition(" = ")[2].strip(), where.strip()


def _counted(ops: Iterator[str]) -> str:
    # "aten.add.Tensor", "prims.div.default", but "mine.op.default" of a library of the user's.
    names = Counter(".".join(op.split(".")[:2]).removeprefix("aten.").removeprefix("prims.") for op in ops)
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in names.items())


def _span(ops: tuple[tuple[str, str], ...]) -> str:
    """The user's lines of a kernel, at most three."""
    places = list(dict.fromkeys(_line(where) for _, where in ops if where))
    return _escape("\n".join(places[:3]) + (f"\nand {len(places) - 3} more" if len(places) > 3 else ""))


def _line(where: str) -> str:
    """ "file.py:12" of a place, without the folders of the file."""
    return where.partition(" in ")[0].replace("\\", "/").rpartition("/")[2]


def _si(number: int) -> str:
    for factor, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}"
    return f"{number} "


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
