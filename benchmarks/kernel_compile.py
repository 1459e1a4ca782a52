"""How long lowc takes for one kernel, from the tensor graph to code that can be called (on a CPU) or to PTX (for an H100, which
need not be there).  Without Dynamo and AOTAutograd, and without what only the first compilation of a process pays.

    python -m benchmarks.kernel_compile [--only attention] [--out FILE]

Milliseconds of processor time, which neighbours disturb little; median of the rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.report import table
from benchmarks.sides import shown
from lowc import compiler
from lowc.backends.nvptx.devices import MODELS, target_of
from lowc.frontend.capture import capture
from lowc.ir.elsewhere import on_gpu
from lowc.ir.graph import Graph
from lowc.options import Options
from lowc.trace import Trace

ROUNDS = 9
OWN = Options()._replace(matmul="own", attention="own", convolution="own", cache=False)
H100 = next(m for m in MODELS if m.name == "H100")


@dataclass(frozen=True)
class Kernel:
    """A function that is one kernel, and the shapes of what it takes."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def convolution(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=3, groups=96).relu()


KERNELS = {
    "product 512x512x512": Kernel(torch.mm, ((512, 512), (512, 512))),
    "product 128x768x3072, GELU": Kernel(lambda x, w: F.gelu(F.linear(x, w)), ((128, 768), (3072, 768))),
    "product 4096x4096x4096": Kernel(torch.mm, ((4096, 4096), (4096, 4096))),
    "attention 1x8x512x64": Kernel(attention, ((1, 8, 512, 64),) * 3),
    "attention 1x16x2048x128, causal": Kernel(causal, ((1, 16, 2048, 128),) * 3),
    "convolution 7x7 of single channels 4x96x56, ReLU": Kernel(convolution, ((4, 96, 56, 56), (96, 1, 7, 7))),
    "softmax 2048x2048": Kernel(lambda x: x.softmax(-1), ((2048, 2048),)),
}


def graph_of(kernel: Kernel, dtype: torch.dtype) -> tuple[Graph, Any]:
    found: list[tuple[Graph, Any]] = []

    def keep(graph: Graph, constants: Any) -> Any:
        found.append((graph, constants))
        return compiler.run_by_aten(graph, constants)

    args = tuple(torch.randn(shape).to(dtype) for shape in kernel.shapes)
    capture(kernel.function, args, keep, dynamic=False, backward=False)
    return found[0]


def sides(kernel: Kernel) -> Iterator[Callable[[Trace], Any]]:
    """For the CPU, then for the GPU."""
    graph, constants = graph_of(kernel, torch.float32)
    yield lambda trace: compiler.compile_graph(graph, constants, OWN, trace)
    half, more = graph_of(kernel, torch.bfloat16)
    moved, target = on_gpu(half), target_of(H100)
    yield lambda trace: compiler.cross_compile(moved, target, OWN, trace, len(more))


def measure(compile_: Callable[[Trace], Any]) -> float:
    """Milliseconds of processor time."""
    times: list[float] = []
    for _ in range(ROUNDS + 1):
        start = time.process_time()
        compile_(Trace())
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names of kernels")
    parser.add_argument("--out", default="", help="a file to which the table is added")
    given = parser.parse_args()
    rows = [
        [name, *(f"{measure(compile_):.0f}" for compile_ in sides(kernel))]
        for name, kernel in KERNELS.items()
        if given.only in name
    ]
    head = ["kernel", "x86, f32: ms", "PTX, bf16: ms"]
    text = table(head, rows)
    shown(f"Milliseconds of processor time; PTX for compute capability 9.0.\n\n{text}", "Compile time of one kernel", given.out)


if __name__ == "__main__":
    main()
