"""Matrix products: lowc's own kernels beside ATen's, shapes of models; results as Markdown in ``benchmarks/results``.

    python -m benchmarks.matmul                        all shapes, f32, with an epilogue where the model has one
    python -m benchmarks.matmul --dtype bfloat16 --only linear
    python -m benchmarks.matmul --threads 1            by the time of the thread, which neighbours disturb less

Both sides run in one process, round by round in turn; the table has the median and the least time of each, and the ratio of both.
Each shape is a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.report import table
from benchmarks.run import MALLOC, ROOT, machine

Made = tuple[Callable[..., Any], tuple[Any, ...]]
ROUNDS = 21
BLOCK = 0.02  # seconds: calls are timed in blocks of at least this


def linear(m: int, n: int, k: int, activation: Callable[[Any], Any] | None = None) -> Callable[[torch.dtype], Made]:
    def make(dtype: torch.dtype) -> Made:
        x, w, b = (torch.randn(shape, dtype=dtype) / 8 for shape in ((m, k), (n, k), (n,)))
        if activation is None:
            return F.linear, (x, w, b)
        return lambda x, w, b: activation(F.linear(x, w, b)), (x, w, b)

    return make


def residual(m: int, n: int, k: int) -> Callable[[torch.dtype], Made]:
    def make(dtype: torch.dtype) -> Made:
        x, w, b, r = (torch.randn(shape, dtype=dtype) / 8 for shape in ((m, k), (n, k), (n,), (m, n)))
        return lambda x, w, b, r: r + F.linear(x, w, b), (x, w, b, r)

    return make


def product(x: tuple[int, ...], y: tuple[int, ...], turned: bool = False) -> Callable[[torch.dtype], Made]:
    """x @ y; ``turned``: x lies in memory along its last but one dimension, as in the gradient of a weight."""

    def make(dtype: torch.dtype) -> Made:
        a, b = torch.randn(x, dtype=dtype) / 8, torch.randn(y, dtype=dtype) / 8
        return torch.matmul, (a.mT.contiguous().mT if turned else a, b)

    return make


SHAPES: dict[str, Callable[[torch.dtype], Made]] = {
    "mm 1024x1024x1024": product((1024, 1024), (1024, 1024)),
    "mm 512x512x512": product((512, 512), (512, 512)),
    "mm 256x1024x2816": product((256, 2816), (2816, 1024)),
    "mm 64x64x64": product((64, 64), (64, 64)),
    "mm 1000x999x501": product((1000, 501), (501, 999)),
    "linear gpt2 qkv 512x2304x768": linear(512, 2304, 768),
    "linear+gelu gpt2 up 512x3072x768": linear(512, 3072, 768, F.gelu),
    "linear+residual gpt2 down 512x768x3072": residual(512, 768, 3072),
    "linear+gelu bert 128x3072x768": linear(128, 3072, 768, F.gelu),
    "linear+residual bert 128x768x3072": residual(128, 768, 3072),
    "linear+silu llama 64x5632x2048": linear(64, 5632, 2048, F.silu),
    "linear+relu mlp 256x512x784": linear(256, 512, 784, F.relu),
    "linear head 256x10x512": linear(256, 10, 512),
    "linear 32x2048x2048": linear(32, 2048, 2048),
    "linear 8x2048x2048": linear(8, 2048, 2048),
    "linear decode 1x4096x4096": linear(1, 4096, 4096),
    "mm decode 1x4096x4096": product((1, 4096), (4096, 4096)),
    "bmm scores 12x512x512x64": product((12, 512, 64), (12, 64, 512)),
    "bmm values 12x512x64x512": product((12, 512, 512), (12, 512, 64)),
    "mm gradient of a weight 3072x768x512": product((3072, 512), (512, 768), turned=True),
}


def measure(name: str, dtype: torch.dtype, threads: int) -> dict[str, Any]:
    """Milliseconds of a call, least and median, for "own" and "eager", and the errors of both against float64."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    eager, args = SHAPES[name](dtype)
    options: dict[str, str | int | bool] = {"matmul": "own", "strict_errors": True, "cache": False}
    sides = {"eager": eager, "own": torch.compile(eager, backend="lowc", options=options, fullgraph=True)}
    exact = eager(*(a.double() for a in args))
    found: dict[str, Any] = {}
    calls: dict[str, int] = {}
    for side, function in sides.items():
        out = function(*args)
        found[side] = {"error": float((out.double() - exact).norm() / exact.norm())}
        start = clock()
        for _ in range(3):
            function(*args)
        calls[side] = max(1, int(BLOCK / max((clock() - start) / 3, 1e-7)))
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(ROUNDS):
        for side in list(sides)[:: 1 if turn % 2 else -1]:
            function = sides[side]
            start = clock()
            for _ in range(calls[side]):
                function(*args)
            times[side].append((clock() - start) / calls[side] * 1e3)
    for side, taken in times.items():
        found[side] |= {"median_ms": statistics.median(taken), "least_ms": min(taken)}
    return found


def run(name: str, dtype: str, threads: int) -> dict[str, Any]:
    """``measure`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.matmul", "--one", name, "--dtype", dtype, "--threads", str(threads)]
    env = {**os.environ, "OMP_PROC_BIND": "close", **MALLOC}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def markdown(results: dict[str, dict[str, Any]], dtype: str, threads: int) -> str:
    head = ["product", "eager ms", "own ms", "ratio of medians", "ratio of least", "error own / eager"]
    rows: list[list[str]] = []
    for name, row in results.items():
        if "error" in row:
            rows.append([name, row["error"].replace("|", "\\|"), *[""] * (len(head) - 2)])
            continue
        eager, own = row["eager"], row["own"]
        rows.append(
            [
                name,
                f"{eager['median_ms']:.3f}",
                f"{own['median_ms']:.3f}",
                f"{eager['median_ms'] / own['median_ms']:.2f}",
                f"{eager['least_ms'] / own['least_ms']:.2f}",
                f"{own['error'] / max(eager['error'], 1e-30):.2f}",
            ]
        )
    title = f"## {dtype}, {f'{threads} thread' if threads == 1 else f'{threads or torch.get_num_threads()} threads'}"
    clock = "Time of the thread." if threads == 1 else "Time on the wall."
    return f"{title}\n\n{clock}  Above 1: lowc's kernel is faster.\n\n{table(head, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's number")
    parser.add_argument("--only", default="", help="part of the names of shapes")
    parser.add_argument("--out", default="", help="a file to which the table is added")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, getattr(torch, given.dtype), given.threads)))
        return
    results: dict[str, dict[str, Any]] = {}
    for name in SHAPES:
        if given.only in name:
            results[name] = run(name, given.dtype, given.threads)
            print(name, json.dumps(results[name]), flush=True)
    text = markdown(results, given.dtype, given.threads)
    print(text)
    if given.out:
        path = Path(given.out)
        head = "" if path.exists() else f"# Matrix products on the CPU\n\n{', '.join(f'{k} {v}' for k, v in machine().items())}\n"
        with path.open("a") as file:
            file.write(f"{head}\n{text}")


if __name__ == "__main__":
    main()
