"""Pairs of bf16 that are neighbours in memory: 32 bits read at once, for one value or one a lane."""

from lowc.backends.llvm.types import vector
from lowc.backends.llvm.values import Val
from lowc.backends.x86.access import address, masked_load
from lowc.backends.x86.region import Region, varies
from lowc.ir.index import constant, split
from lowc.ir.nodes import Load
from lowc.ir.types import u32


def load(r: Region, first: Load, reread: bool) -> Val | None:
    """The element ``first`` and the one behind it as the halves of 32 bits; None where lanes do not follow on one another.
    ``reread``: the buffer is also written, so equal loads may differ."""
    buffer, index = first.buffer, first.index[0]
    if buffer.name in r.tiles or buffer.name in r.laned:
        return None
    emit = r.b.op if reread else r.b.pure
    if r.lanes is None or not varies(r, index):
        return Val(emit(f"load i32, ptr {address(r, buffer, index)}, align 2"), u32)
    step, rest = split(index, r.lanes.axis)
    if constant(step) != 2 or varies(r, rest):
        return None
    count = r.lanes.count
    type_, pointer = vector("i32", count), address(r, buffer, index)
    if r.lanes.mask is None:
        return Val(emit(f"load {type_}, ptr {pointer}, align 2"), u32, count)
    return Val(emit(masked_load(r, "i32", count, pointer, 2, r.lanes.mask)), u32, count)
