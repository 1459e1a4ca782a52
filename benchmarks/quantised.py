"""Products of quantised models: lowc's own kernels beside ATen's, on a CPU; results as Markdown in ``benchmarks/results``.

    python -m benchmarks.quantised                     products of bytes, dynamically quantised layers, weights of 8 and 4 bits
    python -m benchmarks.quantised --only layer
    python -m benchmarks.quantised --threads 1         by the time of the thread, which neighbours disturb less

"eager" is what the function says, op by op; a product of bytes is oneDNN's there.  Both sides run in one process, round by round
in turn.  Errors are against what eager returns; products of bytes must be its very bits.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.report import table
from benchmarks.sides import alone, rows_of, timed, titled

Made = tuple[Callable[..., Any], tuple[Any, ...]]
BLOCK = 0.02  # seconds: calls are timed in blocks of at least this


def integers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def product(m: int, n: int, k: int) -> Callable[[], Made]:
    """x @ w.T of bytes, into 32 bits."""
    return lambda: (lambda x, w: torch._int_mm(x, w.T), (integers(m, k), integers(n, k)))


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes for a row of ``x``, symmetric, and their scale."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8), scale


def scaled(m: int, n: int, k: int) -> Callable[[], Made]:
    """The product of bytes, scaled by row and column, with bias and gelu."""

    def function(q: Tensor, own: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(torch._int_mm(q, w.T).float() * own * scale + bias)

    return lambda: (function, (integers(m, k), torch.rand(m, 1), integers(n, k), torch.rand(n) / 1e4, torch.randn(n)))


def layer(m: int, n: int, k: int) -> Callable[[], Made]:
    """A dynamically quantised linear layer, its input quantised by row as it comes, as torchao has it."""

    def function(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        q, own = quantised(x)
        return torch._int_mm(q, w.T).float() * own * scale + bias

    return lambda: (function, (torch.randn(m, k), integers(n, k), torch.rand(n) / 1e2, torch.randn(n)))


def weights8(m: int, n: int, k: int) -> Callable[[], Made]:
    """Weights of 8 bits, scaled by column, times bf16."""

    def function(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, w, scale)

    return lambda: (function, (torch.randn(m, k).bfloat16(), integers(n, k), torch.rand(n).bfloat16() / 64))


SHAPES: dict[str, Callable[[], Made]] = {
    **{
        f"int8 product {m}x{n}x{k}": product(m, n, k)
        for m, n, k in (
            (1, 4096, 4096), (2, 4096, 4096), (8, 2048, 2048), (16, 2048, 2048), (32, 2048, 2048), (64, 5632, 2048),
            (128, 3072, 768), (128, 768, 3072), (512, 2304, 768), (512, 768, 3072), (1024, 1024, 1024), (1000, 999, 500),
        )
    },
    **{f"int8 scaled+gelu {m}x{n}x{k}": scaled(m, n, k) for m, n, k in ((8, 2048, 2048), (128, 3072, 768), (512, 3072, 768))},
    **{f"int8 dynamic layer {m}x{n}x{k}": layer(m, n, k) for m, n, k in ((1, 4096, 4096), (32, 2048, 2048), (512, 3072, 768))},
    **{f"bf16 x int8 weights {m}x{n}x{k}": weights8(m, n, k) for m, n, k in ((1, 4096, 4096), (8, 2048, 2048), (64, 2048, 2048))},
}  # fmt: skip


def measure(name: str, threads: int) -> dict[str, Any]:
    """Milliseconds of a call, least and median, for "own" and "eager", and the errors of both against eager's results."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    eager, args = SHAPES[name]()
    options: dict[str, str | int | bool] = {"matmul": "own", "strict_errors": True, "cache": False}
    sides = {"eager": eager, "own": torch.compile(eager, backend="lowc", options=options, fullgraph=True)}
    exact = eager(*args).double()
    if name.startswith("int8 product") and not torch.equal(sides["own"](*args), eager(*args)):
        raise AssertionError("other bits than eager's")
    return timed(sides, args, exact, threads, BLOCK)


def markdown(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["product", "eager ms", "own ms", "ratio of medians", "ratio of least", "own differs from eager by"]

    def cells(row: dict[str, Any]) -> list[str]:
        eager, own = row["eager"], row["own"]
        medians, least = (f"{eager[k] / own[k]:.2f}" for k in ("median_ms", "least_ms"))
        times = [f"{side['median_ms']:.3f}" for side in (eager, own)]
        return [*times, medians, least, f"{own['error']:.0e}" if own["error"] else "nothing"]

    return titled(table(head, rows_of(results, len(head), cells)), given)


def main() -> None:
    alone(__doc__, "benchmarks.quantised", SHAPES, measure, markdown, "Quantised products on the CPU", "quantised")


if __name__ == "__main__":
    main()
