"""Runs kernels natively and in the interpreter on the same memory, and compares everything that either wrote.

Memory of a native call stands between guard zones, which must come back as they were.
"""

import ctypes
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lowc.artifact import Artifact, Native
from lowc.errors import CodegenError
from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel, storage_size
from lowc.ir.nodes import Buffer, Kernel, Launch, Module
from lowc.ir.numeric import from_storage, storage_dtype, to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.types import DType
from lowc.options import Options
from lowc.target import Target

pytest.importorskip("llvmlite")
from lowc.backends import x86  # noqa: E402

Array = Any
ISAS = ("avx512", "avx2", "sse2")
GUARD = 256  # bytes before and after each buffer


def target(isa: str) -> Target:
    """The Target, or the test is skipped where this processor has no such instructions."""
    try:
        return x86.detect(Options(isa=isa))
    except CodegenError as error:
        pytest.skip(str(error))


def openmp() -> Mapping[str, int]:
    """The OpenMP entry points that parallel loops call."""
    pytest.importorskip("torch")
    from lowc.runtime import openmp

    return openmp.functions()


def module_of(kernel: Kernel) -> Module:
    """A module @MACHINE that launches ``kernel`` on inputs named as its params."""
    return Module(
        "MACHINE", kernel.sizes, (*kernel.params, *kernel.sizes), (), (), (Launch(kernel, kernel.params),)
    )


def compiled(module: Module, isa: str, threads: bool = False) -> tuple[Artifact, Any]:
    """The artifact and its loaded code."""
    artifact = x86.compile_module(module, target(isa), Options(isa=isa, threads=threads))
    return artifact, x86.load(artifact, openmp() if threads else {})


def call(artifact: Artifact, library: Any, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> int:
    """Runs all native steps on copies of ``memory`` between guards, writes the results back, and returns
    the first error code.
    """
    blocks: dict[str, tuple[Array, int, int]] = {}
    slots: list[int] = []
    for name in artifact.slots:
        if name not in memory:
            slots.append(sizes.get(name, 0))
            continue
        data = memory[name]
        block = np.full(data.nbytes + 2 * GUARD + 64, 0xA5, np.uint8)
        start = (
            GUARD + (-(block.ctypes.data + GUARD)) % 64 + data.itemsize % 64
        )  # as torch's views: aligned to an element only
        block[start : start + data.nbytes] = data.view(np.uint8)
        blocks[name] = (block, start, data.nbytes)
        slots.append(block.ctypes.data + start)
    array = (ctypes.c_int64 * max(1, len(slots)))(*slots)
    code = 0
    for step in artifact.program:
        assert isinstance(step, Native)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library.address(step.symbol))
        code = code or function(ctypes.addressof(array))
    for name, (block, start, size) in blocks.items():
        assert (block[:start] == 0xA5).all() and (block[start + size :] == 0xA5).all(), f"{name} was overrun"
        memory[name].view(np.uint8)[...] = block[start : start + size]
    return code


def sample(rng: np.random.Generator, dtype: DType, count: int, special: bool = True) -> Array:
    """Storage of ``count`` elements: all sorts of numbers, NaN, infinities, -0.0, denormals and extremes
    among them.
    """
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.kind in "iu":
        info = np.iinfo(storage_dtype(dtype))
        small = rng.integers(-5 if dtype.kind == "i" else 0, 6, count).astype(info.dtype)
        large = rng.integers(info.min, info.max, count, dtype=info.dtype, endpoint=True)
        edges = rng.choice(np.array([info.min, info.max, 0, 1], info.dtype), count)
        return np.where(rng.random(count) < 0.6, small, np.where(rng.random(count) < 0.7, large, edges))
    values = np.where(rng.random(count) < 0.5, np.round(rng.normal(0, 3, count)), rng.normal(0, 10, count))
    if special:
        edges = rng.choice(
            np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, 0.5, -0.5, 1.5, 2.5]), count
        )
        values = np.where(rng.random(count) < 0.3, edges, values)
    with np.errstate(all="ignore"):
        return to_storage(values.astype(np.float32 if dtype.bits < 64 else np.float64), dtype)


def same(got: Array, want: Array, dtype: DType, tolerance: float = 0.0) -> bool:
    """Whether storages are equal: bit for bit (any NaN is like any other), or within a relative tolerance."""
    if dtype.kind != "f":
        return bool((got == want).all())
    with np.errstate(all="ignore"):
        a, b = (from_storage(x, dtype).astype(np.float64) for x in (got, want))
        if not tolerance:
            return bool((((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))).all())
        close = np.abs(a - b) <= tolerance * np.maximum(1.0, np.abs(b))
    return bool((close | (a == b) | (np.isnan(a) & np.isnan(b))).all())


def check(
    text: str,
    isa: str,
    sizes: Sequence[Mapping[str, int]] = ({},),
    given: Mapping[str, Array] | None = None,
    *,
    threads: bool = False,
    tolerance: float = 0.0,
    special: bool = True,
    seed: int = 0,
) -> Module:
    """Compiles the kernel once, and for each of ``sizes`` compares its effect on random (or ``given``)
    memory with the interpreter's.
    """
    kernel = parse_kernel(text)
    module = module_of(kernel)
    artifact, library = compiled(module, isa, threads)
    for number, values in enumerate(sizes):
        rng = np.random.default_rng(seed * 1000 + number)
        memory = {p.name: _memory(p, values, rng, given, special) for p in kernel.params}
        reference = {name: data.copy() for name, data in memory.items()}
        expected = expect(kernel, reference, values)
        code = call(artifact, library, memory, values)
        assert code == expected, f"error code {code}, expected {expected}"
        if expected:
            continue
        for buffer in kernel.params:
            got, want = memory[buffer.name], reference[buffer.name]
            if not same(got, want, buffer.dtype, tolerance):
                wrong = [
                    n
                    for n in range(len(got))
                    if not same(got[n : n + 1], want[n : n + 1], buffer.dtype, tolerance)
                ]
                shown = ", ".join(f"[{n}] {got[n]} not {want[n]}" for n in wrong[:5])
                raise AssertionError(
                    f"{isa} {dict(values)}: {buffer.name}: {len(wrong)} of {len(got)} wrong: {shown}"
                )
    return module


def expect(kernel: Kernel, memory: Mapping[str, Array], sizes: Mapping[str, int]) -> int:
    """Runs the interpreter; the error code that native code gives for what it raises."""
    try:
        run_kernel(kernel, memory, sizes)
    except IndexError:
        return 1
    except ZeroDivisionError:
        return 2
    return 0


def _memory(
    buffer: Buffer,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    given: Mapping[str, Array] | None,
    special: bool,
) -> Array:
    if given and buffer.name in given:
        return given[buffer.name].astype(storage_dtype(buffer.dtype)).reshape(-1).copy()
    shape = [int(evaluate(n, sizes)) for n in buffer.shape]
    count = storage_size(shape, [int(evaluate(n, sizes)) for n in buffer.strides])
    return sample(rng, buffer.dtype, count, special)


def shuffled(seed: int) -> random.Random:
    return random.Random(seed)
