"""Long runs: what stays behind after thousands of compilations, or a million calls.

    python -m benchmarks.long --what drops                   # 10,000 graphs compiled, called and dropped
    python -m benchmarks.long --what drops --through torch   # 10,000 functions through torch.compile: Dynamo's memory as well
    python -m benchmarks.long --what calls                   # 1,000,000 calls of one compiled function

Prints a line at every tenth: resident memory, memory that is code (anonymous and executable), open files, Python objects,
threads.  At the end how much each grew from the second line to the last, per unit; exits with 1 if that is above its bound.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import resident

COUNTS = {"drops": 10_000, "calls": 1_000_000}
BOUND = {"rss": 1024, "code": 0.5, "files": 0.001, "objects": 0.1}
"""What a unit may leave behind: bytes, objects.  (Of drops; calls are held to a thousandth of it.)"""


def code_memory() -> int:
    """Bytes of anonymous executable memory: what lowc's linker has loaded."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *name = line.split()
        if "x" in rights and inode == "0" and not name:
            start, stop = (int(part, 16) for part in span.split("-"))
            total += stop - start
    return total


def measured() -> dict[str, int]:
    gc.collect()
    return {
        "rss": resident("VmRSS"),
        "code": code_memory(),
        "files": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "threads": len(os.listdir("/proc/self/task")),
    }


def graph_dropped(number: int) -> None:
    """A graph of its own compiled, called and let go."""
    from lowc.compiler import compile_graph
    from lowc.options import Options
    from tests.cache import graphs

    call = compile_graph(graphs.chain(float(number)), (), Options(cache=False))
    (found,) = call([graphs.X.clone(), graphs.C])
    if not torch.allclose(found, graphs.chain_of(graphs.X, float(number))):
        raise SystemExit(f"graph {number} is wrong")


def function_dropped(number: int) -> None:
    """The same through ``torch.compile``."""
    torch._dynamo.reset()
    fn: Callable[..., Any] = torch.compile(lambda x: (x.exp() * 2 + number).sum(0), backend="lowc", options={"cache": False})
    x = torch.ones(5, 7)
    if not torch.allclose(fn(x), (x.exp() * 2 + number).sum(0)):
        raise SystemExit(f"function {number} is wrong")


def caller() -> Callable[[int], None]:
    """A call of one compiled function: kernels, a call of ATen, a workspace, an output."""
    fn: Callable[..., Any] = torch.compile(lambda x, w: (x.tanh() @ w).softmax(-1), backend="lowc", options={"cache": False})
    x, w = torch.randn(8, 16), torch.randn(16, 8)
    wanted = (x.tanh() @ w).softmax(-1)

    def call(number: int) -> None:
        found = fn(x, w)
        if number % 1000 == 0 and not torch.allclose(found, wanted, atol=1e-6):
            raise SystemExit(f"call {number} is wrong")

    return call


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.long", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--what", choices=COUNTS, default="drops")
    p.add_argument("--through", choices=("graph", "torch"), default="graph", help="of drops (default: %(default)s)")
    p.add_argument("--count", type=int, default=0, help="how many (default: 10,000 drops, 1,000,000 calls)")
    chosen = p.parse_args()
    torch.set_num_threads(1)
    count = chosen.count or COUNTS[chosen.what]
    step = caller() if chosen.what == "calls" else graph_dropped if chosen.through == "graph" else function_dropped
    began = time.monotonic()
    lines: list[tuple[int, dict[str, int]]] = []
    for number in range(count):
        step(number)
        if (number + 1) % max(count // 10, 1) == 0:
            lines.append((number + 1, measured()))
            shown = ", ".join(f"{k} {v / 1e6:.2f} MB" if k in ("rss", "code") else f"{v} {k}" for k, v in lines[-1][1].items())
            print(f"{number + 1} in {time.monotonic() - began:.0f} s: {shown}", flush=True)
    (first, before), (last, after) = lines[min(1, len(lines) - 1)], lines[-1]
    units = max(last - first, 1)
    growth = {k: (after[k] - before[k]) / units for k in before}
    shown = ", ".join(f"{v:.4f} {'bytes ' if k in ('rss', 'code') else ''}{k}" for k, v in growth.items())
    print(f"left behind by each: {shown}")
    scale = 1.0 if chosen.what == "drops" else 0.001
    above = [k for k, most in BOUND.items() if growth[k] > most * scale]
    if above and chosen.through == "graph":
        print(f"too much: {', '.join(above)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
