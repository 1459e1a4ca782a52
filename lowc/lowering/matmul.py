"""Matrix products: a loop nest with one accumulator an element, which ``scheduler`` tiles.

    for b in B { for i in M { for j in N {
      acc s = add; for k in K { s add= product(x[b, i, k], y[b, k, j]) }; out[b, i, j] = s
    } } }

Operands of f16 and bf16 are widened, so that they are summed in f32 and rounded once; integers of up to 32 bits are summed in 32,
which wrap as eager's do.  Those of f32 a GPU rounds to 10 bits of
mantissa, where the user has allowed it (TF32).  What ``alpha``, ``beta`` and the added tensor do is an epilogue: an expression of
the sum.

On a GPU the engine that brings factors to tensor cores takes rows (or columns) that begin at multiples of 16 bytes.  Large
factors that lie otherwise are copied first: [4096, 4097] as rows of 4104 elements, of which the last 7 are never read.
"""

from collections.abc import Callable
from math import prod

from lowc.errors import NotLowered
from lowc.ir import tiles
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, Index, constant
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, accumulate_dtype, f32, i8, i32
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast, op
from lowc.lowering.values import Coords, Value, is_one, loop_order
from lowc.lowering.views import permuted

LINE = 8  # elements of 16 bits in the 16 bytes at which rows begin that the engine copies
LARGE = 1 << 18  # elements of a factor from which a copy pays …
REUSED = 256  # … if each takes part in so many results
UNKNOWN = 1024  # what a size of the call is taken for
Number = Index | bool | int | float
Epilogue = Callable[[Expr, Coords], Expr]


def mm(b: Builder, out: TensorMeta, self: Value, mat2: Value) -> Value:
    return _product(b, out, self, mat2, lambda total, _: total)


bmm = mm
int_mm = mm  # of i8, into i32


def weight_int8pack_mm(b: Builder, out: TensorMeta, self: Value, mat2: Value, scales: Value) -> Value:
    """self @ mat2.T * scales: weights [columns, depth] of 8 bits, scaled by column once they are summed."""

    def epilogue(total: Expr, place: Coords) -> Expr:
        return op("mul", total, cast(b.load(scales, (place[1],)), total.dtype))

    return _product(b, out, self, permuted(mat2, [1, 0]), epilogue, True)


def mv(b: Builder, out: TensorMeta, self: Value, vec: Value) -> Value:
    return _product(b, out, self, vec, lambda total, _: total)


def dot(b: Builder, out: TensorMeta, self: Value, tensor: Value) -> Value:
    return _product(b, out, self, tensor, lambda total, _: total)


def addmm(
    b: Builder, out: TensorMeta, self: Value, mat1: Value, mat2: Value, *, beta: Number = 1, alpha: Number = 1
) -> Value:
    """alpha * (mat1 @ mat2) + beta * self, of which ``self`` is not read if beta is 0."""

    def epilogue(total: Expr, place: Coords) -> Expr:
        if not _is(alpha, 1):
            total = op("mul", total, b.number(alpha, total.dtype))
        if _is(beta, 0):
            return total
        added = cast(b.read(self, place), total.dtype)
        if not _is(beta, 1):
            added = op("mul", added, b.number(beta, total.dtype))
        return op("add", total, added)

    return _product(b, out, mat1, mat2, epilogue)


baddbmm = addmm
addmv = addmm


def _is(value: Number, number: int) -> bool:
    return (constant(value) if isinstance(value, Index) else value) == number


def _product(b: Builder, out: TensorMeta, x: Value, y: Value, epilogue: Epilogue, widened: bool = False) -> Value:
    """``epilogue`` of the sums over the last dimension of ``x`` and the last but one of ``y`` (its only one, if it has one).

    The other dimensions of ``out`` are those that both have in front, then x's own, then y's own.  ``widened``: elements of ``y``
    are first converted to the type of ``x``.
    """
    if widened and (x.dtype.kind != "f" or y.dtype != i8):
        raise NotLowered(f"weights of {y.dtype} for {x.dtype}")
    kinds = {t.dtype.kind for t in (x, y, out)}
    integers = kinds <= {"i", "u"}
    if not widened and (x.dtype != y.dtype or not (integers or kinds == {"f"})):
        raise NotLowered(f"a matrix product of {x.dtype} and {y.dtype}")
    if why := b.library(x, y, False):
        raise NotLowered(f"a library's ({why})")
    if b.engine and x.dtype.bytes == 2 and min(len(x.shape), len(y.shape)) > 1:
        x, y = _in_lines(b, x, y.shape[-1]), _in_lines(b, y, x.shape[-2])
    total = accumulate_dtype(x.dtype)
    if integers:
        total = out.dtype if out.dtype.bits >= 32 else i32
    factor = tiles.tf32 if b.tf32 and x.dtype == f32 else lambda value: cast(value, total)
    result = epilogue if not integers else lambda s, place: cast(epilogue(s, place), out.dtype)
    return summed(b, out, x, y, total, factor, result)


