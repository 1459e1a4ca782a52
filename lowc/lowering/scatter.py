"""Sums into data-dependent places: stores with a reducer, after a copy of what is there.

One kernel: a nest that fills the result, then one that combines into it in row-major order, so that float sums are eager's.
Only combining forms are lowered: where several writes to one place overwrite each other, the last one depends on order.
"""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ZERO, prove_nonneg
from lowc.ir.nodes import Expr
from lowc.ir.types import bool_, i64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.indexing import Selection, integers, selection
from lowc.lowering.scalars import both, cast, const, op, select
from lowc.lowering.values import Coords, Value, is_one, loop_order
from lowc.lowering.views import wrap

Element = Callable[[Coords], tuple[Coords, Expr, Expr | None]]


def combine(
    b: Builder, out: TensorMeta, start: Value | None, shape: Coords, element: Element, reducer: str = "add"
) -> Value:
    """``start`` (or zeros) with ``element(c)`` = (place, value, mask) combined into it for each ``c`` of ``shape``."""
    if out.dtype == bool_:
        raise NotLowered("sums into bool")
    target = b.result(out)
    with b.kernel():
        with b.loops(out.shape, loop_order(out.shape, out.strides)) as c:
            b.store(target, tuple(c), const(0, out.dtype) if start is None else b.load(start, tuple(c)))
        with b.loops(shape, range(len(shape)), "j") as c:
            place, value, mask = element(tuple(c))
            b.store(target, place, value, mask, reducer)
    return target


def embedding_dense_backward(
    b: Builder,
    out: TensorMeta,
    grad_output: Value,
    indices: Value,
    num_weights: object,
    padding_idx: Operand,
    scale_grad_by_freq: bool,
) -> Value:
    """Rows of the gradient summed by index; an index that is the padding's, or out of range, counts nothing."""
    integers(indices)
    if scale_grad_by_freq or isinstance(padding_idx, Value | float):
        raise NotLowered("gradients scaled by frequency")
    rank = len(indices.shape)

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        row = b.let(cast(b.load(indices, c[:rank]), i64))
        known = op("and", op("ge", row, const(0, i64)), op("lt", row, b.index(out.shape[0])))
        kept = b.let(op("and", known, op("ne", row, b.number(padding_idx, i64))))
        where, mask = b.checked(row, out.shape[0], kept)
        return (where, c[-1]), b.load(grad_output, c), both(kept, mask) if mask is not kept else kept

    return combine(b, out, None, grad_output.shape, element)


def index_add(
    b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, source: Value, *, alpha: Operand = 1
) -> Value:
    integers(index)
    if not self.shape or not index.shape:
        raise NotLowered("index_add of a 0-dim tensor")
    dim = wrap(dim, len(self.shape))

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        where, mask = b.checked(b.load(index, (c[dim],)), self.shape[dim])
        value = b.load(source, c)
        if not isinstance(alpha, int) or alpha != 1:
            value = op("mul", value, b.number(alpha, value.dtype))
        return (*c[:dim], where, *c[dim + 1 :]), value, mask

    return combine(b, out, self, source.shape, element)


def scatter_add(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter_combine(b, out, self, dim, index, src, "add")


def scatter_combine(
    b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Value, reducer: str
) -> Value:
    integers(index)
    if not self.shape or not index.shape:
        raise NotLowered("scatter into a 0-dim tensor")
    dim = wrap(dim, len(self.shape))

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        where, mask = b.checked(b.load(index, c), self.shape[dim])
        return (*c[:dim], where, *c[dim + 1 :]), b.load(src, c), mask

    return combine(b, out, self, index.shape, element, reducer)


def scatter_value(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, value: Operand) -> Value:
    return _scatter_one(b, out, self, dim, index, value)


def scatter_src(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter_one(b, out, self, dim, index, src)


def _scatter_one(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Operand) -> Value:
    """One place for each row: a map that compares coordinates, as in one-hot vectors and the gradient of a loss by class."""
    integers(index)
    if not self.shape or not index.shape:
        raise NotLowered("scatter into a 0-dim tensor")
    dim = wrap(dim, len(self.shape))
    if not is_one(index.shape[dim]) or not prove_nonneg(self.shape[dim] - 1):
        raise NotLowered("writes to indexed places: equal indices overwrite each other")

    def element(c: Coords) -> Expr:
        mask: Expr | None = None
        for position, (x, extent) in enumerate(zip(c, index.shape, strict=True)):
            mask = mask if position == dim else both(mask, b.inside(x, ZERO, extent))
        mask = None if mask is None else b.let(mask)
        row = (*c[:dim], ZERO, *c[dim + 1 :])
        where, _ = b.checked(b.load(index, row, mask), self.shape[dim], mask)
        hit = both(mask, op("eq", b.index(where), b.index(c[dim])))
        assert hit is not None
        value = (
            cast(b.load(src, row, mask), self.dtype) if isinstance(src, Value) else b.number(src, self.dtype)
        )
        return select(hit, value, b.load(self, c))

    return b.map(out, element)


_REDUCERS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def scatter_reduce(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    if reduce not in _REDUCERS or not include_self:
        raise NotLowered(f"scatter_reduce {reduce}" + ("" if include_self else " without self"))
    return scatter_combine(b, out, self, dim, index, src, _REDUCERS[reduce])


def index_put(
    b: Builder,
    out: TensorMeta,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    if not accumulate:
        raise NotLowered("writes to indexed places: equal indices overwrite each other")
    chosen: Selection = selection(self, indices)
    skipped = len(chosen.shape) - len(values.shape)

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        place, mask = chosen.place(b, c)
        inner = tuple(ZERO if is_one(n) else x for x, n in zip(c[skipped:], values.shape, strict=True))
        return place, b.load(values, inner), mask

    return combine(b, out, self, chosen.shape, element)
