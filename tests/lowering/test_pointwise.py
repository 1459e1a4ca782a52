"""Pointwise ops against eager: exact bits where IEEE arithmetic decides them, a few ulps where maths functions do."""

from typing import Any

import pytest
import torch

from lowc.lowering import lower
from tests.lowering.harness import BOOL, FLOATS, INTS, check, data, run, trace

aten = torch.ops.aten
SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
ALL = FLOATS + INTS + BOOL
SHAPE = (5, 7)

UNARY_EXACT: dict[str, tuple[Any, tuple[torch.dtype, ...]]] = {
    "abs": (aten.abs.default, FLOATS + INTS),
    "neg": (aten.neg.default, FLOATS + INTS),
    "sign": (aten.sign.default, ALL),
    "sgn": (aten.sgn.default, ALL),
    "ceil": (aten.ceil.default, FLOATS + INTS),
    "floor": (aten.floor.default, FLOATS + INTS),
    "trunc": (aten.trunc.default, FLOATS + INTS),
    "round": (aten.round.default, FLOATS + INTS),
    "frac": (aten.frac.default, FLOATS),
    "reciprocal": (aten.reciprocal.default, ALL),
    "sqrt": (
        aten.sqrt.default,
        tuple(t for t in ALL if t != torch.float64),
    ),  # eager's in f64 is not quite exact
    "isnan": (aten.isnan.default, ALL),
    "isposinf": (aten.isposinf.default, ALL),
    "isneginf": (aten.isneginf.default, ALL),
    "isinf": (aten.isinf.default, ALL),
    "signbit": (aten.signbit.default, ALL),
    "logical_not": (aten.logical_not.default, ALL),
    "bitwise_not": (aten.bitwise_not.default, INTS + BOOL),
    "nan_to_num": (aten.nan_to_num.default, ALL),
    "nan_to_num3": (lambda x: aten.nan_to_num.default(x, 1.5, 7.0, -3.0), FLOATS),
    "relu": (aten.relu.default, FLOATS + INTS),
    "relu6": (aten.relu6.default, FLOATS),
    "hardtanh": (aten.hardtanh.default, FLOATS),
    "threshold": (lambda x: aten.threshold.default(x, 0.5, -2.0), FLOATS),
    "leaky_relu": (lambda x: aten.leaky_relu.default(x, 0.1), FLOATS),
    "hardsigmoid": (aten.hardsigmoid.default, FLOATS),
    "hardswish": (aten.hardswish.default, FLOATS),
    "hardshrink": (aten.hardshrink.default, FLOATS),
    "deg2rad": (aten.deg2rad.default, FLOATS),
    "rad2deg": (aten.rad2deg.default, FLOATS),
    "clone": (aten.clone.default, ALL),
}


@pytest.mark.parametrize("name", UNARY_EXACT)
def test_unary_exact(name: str) -> None:
    function, dtypes = UNARY_EXACT[name]
    for seed, dtype in enumerate(dtypes):
        # MKL's sqrt of f32, which torch calls, is not rounded to nearest on processors of AMD; lowc's is.
        check(function, data(SHAPE, dtype, seed), ulps=0.51 if name == "sqrt" else None)


MATHS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc sigmoid rsqrt"
).split()


@pytest.mark.parametrize("name", MATHS)
def test_maths(name: str) -> None:
    op = getattr(aten, name).default
    for seed, dtype in enumerate((*FLOATS, torch.int32, torch.bool)):
        x = data(SHAPE, dtype, seed, special=name not in ("sin", "cos", "tan") and dtype.is_floating_point)
        check(op, x, ulps=4)


ACTIVATION: dict[str, Any] = {
    "silu": aten.silu.default,
    "gelu": aten.gelu.default,
    "gelu_tanh": lambda x: aten.gelu.default(x, approximate="tanh"),
    "elu": aten.elu.default,
    "softplus": aten.softplus.default,
    "softplus_beta": lambda x: aten.softplus.default(x, 2.0, 5.0),
    "mish": aten.mish.default,
    "softshrink": aten.softshrink.default,
}


