"""Gradients of attention whose scores are made by functions, as kernels, and what they compute, beside float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lowc.ir.index import evaluate
from lowc.ir.nodes import Kernel
from lowc.ir.numeric import from_storage, to_storage
from tests.scheduler.attentions import Shape
from tests.scheduler.functions_of_scores import FORMS
from tests.scheduler.gradients import gathered, gradients

Array = Any
DERIVATIVES: dict[str, tuple[str, Callable[[Array], Array]]] = {  # of a form, else 1
    "relu": ("select(lt(0.0, s), g, 0.0)", lambda s: np.where(s > 0, 1.0, 0.0)),
    "capped": ("g * 3.0 * (1.0 - tanh(s * 0.25) * tanh(s * 0.25))", lambda s: 3 * (1 - np.tanh(s) ** 2)),
}
CAPTURED = "of_head: f32[16], documents: i64[400], table: f32[1600], "


def kernel_of(form: str, shape: Shape, dtype: str = "bf16", nests: str = "a") -> Kernel:
    """Of a form of ``functions_of_scores``, as lowering writes it: rounded to 16 bits where a score's gradient is."""
    slope = DERIVATIVES[form][0] if form in DERIVATIVES else f"f32({dtype}(g))"
    return kernel_by(FORMS[form].score, FORMS[form].mask, slope, shape, dtype, nests)


def kernel_by(score: str, mask: tuple[str, ...], slope: str, shape: Shape, dtype: str = "bf16", nests: str = "a") -> Kernel:
    """Of a ``score``, conditions, and the ``slope``: text."""
    score = score.replace("slopes[", "of_head[")
    for condition in reversed(mask):
        score, slope = f"select({condition}, {score}, -inf)", f"select({condition}, {slope}, 0.0)"
    return gradients(shape, nests, dtype=dtype, function=(score, slope, CAPTURED))


def errors(form: str, kernel: Kernel, shape: tuple[int, ...], run: Callable[[dict[str, Any]], object]) -> dict[str, float]:
    """Relative errors of gradients."""
    heads, shared, rows, keys, deep = shape
    generator = np.random.default_rng(0)
    memory: dict[str, Any] = {}
    dtypes = {p.name: p.dtype for p in kernel.params}
    others = {
        "of_head": generator.uniform(0, 1, 16), "documents": np.sort(generator.integers(0, 4, 400)),
        "table": generator.normal(0, 1, 1600), "added": np.zeros(int(evaluate(_sizes(kernel)["added"], {}))),
    }  # fmt: skip
    for name, size in _sizes(kernel).items():
        values = generator.normal(0, 1, int(evaluate(size, {})))
        values = others.get(name, np.full(len(values), np.nan) if name.startswith("grad_") else values)
        wanted = dtypes[name]
        memory[name] = values.astype(np.int64) if wanted.kind == "i" else to_storage(values.astype(np.float32), wanted)

    def wide(name: str) -> Any:
        return from_storage(memory[name], dtypes[name]).astype(np.float64)

    given: dict[str, Any] = {"i": np.arange(rows)[:, None], "j": np.arange(keys)[None, :]}
    given.update({n: memory[n] for n in ("documents", "table") if n in memory})
    given["slopes"] = np.asarray(memory.get("of_head", np.zeros(heads)), np.float64)[:heads]
    q, grad = (wide(n).reshape(heads, rows, deep) for n in ("q", "grad"))
    k, v = (wide(n).reshape(shared, keys, deep).repeat(heads // shared, 0) for n in "kv")
    product, made = q @ k.transpose(0, 2, 1) * 0.25, FORMS[form]
    scores = np.where(made.seen(given), made.wide(product, given), -math.inf)
    top = np.maximum(scores.max(-1, keepdims=True), -1e30)
    total = np.exp(scores - top).sum(-1, keepdims=True)
    sums = np.where(total == 0, -math.inf, (top + np.log(np.maximum(total, 1e-300))) / math.log(2))
    weights = np.where(total == 0, 0, np.exp(scores - top) / np.maximum(total, 1e-300))
    slopes = grad @ v.transpose(0, 2, 1)
    delta = (weights * slopes).sum(-1, keepdims=True)
    slopes = weights * (slopes - delta) * (DERIVATIVES[form][1](product) if form in DERIVATIVES else 1)
    memory["lse"], memory["delta"] = (x.astype(np.float32).ravel() for x in (sums, delta))
    exact = {
        "grad_q": slopes @ k * 0.25, "grad_k": slopes.transpose(0, 2, 1) @ q * 0.25, "grad_v": weights.transpose(0, 2, 1) @ grad,
    }  # fmt: skip
    run(memory)
    found: dict[str, float] = {}
    for name, array in exact.items():
        if name in memory and name != "grad_q":
            mine = wide(name)
            array = array if mine.size == array.size else array.reshape(shared, heads // shared, keys, deep).sum(1)
            mine = mine.reshape(array.shape)
        elif "added" in memory:
            mine = gathered(memory["added"], array.shape) * 0.25
        else:
            continue
        found[name] = float(np.linalg.norm(mine - array) / np.linalg.norm(array))
    return found


def _sizes(kernel: Kernel) -> dict[str, Any]:
    return {p.name: p.shape[0] for p in kernel.params}
