"""Variances and standard deviations.

Two passes over a row, the mean and then the squared distances from it.  With m' the mean as it was rounded, m the mean itself:

    sum (x - m)**2  =  sum (x - m')**2  -  (sum (x - m'))**2 / n

The second term would be 0 for an exact m'; with it the result is exact also where rows are far from 0, next to their deviation
(T. Chan, G. Golub, R. LeVeque, "Algorithms for Computing the Sample Variance", 1983, the corrected two-pass algorithm).  Of
such rows the mean takes the sum of plain distances up, too, m' + sum (x - m') / n: so of equal elements it is that element, as
in ATen, and what layer norm makes of them is 0, not the mean's rounding times 1 / sqrt(eps).  (Where elements are not near m',
x - m' is rounded, and what their sum says is noise; a plain sum may be exact, as of small whole numbers.)  If parts of a row
lie apart in memory, as in batch norm over (batch, height, width), a part is read again while it is in the cache (on a GPU also
where columns are reduced, which would be few threads' work), and the parts' moments are moved from their own mean m' to one for
all, m'', before they are added up:

    sum (x - m'')**2  =  sum (x - m')**2  +  2 (m' - m'') sum (x - m')  +  n (m' - m'')**2
    sum (x - m'')     =  sum (x - m')  +  n (m' - m'')
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, constant
from lowc.ir.nodes import Const, Expr
from lowc.ir.types import DType, compute_dtype, f64
from lowc.lowering.builder import Builder, Operand, Row
from lowc.lowering.reduce import Dims, only_floats, reduced_dims, total
from lowc.lowering.scalars import cast, like, op, select
from lowc.lowering.values import Value, contiguous_strides, loop_order, product

# The mean's rounding counts where it is more than a thousandth of the deviation.
COUNTS = 2.0**-20

# Below, a part is less than two loads of a warp, and its sums cost as much as reading it again.
LEAST_PART = 64

# On a GPU: columns of so many elements are reduced in levels, each of them of so many elements, if they are fewer.
LEAST_COLUMN, LEAST_STEP, STEP, COLUMNS = 1 << 12, 16, 256, 1 << 15


def _only(result: Callable[[Expr], Expr], wide: bool) -> Callable[..., Value]:
    """The op that gives ``result(variance)`` alone; ``wide``: computed in f64 on CPUs."""

    def lower(
        b: Builder,
        out: TensorMeta,
        self: Value,
        dim: Dims = None,
        *,
        correction: Operand | None = None,
        keepdim: bool = False,
    ) -> Value:
        acc = f64 if wide and not b.gpu else compute_dtype(self.dtype)
        return _moments(b, [out], self, dim, correction, lambda variance, _: [result(variance)], acc)[0]

    return lower


var = _only(lambda variance: variance, False)
# Squares of elements below 1e-19 are no normal f32, and of those above 1e19 none at all, where deviations are: ATen's kernel for
# CPUs has f64, too.
std = _only(lambda variance: op("sqrt", variance), True)


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
    acc = compute_dtype(self.dtype)
    return _moments(b, metas, self, dim, correction, lambda variance, mean: [variance, mean], acc)


def _moments(
    b: Builder,
    outs: Sequence[TensorMeta],
    self: Value,
    dim: Dims,
    correction: Operand | None,
    results: Callable[[Expr, Expr], Sequence[Expr]],
    acc: DType,
) -> tuple[Value, ...]:
    """``results(variance, mean)`` over ``dim``, computed in ``acc``."""
    only_floats(self, "variance")
    dims = reduced_dims(self, dim)
    correction = 1 if correction is None else correction
    runs = _parts(self, dims)
    levels = [runs, [d for d in dims if d not in runs]] if runs else _levels(self, dims) if b.gpu else []
    if not levels:

        def row(r: Row) -> Sequence[Expr]:
            mean, spread, rest = _mean_spread_and_rest(r, acc)
            whole, mean = _about_the_mean(mean, spread, rest, cast(b.index(r.count), acc))
            return results(op("div", whole, _freedom(b, r.count, correction, acc)), mean)

        return b.reduce(outs, self, dims, row)
    size, made = ONE, (self,)
    for level, over in enumerate(levels[:-1]):
        # Outer dimensions last, so that one kept element's parts lie side by side; but kept elements do where they did.
        within = {d for done in levels[: level + 1] for d in done}
        kept, apart = [d for d in range(len(self.shape)) if d not in dims], [d for d in dims if d not in within]
        order = [*kept, *apart, *sorted(within)] if runs else [*apart, *kept, *sorted(within)]
        shape = tuple(ONE if d in within else n for d, n in enumerate(self.shape))
        steps = dict(zip(order, contiguous_strides(tuple(shape[d] for d in order)), strict=True))
        meta = TensorMeta(acc, shape, tuple(steps[d] for d in range(len(shape))), ZERO, outs[0].device)
        moments = partial(_moved, parts=made[1:], size=size, acc=acc) if level else partial(_mean_spread_and_rest, acc=acc)
        made = b.reduce([meta, meta, meta], made[0], over, moments)
        size = size * product(tuple([self.shape[d] for d in over]))

    def combined(r: Row) -> Sequence[Expr]:
        mean, spread, rest = _moved(r, made[1:], size, acc)
        whole, mean = _about_the_mean(mean, spread, rest, cast(b.index(r.count * size), acc))
        return results(op("div", whole, _freedom(b, r.count * size, correction, acc)), mean)

    return b.reduce(outs, made[0], dims, combined)


def _moved(r: Row, parts: Sequence[Value], size: Index, acc: DType) -> tuple[Expr, Expr, Expr]:
    """The mean of a row of means, of parts of ``size`` elements, and the spreads and rests of ``parts`` about that, added up."""
    b, (spreads, rests) = r.builder, parts
    n = cast(b.index(size), acc)
    mean = _mean(r, acc)
    spread, rest = b.acc("add", acc), b.acc("add", acc)
    with r.loops() as at:
        distance, own = b.let(op("sub", b.load(r.source, at), mean)), b.load(rests, at)
        moved = op("mul", n, distance)
        b.update(spread, "add", op("add", b.load(spreads, at), op("mul", distance, op("add", op("add", own, own), moved))))
        b.update(rest, "add", op("add", own, moved))
    return mean, spread[0], rest[0]


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


def _levels(self: Value, dims: Sequence[int]) -> list[list[int]]:
    """``dims`` in groups, the inner ones first, over which parts, parts of these and so on are reduced, where kept elements lie
    side by side, as channels in ``channels_last``, and are too few for a GPU; none if one kernel will do."""
    known = {d: constant(n) or 0 for d, n in enumerate(self.shape)}
    columns = math.prod(n for d, n in known.items() if d not in dims)
    if self.strides is None or not columns or columns >= COLUMNS or math.prod(known[d] for d in dims) < LEAST_COLUMN:
        return []
    long = [d for d, n in known.items() if n != 1]
    order = [long[n] for n in loop_order(tuple(self.shape[d] for d in long), tuple(self.strides[d] for d in long))]
    if order[-1] in dims:
        return []
    groups: list[list[int]] = [[]]
    for dim in reversed([d for d in order if d in dims]):
        before = math.prod(known[d] for d in groups[-1])
        if before >= LEAST_STEP and before * known[dim] > STEP:
            groups.append([])
        groups[-1].append(dim)
    return groups if len(groups) > 1 else []


def _mean(r: Row, acc: DType) -> Expr:
    b = r.builder
    return b.let(op("div", total(r, acc), cast(b.index(r.count), acc)))


def _about_the_mean(mean: Expr, spread: Expr, rest: Expr, count: Expr) -> tuple[Expr, Expr]:
    """The sum of squared distances from the mean itself, and that; ``spread`` and ``rest``: the sums of squared and of plain
    distances from it as it was rounded."""
    error = op("div", rest, count)
    exact = op("sub", spread, op("mul", rest, error))
    exact = op("max", exact, like(0.0, exact))  # of equal elements it might round below
    finite = op("lt", spread, like(math.inf, spread))
    counts = op("and", finite, op("ge", op("mul", rest, error), op("mul", spread, like(COUNTS, spread))))
    return select(finite, exact, spread), select(counts, op("add", mean, error), mean)


def _mean_spread_and_rest(r: Row, acc: DType) -> tuple[Expr, Expr, Expr]:
    """The mean of the row, and the sums of the squared and of the plain distances from it, in ``acc``."""
    b, mean = r.builder, _mean(r, acc)
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
