"""Reads at data-dependent coordinates: gather, index_select, embedding, advanced indexing.

Every such coordinate passes through ``Builder.checked``: the call raises IndexError where one is out of range.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index
from lowc.ir.nodes import Expr
from lowc.ir.types import i64
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import both, cast, like, op, select
from lowc.lowering.values import Coords, Value, is_one
from lowc.lowering.views import unsqueezed, wrap


def integers(index: Value) -> None:
    """Raises NotLowered for an index that is a mask."""
    if index.dtype.kind not in "iu":
        raise NotLowered(f"an index of dtype {index.dtype}")


def rows(value: Value) -> Value:
    """``value``, a 0-dim one as a single row."""
    return value if value.shape else unsqueezed(value, 0)


def gather(
    b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, *, sparse_grad: bool = False
) -> Value:
    integers(index)
    dim = wrap(dim, max(len(self.shape), 1))
    size, rank = rows(self).shape[dim], len(self.shape)

    def element(c: Coords) -> Expr:
        where, mask = b.checked(b.load(index, c), size)
        return b.load(self, (*c[:dim], where, *c[dim + 1 :])[:rank], mask)

    return b.map(out, element)


def index_select(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value) -> Value:
    integers(index)
    dim = wrap(dim, max(len(self.shape), 1))
    size, rank = rows(self).shape[dim], len(self.shape)

    def element(c: Coords) -> Expr:
        where, mask = b.checked(b.load(index, (c[dim],) if index.shape and rank else (ZERO,) * len(index.shape)), size)
        return b.load(self, (*c[:dim], where, *c[dim + 1 :])[:rank], mask)

    return b.map(out, element)


def embedding(
    b: Builder,
    out: TensorMeta,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    integers(indices)
    rank = len(indices.shape)

    def element(c: Coords) -> Expr:
        where, mask = b.checked(b.load(indices, c[:rank]), weight.shape[0])
        return b.load(weight, (where, *c[rank:]), mask)

    return b.map(out, element)


def wrapped(b: Builder, index: Value, coords: Coords, extent: Index) -> Expr:
    """The index at ``coords``, counted from the end if negative."""
    skipped = len(coords) - len(index.shape)
    here = tuple(ZERO if is_one(n) else c for c, n in zip(coords[skipped:], index.shape, strict=True))
    position = b.let(cast(b.load(index, here), i64))
    return select(op("lt", position, like(0, position)), op("add", position, b.index(extent)), position)


@dataclass(frozen=True, slots=True)
class Selection:
    """What advanced indexing selects: a tensor of ``shape``; ``place(b, c)`` is where element ``c`` lies, and a mask."""

    shape: Coords
    place: Callable[[Builder, Coords], tuple[Coords, Expr | None]]


def selection(self: Value, indices: Sequence[Value | None]) -> Selection:
    """Advanced indexing: the index tensors broadcast together.

    Their dimensions stand where the first of them stands, or in front if a None separates them.
    """
    tensors = [t for t in indices if t is not None]
    for tensor in tensors:
        if tensor.dtype.kind in "bu":
            raise NotLowered("a mask as an index: the size of the result depends on data")
        integers(tensor)
    if not tensors:
        raise NotLowered("no index")
    chosen = [d for d, tensor in enumerate(indices) if tensor is not None]
    broadcast = common_shape([t.shape for t in tensors])
    rank = len(broadcast)
    front = chosen[0] if chosen[-1] - chosen[0] + 1 == len(chosen) else 0
    rest = [n for d, n in enumerate(self.shape) if d >= len(indices) or indices[d] is None]

    def place(b: Builder, c: Coords) -> tuple[Coords, Expr | None]:
        shared = c[front : front + rank]
        others = iter((*c[:front], *c[front + rank :]))
        coords: list[Index] = []
        mask: Expr | None = None
        for dim, extent in enumerate(self.shape):
            tensor = indices[dim] if dim < len(indices) else None
            if tensor is None:
                coords.append(next(others))
                continue
            where, guard = b.checked(wrapped(b, tensor, shared, extent), extent)
            mask = both(mask, guard)
            coords.append(where)
        return tuple(coords), mask

    return Selection((*rest[:front], *broadcast, *rest[front:]), place)


def common_shape(shapes: Sequence[Coords]) -> Coords:
    """The shape that ``shapes`` broadcast to."""
    out = [ONE] * max(map(len, shapes))
    for shape in shapes:
        for dim, extent in enumerate(shape, len(out) - len(shape)):
            out[dim] = extent if is_one(out[dim]) else out[dim]
    return tuple(out)


def index(b: Builder, out: TensorMeta, self: Value, indices: Sequence[Value | None]) -> Value:
    chosen = selection(self, indices)

    def element(c: Coords) -> Expr:
        place, mask = chosen.place(b, c)
        return b.load(self, place, mask)

    return b.map(out, element)
