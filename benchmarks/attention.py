"""Attention on a CPU: lowc's own kernel beside ATen's, by itself and called by lowc; results in ``benchmarks/results``.

    python -m benchmarks.attention                          all shapes, f32
    python -m benchmarks.attention --dtype bfloat16 --only causal
    python -m benchmarks.attention --threads 1              by the time of the thread, which neighbours disturb less
    python -m benchmarks.attention --inductor               torch's compiler as well, of the formula (a C++ compiler is needed)

All sides run in one process, round by round in turn, with the same settings of the allocator; the table has the median of each
and the ratio of medians.  Each shape is a process of its own.  Errors are those of the whole result against float64.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.report import table
from benchmarks.run import MALLOC, ROOT, machine

ROUNDS = 21
BLOCK = 0.01  # seconds: calls are timed in blocks of at least this


@dataclass(frozen=True)
class Shape:
    """Queries [B, H, L, D]; keys and values [B, H / shared, S, D]; ``mask``: "", "causal", "bias" [L, S] or "bool" [L, S]."""

    batch: int
    heads: int
    rows: int
    keys: int
    deep: int
    mask: str = ""
    shared: int = 1

    def made(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        wide = (self.batch, self.heads // self.shared, self.keys, self.deep)
        q = torch.randn(self.batch, self.heads, self.rows, self.deep).to(dtype)
        k, v = torch.randn(wide).to(dtype), torch.randn(wide).to(dtype)
        if self.mask == "bias":
            return q, k, v, torch.randn(self.rows, self.keys).to(dtype)
        if self.mask == "bool":
            return q, k, v, torch.rand(self.rows, self.keys) < 0.9
        return q, k, v

    def function(self) -> Callable[..., Tensor]:
        causal, shared = self.mask == "causal", self.shared > 1

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=shared)

        return attend

    def formula(self) -> Callable[..., Tensor]:
        """The same by products and a softmax, which a compiler can fuse."""

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
            k, v = (x.repeat_interleave(self.shared, 1) if self.shared > 1 else x for x in (k, v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(self.deep)
            if self.mask == "causal":
                mask = torch.ones(self.rows, self.keys, dtype=torch.bool).tril()
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
            return torch.softmax(scores, -1) @ v

        return attend


SHAPES: dict[str, Shape] = {
    "bert 1x12x128x64": Shape(1, 12, 128, 128, 64),
    "batch 4x8x128x64": Shape(4, 8, 128, 128, 64),
    "1x8x512x64": Shape(1, 8, 512, 512, 64),
    "1x8x512x64 bias": Shape(1, 8, 512, 512, 64, "bias"),
    "1x8x512x64 bool": Shape(1, 8, 512, 512, 64, "bool"),
    "vit 2x12x197x64": Shape(2, 12, 197, 197, 64),
    "gpt2 1x12x512x64 causal": Shape(1, 12, 512, 512, 64, "causal"),
    "gpt2 1x12x1024x64 causal": Shape(1, 12, 1024, 1024, 64, "causal"),
    "llama 1x32x256x128 causal, 8 heads of keys": Shape(1, 32, 256, 256, 128, "causal", 4),
    "1x16x1024x128": Shape(1, 16, 1024, 1024, 128),
    "1x16x1024x128 causal": Shape(1, 16, 1024, 1024, 128, "causal"),
    "small 2x4x32x32": Shape(2, 4, 32, 32, 32),
    "16 queries 1x8x16x1024x64": Shape(1, 8, 16, 1024, 64),
    "4 queries 1x8x4x1024x64": Shape(1, 8, 4, 1024, 64),
    "decode 1x12x1x512x64": Shape(1, 12, 1, 512, 64),
    "decode 1x32x1x1024x128, 8 heads of keys": Shape(1, 32, 1, 1024, 128, "", 4),
    "decode 1x16x1x2048x128": Shape(1, 16, 1, 2048, 128),
}


def measure(name: str, dtype: torch.dtype, threads: int, inductor: bool) -> dict[str, Any]:
    """Milliseconds of a call, median and least, for "eager", "library" (ATen's, called by lowc), "own" and
    perhaps "inductor", and the errors against float64."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    shape = SHAPES[name]
    args, eager = shape.made(dtype), shape.function()
    sides = {"eager": eager}
    for whose in ("library", "own"):  # functions of their own, that compiled code of the one is not taken for the other
        options: dict[str, str | int | bool] = {"attention": whose, "strict_errors": True, "cache": False}
        sides[whose] = torch.compile(shape.function(), backend="lowc", options=options, fullgraph=True)
    if inductor:
        sides["inductor"] = torch.compile(shape.formula(), fullgraph=True)
    exact = eager(*(a.double() if a.is_floating_point() else a for a in args))
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


def run(name: str, dtype: str, threads: int, inductor: bool) -> dict[str, Any]:
    """``measure`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.attention", "--one", name, "--dtype", dtype, "--threads", str(threads)]
    command += ["--inductor"] if inductor else []
    env = {**os.environ, "OMP_PROC_BIND": "close", **MALLOC}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def markdown(results: dict[str, dict[str, Any]], dtype: str, threads: int, inductor: bool) -> str:
    head = ["attention", "eager ms", "library ms", "own ms", "eager / own", "library / own", "error own / eager"]
    head += ["Inductor ms", "Inductor / own"] if inductor else []
    rows: list[list[str]] = []
    for name, row in results.items():
        if "error" in row:
            rows.append([name, row["error"].replace("|", "\\|"), *[""] * (len(head) - 2)])
            continue
        eager, called, own = row["eager"], row["library"], row["own"]
        rows.append(
            [
                name,
                f"{eager['median_ms']:.3f}",
                f"{called['median_ms']:.3f}",
                f"{own['median_ms']:.3f}",
                f"{eager['median_ms'] / own['median_ms']:.2f}",
                f"{called['median_ms'] / own['median_ms']:.2f}",
                f"{own['error'] / max(eager['error'], 1e-30):.2f}",
            ]
        )
        if inductor:
            rows[-1] += [f"{row['inductor']['median_ms']:.3f}", f"{row['inductor']['median_ms'] / own['median_ms']:.2f}"]
    title = f"## {dtype}, {f'{threads} thread' if threads == 1 else f'{threads or torch.get_num_threads()} threads'}"
    clock = "Time of the thread." if threads == 1 else "Time on the wall."
    return f"{title}\n\n{clock}  Above 1: lowc's kernel is faster.\n\n{table(head, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's number")
    parser.add_argument("--only", default="", help="part of the names of shapes")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--out", default="", help="a file to which the table is added")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, getattr(torch, given.dtype), given.threads, given.inductor)))
        return
    results: dict[str, dict[str, Any]] = {}
    for name in SHAPES:
        if given.only in name:
            results[name] = run(name, given.dtype, given.threads, given.inductor)
            print(name, json.dumps(results[name]), flush=True)
    text = markdown(results, given.dtype, given.threads, given.inductor)
    print(text)
    if given.out:
        path = Path(given.out)
        head = "" if path.exists() else f"# Attention on the CPU\n\n{', '.join(f'{k} {v}' for k, v in machine().items())}\n"
        with path.open("a") as file:
            file.write(f"{head}\n{text}")


if __name__ == "__main__":
    main()
