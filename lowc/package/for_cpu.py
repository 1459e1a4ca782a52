"""Code of an artifact for CPUs: an object file for each level, and those that are the same for all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lowc.artifact import Native
from lowc.errors import LowcError
from lowc.ir.index import constant
from lowc.ir.nodes import Buffer, Module
from lowc.ir.walk import storage_size
from lowc.options import Options
from lowc.package.describe import places, tree_of
from lowc.package.lowered import checks, kernel_count, placed
from lowc.standalone import cpu, library, manifest, threads, weights
from lowc.standalone.dtypes import NUMBERS

if TYPE_CHECKING:
    from lowc.frontend.exported import Exported
    from lowc.target import Target

EMIT = ("ir", "ll", "asm", "obj")


def code(
    module: Module, exported: "Exported", level: str, options: Options, emit: Sequence[str]
) -> tuple[manifest.Code, bytes, int, dict[str, str | bytes]]:
    """What the manifest says of the code for ``level``; the object file; how many kernels it has; the texts asked for."""
    from lowc.ir.printer import print_module
    from lowc.scheduler import once, pipeline

    levels: Any = import_module("lowc.backends.x86.levels")
    x86: Any = import_module("lowc.backends.x86")
    target: Target = levels.level(level)
    machine = placed(pipeline.run(module, target, options))
    count, kept = once.count(machine), once.made(machine)
    made = x86.compile_module(machine, target, options, once=count)
    natives = [step.symbol for step in made.program if isinstance(step, Native)]
    if len(natives) != 1:
        raise LowcError("the model computes nothing", hint="return what is computed from the inputs")
    found = manifest.Code(
        level,
        _needs(level),
        f"{level}.o",
        natives[0],
        tuple(places(machine, exported)[name] for name in made.slots),
        tree_of(machine.workspace),
        checks(machine),
        once=manifest.Once("once", tuple([_bytes(b) for b in kept])) if count else None,
    )
    show: Mapping[str, Callable[[], str | bytes]] = {
        "ir": lambda: print_module(machine),
        "ll": lambda: x86.stages(target, options)[".ll"](machine),
        "asm": lambda: x86.stages(target, options)[".s"](machine),
        "obj": lambda: made.code,
    }
    return found, made.code, kernel_count(machine), {kind: show[kind]() for kind in emit if kind in EMIT}


def _bytes(buffer: Buffer) -> int:
    size = constant(storage_size(buffer))
    assert size is not None
    return size * buffer.dtype.bytes


def _needs(level: str) -> tuple[str, ...]:
    return cpu.native_needs() if level == "native" else cpu.LEVELS[level]


def common() -> dict[str, bytes]:
    """The object files that are the same in all artifacts: what runs parallel loops."""
    made: list[Any] = [import_module(f"lowc.backends.x86.{name}") for name in ("serial", "pool")]
    return {threads.SERIAL: made[0].code(), threads.POOL: made[1].code()}


def entry(made: manifest.Manifest, parts: Sequence[bytes | memoryview]) -> bytes:
    """The object file with the C interface, which knows the codes for CPUs."""
    backend: Any = import_module("lowc.backends.x86.entry")
    codes = tuple(each for each in made.code if each.format == "elf")
    needs: list[list[Any]] = []
    for each in codes:
        bits, saved = cpu.cpuid_bits(each.needs)
        needs.append([backend.Need(*row) for row in bits] + ([backend.Need(0, 0, 0, saved, True)] if saved else []))
    offsets = weights.offsets(parts, [t.key for t in made.weights])
    return backend.code(replace(made, code=codes), library.OWN, NUMBERS, needs, offsets)
