"""Vectorisation: a loop that is split loses its last, partial turn."""

from lowc.ir.index import Axis, Index, floordiv, ix, minimum
from lowc.scheduler import apply

_right = apply.split_axes


def split_axes(axis: Axis, size: int, taken: set[str]) -> tuple[Axis, Axis, Index]:
    outer, inner, _ = _right(axis, size, taken)
    outer = Axis(outer.name, floordiv(axis.extent, ix(size)))
    inner = Axis(inner.name, minimum(size, axis.extent - ix(outer) * size))
    return outer, inner, ix(outer) * size + inner


apply.split_axes = split_axes
