"""Reads at data-dependent coordinates: gather, index_select, embedding, advanced indexing.

Every such coordinate passes through ``Builder.checked``: the call raises IndexError where one is out of range.
"""

from collections.abc import Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ZERO, Index
from lowc.ir.nodes import Expr
from lowc.ir.types import i64
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast, like, op, select
from lowc.lowering.values import Coords, Value, is_one
from lowc.lowering.views import wrap


def _integers(index: Value) -> None:
    if index.dtype.kind != "i":
        raise NotLowered(f"an index of dtype {index.dtype}")


def gather(
    b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, *, sparse_grad: bool = False
) -> Value:
    _integers(index)
    if not self.shape or not index.shape:
        raise NotLowered("gather of a 0-dim tensor")
    dim = wrap(dim, len(self.shape))

    def element(c: Coords) -> Expr:
        where, mask = b.checked(b.load(index, c), self.shape[dim])
        return b.load(self, (*c[:dim], where, *c[dim + 1 :]), mask)

    return b.map(out, element)


def index_select(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value) -> Value:
    _integers(index)
    if not self.shape:
        raise NotLowered("index_select of a 0-dim tensor")
    dim = wrap(dim, len(self.shape))

    def element(c: Coords) -> Expr:
        where, mask = b.checked(b.load(index, (c[dim],) if index.shape else ()), self.shape[dim])
        return b.load(self, (*c[:dim], where, *c[dim + 1 :]), mask)

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
    _integers(indices)
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


def index(b: Builder, out: TensorMeta, self: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing: the index tensors broadcast together.

    Their dimensions stand where the first of them stands, or in front if a None separates them.
    """
    for tensor in indices:
        if tensor is not None:
            if tensor.dtype.kind in "bu":
                raise NotLowered("a mask as an index: the size of the result depends on data")
            _integers(tensor)
    chosen = [d for d, tensor in enumerate(indices) if tensor is not None]
    if not chosen:
        raise NotLowered("no index")
    rank = max(len(t.shape) for t in indices if t is not None)
    adjacent = chosen[-1] - chosen[0] + 1 == len(chosen)
    front = chosen[0] if adjacent else 0

    def element(c: Coords) -> Expr:
        shared = c[front : front + rank]
        rest = iter((*c[:front], *c[front + rank :]))
        place: list[Index] = []
        mask: Expr | None = None
        for dim, extent in enumerate(self.shape):
            tensor = indices[dim] if dim < len(indices) else None
            if tensor is None:
                place.append(next(rest))
                continue
            where, guard = b.checked(wrapped(b, tensor, shared, extent), extent)
            mask = guard if mask is None else mask if guard is None else op("and", mask, guard)
            place.append(where)
        return b.load(self, tuple(place), mask)

    return b.map(out, element)
