"""The maths expansions as the x86 backend compiles them, for each instruction set that this processor has."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowc.artifact import Native
from lowc.errors import CodegenError
from lowc.ir.nodes import Launch, Module
from lowc.ir.ops import OPS
from lowc.ir.parser import parse_kernel
from lowc.options import Options
from lowc.scheduler import legalise, maths
from lowc.target import Target
from tests.scheduler.ulp import double_error, error, pairs, reference, sample

pytest.importorskip("llvmlite")

from lowc.backends import x86  # noqa: E402

Array = Any
ISAS = ("avx512", "avx2", "sse2")
BLOCK = 10007  # elements of a call: no multiple of the lanes


def compiled(name: str, isa: str, dtype: str = "f32") -> Callable[..., Array]:
    """``name`` as a function of arrays of f32 or f64."""
    try:
        target = x86.detect(Options(isa=isa))
    except CodegenError as problem:
        pytest.skip(str(problem))
    return compiled_for(name, target, dtype)


def compiled_for(name: str, target: Target, dtype: str) -> Callable[..., Array]:
    args = "a[i], b[i]" if OPS[name].arity == 2 else "a[i]"
    buffers = ", ".join(f"{n}: {dtype}[{BLOCK}] @global" for n in ("a", "b", "out"))
    loop = (
        f"for i in {BLOCK} vector({target.vector_bits // int(dtype[1:])}) {{\n out[i] = {name}({args})\n }}"
    )
    kernel = parse_kernel(f"kernel k({buffers}) {{\n {loop}\n}}")
    module = Module(
        "BUFFERED", (), kernel.params[:2], kernel.params[2:], (), (Launch(kernel, kernel.params),)
    )
    artifact = x86.compile_module(legalise.run(module, target, Options()), target, Options(threads=False))
    library = x86.load(artifact, {})
    (step,) = artifact.program
    assert isinstance(step, Native)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library.address(step.symbol))

    def call(*values: Array) -> Array:
        count = len(values[0])
        padded = np.zeros((3, -(-count // BLOCK) * BLOCK), f"f{int(dtype[1:]) // 8}")
        for row, value in enumerate(values):
            padded[row, :count] = value
        for start in range(0, count, BLOCK):
            places = {n: padded[row, start:].ctypes.data for row, n in enumerate(("a", "b", "out"))}
            slots = (ctypes.c_int64 * len(artifact.slots))(*[places.get(n, 0) for n in artifact.slots])
            assert function(ctypes.addressof(slots)) == 0
        assert library  # its code must live until here
        return padded[2, :count]

    return call


def check(name: str, call: Callable[..., Array], *values: Array) -> None:
    errors = error(call(*values), reference(name, *values))
    worst = int(np.argmax(errors))
    shown = ", ".join(repr(v[worst]) for v in values)
    assert errors[worst] <= OPS[name].ulp, f"{name}({shown}): {errors[worst]} ulp"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", sorted(maths.UNARY))
def test_one_argument(name: str, isa: str) -> None:
    call = compiled(name, isa)
    check(name, call, sample(40009, start=11))
    check(name, call, np.linspace(-12, 12, 100003).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", sorted(maths.BINARY))
def test_two_arguments(name: str, isa: str) -> None:
    call = compiled(name, isa)
    for x, y in pairs(20000):
        check(name, call, x, y)


@pytest.mark.sweep
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", sorted(maths.UNARY))
def test_sweep(name: str, isa: str) -> None:
    """Every 311th bit pattern."""
    call = compiled(name, isa)
    for part in range(8):
        check(name, call, sample(8 * 311, start=311 * part))


DOUBLE = sorted(maths.DOUBLE | maths.DOUBLE_WITH_BRANCHES)
DOUBLE_EDGES = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        0.5,
        5e-324,
        -5e-324,
        2.2250738585072014e-308,
        1e-17,
        -1e-17,
        1e-310,
    ]
    + [
        1.7976931348623157e308,
        709.78,
        709.79,
        710.4,
        710.476,
        711.0,
        -745.1,
        -745.14,
        -708.4,
        1024.0,
        -1074.0,
        -1074.9,
    ]
    + [
        -1075.0,
        22.0,
        -22.0,
        1048576.0,
        1048575.9,
        1048577.0,
        1e22,
        -0.9999999999999999,
        0.5625,
        2 / 3,
        4 / 3,
        2.0,
    ],
)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider type to compare with")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", DOUBLE)
def test_double(name: str, isa: str) -> None:
    rng = np.random.default_rng(11)
    any_bits = rng.integers(0, 2**64, 30000, dtype=np.uint64).view(np.float64)
    near_multiples = np.round(rng.uniform(0, 6e5, 20000)) * (np.pi / 2)
    ranges = [rng.uniform(-r, r, 30000) for r in (1.0, 30.0, 750.0, 1e6)]
    x = np.concatenate([any_bits, near_multiples, *ranges, rng.uniform(0.5, 2, 30000), DOUBLE_EDGES])
    with np.errstate(all="ignore"):
        true = np.asarray(OPS[name].numpy(x.astype(np.longdouble)))
        if name == "sigmoid":  # the plain formula overflows for negative arguments
            power = np.exp(-np.abs(x.astype(np.longdouble)))
            true = np.where(x < 0, power, 1) / (1 + power)
    errors = double_error(compiled(name, isa, "f64")(x), true)
    worst = int(np.argmax(errors))
    assert errors[worst] <= (4.5 if name == "tan" else 2.5), f"{name}({x[worst]!r}): {errors[worst]} ulp"
