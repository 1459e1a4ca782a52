"""Distances between all pairs of rows (cdist), and sums of powers: ``(sum |x|^p)^(1/p)`` for any order p.

Formulas are those of ``ATen/native/cpu/DistanceOpsKernel.cpp``, and of ``ATen/native/cuda/DistanceKernel.cu`` for NaN on a GPU.
"""

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import constant
from lowc.ir.nodes import Expr
from lowc.ir.types import compute_dtype
from lowc.lowering.builder import Builder
from lowc.lowering.reduce import only_floats
from lowc.lowering.scalars import cast, is_nan, like, op, select
from lowc.lowering.values import Coords, Value, loop_order
from lowc.lowering.views import expanded

INF = float("inf")
LARGE = 25  # rows from which ATen makes Euclidean distances of a matrix product


def root(total: Expr, p: float) -> Expr:
    """What a sum of ``power`` (or their maximum) becomes."""
    if p == 2.0:
        return op("sqrt", total)
    return total if p in (0.0, 1.0, INF) else op("pow", total, like(1.0 / p, total))


def power(distance: Expr, p: float) -> Expr:
    """Of a non-negative ``distance``; for p = 0 whether there is one."""
    if p == 0.0:
        return op("min", op("ceil", distance), like(1.0, distance))  # NaN stays NaN
    if p == 2.0:
        return op("mul", distance, distance)
    return distance if p in (1.0, INF) else op("pow", distance, like(p, distance))


def cdist(b: Builder, out: TensorMeta, x1: Value, x2: Value, p: float, compute_mode: int | None) -> Value:
    only_floats(x1, "distances")
    many = [constant(x.shape[-2]) for x in (x1, x2)]
    if p == 2.0 and (compute_mode == 1 or (compute_mode != 2 and any(n is None or n > LARGE for n in many))):
        raise NotLowered("distances by way of a matrix product")
    wide = compute_dtype(out.dtype)
    reducer = "max" if p == INF else "add"
    target = b.result(out)
    x1, x2 = _batched(out, x1, x2)
    with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as c:
        acc = b.acc(reducer, wide)
        outer = tuple(c[:-2])
        with b.loop(x1.shape[-1], "k") as k:
            left, right = (cast(b.load(x, (*outer, r, k)), wide) for x, r in ((x1, c[-2]), (x2, c[-1])))
            distance = b.let(op("abs", op("sub", left, right)))
            term = power(distance, p)
            if b.gpu and p in (0.0, INF):  # NaN is a distance, and none larger than others
                term = select(is_nan(distance), like(1.0 if p == 0.0 else 0.0, distance), term)
            b.update(acc, reducer, term)
        total = acc[0]
        if reducer == "max":
            total = op("max", total, like(0.0, total))  # of no elements
        b.store(target, tuple(c), root(total, p))
    return target


def _batched(out: TensorMeta, *values: Value) -> list[Value]:
    """``values`` with the batch of ``out``: torch expands them itself only where it knows their sizes."""
    return [expanded(v, (*out.shape[:-2], *v.shape[-2:])) for v in values]


def cdist_backward(
    b: Builder, out: TensorMeta, grad: Value, x1: Value, x2: Value, p: float, cdist: Value
) -> Value:
    """The gradient of ``x1``."""
    only_floats(x1, "distances")
    if any(v.shape[:-2] != out.shape[:-2] for v in (grad, x1, x2, cdist)):
        raise NotLowered("gradients of distances with broadcast batches")
    wide = compute_dtype(out.dtype)
    target = b.result(out)

    def term(c: Coords, j: object) -> Expr:
        row = (*c[:-2], c[-2], j)
        g, far = (b.let(cast(b.load(v, row), wide)) for v in (grad, cdist))  # type: ignore[arg-type]
        x, y = b.load(x1, c), b.load(x2, (*c[:-2], j, c[-1]))  # type: ignore[arg-type]
        return slope(b, b.let(op("sub", cast(x, wide), cast(y, wide))), far, g, p)

    with b.kernel(), b.loops(out.shape, loop_order(out.shape, out.strides)) as c:
        acc = b.acc("add", wide)
        with b.loop(x2.shape[-2], "k") as j:
            b.update(acc, "add", term(tuple(c), j))
        b.store(target, tuple(c), acc[0])
    return target


def slope(b: Builder, difference: Expr, far: Expr, grad: Expr, p: float) -> Expr:
    """The derivative of the distance ``far`` by one coordinate's ``difference``, times ``grad``."""
    zero, one = like(0.0, grad), like(1.0, grad)
    sign = op("copysign", one, difference)
    sign = b.let(select(op("eq", difference, zero), zero, sign))
    size = b.let(op("abs", difference))
    if p == 0.0:
        return zero
    if p == 1.0:
        return op("mul", grad, sign)
    if p == INF:
        return op("mul", op("mul", grad, sign), cast(op("eq", size, far), grad.dtype))
    none = op("eq", far, zero)
    if p == 2.0:
        return select(none, zero, op("div", op("mul", grad, difference), far))
    shrunk = op("pow", far, like(p - 1, far))
    if p < 2.0:
        if p < 1.0:
            none = op("or", none, op("eq", difference, zero))
        return select(none, zero, op("div", op("mul", op("mul", sign, op("pow", size, like(p - 1, size))), grad), shrunk))
    steep = op("mul", op("mul", difference, op("pow", size, like(p - 2, size))), grad)
    return select(none, zero, op("div", steep, shrunk))
