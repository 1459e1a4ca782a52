"""Matrix products: a loop nest with one accumulator an element, which ``scheduler`` tiles.

    for b in B { for i in M { for j in N {
      acc s = add; for k in K { s add= product(x[b, i, k], y[b, k, j]) }; out[b, i, j] = s
    } } }

Operands of f16 and bf16 are widened, so that they are summed in f32 and rounded once.  What ``alpha``, ``beta`` and the
added tensor do is an epilogue: an expression of the sum.
"""

from collections.abc import Callable

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant
from lowc.ir.nodes import Expr
from lowc.ir.types import accumulate_dtype
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast, op
from lowc.lowering.values import Coords, Value

Number = Index | bool | int | float
Epilogue = Callable[[Expr, Coords], Expr]


def mm(b: Builder, out: TensorMeta, self: Value, mat2: Value) -> Value:
    return _product(b, out, self, mat2, lambda total, _: total)


bmm = mm


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


def _product(b: Builder, out: TensorMeta, x: Value, y: Value, epilogue: Epilogue) -> Value:
    """``epilogue`` of the sums over the last dimension of ``x`` and the last but one of ``y`` (its only one, if it has one).

    The other dimensions of ``out`` are those that both have in front, then x's own, then y's own.
    """
    if not b.own_matmul(x, y):
        raise NotLowered("a library's, on a GPU" if b.atomic else "a library's (lowc's own with option matmul='own')")
    if x.dtype != y.dtype or x.dtype.kind != "f" or out.dtype.kind != "f":
        raise NotLowered(f"a matrix product of {x.dtype} and {y.dtype}")
    total = accumulate_dtype(x.dtype)
    batch = len(x.shape) - 2 if len(y.shape) > 2 else 0
    own = len(x.shape) - 1
    target = b.result(out)
    with b.kernel(), b.loops(out.shape, range(len(out.shape))) as coords:
        place = tuple(coords)
        acc = b.acc("add", total)
        with b.loop(x.shape[-1], "k") as k:
            left = b.load(x, (*place[:own], k))
            right = b.load(y, (*place[:batch], k, *place[own:]))
            b.update(acc, "add", op("product", cast(left, total), cast(right, total)))
        b.store(target, place, epilogue(acc[0], place))
    return target


