"""Activation functions and their derivatives, each rounding once at its end, and softmax where it arrives whole.

Formulas are those of ATen's CPU kernels (``ATen/native/cpu/Activation.cpp``), but for gelu's with tanh, which cancel there, and
on a GPU where those of ``ATen/native/cuda/Activation*Kernel.cu`` treat NaN in another way.
"""

from collections.abc import Sequence
from math import pi, sqrt

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.nodes import Expr
from lowc.ir.types import compute_dtype
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.pointwise import Formula, clamp, elementwise
from lowc.lowering.promotion import common_dtype
from lowc.lowering.reduce import reduced_dims
from lowc.lowering.scalars import cast, is_nan, like, op, select
from lowc.lowering.values import Coords, Value, loop_order

_SQRT_HALF = sqrt(0.5)
_SQRT_2_OVER_PI = sqrt(2 / pi)


def _float(b: Builder, out: TensorMeta, formula: Formula, *operands: Value) -> Value:
    """A formula on floats in their common dtype."""
    dtype = common_dtype(b.default, operands)
    if dtype.kind != "f":
        raise NotLowered(f"an activation of {dtype}")
    return elementwise(b, out, dtype, formula, *operands)


def relu(b: Builder, out: TensorMeta, self: Value) -> Value:
    if self.dtype.kind == "b":
        raise NotLowered("relu of bool")
    return elementwise(b, out, self.dtype, lambda x: select(op("lt", x, like(0, x)), like(0, x), x), self)


def relu6(b: Builder, out: TensorMeta, self: Value) -> Value:
    return hardtanh(b, out, self, 0, 6)


def silu(b: Builder, out: TensorMeta, self: Value) -> Value:
    """x / (1 + exp(-x))"""
    return _float(b, out, lambda x: op("div", x, op("add", like(1.0, x), op("exp", op("neg", x)))), self)


def silu_backward(b: Builder, out: TensorMeta, grad_output: Value, self: Value) -> Value:
    def formula(g: Expr, x: Expr) -> Expr:
        one = like(1.0, x)
        s = b.let(op("div", one, op("add", one, op("exp", op("neg", x)))))
        return op("mul", op("mul", g, s), op("add", one, op("mul", x, op("sub", one, s))))

    return _float(b, out, formula, grad_output, self)


def gelu(b: Builder, out: TensorMeta, self: Value, *, approximate: str = "none") -> Value:
    def formula(x: Expr) -> Expr:
        half, one = like(0.5, x), like(1.0, x)
        if approximate == "tanh":
            return op("div", x, _one_and_decay(x))
        return op("mul", op("mul", half, x), op("add", one, op("erf", op("mul", x, like(_SQRT_HALF, x)))))

    return _float(b, out, formula, self)


def _one_and_decay(x: Expr) -> Expr:
    """1 + exp(-2 u) for the u of gelu's tanh: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), where nothing cancels for negative u."""
    cube = op("mul", op("mul", x, x), x)
    argument = op("mul", like(-2 * _SQRT_2_OVER_PI, x), op("add", x, op("mul", like(0.044715, x), cube)))
    return op("add", like(1.0, x), op("exp", argument))


def gelu_backward(
    b: Builder, out: TensorMeta, grad_output: Value, self: Value, *, approximate: str = "none"
) -> Value:
    def exact(g: Expr, x: Expr) -> Expr:
        cdf = op("mul", like(0.5, x), op("add", like(1.0, x), op("erf", op("mul", x, like(_SQRT_HALF, x)))))
        density = op(
            "mul",
            op("exp", op("mul", op("mul", x, x), like(-0.5, x))),
            like(0.5 * _SQRT_2_OVER_PI, x),
        )
        return op("mul", g, op("add", cdf, op("mul", x, density)))

    def approximated(g: Expr, x: Expr) -> Expr:
        """s + x s' of s = 1 / (1 + exp(-2 u)), s' = 2 s (1 - s) u'"""
        one = like(1.0, x)
        s = b.let(op("div", one, _one_and_decay(x)))
        slope = op("add", one, op("mul", like(3 * 0.044715, x), op("mul", x, x)))
        inner = op("mul", like(2 * _SQRT_2_OVER_PI, x), slope)
        right = op("mul", op("mul", op("mul", x, s), op("sub", one, s)), inner)
        return op("mul", g, op("add", s, right))

    return _float(b, out, approximated if approximate == "tanh" else exact, grad_output, self)


def sigmoid_backward(b: Builder, out: TensorMeta, grad_output: Value, output: Value) -> Value:
    return _float(
        b, out, lambda g, y: op("mul", op("mul", g, op("sub", like(1.0, y), y)), y), grad_output, output
    )


def tanh_backward(b: Builder, out: TensorMeta, grad_output: Value, output: Value) -> Value:
    return _float(
        b, out, lambda g, y: op("mul", g, op("sub", like(1.0, y), op("mul", y, y))), grad_output, output
    )


def threshold(b: Builder, out: TensorMeta, self: Value, threshold: Operand, value: Operand) -> Value:
    return elementwise(
        b,
        out,
        self.dtype,
        lambda x: select(op("le", x, b.number(threshold, x.dtype)), b.number(value, x.dtype), x),
        self,
    )


