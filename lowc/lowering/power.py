"""Powers and the binary maths that is made of several operations."""

from collections.abc import Callable

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, bool_, f16
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.pointwise import elementwise, float_binary, rounded
from lowc.lowering.promotion import common_dtype, float_dtype
from lowc.lowering.scalars import is_nan, like, op, select
from lowc.lowering.values import Value

Lowering = Callable[..., Value]


def pow_(b: Builder, out: TensorMeta, self: Operand, exponent: Operand) -> Value:
    """aten.pow: Python exponents that ATen treats on their own become products, roots and quotients."""
    dtype = common_dtype(b.default, (self, exponent))
    if dtype == bool_:
        raise NotLowered("a power of bool")
    if isinstance(exponent, int | float):
        if exponent == 0:
            return elementwise(b, out, dtype, lambda x: like(1, x), self)
        if exponent == 1:
            return elementwise(b, out, dtype, lambda x: x, self)
        if dtype.kind != "f":
            return _fixed_integer_power(b, out, self, int(exponent))
        special = _SPECIAL.get(float(exponent))
        if special is not None and (dtype != f16 or exponent == 2):  # ATen has these for all floats but f16
            return elementwise(b, out, dtype, lambda x: special(x, dtype), self)
    if dtype.kind == "f":
        return elementwise(b, out, dtype, lambda x, y: op("pow", x, y), self, exponent)
    return elementwise(b, out, dtype, lambda x, y: integer_power(b, x, y), self, exponent)


# The square inside a cube is rounded to bf16.
_SPECIAL: dict[float, Callable[[Expr, DType], Expr]] = {
    2.0: lambda x, _: op("mul", x, x),
    3.0: lambda x, dtype: op("mul", rounded(op("mul", x, x), dtype), x),
    0.5: lambda x, _: op("sqrt", x),
    -0.5: lambda x, _: op("rsqrt", x),
    -1.0: lambda x, _: op("div", like(1.0, x), x),
    -2.0: lambda x, dtype: op("div", like(1.0, x), rounded(op("mul", x, x), dtype)),
}


def _fixed_integer_power(b: Builder, out: TensorMeta, self: Operand, exponent: int) -> Value:
    if exponent < 0:
        raise NotLowered("integers to a negative power")

    def formula(x: Expr) -> Expr:
        square, result, left = x, None, exponent
        while left:
            if left & 1:
                result = square if result is None else b.let(op("mul", result, square))
            left >>= 1
            square = b.let(op("mul", square, square)) if left else square
        assert result is not None
        return result

    return elementwise(b, out, common_dtype(b.default, (self, exponent)), formula, self)


def integer_power(b: Builder, x: Expr, n: Expr) -> Expr:
    """By repeated squaring over all bits of the exponent.  Negative exponents: 1 for 1, ±1 for -1, else 0."""
    one, zero = like(1, x), like(0, x)
    result: Expr = one
    square = x
    bits = x.dtype.bits - (1 if x.dtype.kind == "i" else 0)
    for bit in range(bits):
        odd = op("ne", op("and", n, like(1 << bit, n)), zero)
        result = b.let(select(odd, op("mul", result, square), result))
        if bit + 1 < bits:
            square = b.let(op("mul", square, square))
    if x.dtype.kind == "u":
        return result
    parity = op("eq", op("and", n, one), zero)
    inverse = select(
        op("eq", x, one), one, select(op("eq", x, like(-1, x)), select(parity, one, like(-1, x)), zero)
    )
    return select(op("lt", n, zero), inverse, result)


def hypot(b: Builder, out: TensorMeta, self: Value, other: Value) -> Value:
    """sqrt(x² + y²) scaled by the larger, so that it does not overflow; infinite if either is."""

    def formula(x: Expr, y: Expr) -> Expr:
        a, c = op("abs", x), op("abs", y)
        large, small = b.let(op("max", a, c)), b.let(op("min", a, c))
        ratio = b.let(op("div", small, large))
        length = op("mul", large, op("sqrt", op("add", like(1.0, x), op("mul", ratio, ratio))))
        inf = like(float("inf"), x)
        infinite = op("or", op("eq", a, inf), op("eq", c, inf))
        return select(infinite, inf, select(op("eq", large, like(0.0, x)), large, length))

    return float_binary(formula)(b, out, self, other)


def _logaddexp(b: Builder, exp: str, log: str) -> Callable[[Expr, Expr], Expr]:
    def formula(x: Expr, y: Expr) -> Expr:
        high = b.let(op("max", x, y))
        same = op("and", op("eq", op("abs", x), like(float("inf"), x)), op("eq", x, y))
        gap = op("neg", op("abs", op("sub", x, y)))
        rest = op("log1p", op(exp, gap))
        if log == "log":
            return select(same, x, op("add", high, rest))
        # rounded once: -1 beside -1 is then no 0, neither with eager's kernel, and a division by it no NaN
        return select(same, x, op("fma", rest, like(1.4426950408889634, x), high))

    return formula


def logaddexp(b: Builder, out: TensorMeta, self: Value, other: Value) -> Value:
    return float_binary(_logaddexp(b, "exp", "log"))(b, out, self, other)


def logaddexp2(b: Builder, out: TensorMeta, self: Value, other: Value) -> Value:
    return float_binary(_logaddexp(b, "exp2", "log2"))(b, out, self, other)


def xlogy(log: str) -> Lowering:
    """x * log(y): NaN where y is, 0 where x is 0.  The logarithm is rounded to f16 or bf16 on its own."""

    def lower(b: Builder, out: TensorMeta, self: Operand, other: Operand) -> Value:
        dtype = float_dtype(b.default, common_dtype(b.default, (self, other)))

        def formula(x: Expr, y: Expr) -> Expr:
            product = op("mul", x, rounded(op(log, y), dtype))
            return select(
                is_nan(y), like(float("nan"), x), select(op("eq", x, like(0.0, x)), like(0.0, x), product)
            )

        return float_binary(formula)(b, out, self, other)

    return lower


def scaled(factor: float) -> Lowering:
    def lower(b: Builder, out: TensorMeta, self: Value) -> Value:
        return elementwise(b, out, float_dtype(b.default, self.dtype), lambda x: op("mul", x, like(factor, x)), self)

    return lower


def heaviside(b: Builder, out: TensorMeta, self: Value, values: Value) -> Value:
    def formula(x: Expr, y: Expr) -> Expr:
        return select(op("eq", x, like(0, x)), y, select(op("gt", x, like(0, x)), like(1, x), like(0, x)))

    dtype = common_dtype(b.default, (self, values))
    if dtype == bool_ or isinstance(values, Index):
        raise NotLowered("heaviside of bool")
    return elementwise(b, out, dtype, formula, self, values)
