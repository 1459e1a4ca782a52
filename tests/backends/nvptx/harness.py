"""Memory for kernels, and the comparison of what somebody's launch left there with what the interpreter leaves."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel, Launch, Module, Store
from lowc.ir.numeric import from_storage, storage_dtype, to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.types import DType
from lowc.ir.walk import statements
from lowc.scheduler.legalise import legalise_kernel
from lowc.target import Target
from tests.backends.nvptx.kernels import Case

Array = Any
Run = Callable[[dict[str, Array], Mapping[str, int]], int]
"""Launches a kernel on copies of memory (by param), writes the results back, gives the error word."""


def module_of(kernel: Kernel) -> Module:
    """A module @MACHINE that launches ``kernel`` on inputs named as its params."""
    return Module(
        "MACHINE", kernel.sizes, (*kernel.params, *kernel.sizes), (), (), (Launch(kernel, kernel.params),)
    )


def kernel_of(case: Case, target: Target) -> Kernel:
    """The case's kernel @MACHINE."""
    kernel = parse_kernel(case.text)
    return legalise_kernel(kernel, target) if case.maths else kernel


def sample(rng: np.random.Generator, dtype: DType, count: int, case: Case) -> Array:
    """Storage of ``count`` elements, as the case wants them."""
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(np.bool_)
    if case.small:
        values = rng.integers(0 if dtype.kind == "u" else -100, 101, count)
        if dtype.kind == "f":
            return to_storage((values / 4).astype(np.float32 if dtype.bits < 64 else np.float64), dtype)
        return values.astype(storage_dtype(dtype))
    if dtype.kind in "iu":
        info = np.iinfo(storage_dtype(dtype))
        small = rng.integers(-5 if dtype.kind == "i" else 0, 6, count).astype(info.dtype)
        large = rng.integers(info.min, info.max, count, dtype=info.dtype, endpoint=True)
        edges = rng.choice(np.array([info.min, info.max, 0, 1], info.dtype), count)
        return np.where(rng.random(count) < 0.6, small, np.where(rng.random(count) < 0.7, large, edges))
    values = np.where(rng.random(count) < 0.5, np.round(rng.normal(0, 3, count)), rng.normal(0, 3, count))
    if case.special:
        edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, 0.5, -0.5, 1.5, 2.5])
        if dtype.bits == 64:
            edges = np.append(edges, [5e-324, -1e-310, 1e300, -1e22, 1048577.0, 26.5])
        values = np.where(rng.random(count) < 0.3, rng.choice(edges, count), values)
    with np.errstate(all="ignore"):
        return to_storage(values.astype(np.float32 if dtype.bits < 64 else np.float64), dtype)


def difference(got: Array, want: Array, dtype: DType, case: Case, signs: bool) -> str:
    """Where storages differ, in words; "" if they do not: any NaN is like any other, ``signs``: of zeros count."""
    if dtype.kind != "f":
        wrong = got != want
        a, b = got, want
    else:
        with np.errstate(all="ignore"):
            a, b = (from_storage(x, dtype).astype(np.float64) for x in (got, want))
            equal = (a == b) & ((np.signbit(a) == np.signbit(b)) | (not signs)) | (np.isnan(a) & np.isnan(b))
            close = np.abs(a - b) <= case.tolerance * np.maximum(1.0, np.abs(b)) if case.tolerance else equal
        wrong = ~(equal | close)
    if not wrong.any():
        return ""
    at = int(np.flatnonzero(wrong)[0])
    return f"{int(wrong.sum())} of {len(wrong)} differ, first [{at}]: {a[at]!r} instead of {b[at]!r}"


def check(case: Case, kernel: Kernel, run: Run, seed: int = 0) -> list[str]:
    """What is wrong with ``run``'s results, for each of the case's sizes."""
    rng = np.random.default_rng(seed + zlib.crc32(kernel.name.encode()))
    written = {s.buffer.name for s in statements(kernel.body) if isinstance(s, Store)}
    problems: list[str] = []
    for sizes in case.sizes:
        memory: dict[str, Array] = {}
        for param in kernel.params:
            count = int(evaluate(param.shape[0], sizes))
            if param.name in case.below:
                memory[param.name] = rng.integers(0, case.below[param.name], count).astype(np.int64)
            else:
                memory[param.name] = sample(rng, param.dtype, count, case)
        want = {name: data.copy() for name, data in memory.items()}
        with np.errstate(all="ignore"):
            run_kernel(kernel, want, sizes)
        error = run(memory, sizes)
        if error:
            problems.append(f"error word {error}")
        for param in kernel.params:
            signs = not any(word in param.name for word in ("min", "max"))
            found = difference(memory[param.name], want[param.name], param.dtype, case, signs)
            if found:
                problems.append(f"{param.name}{'' if param.name in written else ' (only read)'}: {found}")
    return problems
