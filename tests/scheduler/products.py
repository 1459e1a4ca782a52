"""Products of matrices as kernels, scheduled for tensor cores, and what they compute."""

import random
from dataclasses import replace
from typing import Any

import numpy as np

from lowc.backends.nvptx import default
from lowc.backends.nvptx.detect import target
from lowc.errors import ScheduleError
from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel, Launch, Module
from lowc.ir.numeric import EIGHTHS, from_storage, to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.types import DType
from lowc.ir.verify import verify_module
from lowc.options import Options
from lowc.scheduler import choose_mma, choose_tensor_cores, contract, linearise, pipeline
from lowc.scheduler.tensor_cores import TensorCores
from lowc.target import Target

TARGET = default()
WARPS = {c: target(c, n, 13000, 40 << 20) for c, n in (((8, 0), 108), ((8, 6), 84), ((8, 9), 128), ((12, 0), 170))}
WARPS[9, 0] = replace(TARGET, ops=TARGET.ops - {"wgmma"})
"""Targets that multiply by ``mma.sync``, by capability; 9.0 as if it had nothing better."""
LEFT = {"n": "x[i, k]", "t": "x[k, i]"}
RIGHT = {"n": "y[k, j]", "t": "y[j, k]"}


def product(
    m: int | str, n: int | str, k: int | str, form: str = "nt", batch: int = 0, dtype: str = "bf16", result: str = "{s}",
    other: str = "", loose: bool = False,
) -> Kernel:  # fmt: skip
    """out = f(x @ y + bias) @SCHEDULED; extents that are names are sizes.  ``form``: n or t for each factor.  Of f32: as TF32; of
    i8: with sums of i32; of float8, y of the type ``other`` if one is given: bf16, with sums that may be ``loose``."""
    eighths = dtype.startswith("f8")
    b, at = (f"{batch}, ", "b, ") if batch else ("", "")
    x = f"{m}, {k}" if form[0] == "n" else f"{k}, {m}"
    y = f"{k}, {n}" if form[1] == "n" else f"{n}, {k}"
    left, right = (text.replace("[", f"[{at}") for text in (LEFT[form[0]], RIGHT[form[1]]))
    whole, total = dtype in ("f32", "i8"), "i32" if dtype == "i8" else "f32"
    kept = total if whole else "bf16" if eighths else dtype
    stored = f"{result.format(s='s')} + " + ("bias[j]" if whole else "f32(bias[j])")
    stored = stored if whole else f"{kept}({stored})"
    names = [e for e in dict.fromkeys((m, n, k)) if isinstance(e, str)]
    sizes = "".join(f"{s}: size 1.. ~ 40, " for s in names)
    left, right = (f"tf32({v})" if dtype == "f32" else f"{total}({v})" for v in (left, right))
    left, right = (f"tf32({v})" if loose else v for v in (left, right))
    nest = f"""for i in {m} {{ for j in {n} {{
        acc s: {total} = add
        for k in {k} {{ s add= product({left}, {right}) }}
        out[{at}i, j] = {stored}
    }} }}"""
    params = f"x: {dtype}[{b}{x}], y: {other or dtype}[{b}{y}], bias: {kept}[{n}], out: {kept}[{b}{m}, {n}]"
    body = f"for b in {batch} {{ {nest} }}" if batch else nest
    return linearise._linear(parse_kernel(f"kernel f({sizes}{params}) {{ {body} }}"))


def scheduled(kernel: Kernel, **changed: object) -> Kernel:
    """By the first choice that is legal, with the fields ``changed``; a tile of one's own by one team of two groups."""
    if "tile" in changed:
        changed = {"groups": 2, "teams": 1, "strips": 2, **changed}
    for step in choose_tensor_cores.choices(kernel, TARGET):
        values = {f: getattr(step, f) for f in step.__slots__} | changed
        try:
            return contract.apply(kernel, TensorCores(**values))  # type: ignore[arg-type]
        except ScheduleError:
            continue
    raise AssertionError("no schedule")


def by_warps(kernel: Kernel, on: Target = WARPS[8, 0], **changed: Any) -> Kernel:
    """The same by ``mma.sync``."""
    for step in choose_mma.choices(kernel, on):
        try:
            return contract.apply(kernel, replace(step, **changed))
        except ScheduleError:
            continue
    raise AssertionError("no schedule")


def result(kernel: Kernel, sizes: dict[str, int], shuffle: random.Random | None = None) -> np.ndarray:
    """What ``kernel`` stores, on small integers: all sums are exact, so that their order does not show."""
    generator = np.random.default_rng(0)
    memory = {}
    for param in kernel.params:
        count = max(0, evaluate(param.shape[0], sizes))
        memory[param.name] = stored(generator.integers(-2, 3, count).astype(np.float32), param.dtype)
    outs = [p for p in kernel.params if p.name in ("out", "turned")]
    for out in outs:
        memory[out.name][:] = unset(out.dtype)
    run_kernel(kernel, memory, sizes, shuffle)
    return np.concatenate([from_storage(memory[out.name], out.dtype) for out in outs])


def stored(values: np.ndarray, dtype: DType) -> np.ndarray:
    """``values`` (that ``dtype`` has) as memory holds them."""
    if dtype.name not in EIGHTHS:
        return to_storage(values, dtype)
    bits = {float(v): n for n, v in reversed(list(enumerate(EIGHTHS[dtype.name])))}
    return np.array([bits[float(v)] for v in values], np.uint8)


def unset(dtype: DType) -> Any:
    """What is in memory before a result is."""
    return to_storage(np.array([np.nan], np.float32), dtype)[0] if dtype.kind == "f" else -99


def machine(kernel: Kernel, on: Target = TARGET) -> Module:
    """``kernel`` after all passes from ``im2col`` on."""
    module = Module("SCHEDULED", kernel.sizes, (*kernel.params, *kernel.sizes), (), (), (Launch(kernel, kernel.params),))
    for each in pipeline.PASSES[[p.name for p in pipeline.PASSES].index("im2col") :]:
        if each.only in ("", "nvptx"):
            module = pipeline.apply(each, module, on, Options(check=True))
    verify_module(module, "MACHINE")
    return module
