"""Kernels on a machine whose cores are busy with something else: lowc and eager under the same load.

    python -m benchmarks.contention                    # one busy process a core
    python -m benchmarks.contention --load 2 --names softmax,layer_norm

For each workload and side, in turn: the median and the 95th percentile of calls on the machine as it is, and loaded.  Threads
that wait for one another (parallel loops, sums shared among cores) suffer most where one of them does not get its core; eager's
run on the same OpenMP.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from typing import Any

import torch

from benchmarks.steady import build, difference, tensors
from benchmarks.workloads import STEADY

NAMES = ("softmax", "layer_norm_train", "column_sum", "full_reduce", "swiglu", "adam_24", "tiny")
CALLS = 60


def busy(stop: Any) -> None:
    """Arithmetic until told to stop."""
    x = 1.0
    while not stop.is_set():
        for _ in range(20_000):
            x = x * 1.0000001 + 1e-9


def times(calls: dict[str, Any], seconds: float) -> dict[str, tuple[float, float]]:
    """(median, 95th percentile) of each side in milliseconds, the sides in turn."""
    found: dict[str, list[float]] = {side: [] for side in calls}
    until = time.monotonic() + seconds
    for _ in range(CALLS):
        for side, (fn, args) in calls.items():
            start = time.perf_counter()
            fn(*args)
            found[side].append((time.perf_counter() - start) * 1e3)
        if time.monotonic() > until and len(next(iter(found.values()))) >= 20:
            break
    return {side: (statistics.median(each), sorted(each)[int(0.95 * (len(each) - 1))]) for side, each in found.items()}


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.contention", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--names", default=",".join(NAMES), help="workloads of benchmarks.workloads.STEADY")
    p.add_argument("--load", type=int, default=1, help="busy processes for each core (default: %(default)s)")
    p.add_argument("--seconds", type=float, default=20.0, help="for each workload and load (default: %(default)s)")
    chosen = p.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {torch.get_num_threads()} threads, {chosen.load * cores} busy processes; milliseconds, median / 95 %")
    print(f"{'':18}{'eager':>18}{'lowc':>18}{'ratio':>7}   under load {'eager':>14}{'lowc':>18}{'ratio':>7}")
    context = multiprocessing.get_context("spawn")
    for name in chosen.names.split(","):
        sides = {side: build(STEADY[name], side) for side in ("eager", "lowc")}
        found = {}
        for side, (fn, args) in sides.items():
            for _ in range(3):
                out = fn(*args)
            found[side] = tensors(args if out is None else out)
        if (apart := difference(found["lowc"], found["eager"])) > 1e-3:
            raise SystemExit(f"{name}: results differ by {apart:.2e}")
        idle = times(sides, chosen.seconds)
        stop = context.Event()
        load = [context.Process(target=busy, args=(stop,), daemon=True) for _ in range(chosen.load * cores)]
        for process in load:
            process.start()
        time.sleep(2.0)  # until all of them are at it
        loaded = times(sides, chosen.seconds)
        stop.set()
        for process in load:
            process.join()
        cells = [[f"{m:8.2f} /{q:7.2f}" for m, q in (t["eager"], t["lowc"])] for t in (idle, loaded)]
        ratios = [t["lowc"][0] / t["eager"][0] for t in (idle, loaded)]
        left, right = (f"{a:>18}{b:>18}{r:7.2f}" for (a, b), r in zip(cells, ratios, strict=True))
        print(f"{name:18}{left}   {' ' * 6}{right}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