def threshold_backward(
    b: Builder, out: TensorMeta, grad_output: Value, self: Value, threshold: Operand
) -> Value:
    def formula(g: Expr, x: Expr) -> Expr:
        return select(op("le", x, b.number(threshold, x.dtype)), like(0, g), g)

    return elementwise(b, out, common_dtype(b.default, (grad_output, self)), formula, grad_output, self)


def leaky_relu(b: Builder, out: TensorMeta, self: Value, negative_slope: Operand = 0.01) -> Value:
    return _float(
        b,
        out,
        lambda x: select(op("gt", x, like(0.0, x)), x, op("mul", x, b.number(negative_slope, x.dtype))),
        self,
    )


def leaky_relu_backward(
    b: Builder,
    out: TensorMeta,
    grad_output: Value,
    self: Value,
    negative_slope: Operand,
    self_is_result: bool,
) -> Value:
    def formula(g: Expr, x: Expr) -> Expr:
        return select(op("gt", x, like(0.0, x)), g, op("mul", g, b.number(negative_slope, x.dtype)))

    return _float(b, out, formula, grad_output, self)


def elu(
    b: Builder, out: TensorMeta, self: Value, alpha: Operand = 1, scale: Operand = 1, input_scale: Operand = 1
) -> Value:
    def formula(x: Expr) -> Expr:
        positive = op("mul", x, b.number(scale, x.dtype))
        bend = op("mul", b.number(alpha, x.dtype), b.number(scale, x.dtype))
        negative = op("mul", op("expm1", op("mul", x, b.number(input_scale, x.dtype))), bend)
        return select(op("lt", x, like(0.0, x)), negative, positive)

    return _float(b, out, formula, self)


def elu_backward(
    b: Builder,
    out: TensorMeta,
    grad_output: Value,
    alpha: Operand,
    scale: Operand,
    input_scale: Operand,
    is_result: bool,
    self_or_result: Value,
) -> Value:
    """NaN has a NaN gradient, as in ATen's vector code for a CPU (its scalar code, and that for a GPU, pass the gradient on)."""

    def formula(g: Expr, x: Expr) -> Expr:
        bend = op("mul", b.number(alpha, x.dtype), b.number(scale, x.dtype))
        steep = op("mul", g, b.number(input_scale, x.dtype))
        if is_result:
            negative = op("mul", steep, op("add", x, bend))
        else:
            negative = op("mul", op("mul", steep, bend), op("exp", op("mul", x, b.number(input_scale, x.dtype))))
        positive = op("mul", g, b.number(scale, x.dtype))
        if b.gpu:
            return select(op("le", x, like(0.0, x)), negative, positive)
        return select(op("gt", x, like(0.0, x)), positive, negative)

    return _float(b, out, formula, grad_output, self_or_result)


def hardtanh(b: Builder, out: TensorMeta, self: Value, min_val: Operand = -1, max_val: Operand = 1) -> Value:
    return clamp(b, out, self, min_val, max_val)


def hardtanh_backward(
    b: Builder, out: TensorMeta, grad_output: Value, self: Value, min_val: Operand, max_val: Operand
) -> Value:
    def formula(g: Expr, x: Expr) -> Expr:
        low, high = b.number(min_val, x.dtype), b.number(max_val, x.dtype)
        if b.gpu:  # NaN lets the gradient pass
            return select(op("or", op("le", x, low), op("ge", x, high)), like(0.0, g), g)
        return select(op("and", op("gt", x, low), op("lt", x, high)), g, like(0.0, g))

    return _float(b, out, formula, grad_output, self)


def _relu6_shifted(x: Expr) -> Expr:
    return op("min", op("max", op("add", x, like(3.0, x)), like(0.0, x)), like(6.0, x))


def hardsigmoid(b: Builder, out: TensorMeta, self: Value) -> Value:
    return _float(b, out, lambda x: op("div", _relu6_shifted(x), like(6.0, x)), self)


def hardswish(b: Builder, out: TensorMeta, self: Value) -> Value:
    return _float(b, out, lambda x: op("div", op("mul", x, _relu6_shifted(x)), like(6.0, x)), self)


def hardswish_backward(b: Builder, out: TensorMeta, grad_output: Value, self: Value) -> Value:
    def formula(g: Expr, x: Expr) -> Expr:
        slope = op("mul", g, op("add", op("div", x, like(3.0, x)), like(0.5, x)))
        three = like(3.0, x)
        inner = select(op("lt", x, three), slope, g) if b.gpu else select(op("ge", x, three), g, slope)  # differ in NaN
        return select(op("le", x, like(-3.0, x)), like(0.0, x), inner)

    return _float(b, out, formula, grad_output, self)


