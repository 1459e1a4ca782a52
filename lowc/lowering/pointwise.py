"""Pointwise arithmetic, comparison, logic and bits, in the dtype that type promotion gives.

Each function takes (builder, type of the result, the ATen arguments by their schema names) and gives the result's Value.
An op on f16 or bf16 computes in f32 and rounds once, at its end.
"""

from collections.abc import Callable
from math import pi

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, bf16, bool_, compute_dtype, f16
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.promotion import common_dtype, float_dtype
from lowc.lowering.scalars import cast, const, is_nan, like, op, select, truth
from lowc.lowering.values import Coords, Value

Lowering = Callable[..., Value]
Formula = Callable[..., Expr]


def elementwise(b: Builder, out: TensorMeta, dtype: DType, formula: Formula, *operands: Operand) -> Value:
    """``formula`` of the operands, each converted to ``dtype`` and widened, stored as out's dtype."""
    wide = compute_dtype(dtype)

    def element(c: Coords) -> Expr:
        return formula(*(cast(b.read(x, c, dtype), wide) for x in operands))

    return b.map(out, element)


# ---------------------------------------------------------------- unary


def unary(formula: Formula, kinds: str = "iuf") -> Lowering:
    """An op that keeps its dtype, for dtypes of ``kinds``."""

    def lower(b: Builder, out: TensorMeta, self: Value) -> Value:
        if self.dtype.kind not in kinds:
            raise NotLowered(f"no lowering for {self.dtype}")
        return elementwise(b, out, self.dtype, formula, self)

    return lower


def unary_float(formula: Formula) -> Lowering:
    """An op that makes floats: integers are converted to the result's dtype first."""

    def lower(b: Builder, out: TensorMeta, self: Value) -> Value:
        return elementwise(b, out, float_dtype(b.default, self.dtype), formula, self)

    return lower


def maths(name: str) -> Lowering:
    """Row ``name`` of the op table as a float op."""
    return unary_float(lambda x: op(name, x))


def rounding(name: str) -> Lowering:
    """floor, ceil, trunc, round: integers stay as they are."""
    return unary(lambda x: op(name, x) if x.dtype.kind == "f" else x)


def absolute(x: Expr) -> Expr:
    return x if x.dtype.kind in "bu" else op("abs", x)


def sign(x: Expr) -> Expr:
    """(0 < x) - (x < 0): 0 for NaN, and +0 for both zeros."""
    if x.dtype.kind == "b":
        return x
    zero = like(0, x)
    return op("sub", cast(op("lt", zero, x), x.dtype), cast(op("lt", x, zero), x.dtype))


def angle(x: Expr) -> Expr:
    """Of a real number: pi if it is negative, else 0; NaN of NaN."""
    return select(is_nan(x), x, select(op("lt", x, like(0.0, x)), like(pi, x), like(0.0, x)))


def round_decimals(b: Builder, out: TensorMeta, self: Value, *, decimals: int) -> Value:
    """To a multiple of a power of ten, by way of a product or a quotient that is rounded, as in ATen."""
    if self.dtype.kind != "f":
        raise NotLowered(f"round to decimals of {self.dtype}")

    def formula(x: Expr) -> Expr:
        power = like(10.0 ** abs(decimals), x)
        if decimals >= 0:
            return op("div", op("round", op("mul", x, power)), power)
        return op("mul", op("round", op("div", x, power)), power)

    return elementwise(b, out, self.dtype, formula, self)


def predicate(on_float: Formula, on_integer: bool) -> Lowering:
    """A bool op that is constant on integers."""

    def lower(b: Builder, out: TensorMeta, self: Value) -> Value:
        if self.dtype.kind in "biu":
            return b.map(out, lambda c: const(on_integer, bool_))
        return elementwise(b, out, self.dtype, on_float, self)

    return lower


def is_inf(x: Expr) -> Expr:
    return op("eq", op("abs", x), like(float("inf"), x))


def is_finite(x: Expr) -> Expr:
    return op("lt", op("abs", x), like(float("inf"), x))


def signbit(b: Builder, out: TensorMeta, self: Value) -> Value:
    def formula(x: Expr) -> Expr:
        if x.dtype.kind == "f":
            return op("lt", op("copysign", like(1.0, x), x), like(0.0, x))
        return op("lt", x, like(0, x)) if x.dtype.kind == "i" else const(False, bool_)

    return elementwise(b, out, self.dtype, formula, self)


def logical_not(b: Builder, out: TensorMeta, self: Value) -> Value:
    return elementwise(b, out, self.dtype, lambda x: op("not", truth(x)), self)


def nan_to_num(
    b: Builder,
    out: TensorMeta,
    self: Value,
    nan: Operand | None = None,
    posinf: Operand | None = None,
    neginf: Operand | None = None,
) -> Value:
    if self.dtype.kind != "f":
        return elementwise(b, out, self.dtype, lambda x: x, self)
    largest = _LARGEST[self.dtype.name]
    replacements = [_default(nan, 0.0), _default(posinf, largest), _default(neginf, -largest)]

    def element(c: Coords) -> Expr:
        x = b.let(b.read(self, c))
        zero, high, low = (b.read(r, c, self.dtype) for r in replacements)
        inf = like(float("inf"), x)
        finite = select(op("eq", x, inf), high, select(op("eq", x, like(float("-inf"), x)), low, x))
        return select(is_nan(x), zero, finite)

    return b.map(out, element)


