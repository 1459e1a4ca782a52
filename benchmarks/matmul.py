"""Matrix products: lowc's own kernels beside ATen's, shapes of models; results as Markdown in ``benchmarks/results``.

    python -m benchmarks.matmul                        all shapes, f32, with an epilogue where the model has one
    python -m benchmarks.matmul --dtype bfloat16 --only linear
    python -m benchmarks.matmul --threads 1            by the time of the thread, which neighbours disturb less

Both sides run in one process, round by round in turn; the table has the median and the least time of each, and the ratio of both.
Each shape is a process of its own.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.report import table
from benchmarks.sides import arguments, each, rows_of, shown, timed, titled

Made = tuple[Callable[..., Any], tuple[Any, ...]]
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
    eager, args = SHAPES[name](dtype)
    options: dict[str, str | int | bool] = {"matmul": "own", "strict_errors": True, "cache": False}
    sides = {"eager": eager, "own": torch.compile(eager, backend="lowc", options=options, fullgraph=True)}
    exact = eager(*(a.double() for a in args))
    return timed(sides, args, exact, threads, BLOCK)


def markdown(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["product", "eager ms", "own ms", "ratio of medians", "ratio of least", "error own / eager"]

    def cells(row: dict[str, Any]) -> list[str]:
        eager, own = row["eager"], row["own"]
        return [
            f"{eager['median_ms']:.3f}",
            f"{own['median_ms']:.3f}",
            f"{eager['median_ms'] / own['median_ms']:.2f}",
            f"{eager['least_ms'] / own['least_ms']:.2f}",
            f"{own['error'] / max(eager['error'], 1e-30):.2f}",
        ]

    return titled(table(head, rows_of(results, len(head), cells)), given)


def main() -> None:
    given = arguments(__doc__).parse_args()
    if given.one:
        print(json.dumps(measure(given.one, getattr(torch, given.dtype), given.threads)))
        return
    results = each("benchmarks.matmul", SHAPES, given)
    shown(markdown(results, given), "Matrix products on the CPU", given.out)


if __name__ == "__main__":
    main()
