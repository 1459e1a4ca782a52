"""``lowc compile``: a model as a file that runs without torch and without a compiler."""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lowc.cli import arguments
from lowc.errors import OptionError

if TYPE_CHECKING:
    from lowc.package import Package

EXTENSIONS = {"ir": "loops", "ll": "ll", "asm": "s", "obj": "o", "ptx": "ptx"}


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "compile",
        help="a model as one file that runs without torch and without a compiler",
        description="Compiles a model to an artifact, which lowc.load, lowc run and lowc link take; see docs/standalone.md.",
    )
    parser.add_argument(
        "place", metavar="MODEL",
        help="a file of torch.export.save, or FILE.py:FN, whose inputs come from FN_inputs() or inputs()",
    )  # fmt: skip
    parser.add_argument("-o", "--output", default="", metavar="FILE", help="default: the model's name with .lowc")
    parser.add_argument("--weights", default="", metavar="FILE", help="safetensors beside the artifact; default: inside")
    parser.add_argument(
        "--target", action="append", default=[], metavar="TARGET",
        help="x86-64, x86-64-v2, -v3, -v4, native, or a GPU as sm_90, any number of times; default: x86-64, -v3 and -v4",
    )  # fmt: skip
    parser.add_argument(
        "--emit", default="", metavar="KINDS",
        help="also write, for each target that has it: " + ", ".join(EXTENSIONS) + " (with commas)",
    )  # fmt: skip
    parser.add_argument("--cubin", action="store_true", help="code for GPUs also as ptxas assembles it, so that it loads faster")
    parser.add_argument("--dynamic", action="store_true", help="FILE.py:FN: every size of every input may differ in a call")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    arguments.add_options(parser, short=False)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Raises LowcError for a model that cannot be compiled or a file that cannot be written."""
    from lowc import package

    kinds = [kind for kind in chosen.emit.split(",") if kind]
    if unknown := [kind for kind in kinds if kind not in EXTENSIONS]:
        raise OptionError(f"--emit does not know {unknown[0]!r}", hint="it knows " + ", ".join(EXTENSIONS))
    levels = tuple(chosen.target) or package.DEFAULT_LEVELS
    _check_kinds(kinds, levels, chosen.cubin)
    options = arguments.options(chosen)
    begin = time.perf_counter()
    name, program = _program(chosen)
    output = chosen.output or f"{name}.lowc"
    stem = output.removesuffix(".lowc")
    with _progress(chosen.quiet) as report:
        made = package.compile_program(
            program, name=name, levels=levels, options=options, emit=kinds, cubin=chosen.cubin, report=report
        )
        weights = chosen.weights and os.path.join(os.path.dirname(output), chosen.weights)
        sizes = made.save(output, weights_path=weights or None)
    for level, texts in made.texts.items():
        for kind, text in texts.items():
            _write(f"{stem}.{level}.{EXTENSIONS[kind]}", text)
    if not chosen.quiet:
        _summary(made, output, weights, sizes, time.perf_counter() - begin)
    return 0


def _check_kinds(kinds: Sequence[str], levels: Sequence[str], cubin: bool) -> None:
    """Raises OptionError for what none of the targets has."""
    gpus = [level for level in levels if level.startswith("sm_")]
    if not gpus and (cubin or "ptx" in kinds):
        raise OptionError(f"{'--cubin' if cubin else '--emit ptx'} is for GPUs", hint="--target sm_90 compiles for one")
    if len(gpus) == len(levels) and (own := [kind for kind in kinds if kind in ("asm", "obj")]):
        raise OptionError(f"--emit {own[0]} is for CPUs", hint="GPUs have ir, ll and ptx; --target x86-64-v3 compiles for a CPU")


def _program(chosen: argparse.Namespace) -> tuple[str, Any]:
    """The model's name, and the exported program."""
    from lowc.frontend.exported import export, load_program

    place: str = chosen.place
    if place.rpartition(":")[0].endswith(".py"):
        from lowc.cli.load import declared, load

        fn, inputs = load(place)
        shapes = declared(place, "dynamic_shapes")
        return place.rpartition(":")[2], export(fn, inputs, dynamic=True if chosen.dynamic else shapes)
    if chosen.dynamic:
        raise OptionError("--dynamic is for FILE.py:FN", hint="a .pt2 file says itself which sizes are dynamic")
    return os.path.splitext(os.path.basename(place))[0], load_program(place)


def _write(path: str, text: str | bytes) -> None:
    from lowc.standalone.files import write_whole

    write_whole(path, (text.encode() if isinstance(text, str) else text,))


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>10}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


def _summary(made: "Package", output: str, weights: str, sizes: Sequence[int], seconds: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    manifest = made.manifest
    about = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    for tensor in manifest.inputs:
        what = f"{tensor.dtype}[{_dims(tensor.shape)}]" if tensor.value is None else f"an integer, {_dims([tensor.value])}"
        what = "an integer, the seed of random numbers; the system's if none is given" if tensor.drawn else what
        about.add_row("input", escape(f"{tensor.name}: {what}"))
    for result in manifest.outputs:
        shape = f": {result.dtype}[{_dims(result.shape)}]" if hasattr(result, "dtype") else ": a size"  # type: ignore[union-attr]
        about.add_row("output", escape(result.name + shape))
    for symbol in manifest.symbols:
        about.add_row("size", f"{symbol.name}: {symbol.low} to {'any' if symbol.high is None else symbol.high}")
    count, total = len(manifest.weights), sum(memoryview(p).nbytes for p in made.weights) if manifest.weights else 0
    about.add_row("weights", f"{count} tensors, {_bytes(total)}" + (f" in {escape(weights)}" if weights else ""))
    console.print(about)
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title, side in (("code for", "left"), ("kernels", "right"), ("bytes", "right"), ("workspace", "right")):
        table.add_column(title, justify=side)  # type: ignore[arg-type]
    for code in manifest.code:
        space = _bytes(code.workspace) if isinstance(code.workspace, int) else "by the sizes"
        sections = [code.section] + ([code.gpu.cubin] if code.gpu and code.gpu.cubin else [])
        table.add_row(code.level, str(made.kernels[code.level]), _bytes(sum(len(made.sections[s]) for s in sections)), space)
    console.print(table)
    console.print(f"{escape(output)}: {_bytes(sizes[0])} in {seconds:.1f} s", highlight=False)


def _dims(shape: Sequence[Any]) -> str:
    from lowc.standalone.trees import size_text

    return ", ".join(map(size_text, shape))


def _bytes(count: int) -> str:
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


