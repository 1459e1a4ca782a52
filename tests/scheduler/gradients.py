"""Gradients of attention as kernels, and what they compute, beside float64."""

import math
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel
from lowc.ir.numeric import from_storage, to_storage
from lowc.ir.parser import parse_kernel
from lowc.scheduler import linearise
from tests.scheduler.attentions import Shape

Run = Callable[[dict[str, Any]], object]
CLOSE = {"f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}


def gradients(
    shape: Shape, nests: str, causal: bool = False, bias: bool = False, dtype: str = "f32",
    function: tuple[str, str, str] | None = None,
) -> Kernel:  # fmt: skip
    """Of queries ("q" in ``nests``), of keys and values ("k"), of keys and values by heads of queries with sums for these
    ("a") @SCHEDULED, as ``lowering/attention_backward.py`` writes them.  ``function``: what scores are of ``s`` at h, i, j, what
    slopes are of ``s`` and ``g``, the gradient of a score, and params that they read; ``lse`` are then to base 2, and -inf for
    rows that see nothing."""
    heads, shared, rows, keys, deep = shape
    each = int(heads) // int(shared)

    def slope(h: str, kh: str, i: str, j: str, swapped: bool, n: int) -> str:
        pairs = ((f"q[{h}, {i}, d{n}]", f"k[{kh}, {j}, d{n}]"), (f"grad[{h}, {i}, e{n}]", f"v[{kh}, {j}, e{n}]"))
        factors = [", ".join(f"f32({x})" for x in (reversed(pair) if swapped else pair)) for pair in pairs]
        score = f"s{n} * 0.25" + (f" + f32(bias[{i}, {j}])" if bias else "")
        score = f"select(idx({j}) <= idx({i}), {score}, -inf)" if causal else score
        less = f"lse[{h}, {i}]"
        if function is not None:
            score, less = named(function[0], f"s{n}", h, i, j), f"select(lse[{h}, {i}] == -inf, 0.0, lse[{h}, {i}] * 0.69314718)"
        return f"""acc s{n}: f32 = add
            for d{n} in {deep} {{ s{n} add= product({factors[0]}) }}
            acc g{n}: f32 = add
            for e{n} in {deep} {{ g{n} add= product({factors[1]}) }}
            w{n} = exp({score} - {less})"""

    def slopes(h: str, i: str, j: str, n: int) -> str:
        made = f"w{n} * (g{n} - delta[{h}, {i}])"
        return made if function is None else named(function[1], f"s{n}", h, i, j, f"({made})")

    kh = "h" if heads == shared else f"(h // {each})"
    queries = f"""for h in {heads} {{ for i in {rows} {{
        for j in {keys} {{
            {slope("h", kh, "i", "j", False, 0)}
            slopes_q[h, i, j] = {dtype}({slopes("h", "i", "j", 0)})
        }}
        for c in {deep} {{
            acc a: f32 = add
            for j1 in {keys} {{ a add= product(f32(slopes_q[h, i, j1]), f32(k[{kh}, j1, c])) }}
            grad_q[h, i, c] = {dtype}(a * 0.25)
        }}
    }} }}"""
    head = f"(hk * {each} + g)"
    of_keys = f"""for hk in {shared} {{ for r in {keys} {{
        for g in {each} {{ for o in {rows} {{
            {slope(head, "hk", "o", "r", True, 1)}
            weights[hk, r, g, o] = {dtype}(w1)
            slopes[hk, r, g, o] = {dtype}({slopes(head, "o", "r", 1)})
        }} }}
        for c1 in {deep} {{
            acc a1: f32 = add
            for x in {each} {{ for y in {rows} {{
                a1 add= product(f32(weights[hk, r, x, y]), f32(grad[hk * {each} + x, y, c1]))
            }} }}
            grad_v[hk, r, c1] = {dtype}(a1)
        }}
        for c2 in {deep} {{
            acc a2: f32 = add
            for z in {each} {{ for t in {rows} {{
                a2 add= product(f32(slopes[hk, r, z, t]), f32(q[hk * {each} + z, t, c2]))
            }} }}
            grad_k[hk, r, c2] = {dtype}(a2 * 0.25)
        }}
    }} }}"""
    at = "(y1 // 64), (c3 // 8), ((y1 // 16) % 4)*32 + (y1 % 8)*4 + ((c3 // 2) % 4), ((y1 // 8) % 2)*2 + (c3 % 2)"
    of_all = f"""for h in {heads} {{ for r in {keys} {{
        for o in {rows} {{
            {slope("h", kh, "o", "r", True, 1)}
            weights[h, r, 0, o] = {dtype}(w1)
            slopes[h, r, 0, o] = {dtype}({slopes("h", "o", "r", 1)})
        }}
        for c1 in {deep} {{
            acc a1: f32 = add
            for y in {rows} {{ a1 add= product(f32(weights[h, r, 0, y]), f32(grad[h, y, c1])) }}
            grad_v[h, r, c1] = {dtype}(a1)
        }}
        for c2 in {deep} {{
            acc a2: f32 = add
            for t in {rows} {{ a2 add= product(f32(slopes[h, r, 0, t]), f32(q[h, t, c2])) }}
            grad_k[h, r, c2] = {dtype}(a2 * 0.25)
        }}
        for y1 in {rows} {{ for c3 in {deep} {{
            added[h, {at}] add= product(f32(slopes[h, r, 0, y1]), f32(k[{kh}, r, c3]))
        }} }}
    }} }}"""
    body = {"q": queries, "k": of_keys, "qk": f"{queries}\n{of_keys}", "a": of_all}[nests]
    names = "".join(f"{n}: size 1.. ~ 200, " for n in dict.fromkeys((rows, keys)) if isinstance(n, str))
    row, column = f"{heads}, {rows}", f"{shared}, {keys}"
    params = f"q: {dtype}[{row}, {deep}], k: {dtype}[{column}, {deep}], v: {dtype}[{column}, {deep}], "
    params += f"grad: {dtype}[{row}, {deep}], lse: f32[{row}], delta: f32[{row}], bias: {dtype}[{rows}, {keys}], "
    params += "" if function is None else function[2]
    if nests == "a":
        column, each = f"{heads}, {keys}", 1
    params += f"slopes_q: {dtype}[{row}, {keys}], weights: {dtype}[{column}, {each}, {rows}], "
    params += f"slopes: {dtype}[{column}, {each}, {rows}], "
    params += f"added: f32[{heads}, ({rows} + 127) // 128 * 2, {-(-deep // 64) * 8}, 128, 4], "
    params += f"grad_q: {dtype}[{row}, {deep}], grad_k: {dtype}[{column}, {deep}], grad_v: {dtype}[{column}, {deep}]"
    text = f"kernel f({names}{params}) {{ {body} }}"
    return linearise._linear(parse_kernel(text.replace("f32(", "(") if dtype == "f32" else text))


def named(text: str, s: str, h: str, i: str, j: str, g: str = "") -> str:
    """``text``, of a function of s, h, i, j and g, with these names."""
    names = {"s": s, "h": h, "i": i, "j": j, "g": g}
    return re.sub(r"\b[shijg]\b", lambda m: names[m[0]], text)


def gathered(sums: Any, shape: tuple[int, ...]) -> Any:
    """Sums that lie as threads of tensor cores have them, as a tensor [heads, rows, columns]."""
    heads, rows, deep = shape
    i, d = np.arange(rows)[:, None], np.arange(deep)[None, :]
    thread, number = i // 16 % 4 * 32 + i % 8 * 4 + d // 2 % 4, i // 8 % 2 * 2 + d % 2
    return sums.reshape(heads, -1, -(-deep // 64) * 8, 128, 4)[:, i // 64, d // 8, thread, number].astype(np.float64)


def check(
    kernel: Kernel, shape: Shape, sizes: dict[str, int] | None = None, dtype: str = "f32", run: Run | None = None, **given: Any
) -> None:
    """What ``kernel`` computes, by ``run`` or the interpreter, beside float64; ``shuffle``: parallel iterations in any order."""
    sizes = sizes or {}
    heads, shared, rows, keys, deep = (sizes.get(n, n) if isinstance(n, str) else n for n in shape)
    generator = np.random.default_rng(0)
    memory: dict[str, Any] = {}
    for param in kernel.params:
        count = int(evaluate(param.shape[0], sizes))
        found = param.name.startswith(("grad_", "sums"))
        values = np.full(count, np.nan) if found else generator.normal(0, 1, count)
        values = np.zeros(count) if param.name == "added" else values
        memory[param.name] = to_storage(values.astype(np.float32), param.dtype)
    dtypes = {p.name: p.dtype for p in kernel.params}

    def wide(name: str) -> Any:
        return from_storage(memory[name], dtypes[name]).astype(np.float64)

    q, grad = (wide(n).reshape(heads, rows, deep) for n in ("q", "grad"))
    k, v = (wide(n).reshape(shared, keys, deep).repeat(heads // shared, 0) for n in "kv")
    scores = q @ k.transpose(0, 2, 1) * 0.25 + (wide("bias").reshape(rows, keys) if given.get("bias") else 0)
    if given.get("causal"):
        scores = np.where(np.tri(rows, keys, dtype=bool), scores, -math.inf)
    top = scores.max(-1, keepdims=True)
    sums = top + np.log(np.exp(scores - top).sum(-1, keepdims=True))
    weights, slopes = np.exp(scores - sums), grad @ v.transpose(0, 2, 1)
    delta = (weights * slopes).sum(-1, keepdims=True)
    slopes = weights * (slopes - delta)
    memory["lse"], memory["delta"] = (x.astype(np.float32).ravel() for x in (sums, delta))
    exact = {"grad_q": slopes @ k * 0.25}
    for name, array in (("grad_k", slopes.transpose(0, 2, 1) @ q * 0.25), ("grad_v", weights.transpose(0, 2, 1) @ grad)):
        part = name in memory and memory[name].size == heads * keys * deep  # of each head of queries
        exact[name] = array if part else array.reshape(shared, heads // shared, keys, deep).sum(1)
    if run is None:
        run_kernel(kernel, memory, sizes, random.Random(0) if given.get("shuffle") else None)
    else:
        run(memory)
    checked = [n for n in exact if n in memory]
    assert checked
    if "added" in memory:
        checked.append("grad_q")
    for name in checked:
        shape_ = exact[name].shape
        mine = wide(name).reshape(shape_) if name in memory else gathered(memory["added"], shape_) * 0.25
        assert np.linalg.norm(mine - exact[name]) <= CLOSE[dtype] * np.linalg.norm(exact[name]), name
