"""The maths expansions against float64: the error in units in the last place, and the edges, with and without fma."""

from typing import Any

import numpy as np
import pytest

from lowc.ir import numeric
from lowc.ir.nodes import Const, Expr, Op, Var
from lowc.ir.ops import MATHS, OPS
from lowc.ir.types import f32
from lowc.scheduler import maths
from lowc.scheduler.maths_emit import Emit

Array = Any
ABILITIES = {"avx512": frozenset({"fma", "scalef"}), "avx2": frozenset({"fma"}), "sse2": frozenset[str]()}
ABILITIES["branches"] = ABILITIES["avx512"] | {"rarely"}  # sin, cos and tan take another form


def expansion(name: str, isa: str) -> tuple[Emit, Expr, tuple[Var, ...]]:
    args = tuple(Var(n, f32) for n in "xy"[: OPS[name].arity])
    emit = Emit(ABILITIES[isa], set())
    return emit, maths.expand(name, args, emit), args


def run(name: str, isa: str, *values: Array) -> Array:
    """The expansion of ``name`` on f32 arrays, op by op in numpy."""
    emit, result, args = expansion(name, isa)
    env = {a.name: v for a, v in zip(args, values, strict=True)}
    with np.errstate(all="ignore"):
        for let in emit.statements:
            env[let.var.name] = evaluate(let.value, env)
        return np.broadcast_to(evaluate(result, env), values[0].shape)


