"""Matrix products as kernels, and whether schedules keep what they mean."""

import random
from dataclasses import replace

import numpy as np

from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel
from lowc.ir.numeric import to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.verify import verify_kernel
from lowc.scheduler import contract, linearise
from lowc.scheduler.contract import Step
from lowc.target import Target

AVX512 = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 8 << 20, 2, frozenset({"fma", "masked"}))
BF16 = replace(AVX512, ops=AVX512.ops | {"avx512bf16"})
SSE2 = Target("x86", "", "", 128, 16, 32 << 10, 1 << 20, 8 << 20, 2, frozenset())
LEFT, RIGHT = ("x[i, k]", "x[k, i]"), ("y[k, j]", "y[j, k]")


def product(
    m: int | str, n: int | str, k: int | str, left: str = "x[i, k]", right: str = "y[k, j]", batch: int = 0, dtype: str = "f32"
) -> Kernel:
    """out = 2 * (x @ y) + bias, @SCHEDULED; extents that are names are sizes.  ``dtype``: of x and y."""
    x = f"{m}, {k}" if left == "x[i, k]" else f"{k}, {m}"
    y = f"{k}, {n}" if right == "y[k, j]" else f"{n}, {k}"
    before = f"{batch}, " if batch else ""
    if batch:
        left, right = left.replace("[", "[b, "), right.replace("[", "[b, ")
    left, right = (side if dtype == "f32" else f"f32({side})" for side in (left, right))
    names = [e for e in dict.fromkeys((m, n, k)) if isinstance(e, str)]
    sizes = ", ".join(f"{s}: size 0.. ~ 40" for s in names)
    nest = f"""for i in {m} {{ for j in {n} {{
        acc s: f32 = add
        for k in {k} {{ s add= product({left}, {right}) }}
        out[{"b, " if batch else ""}i, j] = s * 2.0 + bias[j]
    }} }}"""
    params = f"x: {dtype}[{before}{x}], y: {dtype}[{before}{y}], bias: f32[{n}], out: f32[{before}{m}, {n}]"
    text = f"""kernel f({sizes + ", " if sizes else ""}{params}) {{
      {f"for b in {batch} {{ {nest} }}" if batch else nest}
    }}"""
    return linearise._linear(parse_kernel(text))


def result(kernel: Kernel, sizes: dict[str, int], shuffle: random.Random | None = None) -> np.ndarray:
    """What ``kernel`` stores, on values that are always the same; small integers, so that all sums are exact."""
    generator = np.random.default_rng(0)
    memory = {}
    for param in kernel.params:
        count = max(0, evaluate(param.shape[0], sizes))
        memory[param.name] = to_storage(generator.integers(-4, 5, count).astype(np.float32), param.dtype)
    memory["out"][:] = np.nan
    run_kernel(kernel, memory, sizes, shuffle)
    return memory["out"]


def check(kernel: Kernel, plan: tuple[Step, ...], sizes: dict[str, int] | None = None) -> Kernel:
    """``kernel`` after ``plan``; after each step it is valid and gives the same."""
    wanted = result(kernel, sizes or {})
    assert not np.isnan(wanted).any()
    for step in plan:
        kernel = contract.apply(kernel, step)
        verify_kernel(kernel, "SCHEDULED")
        np.testing.assert_array_equal(result(kernel, sizes or {}), wanted, err_msg=str(step))
    np.testing.assert_array_equal(result(kernel, sizes or {}, random.Random(1)), wanted)
    return kernel