@pytest.mark.parametrize("name", ACTIVATION)
def test_activation(name: str) -> None:
    for seed, dtype in enumerate(FLOATS):
        x = data((9, 31), dtype, seed, special=False)
        check(ACTIVATION[name], x, ulps=8 if dtype.itemsize > 2 else 1, floor=1.0)


BACKWARD: dict[str, tuple[Any, float | None]] = {
    "silu_backward": (aten.silu_backward.default, 16),
    "gelu_backward": (aten.gelu_backward.default, 64),
    "gelu_backward_tanh": (lambda g, x: aten.gelu_backward.default(g, x, approximate="tanh"), 64),
    "sigmoid_backward": (aten.sigmoid_backward.default, 4),
    "tanh_backward": (aten.tanh_backward.default, 8),
    "threshold_backward": (lambda g, x: aten.threshold_backward.default(g, x, 0.0), None),
    "leaky_relu_backward": (lambda g, x: aten.leaky_relu_backward.default(g, x, 0.1, False), None),
    "hardtanh_backward": (lambda g, x: aten.hardtanh_backward.default(g, x, -1.0, 1.0), 0),
    "softplus_backward": (lambda g, x: aten.softplus_backward.default(g, x, 1.0, 20.0), 8),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_activation_backward(name: str) -> None:
    function, ulps = BACKWARD[name]
    for seed, dtype in enumerate(FLOATS):
        g, x = (
            data((9, 31), dtype, seed, special=ulps is None),
            data((9, 31), dtype, seed + 9, special=ulps is None),
        )
        check(function, g, x, ulps=ulps if dtype.itemsize > 2 or ulps is None else 2, floor=1.0)


def no_tiny(y: torch.Tensor) -> torch.Tensor:
    """Without denormals, for which eager's vectorised f32 fmod gives NaN."""
    return torch.where(y.abs() < 1e-30, 0.0, y)


BINARY_EXACT: dict[str, tuple[Any, tuple[torch.dtype, ...]]] = {
    "add": (aten.add.Tensor, ALL),
    "sub": (aten.sub.Tensor, FLOATS + INTS),
    "mul": (aten.mul.Tensor, ALL),
    "div": (aten.div.Tensor, ALL),
    "add_alpha": (lambda x, y: aten.add.Tensor(x, y, alpha=3), FLOATS + INTS),
    "sub_alpha": (lambda x, y: aten.sub.Tensor(x, y, alpha=0.3), (torch.float32, torch.float64)),
    "maximum": (aten.maximum.default, ALL),
    "minimum": (aten.minimum.default, ALL),
    "fmax": (aten.fmax.default, ALL),
    "fmin": (aten.fmin.default, ALL),
    "copysign": (aten.copysign.Tensor, ALL),
    "fmod": (lambda x, y: aten.fmod.Tensor(x, no_tiny(y)), FLOATS),
    "remainder": (lambda x, y: aten.remainder.Tensor(x, no_tiny(y)), FLOATS),
    "floor_divide": (aten.floor_divide.default, FLOATS),
    "div_floor": (lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="floor"), FLOATS),
    "div_trunc": (lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="trunc"), FLOATS),
    "and": (aten.bitwise_and.Tensor, INTS + BOOL),
    "or": (aten.bitwise_or.Tensor, INTS + BOOL),
    "xor": (aten.bitwise_xor.Tensor, INTS + BOOL),
    "eq": (aten.eq.Tensor, ALL),
    "ne": (aten.ne.Tensor, ALL),
    "lt": (aten.lt.Tensor, ALL),
    "le": (aten.le.Tensor, ALL),
    "gt": (aten.gt.Tensor, ALL),
    "ge": (aten.ge.Tensor, ALL),
    "logical_and": (aten.logical_and.default, ALL),
    "logical_or": (aten.logical_or.default, ALL),
    "logical_xor": (aten.logical_xor.default, ALL),
    "heaviside": (aten.heaviside.default, FLOATS + INTS),
    "addcmul": (lambda x, y: aten.addcmul.default(x, y, x, value=0.3), FLOATS),
    "addcmul_int": (lambda x, y: aten.addcmul.default(x, y, x, value=3), INTS),
    "addcdiv": (lambda x, y: aten.addcdiv.default(x, y, x, value=0.3), FLOATS),
    "clamp": (lambda x, y: aten.clamp.Tensor(x, y, x), FLOATS + INTS),
    "clamp_min": (aten.clamp_min.Tensor, FLOATS + INTS),
    "clamp_max": (aten.clamp_max.Tensor, FLOATS + INTS),
    "lerp": (lambda x, y: aten.lerp.Scalar(x, y, 0.7), FLOATS),
    "lerp_near": (lambda x, y: aten.lerp.Scalar(x, y, 0.3), FLOATS),
    "lerp_tensor": (lambda x, y: aten.lerp.Tensor(x, y, x), FLOATS),
    "int_pow": (lambda x, y: aten.pow.Tensor_Tensor(x, y & 7), INTS),
}


