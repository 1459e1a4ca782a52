"""Long runs: what stays behind after thousands of compilations, or a million calls.

    python -m benchmarks.long --what drops                   # 10,000 graphs compiled, called and dropped
    python -m benchmarks.long --what drops --through torch   # 2,000 functions through torch.compile, forward and backward
    python -m benchmarks.long --what calls                   # 1,000,000 calls of one compiled function

Prints a line at every tenth: resident memory, memory that is code (anonymous and executable), open files, Python objects, those
that are lowc's (or llvmlite's), threads.  At the end how much each grew from the second line to the last, per unit; exits with 1
if that is above its bound.  What torch itself leaves behind is not lowc's: through torch two processes do the same, one of them
with the backend aot_eager, and what lowc leaves beyond that is held to the bounds (``--backend NAME`` is one of them alone).
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from benchmarks.memory import resident

COUNTS = {"drops": 10_000, "calls": 1_000_000, "torch": 2_000}
BOUND = {"rss": 1024, "code": 0.5, "files": 0.001, "objects": 0.1, "of lowc": 0.1}
"""What a unit may leave behind: bytes, objects.  (Of drops; calls are held to a thousandth of it.)"""
THROUGH_TORCH = BOUND | {"rss": 8192}
"""The same of drops through torch, beyond what aot_eager leaves: torch's resident memory is not that steady."""


def code_memory() -> int:
    """Bytes of anonymous executable memory: what lowc's linker has loaded."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *name = line.split()
        if "x" in rights and inode == "0" and not name:
            start, stop = (int(part, 16) for part in span.split("-"))
            total += stop - start
    return total


def of_lowc(each: object) -> bool:
    """Whether it is an object of a class of lowc's (or of llvmlite's), or a function of lowc's modules."""
    module = getattr(type(each), "__module__", None)
    if type(each) is FunctionType:
        module = each.__module__
    return isinstance(module, str) and module.partition(".")[0] in ("lowc", "llvmlite")


def measured() -> dict[str, int]:
    gc.collect()
    return {
        "rss": resident("VmRSS"),
        "code": code_memory(),
        "files": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "of lowc": sum(of_lowc(each) for each in gc.get_objects()),
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


def function_dropped(backend: str) -> Callable[[int], None]:
    """The same through ``torch.compile``: an inference graph, then one with a backward pass."""
    given: dict[str, Any] = {"options": {"cache": False, "strict_errors": True}} if backend == "lowc" else {}

    def step(number: int) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return (x.exp() * 2 + number).sum(0)

        fn: Callable[..., Any] = torch.compile(f, backend=backend, **given)
        x = torch.linspace(0, 1, 35).view(5, 7)
        right = torch.allclose(fn(x), f(x))
        x.requires_grad_()
        y = fn(x)
        y.sum().backward()
        right &= torch.allclose(y, f(x)) and torch.allclose(x.grad, 2 * x.exp())  # type: ignore[arg-type]
        torch._dynamo.reset()
        if not right:
            raise SystemExit(f"function {number} is wrong")

    return step


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


def run(step: Callable[[int], None], count: int) -> dict[str, float]:
    """``step`` done ``count`` times: what each leaves behind."""
    began = time.monotonic()
    lines: list[tuple[int, dict[str, int]]] = []
    for number in range(count):
        step(number)
        if (number + 1) % max(count // 10, 1) == 0:
            lines.append((number + 1, measured()))
            shown = ", ".join(f"{v / 1e6:.2f} MB {k}" if k in ("rss", "code") else f"{v} {k}" for k, v in lines[-1][1].items())
            print(f"{number + 1} in {time.monotonic() - began:.0f} s: {shown}", flush=True)
    (first, before), (last, after) = lines[min(1, len(lines) - 1)], lines[-1]
    growth = {k: (after[k] - before[k]) / max(last - first, 1) for k in before}
    shown = ", ".join(f"{v:.4f} {'bytes ' if k in ('rss', 'code') else ''}{k}" for k, v in growth.items())
    print(f"left behind by each: {shown}", flush=True)
    return growth


def beyond_torch(count: int) -> dict[str, float]:
    """What each function leaves behind with lowc beyond what it leaves with aot_eager, both in processes of their own."""
    growth: dict[str, dict[str, float]] = {}
    for backend in ("lowc", "aot_eager"):
        print(f"{backend}:", flush=True)
        command = [sys.executable, "-m", "benchmarks.long", "--through", "torch", "--backend", backend, "--count", str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            last = ""
            for last in child.stdout:
                print(f"  {last}", end="", flush=True)
        if child.wait():
            raise SystemExit(f"{backend}: exit status {child.returncode}")
        growth[backend] = json.loads(last)
    return {k: v - growth["aot_eager"][k] for k, v in growth["lowc"].items()}


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.long", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--what", choices=("drops", "calls"), default="drops")
    p.add_argument("--through", choices=("graph", "torch"), default="graph", help="of drops (default: %(default)s)")
    p.add_argument("--backend", help="of drops through torch: this one alone")
    p.add_argument("--count", type=int, default=0, help="how many (default: 10,000 drops, 2,000 through torch, 1,000,000 calls)")
    chosen = p.parse_args()
    torch.set_num_threads(1)
    through_torch = chosen.what == "drops" and chosen.through == "torch"
    count = chosen.count or COUNTS["torch" if through_torch else chosen.what]
    if through_torch and chosen.backend:
        print(json.dumps(run(function_dropped(chosen.backend), count)))
        return 0
    growth = beyond_torch(count) if through_torch else run(caller() if chosen.what == "calls" else graph_dropped, count)
    bound = THROUGH_TORCH if through_torch else BOUND
    scale = 0.001 if chosen.what == "calls" else 1.0
    above = [k for k, most in bound.items() if growth[k] > most * scale]
    if through_torch:
        print("beyond aot_eager, by each: " + ", ".join(f"{v:.4f} {k}" for k, v in growth.items()))
    if above:
        print(f"too much: {', '.join(above)}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
