"""Pairs of bf16, and quads of bytes, that are neighbours in memory: 32 bits read at once, for one value or one a lane."""

from lowc.backends.llvm.types import vector
from lowc.backends.llvm.values import Val
from lowc.backends.x86.access import address, masked_load
from lowc.backends.x86.region import Region, varies
from lowc.ir.index import constant, split
from lowc.ir.nodes import Load
from lowc.ir.types import DType


def load(r: Region, first: Load, dtype: DType, reread: bool) -> Val | None:
    """The element ``first`` and those behind it as 32 bits, of ``dtype``; None where lanes do not follow on one another.
    ``reread``: the buffer is also written, so equal loads may differ."""
    buffer, index = first.buffer, first.index[0]
    if buffer.name in r.tiles or buffer.name in r.laned:
        return None
    emit, align = r.b.op if reread else r.b.pure, buffer.dtype.bytes
    if r.lanes is None or not varies(r, index):
        return Val(emit(f"load i32, ptr {address(r, buffer, index)}, align {align}"), dtype)
    step, rest = split(index, r.lanes.axis)
    if constant(step) != dtype.bytes // align or varies(r, rest):
        return None
    count = r.lanes.count
    type_, pointer = vector("i32", count), address(r, buffer, index)
    if r.lanes.mask is None:
        return Val(emit(f"load {type_}, ptr {pointer}, align {align}"), dtype, count)
    return Val(emit(masked_load(r, "i32", count, pointer, align, r.lanes.mask)), dtype, count)