@pytest.mark.parametrize("name", BINARY_EXACT)
def test_binary_exact(name: str) -> None:
    function, dtypes = BINARY_EXACT[name]
    for seed, dtype in enumerate(dtypes):
        check(function, data(SHAPE, dtype, seed), data(SHAPE, dtype, seed + 20))


INTEGER_DIVISION = {
    "floor": lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="trunc"),
    "remainder": aten.remainder.Tensor,
    "fmod": aten.fmod.Tensor,
}


@pytest.mark.parametrize("name", INTEGER_DIVISION)
def test_integer_division(name: str) -> None:
    for seed, dtype in enumerate(INTS):
        x, y = data(SHAPE, dtype, seed), data(SHAPE, dtype, seed + 20, special=False)
        y[y == 0] = 3
        if dtype.is_signed:
            y[(y == -1)] = -2  # min / -1 overflows, which eager leaves undefined
        check(INTEGER_DIVISION[name], x, y)
        y[2, 3] = 0
        with pytest.raises(ZeroDivisionError):
            run(lower(trace(INTEGER_DIVISION[name], (x, y))), [x, y])


SHIFTS = {"shl": aten.bitwise_left_shift.Tensor, "shr": aten.bitwise_right_shift.Tensor}


@pytest.mark.parametrize("name", SHIFTS)
def test_shifts(name: str) -> None:
    for dtype in INTS:
        x = data((80,), dtype)
        y = torch.arange(-8 if dtype.is_signed else 0, 72 if dtype.is_signed else 80).to(dtype)
        check(SHIFTS[name], x, y)
    check(lambda a: (a << 3, a >> 2), data((80,), torch.int32))


FLOAT_BINARY = {
    "atan2": aten.atan2.default,
    "hypot": aten.hypot.default,
    "logaddexp": aten.logaddexp.default,
    "logaddexp2": aten.logaddexp2.default,
    "xlogy": aten.xlogy.Tensor,
    "xlog1py": aten.special_xlog1py.default,
    "pow": lambda x, y: aten.pow.Tensor_Tensor(x.abs(), y),
}


@pytest.mark.parametrize("name", FLOAT_BINARY)
def test_float_binary(name: str) -> None:
    for seed, dtype in enumerate((torch.float32, torch.float64)):
        check(
            FLOAT_BINARY[name],
            data((9, 31), dtype, seed, special=False),
            data((9, 31), dtype, seed + 5, special=False),
            ulps=8,
            floor=1.0,
        )
    specials = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5, -2.0, 3.0])
    x, y = (t.reshape(-1).clone() for t in torch.meshgrid(specials, specials, indexing="ij"))
    check(FLOAT_BINARY[name], x, y, ulps=8, floor=1.0)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 5, -3, 2.5, 1.0 / 3])