def evaluate(expr: Expr, env: dict[str, Array]) -> Array:
    if isinstance(expr, Const):
        return numeric.constant(expr.value, expr.dtype)
    if isinstance(expr, Var):
        return env[expr.name]
    assert isinstance(expr, Op)
    args = [evaluate(a, env) for a in expr.args]
    if expr.name == "fma":
        return fma(*args)
    return numeric.apply(expr.name, args, [a.dtype for a in expr.args], expr.dtype)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once, of f32: the sum in f64 rounded to odd, which a second rounding cannot harm."""
    if a.dtype == np.float64:
        return a * b + c  # good enough: what is computed in f64 has bits to spare
    product = a.astype(np.float64) * b.astype(np.float64)
    c = c.astype(np.float64)
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back)
    bits = np.asarray(total).view(np.int64)
    even = ((bits & 1) == 0) & (rest != 0) & np.isfinite(total)
    toward = np.where((rest > 0) == (total > 0), 1, -1)
    return np.where(even, bits + toward, bits).view(np.float64).astype(np.float32)


def reference(name: str, *values: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(OPS[name].numpy(*[v.astype(np.float64) for v in values]), np.float64)


def error(got: Array, true: Array) -> Array:
    """|got - true| in units in the last place of the f32 nearest to ``true``; inf where NaN, infinity or the sign of zero is wrong."""
    with np.errstate(all="ignore"):
        near = true.astype(np.float32)
        _, exponent = np.frexp(true)
        unit = np.ldexp(1.0, np.maximum(exponent, -125) - 24)
        # past the largest f32, infinity counts as 2**128
        top = 2.0**128
        wide, clipped = np.clip(got.astype(np.float64), -top, top), np.clip(true, -top, top)
        unit = np.minimum(unit, 2.0**104)
        out = np.abs(wide - clipped) / unit
    out = np.where(np.isinf(near) & (near == got), 0.0, out)
    out = np.where(np.isnan(true) | np.isnan(got), np.where(np.isnan(true) & np.isnan(got), 0.0, np.inf), out)
    wrong_zero = (near == 0) & (got == 0) & (np.signbit(true) != np.signbit(got))
    return np.where(wrong_zero, np.inf, out)


def sample(step: int, start: int = 0) -> Array:
    """Every ``step``-th bit pattern of f32, NaNs and denormals included, and the edges."""
    bits = np.arange(start, 2**32, step, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), EDGES])


EDGES = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.0,
        1e-45,
        -1e-45,
        1.1754942e-38,
        1.17549435e-38,
    ]
    + [
        3.4028235e38,
        -3.4028235e38,
        88.72283,
        88.72284,
        88.3762,
        -87.33654,
        -103.97208,
        -103.97209,
        127.99999,
        128.0,
    ]
    + [
        -126.0,
        -149.0,
        -150.0,
        0.99999994,
        1.0000001,
        -0.99999994,
        1e-8,
        -1e-8,
        6e-8,
        9.0,
        10.0,
        10.05,
        3.9192059,
        17.0,
    ]
    + [
        np.pi / 2,
        np.pi,
        -np.pi,
        1e5,
        1e10,
        16367173.0 * 2.0**72,
        0.921875,
        0.5625,
        2 / 3,
        4 / 3,
        0.7071,
        1.4142,
    ],
    np.float32,
)
UNARY = sorted(maths.UNARY)


def test_every_maths_row_has_an_expansion() -> None:
    assert {*maths.UNARY, *maths.BINARY} == MATHS


@pytest.mark.parametrize("isa", ABILITIES)
@pytest.mark.parametrize("name", UNARY)
def test_error_over_all_of_f32(name: str, isa: str) -> None:
    x = sample(40009, start=7)
    errors = error(run(name, isa, x), reference(name, x))
    worst = int(np.argmax(errors))
    assert errors[worst] <= OPS[name].ulp, f"{name}({x[worst]!r}): {errors[worst]} ulp"


@pytest.mark.parametrize("isa", ABILITIES)
@pytest.mark.parametrize("name", UNARY)
def test_error_where_values_usually_are(name: str, isa: str) -> None:
    x = np.concatenate([np.linspace(-1.6, 1.6, 20001), np.linspace(-20, 20, 20001)]).astype(np.float32)
    errors = error(run(name, isa, x), reference(name, x))
    worst = int(np.argmax(errors))
    assert errors[worst] <= OPS[name].ulp, f"{name}({x[worst]!r}): {errors[worst]} ulp"


@pytest.mark.sweep
@pytest.mark.parametrize("isa", ABILITIES)
@pytest.mark.parametrize("name", UNARY)
def test_sweep(name: str, isa: str) -> None:
    for start in range(0, 8):
        x = sample(311 * 8, start=311 * start)
        errors = error(run(name, isa, x), reference(name, x))
        worst = int(np.argmax(errors))
        assert errors[worst] <= OPS[name].ulp, f"{name}({x[worst]!r}): {errors[worst]} ulp"


POW_EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38]
    + [16777215.0, 16777216.0, 8388607.5, -8388609.0, 0.99999994, 1.0000001, -0.99999994, 2.0**31, -1e-20],
    np.float32,
)


@pytest.mark.parametrize("isa", ABILITIES)
@pytest.mark.parametrize("name", sorted(maths.BINARY))
def test_error_of_two_arguments(name: str, isa: str) -> None:
    rng = np.random.default_rng(3)
    pairs = [np.meshgrid(POW_EDGES, POW_EDGES)]
    bits = rng.integers(0, 2**32, (2, 40000), dtype=np.uint32).view(np.float32)
    pairs += [list(bits), [rng.choice(POW_EDGES, 40000), bits[1]], [bits[0], rng.choice(POW_EDGES, 40000)]]
    usual = np.exp(rng.normal(0, 3, 40000)).astype(np.float32)
    pairs += [[usual, rng.normal(0, 10, 40000).astype(np.float32)], [-usual, np.round(rng.normal(0, 9, 40000)).astype(np.float32)]]
    pairs += [[usual, (rng.uniform(-151, 129, 40000) / np.log2(usual)).astype(np.float32)]]
    for x, y in pairs:
        x, y = x.ravel(), y.ravel()
        errors = error(run(name, isa, x, y), reference(name, x, y))
        worst = int(np.argmax(errors))
        assert errors[worst] <= OPS[name].ulp, f"{name}({x[worst]!r}, {y[worst]!r}): {errors[worst]} ulp"


HUGE = np.array(
    # the f32 nearest to a multiple of pi/2, in the whole range and below 2**18, and others close to one
    [16367173.0 * 2.0**72, 1.5707964, 3.1415927, 22.0, 355.0, 52174.0, 260515.0, 262143.98]
    + [262144.0, 262144.03, 1e22, 3.4028235e38, 2.0**127, 2.0**100, 2.0**18, 2.0**50 * 1.9999999],
    np.float32,
)


@pytest.mark.parametrize("isa", ABILITIES)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_arguments(name: str, isa: str) -> None:
    mp = pytest.importorskip("mpmath")
    x = np.concatenate([HUGE, -HUGE, np.arange(1, 300, dtype=np.float32) * np.float32(np.pi / 2)])
    with mp.workdps(80):
        true = np.array([float(getattr(mp, name)(mp.mpf(float(v)))) for v in x])
    errors = error(run(name, isa, x), true)
    assert errors.max() <= OPS[name].ulp, f"{x[int(errors.argmax())]!r}"


@pytest.mark.parametrize("isa", ABILITIES)
@pytest.mark.parametrize("name", [*UNARY, *maths.BINARY])
def test_constants_are_exact_in_their_dtype(name: str, isa: str) -> None:
    emit, result, _ = expansion(name, isa)
    stack = [result, *[s.value for s in emit.statements]]
    while stack:
        expr = stack.pop()
        if isinstance(expr, Const) and expr.dtype == f32 and expr.value == expr.value:
            assert float(np.float32(expr.value)) == expr.value
        stack.extend(expr.args if isinstance(expr, Op) else ())


def test_shared_values_are_named() -> None:
    """No op object appears twice in an expansion: what is used twice has a name."""
    for name in (*UNARY, *maths.BINARY):
        emit, result, _ = expansion(name, "sse2")
        seen: set[int] = set()
        stack = [result, *[s.value for s in emit.statements]]
        while stack:
            expr = stack.pop()
            if isinstance(expr, Op):
                assert id(expr) not in seen, f"{name}: {expr.name} is evaluated twice"
                seen.add(id(expr))
                stack.extend(expr.args)
