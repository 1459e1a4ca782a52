"""Collectives as extern calls that run until they are waited for; ``ir/collective.py`` says what must not happen meanwhile."""

from collections.abc import Iterator

from lowc.ir import collective
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, Symbol
from lowc.ir.nodes import Arg, Buffer, Extern, View
from lowc.lowering.builder import Builder
from lowc.lowering.values import Value, whole

REASON = "the ranks of a process group meet here"


def note(builder: Builder, target: str, args: tuple[Arg, ...], results: list[Buffer | Symbol | None]) -> None:
    """Remembers what the collective that ``target`` has started with ``args`` reads until it is waited for."""
    operands = tuple(_views(args)) if collective.reads_late(target) else ()
    builder.pending.update((result.name, operands) for result in results if isinstance(result, Buffer))


def wait(builder: Builder, out: object, value: Value) -> Value:
    """Waits for what fills the memory of ``value``, all of it; the result is that memory."""
    memory = value.buffer
    operands = builder.pending.get(memory.name, ())
    builder.steps.append(
        Extern(collective.WAIT, (builder.view(whole(memory)), *operands), (), (None,), (memory,), REASON, builder.origin)
    )
    if isinstance(out, TensorMeta) and not _lies_as(value, out):
        # torch's fake tensors take the strides of the operand, the result is contiguous
        return builder.map(out, lambda coords: builder.load(value, coords))
    return value


def _lies_as(value: Value, out: TensorMeta) -> bool:
    strides = value.strides
    same: list[Index] = [] if strides is None else [a - b for n, a, b in zip(out.shape, strides, out.strides) if n != 1]
    return strides is not None and all(difference == 0 for difference in same)


def _views(args: tuple[Arg, ...]) -> Iterator[View]:
    for arg in args:
        if isinstance(arg, View):
            yield arg
        elif isinstance(arg, tuple):
            yield from _views(arg)
