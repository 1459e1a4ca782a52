"""The f64 expansions that need fma, those of GPUs among them, as the x86 backend compiles them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowc.errors import CodegenError
from lowc.ir.nodes import Expr, Op, Var
from lowc.ir.ops import MATHS, OPS
from lowc.ir.types import f64
from lowc.options import Options
from lowc.scheduler import maths
from lowc.scheduler.maths_emit import Emit
from lowc.target import Target
from tests.scheduler.test_maths_native import DOUBLE_EDGES, compiled_for
from tests.scheduler.ulp import double_error

pytest.importorskip("llvmlite")
from lowc.backends import x86  # noqa: E402

mp = pytest.importorskip("mpmath")
Array = Any
# "straight": without branches, so that large arguments are selected
ISAS = ("avx512", "avx2", "straight")
NAMES = sorted(maths.DOUBLE_FUSED)
REDUCED = ("sin", "cos", "tan")
BY_MPMATH = ("erf", "erfc")  # numpy has none wider than f64
# without branches, the others are the same as on avx2
each = pytest.mark.parametrize(("name", "isa"), [(n, i) for n in NAMES for i in ISAS if i != "straight" or n in REDUCED])
needs_wide = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider type to compare with")


def target_of(isa: str) -> Target:
    try:
        target = x86.detect(Options(isa="avx2" if isa == "straight" else isa))
    except CodegenError as problem:
        pytest.skip(str(problem))
    return replace(target, ops=target.ops - {"rarely"}) if isa == "straight" else target


def function(name: str, isa: str) -> Callable[..., Array]:
    return compiled_for(name, target_of(isa), "f64")


def by_mpmath(name: str, values: Array) -> Array:
    """In long double, from as many digits as the largest arguments need."""
    out = np.empty(len(values), np.longdouble)
    with mp.workdps(400 if name in REDUCED else 60):
        for n, x in enumerate(values):
            # mpmath takes no erfc of what is so large that it is 0
            y = getattr(mp, name)(mp.mpf(float(np.clip(x, -1e3, 1e3) if name == "erfc" else x)))
            high = float(y)
            out[n] = np.longdouble(high) + (np.longdouble(float(y - high)) if np.isfinite(high) else 0)
    return np.where((out == 0) & (values == 0), np.asarray(values, np.longdouble), out)


def reference(name: str, *values: Array) -> Array:
    if name in BY_MPMATH:
        return by_mpmath(name, values[0])
    with np.errstate(all="ignore"):
        return np.asarray(OPS[name].numpy(*[v.astype(np.longdouble) for v in values]))


def check(name: str, call: Callable[..., Array], *values: Array) -> None:
    with np.errstate(all="ignore"):
        errors = double_error(call(*values), reference(name, *values))
    worst = int(np.argmax(errors))
    shown = ", ".join(repr(float(v[worst])) for v in values)
    assert errors[worst] <= OPS[name].double, f"{name}({shown}): {errors[worst]} ulp"


def bits(rng: np.random.Generator, count: int) -> Array:
    return rng.integers(0, 2**64, count, dtype=np.uint64).view(np.float64)


def arguments(name: str, seed: int, count: int) -> Array:
    """Any bits, multiples of pi/2 up to 2**1023, all magnitudes, and what is usual, of ``count`` each."""
    rng = np.random.default_rng(seed)
    turns = np.round(np.exp(rng.uniform(0, 700, count))) * (np.pi / 2)
    sizes = np.exp(rng.uniform(-740, 709, count)) * rng.choice([-1.0, 1.0], count)
    ranges = [rng.uniform(-r, r, count) for r in (0.5, 1.0, 2.0, 6.0, 28.0, 1e3, 1e6, 1e9)]
    near = 1 + rng.normal(0, 1e-3, count)
    return np.concatenate([bits(rng, count), turns, sizes, *ranges, near, -near, DOUBLE_EDGES])


ENDS = np.array(
    [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, np.inf, np.nan, 5e-324, 2.2e-308, 1.7e308, 1e-20, 2.0**31, 2.0**52 + 1, 2.0**53, 2.0**53 - 1]
    + [2.0**52 - 0.5, 2.0**65, 2.0**66, 1 - 2.0**-53, 1 + 2.0**-52, 1023.9999, 1024.0, 1074.0, 1075.0]
)
ENDS = np.concatenate([ENDS, -ENDS])


def pairs(seed: int, count: int) -> list[tuple[Array, Array]]:
    """Ends with each other and with anything, any bits, what is usual, results at both ends, and bases near 1."""
    rng = np.random.default_rng(seed)
    edges = np.meshgrid(ENDS, ENDS)
    usual = np.exp(rng.normal(0, 3, count))
    with np.errstate(all="ignore"):
        tiny = np.abs(bits(rng, count)) * 2.0**-1000
    return [
        (edges[0].ravel(), edges[1].ravel()),
        (bits(rng, count), bits(rng, count)),
        (rng.choice(ENDS, count), bits(rng, count)),
        (bits(rng, count), rng.choice(ENDS, count)),
        (usual, rng.normal(0, 10, count)),
        (-usual, np.round(rng.normal(0, 9, count))),
        (usual, rng.uniform(-1080, 1030, count) / np.log2(usual)),
        (1 + rng.normal(0, 1e-5, count), rng.uniform(-7e7, 7e7, count)),
        (tiny, rng.uniform(-1, 1, count)),
        (rng.uniform(-2, 2, count), rng.uniform(-2, 2, count)),
    ]


@needs_wide
@each
def test_error(name: str, isa: str) -> None:
    call = function(name, isa)
    if OPS[name].arity == 2:
        for x, y in pairs(5, 5000):
            check(name, call, x, y)
    else:
        check(name, call, arguments(name, 5, 200 if name in BY_MPMATH else 5000))


@needs_wide
@pytest.mark.sweep
@each
def test_sweep(name: str, isa: str) -> None:
    call = function(name, isa)
    for seed in range(6, 14):
        if OPS[name].arity == 2:
            for x, y in pairs(seed, 300000):
                check(name, call, x, y)
        else:
            check(name, call, arguments(name, seed, 4000 if name in BY_MPMATH else 300000))


# what is nearest to a multiple of pi/2 in the whole range of f64 and below 2**20, and both sides of where the reduction changes
HUGE = np.array(
    [6381956970095103.0 * 2.0**797, 1e22, 1.7976931348623157e308, 2.0**1023, 2.0**20, 1048575.9999999999, 1048576.0000000002]
    + [np.pi / 2, np.pi, 22.0, 355.0, 104348.0, 710.0, 2.0**53 + 2, 5e15, 2.0**64, 2.0**200 * 1.3]
)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", REDUCED)
def test_large_arguments(name: str, isa: str) -> None:
    x = np.concatenate([HUGE, -HUGE, np.arange(1, 300) * (np.pi / 2), 2.0 ** np.arange(15, 1024, 7)])
    errors = double_error(function(name, isa)(x), by_mpmath(name, x))
    assert errors.max() <= OPS[name].double, f"{x[int(errors.argmax())]!r}"


def test_every_row_has_an_expansion_of_f64() -> None:
    near = {name for name in MATHS if name.startswith("near_")}
    assert {*maths.DOUBLE, *maths.DOUBLE_FUSED} == MATHS - near
    assert all(OPS[name].double for name in MATHS - near)


@pytest.mark.parametrize("name", NAMES)
def test_shared_values_are_named(name: str) -> None:
    emit = Emit(frozenset({"fma"}), set())
    args = tuple(Var(n, f64) for n in "xy"[: OPS[name].arity])
    result = maths.expand_f64(name, args, emit)
    assert result is not None
    seen: set[int] = set()
    stack: list[Expr] = [result, *[s.value for s in emit.statements]]
    while stack:
        expr = stack.pop()
        if isinstance(expr, Op):
            assert id(expr) not in seen, f"{expr.name} is evaluated twice"
            seen.add(id(expr))
            stack.extend(expr.args)