def log_sigmoid(b: Builder, outs: Sequence[TensorMeta | None], self: Value) -> tuple[Value, ...]:
    """min(0, x) - log1p(exp(-|x|)), and on a CPU exp(-|x|), which its gradient reads."""
    if self.dtype.kind != "f":
        raise NotLowered(f"an activation of {self.dtype}")

    def result(x: Expr) -> Expr:
        return op("sub", op("min", x, like(0.0, x)), op("log1p", op("exp", op("neg", op("abs", x)))))

    def kept(x: Expr) -> Expr:
        return op("exp", op("neg", op("abs", x)))

    found = []
    for out, formula in zip(outs, (result, kept), strict=True):
        if out is not None:
            whole = all(n == m for n, m in zip(out.shape, self.shape, strict=False)) and len(out.shape) == len(self.shape)
            if not whole:  # on a GPU the second result is empty
                raise NotLowered("log_sigmoid without a buffer")
            found.append(elementwise(b, out, self.dtype, formula, self))
    return tuple(found)


def softplus(b: Builder, out: TensorMeta, self: Value, beta: Operand = 1, threshold: Operand = 20) -> Value:
    """log1p(exp(beta * x)) / beta, and x where beta * x is above the threshold."""

    def formula(x: Expr) -> Expr:
        scaled = b.let(op("mul", x, b.number(beta, x.dtype)))
        soft = op("div", op("log1p", op("exp", scaled)), b.number(beta, x.dtype))
        return select(op("gt", scaled, b.number(threshold, x.dtype)), x, soft)

    return _float(b, out, formula, self)


def softplus_backward(
    b: Builder, out: TensorMeta, grad_output: Value, self: Value, beta: Operand, threshold: Operand
) -> Value:
    def formula(g: Expr, x: Expr) -> Expr:
        scaled = b.let(op("mul", x, b.number(beta, x.dtype)))
        z = b.let(op("exp", scaled))
        return select(
            op("gt", scaled, b.number(threshold, x.dtype)),
            g,
            op("div", op("mul", g, z), op("add", z, like(1.0, z))),
        )

    return _float(b, out, formula, grad_output, self)


def mish(b: Builder, out: TensorMeta, self: Value) -> Value:
    return _float(b, out, lambda x: op("mul", x, op("tanh", op("log1p", op("exp", x)))), self)


def softshrink(b: Builder, out: TensorMeta, self: Value, lambd: Operand = 0.5) -> Value:
    def formula(x: Expr) -> Expr:
        width = b.number(lambd, x.dtype)
        below = select(op("lt", x, op("neg", width)), op("add", x, width), select(is_nan(x), x, like(0.0, x)))
        return select(op("gt", x, width), op("sub", x, width), below)

    return _float(b, out, formula, self)


def hardshrink(b: Builder, out: TensorMeta, self: Value, lambd: Operand = 0.5) -> Value:
    def formula(x: Expr) -> Expr:
        width = b.number(lambd, x.dtype)
        return select(op("and", op("ge", x, op("neg", width)), op("le", x, width)), like(0.0, x), x)

    return _float(b, out, formula, self)


# ---------------------------------------------------------------- softmax


def softmax(b: Builder, out: TensorMeta, self: Value, dim: int, half_to_float: bool) -> Value:
    return _softmax(b, out, self, dim, logarithm=False)


def log_softmax(b: Builder, out: TensorMeta, self: Value, dim: int, half_to_float: bool) -> Value:
    return _softmax(b, out, self, dim, logarithm=True)


def _softmax(b: Builder, out: TensorMeta, self: Value, dim: int, *, logarithm: bool) -> Value:
    """One kernel: for each row its maximum, the sum of exponentials, and the results, rounded once at the end."""
    dims = reduced_dims(self, dim)
    if self.dtype.kind != "f":
        raise NotLowered("softmax of an integer tensor")
    wide = compute_dtype(out.dtype)
    if not self.shape:
        return b.map(out, lambda c: _softmax_of_one(b.let(cast(b.load(self, c), wide)), logarithm=logarithm))
    along = dims[0]
    target = b.result(out)
    outer = [d for d in loop_order(out.shape, out.strides) if d != along]

    def at(coords: Coords) -> Expr:
        return cast(b.load(self, coords), wide)

    with b.kernel(), b.loops(out.shape, outer) as coords:
        high = b.acc("max", wide)
        with b.loop(out.shape[along], "k") as k:
            b.update(high, "max", at(tuple(k if d == along else c for d, c in enumerate(coords))))
        summed = b.acc("add", wide)
        with b.loop(out.shape[along], "k") as k:
            here = tuple(k if d == along else c for d, c in enumerate(coords))
            b.update(summed, "add", op("exp", op("sub", at(here), high[0])))
        # one division a row; the product is within an ulp and a half of the quotient
        total = b.let(op("log", summed[0]) if logarithm else op("div", like(1.0, summed[0]), summed[0]))
        with b.loop(out.shape[along], "j") as j:
            here = tuple(j if d == along else c for d, c in enumerate(coords))
            shifted = op("sub", at(here), high[0])
            b.store(
                target, here, op("sub", shifted, total) if logarithm else op("mul", op("exp", shifted), total)
            )
    return target


def _softmax_of_one(x: Expr, *, logarithm: bool) -> Expr:
    """1 or its logarithm; NaN of what is not finite."""
    zero = op("sub", x, x)
    return zero if logarithm else op("exp", zero)
