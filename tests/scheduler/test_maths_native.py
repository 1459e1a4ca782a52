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
from tests.scheduler.ulp import error, pairs, reference, sample

pytest.importorskip("llvmlite")

from lowc.backends import x86  # noqa: E402

Array = Any
ISAS = ("avx512", "avx2", "sse2")
BLOCK = 10007  # elements of a call: no multiple of the lanes


def compiled(name: str, isa: str) -> Callable[..., Array]:
    """``name`` as a function of f32 arrays."""
    try:
        target = x86.detect(Options(isa=isa))
    except CodegenError as problem:
        pytest.skip(str(problem))
    args = "a[i], b[i]" if OPS[name].arity == 2 else "a[i]"
    buffers = ", ".join(f"{n}: f32[{BLOCK}] @global" for n in ("a", "b", "out"))
    loop = f"for i in {BLOCK} vector({target.vector_bits // 32}) {{\n out[i] = {name}({args})\n }}"
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
        padded = np.zeros((3, -(-count // BLOCK) * BLOCK), np.float32)
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
