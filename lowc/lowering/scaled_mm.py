"""Products of float8 with scales: ``torch._scaled_mm``, and the form of it with recipes (``torch.nn.functional.scaled_mm``).

    out[i, j] = sum over k of f32(x[i, k]) * f32(y[k, j]), times the scale of x, times that of y, plus bias[j]

x and y are e4m3fn or e5m2, one of them e4m3fn; x lies along its rows and y along its columns, which tensor cores demand, as does
eager.  Scales are f32: one each for both, or one for each row of x and each column of y.  What else eager takes (blocks,
results of float8, types of fewer bits) or refuses stays ATen's.

Tensor cores keep about 14 bits of sums.  ``use_fast_accum`` allows that, on a GPU; without it each 128 products are added up by
themselves and their sums in f32, as cuBLAS does.
"""

from collections.abc import Sequence

from lowc.errors import NotLowered
from lowc.ir import tiles
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Index, constant
from lowc.ir.nodes import Expr
from lowc.ir.types import f8e4m3, f32
from lowc.lowering.builder import Builder
from lowc.lowering.matmul import summed
from lowc.lowering.scalars import cast, op
from lowc.lowering.values import Coords, Value, is_one

LINE = 16  # of what eager wants depth and columns to be multiples
WHOLE, BY_ROW = 0, 1  # torch.nn.functional.ScalingType: TensorWise, RowWise
PLAIN = 0  # SwizzleType.NO_SWIZZLE


def scaled_mm(
    b: Builder,
    out: TensorMeta,
    self: Value,
    mat2: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: object = None,
    use_fast_accum: bool = False,
) -> Value:
    """``aten._scaled_mm``."""
    if scale_result is not None:
        raise NotLowered("a scale of the result")
    return _product(b, out, self, mat2, scale_a, scale_b, bias, use_fast_accum)


def scaled_mm_v2(
    b: Builder,
    out: TensorMeta,
    self: Value,
    mat2: Value,
    scale_a: Sequence[Value],
    recipe_a: Sequence[int | Index],
    swizzle_a: Sequence[int | Index],
    scale_b: Sequence[Value],
    recipe_b: Sequence[int | Index],
    swizzle_b: Sequence[int | Index],
    bias: Value | None,
    out_dtype: object,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Value:
    """``aten._scaled_mm_v2``, of one scale for each factor."""
    recipes = [tuple(map(_number, r)) for r in (recipe_a, recipe_b)]
    if recipes[0] != recipes[1] or recipes[0] not in ((WHOLE,), (BY_ROW,)) or len(scale_a) != 1 or len(scale_b) != 1:
        raise NotLowered("scales that are neither one nor one for each row and column")
    if contraction_dim or any(_number(s) != PLAIN for s in (*swizzle_a, *swizzle_b)):
        raise NotLowered("scales in another order, or other dimensions")
    if (recipes[0] == (WHOLE,)) != _is_single(scale_b[0]):  # there are at least 16 columns
        raise NotLowered("scales that are not as many as said")
    return _product(b, out, self, mat2, scale_a[0], scale_b[0], bias, use_fast_accum)


def _product(
    b: Builder, out: TensorMeta, x: Value, y: Value, scale_x: Value, scale_y: Value, bias: Value | None, fast: bool
) -> Value:
    if not {x.dtype, y.dtype} <= set(tiles.EIGHTHS) or f8e4m3 not in (x.dtype, y.dtype):
        raise NotLowered(f"a product of {x.dtype} and {y.dtype} with scales")
    if out.dtype.kind != "f" or out.dtype.bits > 32:
        raise NotLowered(f"results of {out.dtype}")
    if bias is not None and (out.dtype == f32 or bias.dtype.kind != "f" or bias.shape != out.shape[1:]):
        raise NotLowered("a bias that is none for each column, or is added to results of f32")
    if not (_lies_along(x, 1) and _lies_along(y, 0) and all(map(_is_whole, (x.shape[1], y.shape[1])))):
        raise NotLowered("factors that do not lie along a depth of whole pieces of 16 bytes")
    rows, columns = out.shape
    by_row = scale_x.shape == (rows, ONE) and scale_y.shape == (ONE, columns)
    single = _is_single(scale_x) and _is_single(scale_y)
    if {scale_x.dtype, scale_y.dtype} != {f32} or not (single or by_row):
        raise NotLowered("scales that are neither one nor one for each row and column")
    loose = fast and b.gpu
    if why := b.library(x, y, loose):
        raise NotLowered(f"a library's ({why})")

    def factor(value: Expr) -> Expr:
        return tiles.tf32(cast(value, f32)) if loose and b.engine else cast(value, f32)

    def epilogue(total: Expr, place: Coords) -> Expr:
        row, column = (ZERO, ZERO) if single else place
        for scale, where in ((scale_x, (row, ZERO)), (scale_y, (ZERO, column))):
            total = op("mul", total, b.load(scale, where[: len(scale.shape)]))
        return total if bias is None else op("add", total, cast(b.load(bias, place[1:]), f32))

    return summed(b, out, x, y, f32, factor, epilogue)


def _number(value: int | Index) -> int | None:
    return constant(value) if isinstance(value, Index) else value


def _is_single(scale: Value) -> bool:
    return all(map(is_one, scale.shape))


def _lies_along(x: Value, dimension: int) -> bool:
    return len(x.shape) == 2 and x.strides is not None and constant(x.strides[dimension]) == 1


def _is_whole(extent: Index) -> bool:
    return all(count % LINE == 0 for _, count in extent.terms)
