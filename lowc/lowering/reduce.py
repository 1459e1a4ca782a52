"""Reductions: sums, products, extrema, any/all, arg-reductions, variances and norms.

Float sums accumulate in f32 or wider with a plain accumulator; blocking it for accuracy is the scheduler's work.
"""

from collections.abc import Callable, Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant, prove_nonneg
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, accumulate_dtype, bool_, compute_dtype, f64, i64
from lowc.lowering.builder import Builder, Operand, Row
from lowc.lowering.scalars import cast, like, op, select, truth
from lowc.lowering.values import Coords, Value, loop_order, ravel
from lowc.lowering.views import wrap

Dims = int | Sequence[int] | None
Lowering = Callable[..., Value]


def reduced_dims(self: Value, dim: Dims) -> list[int]:
    """The dimensions that ``dim`` names; None and () mean all."""
    rank = len(self.shape)
    if dim is None or (not isinstance(dim, int) and not dim):
        return list(range(rank))
    named = [dim] if isinstance(dim, int) else list(dim)
    return sorted({wrap(d, rank) for d in named}) if rank else []


def one(b: Builder, out: TensorMeta, self: Value, dims: Sequence[int], row: Callable[[Row], Expr]) -> Value:
    """A reduction with one result."""
    return b.reduce([out], self, dims, lambda r: [row(r)])[0]


# ---------------------------------------------------------------- sums and products


def total(r: Row, source_dtype: DType) -> Expr:
    """The sum of the row in the accumulator type, each element first converted to ``source_dtype``."""
    acc = accumulate_dtype(source_dtype)
    return r.fold("add", acc, lambda _, x: [cast(cast(x, source_dtype), acc)])[0]


