"""Attention on a CPU: lowc's own kernel beside ATen's, by itself and called by lowc; results in ``benchmarks/results``.

    python -m benchmarks.attention                          all shapes, f32
    python -m benchmarks.attention --dtype bfloat16 --only causal
    python -m benchmarks.attention --threads 1              by the time of the thread, which neighbours disturb less
    python -m benchmarks.attention --inductor               torch's compiler as well, of the formula (a C++ compiler is needed)
    python -m benchmarks.attention --backward               gradients of queries, keys and values (Inductor calls ATen's)

All sides run in one process, round by round in turn, with the same settings of the allocator; the table has the median of each
and the ratio of medians.  Each shape is a process of its own.  Errors are those of the whole result against float64.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.report import table
from benchmarks.sides import arguments, each, failed, inductor_cells, shown, timed, titled

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


BACKWARD: dict[str, Shape] = {
    "bert 1x12x128x64": Shape(1, 12, 128, 128, 64),
    "gpt2 1x12x128x64 causal": Shape(1, 12, 128, 128, 64, "causal"),
    "vit 2x12x197x64": Shape(2, 12, 197, 197, 64),
    "1x8x512x64": Shape(1, 8, 512, 512, 64),
    "1x8x512x64 causal": Shape(1, 8, 512, 512, 64, "causal"),
    "1x8x512x64 bias": Shape(1, 8, 512, 512, 64, "bias"),
    "1x8x512x128": Shape(1, 8, 512, 512, 128),
    "1x8x512x128 causal": Shape(1, 8, 512, 512, 128, "causal"),
    "1x12x1024x64": Shape(1, 12, 1024, 1024, 64),
    "1x12x1024x64 causal": Shape(1, 12, 1024, 1024, 64, "causal"),
    "1x4x2048x64": Shape(1, 4, 2048, 2048, 64),
    "1x4x2048x64 causal": Shape(1, 4, 2048, 2048, 64, "causal"),
    "1x4x2048x128": Shape(1, 4, 2048, 2048, 128),
    "1x4x2048x128 causal": Shape(1, 4, 2048, 2048, 128, "causal"),
    "one head 1x1x512x64": Shape(1, 1, 512, 512, 64),
    "one head 1x1x512x64 causal": Shape(1, 1, 512, 512, 64, "causal"),
    "small 2x4x32x32": Shape(2, 4, 32, 32, 32),
}


def gradients(shape: Shape) -> Callable[..., tuple[Tensor, ...]]:
    """ATen's op for the gradients of ``shape``, of (grad, q, k, v, out, logsumexp, mask)."""
    causal = shape.mask == "causal"
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    def backward(grad: Tensor, *args: Any) -> tuple[Tensor, ...]:
        q, k, v, out, sums, *mask = args
        return op(grad, q, k, v, out, sums, 0.0, causal, attn_mask=mask[0] if mask else None)

    return backward


def measure_backward(name: str, dtype: torch.dtype, threads: int) -> dict[str, Any]:
    """As ``measure``, of gradients; errors are the largest of the three."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    shape = BACKWARD[name]
    q, k, v, *mask = shape.made(dtype)
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, sums = forward(q, k, v, 0.0, shape.mask == "causal", attn_mask=mask[0] if mask else None)
    args = (torch.randn(out.shape).to(dtype), q, k, v, out, sums, *mask)
    sides: dict[str, Callable[..., Any]] = {"eager": gradients(shape)}
    for whose in ("library", "own"):
        options: dict[str, str | int | bool] = {"attention": whose, "strict_errors": True, "cache": False}
        sides[whose] = torch.compile(gradients(shape), backend="lowc", options=options, fullgraph=True)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    exact = torch.autograd.grad(shape.function()(*leaves, *(m.double() for m in mask)), leaves, args[0].double())
    return timed(sides, args, exact, threads, BLOCK)


def measure(name: str, dtype: torch.dtype, threads: int, inductor: bool) -> dict[str, Any]:
    """Milliseconds of a call, median and least, for "eager", "library" (ATen's, called by lowc), "own" and
    perhaps "inductor", and the errors against float64."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    shape = SHAPES[name]
    args, eager = shape.made(dtype), shape.function()
    sides = {"eager": eager}
    for whose in ("library", "own"):  # functions of their own, that compiled code of the one is not taken for the other
        options: dict[str, str | int | bool] = {"attention": whose, "strict_errors": True, "cache": False}
        sides[whose] = torch.compile(shape.function(), backend="lowc", options=options, fullgraph=True)
    if inductor:
        sides["inductor"] = torch.compile(shape.formula(), fullgraph=True)
    exact = eager(*(a.double() if a.is_floating_point() else a for a in args))
    return timed(sides, args, exact, threads, BLOCK)


def markdown(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["attention", "eager ms", "library ms", "own ms", "eager / own", "library / own", "error own / eager"]
    inductor = given.inductor and not given.backward
    head += ["Inductor ms", "Inductor / own"] if inductor else []
    rows: list[list[str]] = []
    for name, row in results.items():
        if "error" in row:
            rows.append(failed(name, row, len(head)))
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
            rows[-1] += inductor_cells(row, own)
    return titled(table(head, rows), given)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--backward", action="store_true")
    given = parser.parse_args()
    if given.one and given.backward:
        print(json.dumps(measure_backward(given.one, getattr(torch, given.dtype), given.threads)))
        return
    if given.one:
        print(json.dumps(measure(given.one, getattr(torch, given.dtype), given.threads, given.inductor)))
        return
    more = [f"--{n}" for n in ("inductor", "backward") if getattr(given, n)]
    results = each("benchmarks.attention", BACKWARD if given.backward else SHAPES, given, *more)
    shown(markdown(results, given), "Attention on the CPU", given.out)


if __name__ == "__main__":
    main()
