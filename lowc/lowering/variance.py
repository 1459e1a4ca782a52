"""Variances and standard deviations.

Two passes over a row, the mean and then the squared distances from it, as ATen's own results are exact to that degree.  If parts
of a row lie apart in memory, as in batch norm over (batch, height, width), a part is read again while it is in the cache,
and the parts' moments are combined.  With m the mean of all, and of a part of n elements m' the mean as it was rounded:

    sum (x - m)**2  =  sum (x - m')**2  +  2 (m' - m) sum (x - m')  +  n (m' - m)**2

The middle sum would be 0 for an exact m' (T. Chan, G. Golub, R. LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979, leave it out); with it roundings of the means count squared, as in two passes over all.
"""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, constant
from lowc.ir.nodes import Const, Expr
from lowc.ir.types import DType, compute_dtype
from lowc.lowering.builder import Builder, Operand, Row
from lowc.lowering.reduce import Dims, only_floats, reduced_dims, total
from lowc.lowering.scalars import cast, like, op
from lowc.lowering.values import Coords, Value, contiguous_strides, loop_order

# Below, a part is less than two loads of a warp, and its sums cost as much as reading it again.
LEAST_PART = 64


def var(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: Dims = None,
    *,
    correction: Operand | None = None,
    keepdim: bool = False,
) -> Value:
    return _moments(b, [out], self, dim, correction, lambda variance, _: [variance])[0]


def std(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: Dims = None,
    *,
    correction: Operand | None = None,
    keepdim: bool = False,
) -> Value:
    return _moments(b, [out], self, dim, correction, lambda variance, _: [op("sqrt", variance)])[0]


def var_mean(
    b: Builder,
    outs: Sequence[TensorMeta | None],
    self: Value,
    dim: Dims = None,
    *,
    correction: Operand | None = None,
    keepdim: bool = False,
) -> tuple[Value, ...]:
    metas = [m for m in outs if isinstance(m, TensorMeta)]
    if len(metas) != 2:
        raise NotLowered("one result is unused")
    return _moments(b, metas, self, dim, correction, lambda variance, mean: [variance, mean])


def _moments(
    b: Builder,
    outs: Sequence[TensorMeta],
    self: Value,
    dim: Dims,
    correction: Operand | None,
    results: Callable[[Expr, Expr], Sequence[Expr]],
) -> tuple[Value, ...]:
    """``results(variance, mean)`` over ``dim``."""
    only_floats(self, "variance")
    dims = reduced_dims(self, dim)
    correction = 1 if correction is None else correction
    acc = compute_dtype(self.dtype)
    parts = _parts(self, dims)
    if not parts:

        def whole(r: Row) -> Sequence[Expr]:
            mean = _mean(r)
            return results(op("div", _spread(r, mean), _freedom(b, r.count, correction, acc)), mean)

        return b.reduce(outs, self, dims, whole)
    # Outer dimensions last, so that one kept element's parts lie side by side.
    apart = [d for d in dims if d not in parts]
    kept = [d for d in range(len(self.shape)) if d not in dims]
    order = [*kept, *apart, *parts]
    shape = tuple(ONE if d in parts else n for d, n in enumerate(self.shape))
    steps = dict(zip(order, contiguous_strides(tuple(shape[d] for d in order)), strict=True))
    meta = TensorMeta(acc, shape, tuple(steps[d] for d in range(len(shape))), ZERO, outs[0].device)
    means, spreads, rests = b.reduce([meta, meta, meta], self, parts, _mean_spread_and_rest)
    size = ONE
    for d in parts:
        size = size * self.shape[d]

    def combined(r: Row) -> Sequence[Expr]:
        n = cast(b.index(size), acc)
        mean = b.let(op("div", total(r, acc), cast(b.index(r.count), acc)))

        def spread_of(at: Coords, part: Expr) -> Sequence[Expr]:
            distance = b.let(op("sub", part, mean))
            rest = b.load(rests, at)
            added = op("mul", distance, op("add", op("add", rest, rest), op("mul", n, distance)))
            return [op("add", b.load(spreads, at), added)]

        spread = r.fold("add", acc, spread_of)[0]
        return results(op("div", spread, _freedom(b, r.count * size, correction, acc)), mean)

    return b.reduce(outs, means, dims, combined)


def _parts(self: Value, dims: Sequence[int]) -> list[int]:
    """The dimensions of ``dims`` that make one run in memory, if others do not belong to it; else none."""
    if self.strides is None:
        return []
    inner: list[int] = []
    for dim in reversed(loop_order(self.shape, self.strides)):
        if dim not in dims:
            break
        inner.append(dim)
    if len(inner) == len(dims):
        return []
    sizes = [constant(self.shape[d]) for d in inner]
    least = 1
    for size in sizes:
        least *= 1 if size is None else size
    known = None not in sizes
    return sorted(inner) if inner and (least >= LEAST_PART or not known) else []


def _mean(r: Row) -> Expr:
    b = r.builder
    return b.let(op("div", total(r, r.source.dtype), cast(b.index(r.count), compute_dtype(r.source.dtype))))


def _spread(r: Row, mean: Expr) -> Expr:
    """The sum of squared distances from ``mean``."""

    def square(_: Coords, x: Expr) -> Sequence[Expr]:
        distance = r.builder.let(op("sub", cast(x, mean.dtype), mean))
        return [op("mul", distance, distance)]

    return r.fold("add", mean.dtype, square)[0]


def _mean_spread_and_rest(r: Row) -> tuple[Expr, Expr, Expr]:
    """The mean of the row, and the sums of the squared and of the plain distances from it."""
    b, mean = r.builder, _mean(r)
    spread, rest = b.acc("add", mean.dtype), b.acc("add", mean.dtype)
    with r.loops() as coords:
        distance = b.let(op("sub", cast(b.load(r.source, coords), mean.dtype), mean))
        b.update(spread, "add", op("mul", distance, distance))
        b.update(rest, "add", distance)
    return mean, spread[0], rest[0]


EXACT = 1 << 24  # integers up to here are f32 values


def _freedom(b: Builder, count: Index, correction: Operand, acc: DType) -> Expr:
    """``count`` less ``correction``, at least 0."""
    known = constant(count)
    if known is not None and known <= EXACT and isinstance(correction, int) and abs(correction) <= EXACT:
        return Const(float(max(known - correction, 0)), acc)
    left = op("sub", cast(b.index(count), acc), b.number(correction, acc))
    return op("max", left, like(0.0, left))
