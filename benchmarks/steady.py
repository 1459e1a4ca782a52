"""One workload in the steady state, in a process of its own: every side in turn, round by round.

    python -m benchmarks.steady softmax lowc,eager,inductor

Prints one line of JSON: for each side the median, and the best, time of a call in milliseconds, and the largest difference of its
results from eager's in float32 (relative to the largest value).
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from benchmarks.workloads import MODELS, STEADY, Made

ROUNDS = 15
BLOCK = 0.03  # seconds: calls are timed in blocks of at least this


def build(make: Callable[[], Made], side: str) -> Made:
    """A workload made afresh, compiled by ``side``: "eager", a backend, or a backend and "-dynamic", for which all sizes are
    symbolic."""
    fn, args = make()
    if side == "eager":
        return fn, args
    backend = side.removesuffix("-dynamic")
    return torch.compile(fn, backend=backend, dynamic=side != backend), args


def tensors(out: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]


def difference(ours: list[torch.Tensor], eager: list[torch.Tensor]) -> float:
    worst = 0.0
    for a, b in zip(ours, eager, strict=True):
        if b.is_floating_point() and b.numel():
            scale = float(b.abs().nan_to_num(0, 0, 0).max()) or 1.0
            worst = max(worst, float((a - b).abs().nan_to_num(0, 0, 0).max()) / scale)
    return worst


def measure(make: Callable[[], Made], sides: list[str]) -> dict[str, dict[str, float]]:
    built = {side: build(make, side) for side in sides}
    fn, args = make()
    out = fn(*args)
    # A function that returns nothing works in place.
    eager = tensors(args if out is None else out)
    found: dict[str, dict[str, float]] = {}
    calls: dict[str, int] = {}
    for side, (fn, args) in built.items():
        start = time.perf_counter()
        out = fn(*args)
        first = time.perf_counter() - start
        found[side] = {
            "first_ms": first * 1e3,
            "difference": difference(tensors(args if out is None else out), eager),
        }
        for _ in range(3):
            fn(*args)
        start = time.perf_counter()
        fn(*args)
        calls[side] = max(1, int(BLOCK / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(ROUNDS):
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            fn, args = built[side]
            start = time.perf_counter()
            for _ in range(calls[side]):
                fn(*args)
            times[side].append((time.perf_counter() - start) / calls[side] * 1e3)
    for side in sides:
        found[side] |= {"median_ms": statistics.median(times[side]), "best_ms": min(times[side])}
    return found


def main() -> None:
    name, sides = sys.argv[1], sys.argv[2].split(",")
    print(json.dumps(measure({**STEADY, **MODELS}[name], sides)))


if __name__ == "__main__":
    main()
