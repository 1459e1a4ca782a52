"""The maths expansions against float64: the error in units in the last place, and the edges, with and without fma."""

from typing import Any

import numpy as np
import pytest

from lowc.ir.nodes import Const, Expr, Op, Var
from lowc.ir.ops import MATHS, OPS
from lowc.ir.types import DType, f32
from lowc.scheduler import maths
from lowc.scheduler.maths_emit import Emit
from tests.scheduler.ulp import error, pairs, reference, sample

Array = Any
ABILITIES = {"avx512": frozenset({"fma", "scalef"}), "avx2": frozenset({"fma"}), "sse2": frozenset[str]()}
ABILITIES["branches"] = ABILITIES["avx512"] | {"rarely"}  # sin, cos and tan take another form
ABILITIES["gpu"] = frozenset({"fma", "ex2", "rarely"})  # with numpy's 2**x and 1/x for the instructions


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


def numpy_type(dtype: DType) -> np.dtype[Any]:
    return np.dtype("?" if dtype.kind == "b" else f"{dtype.kind}{dtype.bytes}")


def evaluate(expr: Expr, env: dict[str, Array]) -> Array:
    return _evaluate(expr, env, {})


def _evaluate(expr: Expr, env: dict[str, Array], memo: dict[int, Array]) -> Array:
    if id(expr) not in memo:
        memo[id(expr)] = _evaluated(expr, env, memo)
    return memo[id(expr)]


def _evaluated(expr: Expr, env: dict[str, Array], memo: dict[int, Array]) -> Array:
    if isinstance(expr, Const):
        return np.asarray(expr.value, numpy_type(expr.dtype))
    if isinstance(expr, Var):
        return env[expr.name]
    assert isinstance(expr, Op)
    args = [_evaluate(a, env, memo) for a in expr.args]
    if expr.name == "cast":
        return args[0].astype(numpy_type(expr.dtype))
    if expr.name == "bitcast":
        return np.asarray(args[0]).view(numpy_type(expr.dtype))
    result = fma(*args) if expr.name == "fma" else OPS[expr.name].numpy(*args)
    return np.asarray(result).astype(numpy_type(expr.dtype), copy=False)


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


@pytest.mark.parametrize("isa", ABILITIES)
@pytest.mark.parametrize("name", sorted(maths.BINARY))
def test_error_of_two_arguments(name: str, isa: str) -> None:
    for x, y in pairs(40000):
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
