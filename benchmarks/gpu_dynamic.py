"""Static against dynamic artifacts on a GPU, beside Inductor's: ``python -m benchmarks.gpu_dynamic``.

Times are those of the device, in milliseconds: medians of seven runs of twenty calls.  Above 1 the dynamic artifact is faster.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

RUNS, CALLS = 7, 20
Workload = tuple[Callable[..., Tensor], tuple[Tensor, ...], tuple[tuple[int, ...], ...]]


def workloads() -> dict[str, Workload]:
    """By name: a function, its inputs, and which of their dimensions are symbolic in a dynamic artifact."""

    def make(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    def norm(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[1],), w, w)

    def rope(x: Tensor, c: Tensor) -> Tensor:
        return torch.cat([x[..., :64] * c - x[..., 64:], x[..., 64:] * c + x[..., :64]], -1)

    targets = torch.randint(0, 32000, (4096,), device="cuda")
    return {
        "softmax_4096": (lambda x: x.softmax(-1), (make(16384, 4096),), ((0, 1),)),
        "softmax_4097": (lambda x: x.softmax(-1), (make(16384, 4097),), ((0, 1),)),
        "layer_norm": (norm, (make(16384, 4096), make(4096)), ((0, 1), (0,))),
        "gelu_bias": (lambda x, w: F.gelu(x + w), (make(16384, 4096), make(4096)), ((0, 1), (0,))),
        "transpose": (lambda x: x.t().contiguous(), (make(8192, 8192),), ((0, 1),)),
        "cross_entropy": (lambda x, t: F.cross_entropy(x.float(), t), (make(4096, 32000), targets), ((0, 1), (0,))),
        "group_norm": (lambda x: F.group_norm(x, 8), (make(32, 64, 128, 128),), ((0, 2, 3),)),
        "cumsum": (lambda x: x.cumsum(1), (make(64, 1 << 20, dtype=torch.float32),), ((0, 1),)),
        "column_sum": (lambda x: x.float().sum(0), (make(16384, 4096),), ((0, 1),)),
        "rope": (rope, (make(8, 32, 2048, 128), make(2048, 64)), ((0, 2), (0,))),
    }


def timed(fn: Callable[..., Any], args: Sequence[Tensor]) -> float:
    """Milliseconds a call."""
    for _ in range(5):
        fn(*args)
    torch.cuda.synchronize()
    found: list[float] = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            fn(*args)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / CALLS)
    return sorted(found)[RUNS // 2]


def main() -> None:
    print("| workload | lowc static | lowc dynamic | ratio | Inductor static | dynamic | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, (fn, args, dims) in workloads().items():
        cells: list[str] = []
        for backend in ("lowc", "inductor"):
            times: list[float] = []
            for dynamic in (False, True):
                torch._dynamo.reset()
                given = [x.clone() for x in args]
                if dynamic:
                    for x, marked in zip(given, dims, strict=True):
                        for dim in marked:
                            torch._dynamo.mark_dynamic(x, dim)
                with torch.no_grad():
                    times.append(timed(torch.compile(fn, backend=backend, dynamic=None if dynamic else False), given))
            cells += [f"{times[0]:.4f}", f"{times[1]:.4f}", f"{times[0] / times[1]:.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
