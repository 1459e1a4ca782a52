"""Division, remainders and their rounding modes: floats by way of the exact fmod, integers checked for zero divisors."""

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import constant
from lowc.ir.nodes import Const, Expr, Op
from lowc.ir.types import DType, bool_, compute_dtype
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.pointwise import elementwise, is_scalar, rounded, wide_scalar
from lowc.lowering.promotion import common_dtype, float_dtype
from lowc.lowering.scalars import cast, const, like, op, select
from lowc.lowering.values import Coords, Value


def div(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
    """True division: integers become f32 first."""
    dtype = float_dtype(b.default, common_dtype(b.default, (self, other)))
    wide = compute_dtype(dtype)
    return b.map(
        out, lambda c: op("div", cast(b.read(self, c, dtype), wide), wide_scalar(b, other, c, dtype))
    )


def div_mode(
    b: Builder, out: TensorMeta, self: Operand, other: Operand, *, rounding_mode: str | None = None
) -> Value:
    if rounding_mode is None:
        return div(b, out, self, other)
    if rounding_mode == "floor":
        return floor_divide(b, out, self, other)
    dtype = common_dtype(b.default, (self, other))
    if dtype.kind == "f":
        # ATen's kernels for f16 and bf16 tensors round the quotient before they truncate it, those for a scalar do not.
        scalar = _as_scalar(out, other)

        def element(c: Coords) -> Expr:
            x, y = cast(b.read(self, c, dtype), compute_dtype(dtype)), wide_scalar(b, other, c, dtype)
            quotient = op("div", x, y)
            return op("trunc", quotient if scalar else rounded(quotient, dtype))

        return b.map(out, element)
    return _integer_division(b, out, "truncdiv", self, other)


def floor_divide(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
    dtype = common_dtype(b.default, (self, other))
    if dtype.kind == "f":

        scalar = _as_scalar(out, other)

        def element(c: Coords) -> Expr:
            x, y = cast(b.read(self, c, dtype), compute_dtype(dtype)), wide_scalar(b, other, c, dtype)
            return float_floordiv(b, b.let(x), b.let(y), x.dtype if scalar else dtype)

        return b.map(out, element)
    return _integer_division(b, out, "floordiv", self, other)


def _as_scalar(out: TensorMeta, x: Operand) -> bool:
    """Whether ATen divides by ``x`` as by a number: on a CPU a tensor with one element is one."""
    return is_scalar(x) or (isinstance(x, Value) and out.device == "cpu" and all(constant(n) == 1 for n in x.shape))


def float_floordiv(b: Builder, x: Expr, y: Expr, dtype: DType) -> Expr:
    """c10::div_floor_floating: from the exact remainder, so that floor(x / y) is right where x / y rounds up.

    Every step is rounded to ``dtype``.
    """
    zero, one = like(0.0, x), like(1.0, x)
    rest = b.let(op("fmod", x, y))
    quotient = rounded(op("div", rounded(op("sub", x, rest), dtype), y), dtype)
    differs = op("and", op("ne", rest, zero), op("ne", op("lt", y, zero), op("lt", rest, zero)))
    quotient = b.let(select(differs, rounded(op("sub", quotient, one), dtype), quotient))
    floor = b.let(op("floor", quotient))
    above = op("gt", rounded(op("sub", quotient, floor), dtype), like(0.5, x))
    nearest = select(above, op("add", floor, one), floor)
    exact = select(op("ne", quotient, zero), nearest, op("copysign", zero, op("div", x, y)))
    return select(op("eq", y, zero), op("div", x, y), exact)


def nonzero(y: Expr) -> Expr:
    """A divisor that makes the call raise where it is 0."""
    checked = y.args[0] if isinstance(y, Op) and y.name == "cast" else y
    safe = isinstance(checked, Const) and checked.value != 0
    return y if safe else op("check_nonzero", y, const(True, bool_))


def _integer_division(b: Builder, out: TensorMeta, name: str, self: Operand, other: Operand) -> Value:
    dtype = common_dtype(b.default, (self, other))
    if dtype.kind == "b":
        raise NotLowered("division of bool")
    return elementwise(b, out, dtype, lambda x, y: op(name, x, nonzero(y)), self, other)


def remainder(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
    """The sign of the divisor."""
    dtype = common_dtype(b.default, (self, other))
    if dtype.kind != "f":
        return _integer_division(b, out, "floormod", self, other)

    def formula(x: Expr, y: Expr) -> Expr:
        zero = like(0.0, x)
        rest = b.let(op("fmod", x, y))
        differs = op("and", op("ne", rest, zero), op("ne", op("lt", y, zero), op("lt", rest, zero)))
        return select(differs, op("add", rest, y), rest)

    return elementwise(b, out, dtype, formula, self, other)


def fmod(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
    """The sign of the dividend."""
    dtype = common_dtype(b.default, (self, other))
    if dtype.kind == "f":
        return elementwise(b, out, dtype, lambda x, y: op("fmod", x, y), self, other)
    return _integer_division(b, out, "truncmod", self, other)