def summed(
    b: Builder, out: TensorMeta, x: Value, y: Value, total: DType, factor: Callable[[Expr], Expr], epilogue: Epilogue
) -> Value:
    """The kernel: ``epilogue`` of sums in ``total`` of products of ``factor`` of elements; those of ``y`` are converted to the
    type of ``x`` first, but for float8."""
    batch = len(x.shape) - 2 if len(y.shape) > 2 else 0
    own = len(x.shape) - 1
    target = b.result(out)
    with b.kernel(), b.loops(out.shape, range(len(out.shape))) as coords:
        place = tuple(coords)
        acc = b.acc("add", total)
        with b.loop(x.shape[-1], "k") as k:
            left = b.load(x, (*place[:own], k), kinds="biufx")
            right = b.load(y, (*place[:batch], k, *place[own:]), kinds="biufx")
            right = right if right.dtype.kind == "x" else cast(right, x.dtype)
            b.update(acc, "add", op("product", factor(left), factor(right)))
        b.store(target, place, epilogue(acc[0], place))
    return target


def _in_lines(b: Builder, x: Value, results: Index) -> Value:
    """``x``, or a copy of it, where the engine takes it; each element takes part in ``results`` sums."""
    along = _brought_along(x, results)
    if along is None or x.strides is None:
        return x
    order = [d for d in loop_order(x.shape, x.strides) if d != along] + [along]
    strides, step = [ONE] * len(order), ONE
    for d in reversed(order):
        strides[d] = step
        step = step * (-(-(constant(x.shape[d]) or 0) // LINE) * LINE if d == along else x.shape[d])
    out = b.temp(x.dtype, x.shape, tuple(strides))
    b.fill(out, lambda c: b.load(x, c))
    return out


def _brought_along(x: Value, results: Index) -> int | None:
    """The dimension along which ``x`` is copied first; None if it is not."""
    if x.strides is None or x.coords is None or copied_along(x) is not None:
        return None
    matrix = (len(x.shape) - 2, len(x.shape) - 1)
    along = next((d for d in matrix if constant(x.strides[d]) == 1), matrix[1])
    few = prod(_about(n) for n in x.shape) < LARGE or _about(results) < REUSED
    return None if few or constant(x.shape[along]) is None else along


def pieces(x: Value, y: Value) -> int:
    """Bytes of the smallest pieces in which threads of a GPU would copy a factor, of 16 bits, from where it lies: those that are
    brought into lines first have 16."""
    if min(len(x.shape), len(y.shape)) < 2:
        return 2 * LINE
    return min(_pieces(x, y.shape[-1]), _pieces(y, x.shape[-2]))


def _pieces(x: Value, results: Index) -> int:
    if copied_along(x) is not None or _brought_along(x, results) is not None:
        return 2 * LINE
    if x.strides is None:
        return x.dtype.bytes
    along = next((d for d in range(len(x.shape) - 2, len(x.shape)) if constant(x.strides[d]) == 1), None)
    others = [x.offset, *(x.strides[d] for d in range(len(x.shape)) if d != along and not is_one(x.shape[d]))]
    found = [n for n in (8, 4) if along is not None and all(c * x.dtype.bytes % n == 0 for i in others for _, c in i.terms)]
    return found[0] if found else x.dtype.bytes


def copied_along(x: Value) -> int | None:
    """The dimension along which the engine copies ``x`` as it lies; None if it cannot."""
    if x.strides is None:
        return None
    for along in range(max(0, len(x.strides) - 2), len(x.strides)):
        others = [x.strides[d] for d in range(len(x.shape)) if d != along and not is_one(x.shape[d])]
        if constant(x.strides[along]) == 1 and all(_whole_lines(i, x.dtype) for i in (x.offset, *others)):
            return along
    return None


def along_depth(x: Value, y: Value) -> bool:
    """Whether the engine copies both factors of a product along its depth."""
    return len(y.shape) > 1 and copied_along(x) == len(x.shape) - 1 and copied_along(y) == len(y.shape) - 2


def _whole_lines(index: Index, dtype: DType) -> bool:
    return all(c % (2 * LINE // dtype.bytes) == 0 for _, c in index.terms)


def _about(extent: Index) -> int:
    """An extent, or what is taken for one that only the call tells."""
    number = constant(extent)
    return UNKNOWN if number is None else number
