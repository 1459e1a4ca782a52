"""Attention as kernels, by tiles, and what they compute, beside float64."""

import math
import random
from typing import Any

import numpy as np

from lowc.backends.nvptx import default
from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel, Launch, Module
from lowc.ir.numeric import from_storage, to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.verify import verify_module
from lowc.ir.walk import buffers, make_kernel
from lowc.options import Options
from lowc.scheduler import choose_attention, contract, linearise, pipeline
from lowc.scheduler.relay import Relayed

TARGET = default()
Size = int | str
Shape = tuple[Size, Size, Size, Size, int]  # heads of queries, of keys, rows, keys, width of a head


def attention(
    shape: Shape, causal: bool = False, bias: bool = False, dtype: str = "bf16", scale: float = 0.25, function: str = "",
    captured: str = "",
) -> Kernel:
    """out, sums = attention of q, k, v @SCHEDULED, as ``lowering/attention.py`` writes it; extents that are names are sizes.
    ``function``: of s, h, i, j, the score, and what it reads, ``captured``."""
    heads, shared, rows, keys, deep = shape
    head = "h" if heads == shared else f"(h // {int(heads) // int(shared)})"
    score = f"s * {scale}" + (" + f32(bias[i, j])" if bias else "")
    score = f"select(idx(j) <= idx(i), {score}, -inf)" if causal else function or score
    names = "".join(f"{n}: size 1.. ~ 200, " for n in dict.fromkeys((rows, keys)) if isinstance(n, str))
    row = f"{heads}, {rows}"
    params = f"q: {dtype}[{row}, {deep}], k: {dtype}[{shared}, {keys}, {deep}], v: {dtype}[{shared}, {keys}, {deep}], "
    params += f"bias: {dtype}[{rows}, {keys}], {captured}scores: f32[{row}, {keys}], weights: {dtype}[{row}, {keys}], "
    text = f"""kernel f({names}{params}out: {dtype}[{row}, {deep}], sums: f32[{row}]) {{ for h in {heads} {{ for i in {rows} {{
        acc top: f32 = max
        for j in {keys} {{
            acc s: f32 = add
            for d in {deep} {{ s add= product(f32(q[h, i, d]), f32(k[{head}, j, d])) }}
            score = {score}
            scores[h, i, j] = score
            top max= score
        }}
        shift = select(top == -inf, 0.0, top)
        acc total: f32 = add
        for j2 in {keys} {{
            weight = exp(scores[h, i, j2] - shift)
            weights[h, i, j2] = {dtype}(weight)
            total add= weight
        }}
        for e in {deep} {{
            acc o: f32 = add
            for j3 in {keys} {{ o add= product(f32(weights[h, i, j3]), f32(v[{head}, j3, e])) }}
            out[h, i, e] = {dtype}(select(total == 0.0, 0.0, o / total))
        }}
        sums[h, i] = select(total == 0.0, 0.0, shift + log(total))
    }} }} }}"""
    return linearise._linear(parse_kernel(text.replace("f32(", "(") if dtype == "f32" else text))


WAY: dict[str, Any] = {"groups": 2, "keys": 128, "stages": 2, "late_first": False, "strips": 1}


def by_tiles(kernel: Kernel, **changed: Any) -> Kernel:
    """``kernel`` by tiles."""
    loop: Any = kernel.body[0]
    return applied(kernel, Relayed(loop.axis.name, **{**WAY, **changed}))


def applied(kernel: Kernel, step: contract.Step) -> Kernel:
    """What ``step`` makes of ``kernel``, with the params that it still needs."""
    done = contract.apply(kernel, step)
    used = {id(b) for b in buffers(done.body)}
    return make_kernel(done.name, done.body, [p for p in done.params if id(p) in used])


def memory_of(kernel: Kernel, sizes: dict[str, int], scale: float = 1.0) -> dict[str, Any]:
    """Storages of random numbers; NaN where results go."""
    generator = np.random.default_rng(0)
    memory: dict[str, Any] = {}
    for name in ("q", "k", "v", "bias", "out", "sums"):
        for param in kernel.params:
            if param.name == name:
                count = int(evaluate(param.shape[0], sizes))
                values = np.full(count, np.nan) if name in ("out", "sums") else generator.normal(0, 1, count)
                memory[name] = to_storage((values * (scale if name == "q" else 1)).astype(np.float32), param.dtype)
    return memory


def errors(kernel: Kernel, memory: dict[str, Any], shape: tuple[int, ...], **given: Any) -> tuple[float, float]:
    """(relative error of ``out`` as a whole, largest error of ``sums``) in ``memory``, beside float64."""
    dtypes = {p.name: p.dtype for p in kernel.params}
    found = {name: from_storage(data, dtypes[name]).astype(np.float64) for name, data in memory.items()}
    heads, shared, rows, keys, deep = shape
    q = found["q"].reshape(heads, rows, deep)
    k, v = (found[n].reshape(shared, keys, deep).repeat(heads // shared, 0) for n in "kv")
    scores = q @ k.transpose(0, 2, 1) * given.get("scale", 0.25)
    if given.get("bias"):
        scores = scores + found["bias"].reshape(rows, keys)
    if given.get("causal"):
        scores = np.where(np.tri(rows, keys, dtype=bool), scores, -math.inf)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        sums = np.log(weights.sum(-1)) + scores.max(-1)
    out = weights / weights.sum(-1, keepdims=True) @ v
    mine = found["out"].reshape(out.shape)
    return float(np.linalg.norm(mine - out) / np.linalg.norm(out)), float(np.abs(found["sums"].reshape(sums.shape) - sums).max())


def interpreted(
    kernel: Kernel, shape: tuple[int, ...], sizes: dict[str, int], shuffle: bool = False, **given: Any
) -> tuple[float, float]:
    memory = memory_of(kernel, sizes)
    run_kernel(kernel, memory, sizes, random.Random(0) if shuffle else None)
    return errors(kernel, memory, shape, **given)


def machine(kernel: Kernel) -> Module:
    """``kernel``, which is by tiles, after all passes behind ``schedule``."""
    module = Module("SCHEDULED", kernel.sizes, (*kernel.params, *kernel.sizes), (), (), (Launch(kernel, kernel.params),))
    for each in pipeline.PASSES[[p.name for p in pipeline.PASSES].index("schedule") + 1 :]:
        if each.only in ("", "nvptx"):
            module = pipeline.apply(each, module, TARGET, Options(check=True))
    verify_module(module, "MACHINE")
    return module


def ways(kernel: Kernel) -> tuple[Relayed, ...]:
    return choose_attention.choices(kernel, TARGET)