_LARGEST = {
    "f16": 65504.0,
    "bf16": 3.3895313892515355e38,
    "f32": 3.4028234663852886e38,
    "f64": 1.7976931348623157e308,
}


def _default(value: Operand | None, default: float) -> Operand:
    return default if value is None else value


# ---------------------------------------------------------------- binary


def binary(formula: Formula, kinds: str = "iuf") -> Lowering:
    """An op in the common dtype of its operands, for dtypes of ``kinds``."""

    def lower(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
        dtype = common_dtype(b.default, (self, other))
        if dtype.kind not in kinds:
            raise NotLowered(f"no lowering for {dtype}")
        return elementwise(b, out, dtype, formula, self, other)

    return lower


def compare(name: str) -> Lowering:
    return binary(lambda x, y: op(name, x, y), "biuf")


def bits(name: str) -> Lowering:
    return binary(lambda x, y: op(name, x, y), "biu")


def logical(name: str) -> Lowering:
    """Logic on truth values; operands need not have one dtype."""

    def lower(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
        dtypes = [x.dtype if isinstance(x, Value) else common_dtype(b.default, (x,)) for x in (self, other)]
        return b.map(
            out,
            lambda c: op(name, *(truth(b.read(x, c, t)) for x, t in zip((self, other), dtypes, strict=True))),
        )

    return lower


def _narrow(dtype: DType) -> bool:
    return dtype in (f16, bf16)


def rounded(x: Expr, dtype: DType) -> Expr:
    """``x`` rounded to ``dtype`` and widened again: an intermediate that ATen keeps in f16 or bf16."""
    return cast(cast(x, dtype), x.dtype)


def is_scalar(x: Operand) -> bool:
    """A number or a 0-dim tensor."""
    return not isinstance(x, Value) or not x.shape


def wide_scalar(b: Builder, x: Operand, c: Coords, dtype: DType) -> Expr:
    """An operand in the compute dtype, a scalar without the rounding to f16 or bf16 in between."""
    wide = compute_dtype(dtype)
    if _narrow(dtype) and is_scalar(x):
        return b.read(x, c, wide)
    return cast(b.read(x, c, dtype), wide)


def add(b: Builder, out: TensorMeta, self: Operand, other: Operand, *, alpha: Operand = 1) -> Value:
    return _add(b, out, self, other, alpha, 1)


def sub(b: Builder, out: TensorMeta, self: Operand, other: Operand, *, alpha: Operand = 1) -> Value:
    return _add(b, out, self, other, alpha, -1)


def rsub(b: Builder, out: TensorMeta, self: Operand, other: Operand, alpha: Operand = 1) -> Value:
    return _add(b, out, other, self, alpha, -1)


def add_scalar(b: Builder, out: TensorMeta, self: Value, other: Operand, alpha: Operand = 1) -> Value:
    return _add(b, out, self, other, alpha, 1)


def sub_scalar(b: Builder, out: TensorMeta, self: Value, other: Operand, alpha: Operand = 1) -> Value:
    return _add(b, out, self, other, alpha, -1)


def _add(b: Builder, out: TensorMeta, self: Operand, other: Operand, alpha: Operand, direction: int) -> Value:
    """``self ± alpha * other``.  ATen's f32 and f64 kernels use one fused multiply-add when alpha is not 1."""
    dtype = common_dtype(b.default, (self, other))
    if dtype == bool_:
        if direction < 0 or alpha != 1:
            raise NotLowered("arithmetic on bool")
        return elementwise(b, out, dtype, lambda x, y: op("or", x, y), self, other)
    if isinstance(alpha, int | float) and alpha == 1:
        return elementwise(
            b, out, dtype, lambda x, y: op("add" if direction > 0 else "sub", x, y), self, other
        )
    if isinstance(alpha, Index | Value):
        raise NotLowered("alpha is no number")

    def formula(x: Expr, y: Expr) -> Expr:
        factor = cast(const(alpha * direction, dtype), x.dtype)
        if x.dtype == dtype and dtype.kind == "f":
            return op("fma", y, factor, x)
        return op("add", x, op("mul", y, factor))

    return elementwise(b, out, dtype, formula, self, other)


def mul(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
    dtype = common_dtype(b.default, (self, other))
    if dtype == bool_:
        return elementwise(b, out, dtype, lambda x, y: op("and", x, y), self, other)
    wide = compute_dtype(dtype)
    return b.map(
        out, lambda c: op("mul", cast(b.read(self, c, dtype), wide), wide_scalar(b, other, c, dtype))
    )


def fmax(x: Expr, y: Expr) -> Expr:
    """The other operand where one is NaN, the first of two equal zeros."""
    if x.dtype.kind != "f":
        return op("max", x, y)
    return select(op("or", is_nan(y), op("ge", x, y)), x, y)


def fmin(x: Expr, y: Expr) -> Expr:
    if x.dtype.kind != "f":
        return op("min", x, y)
    return select(op("or", is_nan(y), op("le", x, y)), x, y)


def shift(name: str) -> Lowering:
    """Shifts: by a negative amount or the width or more gives 0 (or the sign)."""

    def lower(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
        dtype = common_dtype(b.default, (self, other))
        if dtype.kind not in "iu":
            raise NotLowered(f"shift of {dtype}")
        return elementwise(b, out, dtype, lambda x, y: op(name, x, y), self, other)

    return lower


def float_binary(formula: Formula) -> Lowering:
    """An op that makes floats of integers."""

    def lower(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
        return elementwise(b, out, float_dtype(b.default, common_dtype(b.default, (self, other))), formula, self, other)

    return lower


# ---------------------------------------------------------------- several operands


def where(b: Builder, out: TensorMeta, condition: Value, self: Operand, other: Operand) -> Value:
    """``condition`` is bool or uint8 (non-zero is true)."""
    dtype = common_dtype(b.default, (self, other))
    return b.map(
        out,
        lambda c: select(truth(b.read(condition, c)), b.read(self, c, dtype), b.read(other, c, dtype)),
    )


def masked_fill(b: Builder, out: TensorMeta, self: Value, mask: Value, value: Operand) -> Value:
    return b.map(out, lambda c: select(truth(b.read(mask, c)), b.read(value, c, self.dtype), b.read(self, c)))


def clamp(
    b: Builder, out: TensorMeta, self: Value, min: Operand | None = None, max: Operand | None = None
) -> Value:
    """min(max(x, low), high): a NaN in any of them wins; numbers keep a zero's sign where they equal it, as std::max does."""
    dtype = common_dtype(b.default, [x for x in (self, min, max) if x is not None])
    if dtype == bool_ or any(isinstance(x, float) and x != x for x in (min, max)):
        raise NotLowered("clamp of bool, or to NaN")

    def element(c: Coords) -> Expr:
        wide = compute_dtype(dtype)
        x = cast(b.read(self, c, dtype), wide)
        for bound, name, beyond in ((min, "max", "lt"), (max, "min", "gt")):
            if isinstance(bound, Value):
                x = op(name, x, cast(b.read(bound, c, dtype), wide))
            elif bound is not None:
                limit = cast(b.number(bound, dtype), wide)
                x = select(op(beyond, x, limit), limit, x)
        return x

    return b.map(out, element)


def clamp_min(b: Builder, out: TensorMeta, self: Value, min: Operand) -> Value:
    return clamp(b, out, self, min)


def clamp_max(b: Builder, out: TensorMeta, self: Value, max: Operand) -> Value:
    return clamp(b, out, self, None, max)


def addcmul(
    b: Builder, out: TensorMeta, self: Value, tensor1: Value, tensor2: Value, *, value: Operand = 1
) -> Value:
    """``self + value * tensor1 * tensor2``; ATen fuses the last product with the sum."""
    dtype = common_dtype(b.default, (self, tensor1, tensor2))

    def formula(x: Expr, y: Expr, z: Expr) -> Expr:
        scaled = op("mul", b.number(value, x.dtype), y)
        return op("add", x, op("mul", scaled, z)) if dtype.kind != "f" else op("fma", scaled, z, x)

    return elementwise(b, out, dtype, formula, self, tensor1, tensor2)


def fused(b: Builder, out: TensorMeta, self: Value, tensor1: Value, tensor2: Value) -> Value:
    """prims.fma: ``self * tensor1 + tensor2`` with one rounding."""
    if out.dtype.kind != "f":
        raise NotLowered("fma of integers")
    return elementwise(b, out, out.dtype, lambda x, y, z: op("fma", x, y, z), self, tensor1, tensor2)


def addcdiv(
    b: Builder, out: TensorMeta, self: Value, tensor1: Value, tensor2: Value, *, value: Operand = 1
) -> Value:
    dtype = common_dtype(b.default, (self, tensor1, tensor2))
    if dtype.kind != "f":
        raise NotLowered("addcdiv of integers")

    def formula(x: Expr, y: Expr, z: Expr) -> Expr:
        return op("add", x, op("div", op("mul", b.number(value, x.dtype), y), z))

    return elementwise(b, out, dtype, formula, self, tensor1, tensor2)


def lerp(b: Builder, out: TensorMeta, self: Value, end: Value, weight: Operand) -> Value:
    """From the nearer end, with one rounding of the last product and sum, as ATen has it."""
    dtype = common_dtype(b.default, (self, end, weight))

    def element(c: Coords) -> Expr:
        x, y, w = (wide_scalar(b, v, c, dtype) for v in (self, end, weight))
        step = b.let(op("sub", y, x))
        near = op("lt", op("abs", w), like(0.5, x))
        factor = select(near, w, op("sub", w, like(1.0, x)))
        return op("fma", factor, step, select(near, x, y))

    return b.map(out, element)
