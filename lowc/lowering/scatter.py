"""Stores to data-dependent places, after a copy of what is there: sums and the like (``combine``), or writes.

One kernel: a nest that fills the result, then one that stores into it in row-major order, so that float sums are eager's, and of
several writes to one place the last one stays.  On a GPU writes are ATen's: in order, one thread would have to do them all.
A 0-dim tensor counts as one of a single row.
"""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ZERO, prove_nonneg
from lowc.ir.nodes import Expr
from lowc.ir.types import bool_, compute_dtype, i64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.indexing import Selection, integers, rows, selection
from lowc.lowering.scalars import both, cast, const, op, select
from lowc.lowering.values import Coords, Value, is_one, loop_order
from lowc.lowering.views import wrap

Element = Callable[[Coords], tuple[Coords, Expr, Expr | None]]


def combine(
    b: Builder, out: TensorMeta, start: Value | None, shape: Coords, element: Element, reducer: str = "add"
) -> Value:
    """``start`` (or zeros) with ``element(c)`` = (place, value, mask) combined into it for each ``c`` of ``shape``.

    Without a ``reducer`` the value replaces what is there.  Sums and products of f16 and bf16 are kept in f32 and rounded once.
    """
    if reducer and out.dtype == bool_:
        raise NotLowered("sums into bool")
    if not reducer and b.choose_parts:
        raise NotLowered("writes to indexed places: equal indices overwrite each other")
    target = gathering(b, out, reducer)
    with b.kernel():
        with b.loops(out.shape, loop_order(out.shape, out.strides)) as c:
            b.store(target, tuple(c), const(0, target.dtype) if start is None else b.load(start, tuple(c)))
        with b.loops(shape, range(len(shape)), "j") as c:
            place, value, mask = element(tuple(c))
            b.store(target, place[: len(out.shape)], value, mask, reducer)
    return target if target.dtype == out.dtype else b.map(out, lambda c: b.load(target, c))


def gathering(b: Builder, out: TensorMeta, reducer: str) -> Value:
    """Memory for what ``reducer`` combines to ``out``, in the dtype that it is combined in."""
    wide = compute_dtype(out.dtype)
    if reducer not in ("add", "mul") or wide == out.dtype:
        return b.result(out)
    return b.temp(wide, out.shape, out.strides)


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
    dim = wrap(dim, max(len(self.shape), 1))
    index, source, size = rows(index), rows(source), rows(self).shape[dim]

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        where, mask = b.checked(b.load(index, (c[dim],)), size)
        value = b.load(source, c)
        if not isinstance(alpha, int) or alpha != 1:
            value = op("mul", value, b.number(alpha, value.dtype))
        return (*c[:dim], where, *c[dim + 1 :]), value, mask

    return combine(b, out, self, source.shape, element)


def scatter_add(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter_combine(b, out, self, dim, index, src, "add")


def scatter_combine(
    b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Operand, reducer: str
) -> Value:
    element, shape = scattered(b, self, dim, index, src)
    return combine(b, out, self, shape, element, reducer)


def scattered(b: Builder, self: Value, dim: int, index: Value, src: Operand) -> tuple[Element, Coords]:
    """Where a scatter puts the elements of ``src`` (or the number that it is), and the shape of what it walks."""
    integers(index)
    dim = wrap(dim, max(len(self.shape), 1))
    index, size = rows(index), rows(self).shape[dim]
    source = rows(src) if isinstance(src, Value) else src

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        where, mask = b.checked(b.load(index, c), size)
        value = b.load(source, c) if isinstance(source, Value) else b.number(source, self.dtype)
        return (*c[:dim], where, *c[dim + 1 :]), value, mask

    return element, index.shape


_OLD_NAMES = {"add": "add", "multiply": "mul"}


def scatter_old(
    b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Value, *, reduce: str
) -> Value:
    """scatter.reduce."""
    return scatter_combine(b, out, self, dim, index, src, _OLD_NAMES[reduce])


def scatter_old_value(
    b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, value: Operand, *, reduce: str
) -> Value:
    """scatter.value_reduce."""
    return scatter_combine(b, out, self, dim, index, value, _OLD_NAMES[reduce])


def scatter_value(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, value: Operand) -> Value:
    return _scatter(b, out, self, dim, index, value)


def scatter_src(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Value) -> Value:
    return _scatter(b, out, self, dim, index, src)


def _scatter(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Operand) -> Value:
    if self.shape and index.shape:
        along = wrap(dim, len(self.shape))
        if is_one(index.shape[along]) and prove_nonneg(self.shape[along] - 1):
            return _scatter_one(b, out, self, along, index, src)
    return scatter_combine(b, out, self, dim, index, src, "")


def _scatter_one(b: Builder, out: TensorMeta, self: Value, dim: int, index: Value, src: Operand) -> Value:
    """One place for each row: a map that compares coordinates, as in one-hot vectors and the gradient of a loss by class."""
    integers(index)

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


def index_put(
    b: Builder,
    out: TensorMeta,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    if [t.dtype for t in indices if t is not None] == [bool_]:
        return _put_where(b, out, self, indices, values, accumulate)
    chosen: Selection = selection(self, indices)
    skipped = len(chosen.shape) - len(values.shape)

    def element(c: Coords) -> tuple[Coords, Expr, Expr | None]:
        place, mask = chosen.place(b, c)
        inner = tuple(ZERO if is_one(n) else x for x, n in zip(c[skipped:], values.shape, strict=True))
        return place, b.load(values, inner), mask

    return combine(b, out, self, chosen.shape, element, "add" if accumulate else "")


def _put_where(
    b: Builder, out: TensorMeta, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    """One value put wherever a mask is true (``x[mask] = 0``): a map."""
    if not all(is_one(n) for n in values.shape):
        raise NotLowered("a mask as an index: which value goes where depends on data")
    if accumulate and out.dtype == bool_:
        raise NotLowered("sums into bool")
    first = next(n for n, tensor in enumerate(indices) if tensor is not None)
    mask = indices[first]
    assert mask is not None
    if mask.shape != self.shape[first : first + len(mask.shape)]:
        raise NotLowered("a mask of another shape than what it indexes")

    def element(c: Coords) -> Expr:
        old = b.load(self, c)
        new = cast(b.load(values, (ZERO,) * len(values.shape)), self.dtype)
        if accumulate:
            new = op("add", old, new)
        return select(b.load(mask, c[first : first + len(mask.shape)]), new, old)

    return b.map(out, element)
