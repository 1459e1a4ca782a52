"""``lowc opt -p PASS,PASS FILE.lowc``: IR text in, IR text out, verified after each pass."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from lowc.cli import arguments
from lowc.cli.compilation import target_for
from lowc.errors import LowcError
from lowc.ir import walk
from lowc.ir.index import ZERO
from lowc.ir.nodes import For, Kernel, Launch, Module, View


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "opt",
        help="run passes on IR text",
        description="Parses a module or a kernel, runs passes, verifies after each, prints.",
    )
    parser.add_argument("file", nargs="?", default="-", help="IR text (default: standard input)")
    parser.add_argument(
        "-p", "--passes", default="", metavar="A,B", help="passes in this order (none: only parse and verify)"
    )
    parser.add_argument("--list", action="store_true", help="list the passes and stop")
    arguments.add_target(parser)
    arguments.add_options(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    from lowc.ir.printer import print_module
    from lowc.ir.verify import verify_module
    from lowc.scheduler import pipeline

    if chosen.list:
        for row in pipeline.PASSES:
            print(f"{row.name:<12} {row.takes} -> {row.gives}: {row.why}")
        return 0
    table = {row.name: row for row in pipeline.PASSES}
    names = [name for name in chosen.passes.split(",") if name]
    if unknown := [name for name in names if name not in table]:
        raise LowcError(f"unknown pass {', '.join(unknown)}", hint="passes are " + ", ".join(table))
    module = read(_text(chosen.file))
    verify_module(module, module.level)
    options = arguments.options(chosen)._replace(check=True)
    target = target_for(options, arguments.gpu(chosen)) if names else None
    # Kernels from text do not know the module's buffers yet; every pass at LOOPS expects that they do.
    if module.level == "LOOPS" and names and names[0] != "attach":
        names.insert(0, "attach")
    for name in names:
        row = table[name]
        if module.level != row.takes:
            raise LowcError(
                f"pass {name} takes a module @{row.takes}, this one is @{module.level}",
                hint="passes in order: " + ",".join(table),
            )
        assert target is not None
        module = replace(pipeline.apply(row, module, target, options), level=row.gives)
    print(print_module(module), end="")
    return 0


def read(text: str) -> Module:
    """The module that ``text`` is, or one that launches the kernel that it is.  Raises ParseError."""
    from lowc.ir.parser import parse_kernel, parse_module

    code = (line.partition("#")[0].strip() for line in text.splitlines())
    first = next((line for line in code if line), "")
    return _launching(parse_kernel(text)) if first.startswith("kernel") else parse_module(text)


def _launching(kernel: Kernel) -> Module:
    """A module that launches ``kernel`` once: what it reads is an input, what it only writes is an output."""
    read_names = {load.buffer.name for load in walk.loads(kernel.body)}
    read_names |= {store.buffer.name for store in walk.stores(kernel.body) if store.reducer}
    made = tuple(b for b in kernel.params if b.name not in read_names)
    inputs = tuple(b for b in kernel.params if b.name in read_names)
    outputs = tuple(View(b, b.dtype, b.shape, b.strides, ZERO) for b in made)
    bound = any(isinstance(s, For) and s.kind.name != "serial" for s in walk.statements(kernel.body))
    level = "SCHEDULED" if bound else "LOOPS"
    return Module(
        level, kernel.sizes, (*kernel.sizes, *inputs), made, outputs, (Launch(kernel, kernel.params),)
    )


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise LowcError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LowcError(f"{file} is no UTF-8 text: {error.reason} at byte {error.start}") from error
