"""Masks of attention on a CPU: blocks of keys that no row sees are not looked at, be it indices or data that tells."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowc.ir.interp import run_kernel
from lowc.ir.nodes import For, Kernel
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.scheduler import attention as form
from lowc.scheduler.online import Online
from lowc.scheduler.online_dots import OnlineDots
from tests.scheduler.attentions import attention, memory_of
from tests.scheduler.test_online import by_blocks

Seen = Callable[[Any, Any, Any], Any]
# Conditions in the order in which they are nested, and where all of them hold, by row, key and what ``bias`` begins with.
MASKS: dict[str, tuple[list[str], Seen]] = {
    "window": (["idx(j) <= idx(i)", "idx(i - j) < 20"], lambda i, j, d: (j <= i) & (i - j < 20)),
    "from a key on": (["idx(j) >= 18"], lambda i, j, d: j >= 18),
    "some keys": (["idx(j) < 33", "idx(j) >= 18"], lambda i, j, d: (j < 33) & (j >= 18)),
    "none": (["idx(j) <= idx(i - 70)"], lambda i, j, d: j <= i - 70),
    "not in steps": (["idx(j) <= idx(i // 2)"], lambda i, j, d: j <= i // 2),
    "documents": (["bias[i] * bias[j] > 0.0"], lambda i, j, d: d[i] * d[j] > 0),
    "causal documents": (["bias[i] * bias[j] > 0.0", "idx(j) <= idx(i)"], lambda i, j, d: (d[i] * d[j] > 0) & (j <= i)),
    "a length": (["f32(idx(j)) < bias[0] + 20.0"], lambda i, j, d: j < d[0] + 20),
    "of the score": (["s > 0.0", "idx(j) >= 18"], lambda i, j, d: j >= 18),
}


def made(mask: str, rows: int, keys: int) -> Kernel:
    """As ``attention`` has it, with masks in the place of the causal one."""
    text = print_kernel(attention((1, 1, rows, keys, 8), True, True, "f32"))
    conditions, _ = MASKS[mask]
    line = next(line for line in text.splitlines() if "select(idx(" in line)
    score = "s * 0.25"
    for condition in reversed(conditions):
        score = f"select({condition}, {score}, -inf)"
    return parse_kernel(text.replace(line, f"score = {score}"))


def check(mask: str, rows: int, keys: int, step: type[Online] | type[OnlineDots]) -> None:
    """Values of blocks of keys that no row sees are NaN, and come nowhere."""
    kernel = by_blocks(made(mask, rows, keys), step)
    memory = memory_of(attention((1, 1, rows, keys, 8), True, True, "f32"), {})
    order = np.arange(max(rows, keys))
    memory["bias"][: len(order)] = np.where((order // 16) % 3 == 1, -1, 1) * (1 + order / 100)
    i, j = np.ogrid[:rows, :keys]
    seen = MASKS[mask][1](i, j, memory["bias"]) & np.ones((rows, keys), bool)
    q, k, v = (memory[n].reshape(-1, 8).astype(np.float64) for n in "qkv")
    scores = q @ k.T * 0.25
    if mask == "of the score":
        seen &= scores > 0
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    right = np.where(total == 0, 0, weights @ v / np.where(total == 0, 1, total))
    for first in range(0, keys, 16):
        if mask != "not in steps" and not seen[:, first : first + 16].any():
            memory["v"].reshape(-1, 8)[first : first + 16] = np.nan
    run_kernel(kernel, {p.name: memory[p.name] for p in kernel.params}, {})
    np.testing.assert_allclose(memory["out"].reshape(rows, 8), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", MASKS)
def test_rows_on_lanes(mask: str) -> None:
    check(mask, 37, 61, Online)
    check(mask, 16, 48, Online)


@pytest.mark.parametrize("mask", MASKS)
def test_the_depth_on_lanes(mask: str) -> None:
    check(mask, 3, 61, OnlineDots)


def test_what_masks_say() -> None:
    """From where to where a row sees keys is found among all masks; what neither is, nor goes along with the rows, stays."""

    def read(mask: str) -> tuple[str, str]:
        loop = made(mask, 37, 61).body[0]
        assert isinstance(loop, For)
        found = form.find(loop)
        assert found is not None
        return repr(form.seen(found)[0]), repr(form.since(found))

    assert read("window") == ("i + 1", "i - 19")
    assert read("some keys") == ("33", "18")
    assert read("none") == ("i - 69", "None")
    assert read("not in steps") == ("None", "None")
    assert read("causal documents") == ("i + 1", "None")