def test_power_of_scalars(exponent: float) -> None:
    for seed, dtype in enumerate(FLOATS):
        check(lambda x: aten.pow.Tensor_Scalar(x, exponent), data(SHAPE, dtype, seed), ulps=2)
    if exponent in (0, 1, 2, 3, -1, -2):
        check(lambda x: aten.pow.Tensor_Scalar(x, exponent), data((30, 30), torch.bfloat16))
    if isinstance(exponent, int) and exponent >= 0:
        for dtype in INTS:
            check(lambda x: aten.pow.Tensor_Scalar(x, exponent), data(SHAPE, dtype))


def test_integer_powers() -> None:
    for dtype in SIGNED:
        x = data((3, 40), dtype)
        y = (torch.arange(40) % 16 - 8).to(dtype)
        x[:] = torch.tensor([[-1], [1], [3]])
        check(aten.pow.Tensor_Tensor, x, y)
        check(lambda e: aten.pow.Scalar(3, e), y.abs())


def scalar_ops(s: Any) -> list[Any]:
    return [
        lambda a: a + s,
        lambda a: a * s,
        lambda a: a / s,
        lambda a: a == s,
        lambda a: a < s,
        lambda a: s * a,
    ]


def test_python_scalars_are_weak() -> None:
    for seed, dtype in enumerate(ALL):
        x = data(SHAPE, dtype, seed)
        check(lambda a: [f(a) for s in (True, 3, 0.1) for f in scalar_ops(s)], x)
        if dtype != torch.bool:
            check(lambda a: (a - 3, 3 - a, a - 0.1, 0.1 - a), x)


def test_alpha_of_narrow_floats() -> None:
    """Eager itself rounds differently in the vectorised part and in the rest."""
    for dtype in (torch.bfloat16, torch.float16):
        x, y = data(SHAPE, dtype, special=False), data(SHAPE, dtype, 1, special=False)
        check(lambda a, b: aten.add.Tensor(a, b, alpha=0.3), x, y, ulps=2, floor=1.0)


def test_intermediate_roundings_of_narrow_floats() -> None:
    """What eager rounds once, twice, or with an unrounded scalar; enough elements for each to show."""
    for dtype in (torch.bfloat16, torch.float16):
        x, y = (data((40, 32), dtype, seed, special=False) * 20 for seed in (0, 1))
        check(
            lambda a, b: [aten.div.Tensor_mode(a, b, rounding_mode=m) for m in ("floor", "trunc", None)], x, y
        )
        check(lambda a: [aten.div.Tensor_mode(a, 0.7, rounding_mode=m) for m in ("floor", "trunc", None)], x)
        check(lambda a: (aten.remainder.Scalar(a, 0.7), aten.fmod.Scalar(a, 0.7)), x)
        check(lambda a, b: aten.xlogy.Tensor(a, b.abs()), x, y, ulps=1, reference=False)
        check(
            lambda a, b: (aten.addcmul.default(a, b, b, value=0.7), aten.addcdiv.default(a, b, a, value=0.7)),
            x,
            y,
            ulps=1,
        )
        check(
            lambda a: (
                aten.leaky_relu.default(a, 0.7),
                aten.elu.default(a, 0.7),
                aten.softplus.default(a, 0.7, 5),
            ),
            x,
        )
        check(
            lambda a: (aten.silu.default(a), aten.gelu.default(a), aten.mish.default(a)),
            x / 20,
            ulps=0.5,
            floor=1.0,
        )
        check(
            lambda a: (aten.hardswish.default(a), aten.hardsigmoid.default(a), aten.sigmoid.default(a)),
            x / 20,
        )
    check(lambda a: (a == 0.1, a <= 0.1, a < 0.1, a > 0.1), torch.tensor([0.1, 0.2], dtype=torch.bfloat16))


