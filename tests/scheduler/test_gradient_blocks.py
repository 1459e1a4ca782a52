"""Gradients of attention by blocks on a CPU: one nest or both, on every target, keep their meaning; what is none is refused."""

import math
import random
from typing import Any

import numpy as np
import pytest

from lowc.errors import ScheduleError
from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import For, Kernel, Kind, Launch, Module
from lowc.ir.numeric import from_storage, to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.verify import verify_module
from lowc.ir.walk import buffers, make_kernel, statements
from lowc.options import Options
from lowc.scheduler import choose_gradient, contract, linearise, schedule
from lowc.scheduler.attention_gradient import find, visible, whole
from lowc.scheduler.gradient_blocks import GradientBlocks
from tests.scheduler.attentions import Shape
from tests.scheduler.test_online import X86

CLOSE = {"f32": 2e-6, "bf16": 2e-2}
WAY: dict[str, Any] = {"size": 16, "tile": (4, 8), "across": (4, 8), "lanes": 4, "kind": Kind("parallel")}
LOCAL = ("weights", "slopes", "slopes_q")


def gradients(shape: Shape, nests: str, causal: bool = False, bias: bool = False, dtype: str = "f32") -> Kernel:
    """Of queries ("q" in ``nests``), of keys and values ("k") @SCHEDULED, as ``lowering/attention_backward.py`` writes them."""
    heads, shared, rows, keys, deep = shape
    each = int(heads) // int(shared)

    def slope(h: str, kh: str, i: str, j: str, swapped: bool, n: int) -> str:
        pairs = ((f"q[{h}, {i}, d{n}]", f"k[{kh}, {j}, d{n}]"), (f"grad[{h}, {i}, e{n}]", f"v[{kh}, {j}, e{n}]"))
        factors = [", ".join(f"f32({x})" for x in (reversed(pair) if swapped else pair)) for pair in pairs]
        score = f"s{n} * 0.25" + (f" + f32(bias[{i}, {j}])" if bias else "")
        score = f"select(idx({j}) <= idx({i}), {score}, -inf)" if causal else score
        return f"""acc s{n}: f32 = add
            for d{n} in {deep} {{ s{n} add= product({factors[0]}) }}
            acc g{n}: f32 = add
            for e{n} in {deep} {{ g{n} add= product({factors[1]}) }}
            w{n} = exp({score} - lse[{h}, {i}])"""

    kh = "h" if heads == shared else f"(h // {each})"
    queries = f"""for h in {heads} {{ for i in {rows} {{
        for j in {keys} {{
            {slope("h", kh, "i", "j", False, 0)}
            slopes_q[h, i, j] = {dtype}(w0 * (g0 - delta[h, i]))
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
            slopes[hk, r, g, o] = {dtype}(w1 * (g1 - delta[{head}, o]))
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
    body = {"q": queries, "k": of_keys, "qk": f"{queries}\n{of_keys}"}[nests]
    names = "".join(f"{n}: size 1.. ~ 200, " for n in dict.fromkeys((rows, keys)) if isinstance(n, str))
    row, column = f"{heads}, {rows}", f"{shared}, {keys}"
    params = f"q: {dtype}[{row}, {deep}], k: {dtype}[{column}, {deep}], v: {dtype}[{column}, {deep}], "
    params += f"grad: {dtype}[{row}, {deep}], lse: f32[{row}], delta: f32[{row}], bias: {dtype}[{rows}, {keys}], "
    params += f"slopes_q: {dtype}[{row}, {keys}], weights: {dtype}[{column}, {each}, {rows}], "
    params += f"slopes: {dtype}[{column}, {each}, {rows}], "
    params += f"grad_q: {dtype}[{row}, {deep}], grad_k: {dtype}[{column}, {deep}], grad_v: {dtype}[{column}, {deep}]"
    text = f"kernel f({names}{params}) {{ {body} }}"
    return linearise._linear(parse_kernel(text.replace("f32(", "(") if dtype == "f32" else text))


def by_blocks(kernel: Kernel, **changed: Any) -> Kernel:
    """``kernel`` by blocks, with the params that it still needs."""
    done = contract.apply(kernel, GradientBlocks(**{**WAY, **changed}))
    used = {id(b) for b in buffers(done.body)}
    done = make_kernel(done.name, done.body, [p for p in done.params if id(p) in used])
    module = Module("SCHEDULED", done.sizes, (*done.params, *done.sizes), (), (), (Launch(done, done.params),))
    verify_module(module, "SCHEDULED")
    assert not set(LOCAL) & {p.name for p in done.params}
    return done


def check(kernel: Kernel, shape: Shape, sizes: dict[str, int] | None = None, dtype: str = "f32", **given: Any) -> None:
    """What ``kernel`` computes beside float64; ``shuffle``: parallel iterations in any order."""
    sizes = sizes or {}
    heads, shared, rows, keys, deep = (sizes.get(n, n) if isinstance(n, str) else n for n in shape)
    generator = np.random.default_rng(0)
    memory: dict[str, Any] = {}
    for param in kernel.params:
        count = int(evaluate(param.shape[0], sizes))
        found = param.name.startswith(("grad_", "sums"))
        values = np.full(count, np.nan) if found else generator.normal(0, 1, count)
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
        exact[name] = array.reshape(shared, heads // shared, keys, deep).sum(1)
    run_kernel(kernel, memory, sizes, random.Random(0) if given.get("shuffle") else None)
    checked = [n for n in exact if n in memory]
    assert checked
    for name in checked:
        mine = wide(name).reshape(exact[name].shape)
        assert np.linalg.norm(mine - exact[name]) <= CLOSE[dtype] * np.linalg.norm(exact[name]), name


SHAPES: list[Shape] = [(2, 2, 16, 32, 8), (2, 1, 21, 13, 8), (4, 2, 7, 20, 12), (1, 1, 2, 33, 3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("nests", ["q", "k", "qk"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_nest(shape: Shape, nests: str, causal: bool) -> None:
    check(by_blocks(gradients(shape, nests, causal)), shape, causal=causal)


@pytest.mark.parametrize(
    "changed",
    [{"size": 32}, {"tile": (2, 4)}, {"tile": (8, 16)}, {"across": (2, 4)}, {"lanes": 8}, {"kind": Kind()}, {"across": (8, 12)}],
    ids=str,
)
def test_any_sizes_of_tiles(changed: dict[str, Any]) -> None:
    shape: Shape = (2, 1, 21, 25, 8)
    check(by_blocks(gradients(shape, "qk", True), **changed), shape, causal=True)


@pytest.mark.parametrize("nests", ["q", "k", "qk"])
def test_biases_and_narrow_factors(nests: str) -> None:
    shape: Shape = (2, 1, 19, 25, 8)
    check(by_blocks(gradients(shape, nests, bias=True)), shape, bias=True)
    check(by_blocks(gradients(shape, nests, True, dtype="bf16")), shape, dtype="bf16", causal=True, shuffle=True)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (5, 40), (33, 17)])
@pytest.mark.parametrize("causal", [False, True])
def test_sizes_of_the_call(rows: int, keys: int, causal: bool) -> None:
    shape: Shape = (2, 1, "m", "n", 8)
    for nests in ("q", "k", "qk"):
        check(by_blocks(gradients(shape, nests, causal)), shape, {"m": rows, "n": keys}, causal=causal)


def test_what_rows_see_is_found() -> None:
    sides = [find(s) for s in gradients((2, 1, 40, 30, 8), "qk", True).body]
    assert [str(visible(s)) for s in sides if s] == ["i - j + 1", "o - r + 1"]
    assert all(visible(s) is None for s in map(find, gradients((2, 1, 40, 30, 8), "qk").body) if s)


def test_both_are_one_only_if_they_are_of_the_same_attention() -> None:
    text = print_kernel(gradients((2, 2, 16, 32, 8), "qk"))
    for old, new in (("w1 * (g1", "w1 * 2.0 * (g1"), ("s1 * 0.25", "s1 * 0.125")):
        assert old in text
        kernel = parse_kernel(text.replace(old, new))
        sides = [find(s) for s in kernel.body]
        assert sides[0] and sides[1] and whole(sides[0], sides[1]) is None
        with pytest.raises(ScheduleError, match="no gradient"):
            by_blocks(kernel)


@pytest.mark.parametrize(("changed", "why"), [({"tile": (4, 6)}, "tiles"), ({"size": 18}, "18 others"), ({"lanes": 16}, "tiles")])
def test_what_does_not_fit_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        by_blocks(gradients((1, 1, 32, 32, 8), "qk"), **changed)


def test_text_is_read_back() -> None:
    done = by_blocks(gradients((2, 1, 33, 40, 8), "qk", True))
    assert print_kernel(parse_kernel(print_kernel(done))) == print_kernel(done)


@pytest.mark.parametrize("bits", X86)
@pytest.mark.parametrize(
    ("shape", "kernels"), [((2, 2, 40, 70, 32), 1), ((1, 1, 70, 40, 16), 2), ((4, 2, "m", "m", 8), 1)], ids=str
)
def test_what_is_chosen(bits: int, shape: Shape, kernels: int) -> None:
    """Both nests are one kernel if there are heads for all cores; no rows of weights are left; what is chosen is legal."""
    steps: list[Launch] = []
    known: dict[str, Any] = {}
    for nest in "qk":  # the same memory for both
        kernel = gradients(shape, nest, True)
        for param in kernel.params:
            known.setdefault(param.name, param)
        steps.append(Launch(kernel, tuple([known[p.name] for p in kernel.params])))
    temps = tuple([b for n, b in known.items() if n in LOCAL])
    inputs = tuple([b for n, b in known.items() if n not in LOCAL])
    module = Module("SCHEDULED", steps[0].kernel.sizes, (*inputs, *steps[0].kernel.sizes), temps, (), tuple(steps))
    joined = choose_gradient.together(module, X86[bits], True)
    for step in joined.steps:
        assert isinstance(step, Launch)
        ((chosen,),) = choose_gradient.choices(step.kernel, X86[bits], True)
        contract.apply(step.kernel, chosen)
    done = schedule.run(module, X86[bits], Options())
    assert len(done.steps) == kernels
    assert [t.name for t in done.temps] == ["sums"] * (2 - kernels)
    for step in done.steps:
        assert isinstance(step, Launch)
        assert any(isinstance(s, For) and s.axis.name.startswith("turn") for s in statements(step.kernel.body))
        check(step.kernel, shape, {"m": 37}, causal=True)


def test_large_heads_are_no_choice() -> None:
    """Scratch memory is on the stack."""
    assert choose_gradient.choices(gradients((1, 1, 100, 100, 2048), "k"), X86[512], True) == ()
