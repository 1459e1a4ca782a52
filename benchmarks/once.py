"""Artifacts with what is made of their weights made once, as they are loaded, beside the same made in each call, and eager.

    python -m benchmarks.once --threads 1              by the time of the thread, which neighbours disturb less
    python -m benchmarks.once --only f32 --out FILE

Each is a layer with weights of its own, compiled for this processor (`--target native`) and called through ``lowc.load`` on torch
tensors.  All three run in one process, round by round in turn.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.quantised import integers, quantised
from benchmarks.report import table
from benchmarks.sides import alone, rows_of, timed, titled
from lowc import package
from lowc.frontend.exported import export
from lowc.options import Options

BLOCK = 0.02  # seconds: calls are timed in blocks of at least this


class Bytes(nn.Module):
    """A dynamically quantised linear layer, as torchao has it."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.register_buffer("w", integers(n, k))
        self.register_buffer("scale", torch.rand(n) / 1e2)

    def forward(self, x: Tensor) -> Tensor:
        q, own = quantised(x)
        w: Any = self.w
        return torch._int_mm(q, w.T).float() * own * self.scale


def layer(kind: str, m: int, n: int, k: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    def make() -> tuple[nn.Module, Tensor]:
        if kind == "int8":
            return Bytes(n, k).eval(), torch.randn(m, k)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
        linear = nn.Linear(k, n).to(dtype).eval().requires_grad_(False)
        return nn.Sequential(linear, nn.GELU()), torch.randn(m, k, dtype=dtype)

    return make


SIZES = ((1, 3072, 768), (4, 3072, 768), (16, 3072, 768), (64, 3072, 768), (128, 768, 3072), (512, 3072, 768))
SHAPES = {f"{kind} {m}x{n}x{k}": layer(kind, m, n, k) for kind in ("f32", "bf16", "int8") for m, n, k in SIZES}


def measure(name: str, threads: int) -> dict[str, Any]:
    """Milliseconds of a call, least and median, for "once", "each" (call) and "eager"."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    model, x = SHAPES[name]()
    program = export(model, (x,))
    sides: dict[str, Callable[..., Any]] = {"eager": model}
    for side, off in (("each", "once"), ("once", "")):
        sides[side] = package.compile_program(program, levels=("native",), options=Options(off=off)).load()
    exact: Any = F.gelu(model[0].double()(x.double())) if isinstance(model, nn.Sequential) else model(x).double()
    if isinstance(model, nn.Sequential):
        model[0].to(x.dtype)
    return timed(sides, (x,), exact, threads, BLOCK)


def markdown(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["layer", "eager ms", "each call ms", "once ms", "each call / once", "eager / once"]

    def cells(row: dict[str, Any]) -> list[str]:
        eager, own, once = (row[side]["median_ms"] for side in ("eager", "each", "once"))
        return [f"{eager:.3f}", f"{own:.3f}", f"{once:.3f}", f"{own / once:.2f}", f"{eager / once:.2f}"]

    return titled(table(head, rows_of(results, len(head), cells)), given)


def main() -> None:
    title = "Weights packed once, as an artifact is loaded"
    alone(__doc__, "benchmarks.once", SHAPES, measure, markdown, title, "layers")


if __name__ == "__main__":
    main()