def test_scalar_overloads() -> None:
    x, i = data(SHAPE, torch.float32), data(SHAPE, torch.int32)
    check(lambda a: aten.add.Scalar(a, 2, 3), x)
    check(lambda a: aten.sub.Scalar(a, 2.5), x)
    check(lambda a: (aten.rsub.Scalar(a, 2.5), aten.rsub.Scalar(a, 2, 3)), x)
    check(lambda a: (aten.mul.Scalar(a, 2.5), aten.div.Scalar(a, 2.5)), x)
    check(lambda a: (aten.remainder.Scalar(a, -2.5), aten.fmod.Scalar(a, 2.5)), x)
    check(lambda a: (aten.remainder.Scalar(a, -3), aten.fmod.Scalar(a, 3), aten.floor_divide.Scalar(a, 3)), i)
    check(
        lambda a: (
            aten.bitwise_and.Scalar(a, 5),
            aten.bitwise_or.Scalar(a, 5),
            aten.bitwise_xor.Scalar(a, -1),
        ),
        i,
    )
    check(
        lambda a: (
            aten.clamp.default(a, -1, 1),
            aten.clamp.default(a, None, 0.5),
            aten.clamp.default(a, 2.0, 1.0),
        ),
        x,
    )
    check(
        lambda a: (
            aten.clamp.default(a, -1, 1),
            aten.clamp_min.default(a, 2),
            aten.clamp_max.default(a, 2.5),
        ),
        i,
    )
    check(lambda a: aten.xlogy.Scalar_Self(2.0, a), x, ulps=8)
    check(lambda a: [aten.div.Scalar_mode(a, 2.5, rounding_mode=m) for m in ("floor", "trunc", None)], x)
    check(lambda a: (aten.copysign.Scalar(a, -1.0), aten.eq.Scalar(a, 1.0), aten.ne.Scalar(a, 1)), x)


def test_mixed_dtypes() -> None:
    for seed, (a, b) in enumerate(
        (p, q) for p in ALL for q in (torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool)
    ):
        x, y = data(SHAPE, a, seed), data(SHAPE, b, seed + 7)
        check(lambda p, q: (p + q, p * q, p == q, p < q, torch.maximum(p, q), torch.where(p > 0, p, q)), x, y)


def test_zero_dim_operands() -> None:
    for seed, (a, b) in enumerate(
        (p, q) for p in (torch.bfloat16, torch.float32, torch.int16, torch.bool) for q in ALL
    ):
        x, y = data(SHAPE, a, seed), data((), b, seed + 7, special=False)
        check(lambda p, q: (p + q, p * q, q * p, p == q, q < p, torch.where(p > 0, p, q)), x, y)


def test_broadcasting_and_strides() -> None:
    x, y, z = data((4, 1, 5), torch.float32), data((3, 1), torch.float32, 1), data((), torch.float32, 2)
    check(lambda a, b, c: a + b * c, x, y, z)
    big = data((6, 7, 8), torch.float32, 3)
    check(lambda a: a + 1, big.permute(2, 0, 1))
    check(lambda a: a + 1, big[:, ::2, 1:])
    check(lambda a: a * 2, big[:1].expand(6, 7, 8))
    check(lambda a, b: a * b, big.permute(2, 0, 1), big.permute(2, 0, 1).contiguous())


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1)])
def test_sizes_zero_and_one(shape: tuple[int, ...]) -> None:
    x, y = data(shape, torch.float32, special=False), data(shape, torch.float32, 1, special=False)
    check(lambda a, b: (a + b, a * 2, -a, a > b, torch.where(a > b, a, b)), x, y)
    check(lambda a: (torch.exp(a), a.sigmoid()), x, ulps=4)


def test_where_and_fill() -> None:
    x, y, m = data(SHAPE, torch.float32), data((7,), torch.float32, 1), data(SHAPE, torch.bool, 2)
    check(lambda a, b, c: aten.where.self(c, a, b), x, y, m)
    check(
        lambda a, c: (
            aten.where.ScalarOther(c, a, 2.0),
            aten.where.ScalarSelf(c, 1, a),
            aten.where.Scalar(c, 1, 2),
        ),
        x,
        m,
        extern=None,
    )
    check(lambda a, c: aten.masked_fill.Scalar(a, c, float("-inf")), x, m)
    check(lambda a, c: aten.masked_fill.Tensor(a, c, torch.full((), 3.0)), x, m)
    check(lambda a, c: aten.masked_fill.Scalar(a, c, 3), data(SHAPE, torch.int32), m)
