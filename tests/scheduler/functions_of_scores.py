"""Attention whose scores are made by functions, as kernels, and what they compute, beside float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel
from lowc.ir.numeric import from_storage
from tests.scheduler.attentions import Shape, attention, by_tiles, memory_of

Given = dict[str, Any]
Array = Any


@dataclass(frozen=True)
class Made:
    """``score``: text of what is made of ``s`` at h, i, j; ``mask``: conditions, one inside the other.  ``wide``, ``seen``: both
    in numpy, the latter as the conjunction."""

    score: str
    mask: tuple[str, ...]
    wide: Callable[[Array, Given], Array]
    seen: Callable[[Given], Array]


CAUSAL = "idx(j) <= idx(i)"
FORMS: dict[str, Made] = {
    "window": Made(
        "s * 0.25", (CAUSAL, "idx(i - j) < 70"), lambda s, g: s, lambda g: (g["j"] <= g["i"]) & (g["i"] - g["j"] < 70)
    ),
    "both sides": Made(
        "s * 0.25", ("idx(i - j) < idx(20)", "idx(j - i) < idx(15)"), lambda s, g: s,
        lambda g: (g["i"] - g["j"] < 20) & (g["j"] - g["i"] < 15),
    ),
    "late": Made("s * 0.25", ("idx(j) <= idx(i - 100)",), lambda s, g: s, lambda g: g["j"] <= g["i"] - 100),
    "as many for all": Made("s * 0.25", ("idx(j) < idx(77)",), lambda s, g: s, lambda g: (g["j"] < 77) & (g["i"] >= 0)),
    "from one on": Made("s * 0.25", ("idx(j) >= idx(140)",), lambda s, g: s, lambda g: (g["j"] >= 140) & (g["i"] >= 0)),
    "slopes": Made(
        "s * 0.25 + slopes[h] * f32(idx(j - i))", (CAUSAL,), lambda s, g: s + g["slopes"][:, None, None] * (g["j"] - g["i"]),
        lambda g: g["j"] <= g["i"],
    ),
    "documents": Made(
        "s * 0.25", (CAUSAL, "documents[i] == documents[j]"), lambda s, g: s,
        lambda g: (g["j"] <= g["i"]) & (g["documents"][g["i"]] == g["documents"][g["j"]]),
    ),
    "tiles": Made(
        "s * 0.25", ("documents[i // 128] == documents[j // 128]",), lambda s, g: s,
        lambda g: g["documents"][g["i"] // 128] == g["documents"][g["j"] // 128],
    ),
    "tiles, causal": Made(
        "s * 0.25", ("documents[i // 128 * 3] <= documents[j // 128 + 1]", CAUSAL), lambda s, g: s,
        lambda g: (g["j"] <= g["i"]) & (g["documents"][g["i"] // 128 * 3] <= g["documents"][g["j"] // 128 + 1]),
    ),
    "capped": Made("tanh(s * 0.25) * 3.0", (CAUSAL,), lambda s, g: 3 * np.tanh(s), lambda g: g["j"] <= g["i"]),
    "relu": Made("max(s * 0.25, 0.0)", (CAUSAL,), lambda s, g: np.maximum(s, 0), lambda g: g["j"] <= g["i"]),
    "table": Made(
        "s * 0.25 + table[i - j + 400]", (), lambda s, g: s + g["table"][g["i"] - g["j"] + 400], lambda g: g["i"] + g["j"] >= 0
    ),
}  # fmt: skip


def kernel_of(form: str, shape: Shape, dtype: str = "bf16") -> Kernel:
    return kernel_by(FORMS[form].score, FORMS[form].mask, shape, dtype)


def kernel_by(score: str, mask: tuple[str, ...], shape: Shape, dtype: str = "bf16") -> Kernel:
    """Of the text of a ``score``, and conditions."""
    for condition in reversed(mask):
        score = f"select({condition}, {score}, -inf)"
    return attention(shape, dtype=dtype, function=score, captured="slopes: f32[16], documents: i64[400], table: f32[800], ")


def memory(kernel: Kernel, shape: tuple[int, ...], sizes: dict[str, int] | None = None) -> Given:
    found = memory_of(kernel, sizes or {})
    generator = np.random.default_rng(1)
    others = {
        "slopes": generator.uniform(0, 1, 16).astype(np.float32), "documents": np.sort(generator.integers(0, 4, 400)),
        "table": generator.normal(0, 1, 800).astype(np.float32),
    }  # fmt: skip
    used = {p.name for p in kernel.params}
    return {**found, **{name: data for name, data in others.items() if name in used}}


def error(form: str, kernel: Kernel, found: Given, shape: tuple[int, ...]) -> tuple[float, float]:
    """(relative error of the result as a whole, the largest of sums of rows that see something)."""
    heads, shared, rows, keys, deep = shape
    dtypes = {p.name: p.dtype for p in kernel.params}
    wide = {n: from_storage(data, dtypes[n]).astype(np.int64 if n == "documents" else np.float64) for n, data in found.items()}
    wide["i"], wide["j"] = np.arange(rows)[:, None], np.arange(keys)[None, :]
    q = wide["q"].reshape(heads, rows, deep)
    k, v = (wide[n].reshape(shared, keys, deep).repeat(heads // shared, 0) for n in "kv")
    wide["slopes"] = wide["slopes"][:heads] if "slopes" in wide else None
    made = FORMS[form]
    scores = np.where(made.seen(wide), made.wide(q @ k.transpose(0, 2, 1) * 0.25, wide), -math.inf)
    top = np.maximum(scores.max(-1, keepdims=True), -1e30)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    out = np.where(total == 0, 0, weights / np.maximum(total, 1e-300)) @ v
    sums = np.where(total == 0, 0, np.log(np.maximum(total, 1e-300)) + top)[..., 0]
    mine = wide["out"].reshape(out.shape)
    off = np.linalg.norm(mine - out) / np.linalg.norm(out)
    return float(off), float(np.abs(wide["sums"].reshape(sums.shape) - sums).max())


def interpreted(form: str, shape: Any, **changed: Any) -> tuple[Kernel, float, float]:
    done = by_tiles(kernel_of(form, shape), **changed)
    found = memory(done, shape)
    run_kernel(done, found, {})
    return done, *error(form, done, found, shape)