def sum_dims(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Value:
    return one(b, out, self, reduced_dims(self, dim), lambda r: total(r, out.dtype))


def sum_all(b: Builder, out: TensorMeta, self: Value, *, dtype: DType | None = None) -> Value:
    return sum_dims(b, out, self)


def mean_dims(
    b: Builder,
    out: TensorMeta,
    self: Value,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Value:
    def row(r: Row) -> Expr:
        summed = total(r, out.dtype)
        return op("div", summed, cast(b.index(r.count), summed.dtype))

    return one(b, out, self, reduced_dims(self, dim), row)


def mean_all(b: Builder, out: TensorMeta, self: Value, *, dtype: DType | None = None) -> Value:
    return mean_dims(b, out, self)


def prod_dim(
    b: Builder, out: TensorMeta, self: Value, dim: Dims, keepdim: bool = False, *, dtype: DType | None = None
) -> Value:
    acc = compute_dtype(out.dtype)
    if acc == bool_:
        raise NotLowered("product as bool")
    dims = reduced_dims(self, dim)
    return one(
        b, out, self, dims, lambda r: r.fold("mul", acc, lambda _, x: [cast(cast(x, out.dtype), acc)])[0]
    )


def prod_all(b: Builder, out: TensorMeta, self: Value, *, dtype: DType | None = None) -> Value:
    return prod_dim(b, out, self, None)


# ---------------------------------------------------------------- extrema


def needs_elements(self: Value, dims: Sequence[int]) -> None:
    """Raises NotLowered if the row may be empty, where ATen raises."""
    for dim in dims:
        if not prove_nonneg(self.shape[dim] - 1):
            raise NotLowered("a reduction without identity over a dimension that may be empty")


def extremum(reducer: str) -> Lowering:
    """amax, amin, and max, min over everything."""

    def lower(b: Builder, out: TensorMeta, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        dims = reduced_dims(self, dim)
        needs_elements(self, dims)
        return one(b, out, self, dims, lambda r: r.fold(reducer, self.dtype, lambda _, x: [x])[0])

    return lower


def extremum_dim(reducer: str) -> Callable[..., tuple[Value, ...]]:
    """max.dim and min.dim: the value and its first index."""

    def lower(
        b: Builder, outs: Sequence[TensorMeta | None], self: Value, dim: int, keepdim: bool = False
    ) -> tuple[Value, ...]:
        metas = [m for m in outs if isinstance(m, TensorMeta)]
        dims = reduced_dims(self, dim)
        needs_elements(self, dims)
        return b.reduce(metas, self, dims, lambda r: best(r, reducer)[: len(metas)])

    return lower


def best(r: Row, reducer: str) -> tuple[Expr, ...]:
    """(value, row-major position within the reduced dims) of the best element."""
    sizes = tuple(r.source.shape[d] for d in r.dims)

    def element(c: Coords, x: Expr) -> Sequence[Expr]:
        return x, r.builder.index(ravel(tuple(c[d] for d in r.dims), sizes))

    return r.fold(reducer, r.source.dtype, element)


def arg_extremum(reducer: str) -> Lowering:
    def lower(
        b: Builder, out: TensorMeta, self: Value, dim: int | None = None, keepdim: bool = False
    ) -> Value:
        dims = reduced_dims(self, dim)
        needs_elements(self, dims)
        return one(b, out, self, dims, lambda r: best(r, reducer)[1])

    return lower


def aminmax(
    b: Builder,
    outs: Sequence[TensorMeta | None],
    self: Value,
    *,
    dim: int | None = None,
    keepdim: bool = False,
) -> tuple[Value, ...]:
    dims = reduced_dims(self, dim)
    needs_elements(self, dims)
    metas = [m for m in outs if isinstance(m, TensorMeta)]
    if len(metas) != 2:
        raise NotLowered("one result is unused")

    def row(r: Row) -> Sequence[Expr]:
        low, high = b.acc("min", self.dtype), b.acc("max", self.dtype)
        with r.loops() as coords:
            x = b.let(b.load(self, coords))
            b.update(low, "min", x)
            b.update(high, "max", x)
        return low[0], high[0]

    return b.reduce(metas, self, dims, row)


def truth_reduction(reducer: str) -> Lowering:
    """any and all: a NaN is true."""

    def lower(b: Builder, out: TensorMeta, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        dims = reduced_dims(self, dim)
        return one(b, out, self, dims, lambda r: r.fold(reducer, bool_, lambda _, x: [truth(x)])[0])

    return lower


def count_nonzero(b: Builder, out: TensorMeta, self: Value, dim: Dims = None) -> Value:
    dims = reduced_dims(self, dim)
    return one(b, out, self, dims, lambda r: r.fold("add", i64, lambda _, x: [cast(truth(x), i64)])[0])


# ---------------------------------------------------------------- variance and norms


def only_floats(self: Value, what: str) -> None:
    """Raises NotLowered for ``what`` of any other dtype."""
    if self.dtype.kind != "f":
        raise NotLowered(f"{what} of {self.dtype}")


def logsumexp(b: Builder, out: TensorMeta, self: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log(sum(exp(x - m))) + m with m the maximum, or 0 where that is infinite."""
    dims = reduced_dims(self, dim)
    acc = compute_dtype(out.dtype)

    def row(r: Row) -> Expr:
        high = r.fold("max", acc, lambda _, x: [cast(x, acc)])[0]
        infinite = op("eq", op("abs", high), like(float("inf"), high))
        shift = b.let(select(infinite, like(0.0, high), high))
        summed = r.fold("add", acc, lambda _, x: [op("exp", op("sub", cast(x, acc), shift))])[0]
        return op("add", op("log", summed), shift)

    if self.dtype.kind != "f":
        raise NotLowered(f"logsumexp of {self.dtype}")
    return one(b, out, self, dims, row)


def norm(
    b: Builder,
    out: TensorMeta,
    self: Value,
    ord: Operand = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Value:
    """linalg_vector_norm."""
    dims = reduced_dims(self, dim)
    acc = compute_dtype(out.dtype)
    if self.dtype.kind != "f" or isinstance(ord, Index | Value):
        raise NotLowered("a norm of integers, or of an order that is no number")
    order = float(ord)

    def magnitude(_: Coords, x: Expr) -> Sequence[Expr]:
        return [op("abs", cast(cast(x, out.dtype), acc))]

    def square(_: Coords, x: Expr) -> Sequence[Expr]:
        wide = b.let(cast(cast(x, out.dtype), acc))
        return [op("mul", wide, wide)]

    if order != 0.0 and all(constant(self.shape[d]) == 1 for d in dims):
        # ATen's rule for one element, whose power need not be finite
        return one(b, out, self, dims, lambda r: r.fold("max", acc, magnitude)[0])
    if order == 2.0:
        return one(b, out, self, dims, lambda r: op("sqrt", r.fold("add", acc, square)[0]))
    if order == 1.0:
        return one(b, out, self, dims, lambda r: r.fold("add", acc, magnitude)[0])
    if order == 0.0:
        return one(b, out, self, dims, lambda r: r.fold("add", acc, lambda _, x: [cast(truth(x), acc)])[0])
    if abs(order) == float("inf"):
        needs_elements(self, dims)
        return one(b, out, self, dims, lambda r: r.fold("max" if order > 0 else "min", acc, magnitude)[0])

    def powers(_: Coords, x: Expr) -> Sequence[Expr]:
        size = op("abs", cast(cast(x, out.dtype), acc))
        return [op("pow", size, like(order, size))]

    def row(r: Row) -> Expr:
        summed = r.fold("add", acc, powers)[0]
        return op("pow", summed, like(1.0 / order, summed))

    return one(b, out, self, dims, row)


# ---------------------------------------------------------------- scans


def scan(reducer: str) -> Lowering:
    """cumsum and cumprod: the running accumulator is stored after each update."""

    def lower(b: Builder, out: TensorMeta, self: Value, dim: int, *, dtype: DType | None = None) -> Value:
        # ATen's running sums and products of floats on the CPU are carried in f64 (at::acc_type), unlike its sums
        acc = f64 if out.dtype.kind == "f" else accumulate_dtype(out.dtype)
        if out.dtype == bool_:
            raise NotLowered("a running sum as bool")
        if not self.shape:
            return b.map(out, lambda c: cast(b.load(self, c), out.dtype))
        along = wrap(dim, len(self.shape))
        target = b.result(out)
        from_order = [d for d in loop_order(target.shape, out.strides) if d != along]
        with b.kernel(), b.loops(self.shape, from_order) as coords:
            running = b.acc(reducer, acc)
            with b.loop(self.shape[along], "k") as k:
                here = tuple(k if d == along else c for d, c in enumerate(coords))
                b.update(running, reducer, cast(cast(b.load(self, here), out.dtype), acc))
                b.store(target, here, cast(running[0], out.dtype))
        return target

    return lower
