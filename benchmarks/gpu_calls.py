"""What a call costs on a GPU beside its kernels, and how much memory a training step takes.

    python -m benchmarks.gpu_calls [--name h200_calls]

``steps``: ten small matmul + softmax steps, wall time of a call in a loop without waiting, with and without CUDA graphs.
``host``: the same for a graph of three small kernels, beside as many launches of an empty kernel by cuLaunchKernel.
``memory``: peak of torch's allocator in training steps above what is allocated between them.
``cold``: seconds from the start of compiling to the first result, in this process, which has compiled other things before.
"""

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu import RESULTS, machine
from benchmarks.report import table
from benchmarks.workloads import _GPT, _ResNet

Sides = dict[str, dict[str, Any]]
SIDES: Sides = {
    "lowc": {"backend": "lowc"},
    "lowc, caller's stream": {"backend": "lowc", "options": {"stream": "caller"}},
    "inductor": {"backend": "inductor"},
    "lowc, graphs": {"backend": "lowc", "mode": "reduce-overhead"},
    "inductor, graphs": {"backend": "inductor", "mode": "reduce-overhead"},
}


def per_call(call: Callable[[], Any], count: int = 200, rounds: int = 9) -> float:
    """Microseconds of wall time, the device kept busy or not, median of rounds."""
    for _ in range(20):
        call()
    times: list[float] = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def steps(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(10):
        x = torch.softmax(x @ w, -1)
    return x


def three(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(1), torch.softmax(x, 0), x.t().contiguous() * 2


def compiled(fn: Callable[..., Any], how: dict[str, Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False, **how)


def calls(fn: Callable[..., Any], *args: Tensor) -> dict[str, float]:
    found = {"eager": per_call(lambda: fn(*args))}
    for side, how in SIDES.items():
        run = compiled(fn, how)

        def call(run: Any = run, side: str = side) -> None:
            if side.startswith("inductor, graphs"):
                torch.compiler.cudagraph_mark_step_begin()
            run(*args)

        with torch.no_grad():
            found[side] = per_call(call)
    return found


def raw_launches(count: int) -> float:
    """Microseconds for ``count`` launches of an empty kernel by cuLaunchKernel through ctypes, in one loop."""
    from cuda.bindings import driver

    ptx = b".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n\0"
    _, module = driver.cuModuleLoadData(ptx)
    _, function = driver.cuModuleGetFunction(module, b"k")
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    handle = ctypes.c_void_p(int(function))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def call() -> None:
        for _ in range(count):
            launch(handle, 1, 1, 1, 32, 1, 1, 0, stream, None, None)

    return per_call(call)


def training(model: nn.Module, x: Tensor, targets: Tensor) -> Callable[[Callable[..., Any]], None]:
    parameters = list(model.parameters())

    def step(run: Callable[..., Any]) -> None:
        loss = F.cross_entropy(run(x).flatten(0, -2), targets)
        torch.autograd.grad(loss, parameters)

    return step


def peak(model: nn.Module, x: Tensor, targets: Tensor) -> dict[str, float]:
    """MB above what is allocated between steps."""
    found: dict[str, float] = {}
    step = training(model, x, targets)
    for side in ("eager", "lowc", "lowc, caller's stream", "inductor"):
        run = model if side == "eager" else compiled(model, SIDES[side])
        for _ in range(3):
            step(run)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            step(run)
        torch.cuda.synchronize()
        found[side] = (torch.cuda.max_memory_allocated() - before) / 1e6
    return found


def cold(fn: Callable[..., Any], *args: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for side in ("aot_eager", "lowc", "inductor"):
        run = compiled(fn, SIDES.get(side, {"backend": side}))
        start = time.perf_counter()
        run(*args)
        torch.cuda.synchronize()
        found[side] = time.perf_counter() - start
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="gpu_calls")
    parser.add_argument("--out", default=str(RESULTS))
    given = parser.parse_args()
    torch.manual_seed(0)
    made: dict[str, dict[str, float]] = {}
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    made["steps, µs a call"] = calls(steps, x, w)
    made["host, µs a call"] = {**calls(three, x), "3 raw launches": raw_launches(3)}
    gpt = _GPT(512, 8, 6, 8192, 512).cuda()
    ids = torch.randint(0, 8192, (16, 512), device="cuda")
    targets = torch.randint(0, 8192, (16 * 512,), device="cuda")
    made["GPT training, peak MB"] = peak(gpt, ids, targets)
    resnet = _ResNet(64).cuda()
    images, labels = torch.randn(64, 3, 64, 64, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    made["ResNet training, peak MB"] = peak(resnet, images, labels)
    step = training(gpt, ids, targets)
    made["GPT training, µs a step"] = {
        side: per_call(lambda run=run: step(run), 5, 5)
        for side, run in {"eager": gpt, **{s: compiled(gpt, SIDES[s]) for s in ("lowc", "inductor")}}.items()
    }
    made["GELU chain, cold s"] = cold(lambda x: F.gelu(F.gelu(x) * 1.5) + x, torch.randn(4096, 4096, device="cuda"))
    with torch.no_grad():
        made["GPT forward, cold s"] = cold(gpt, ids)
    rows = [[what, *(f"{side}: {value:.4g}" for side, value in found.items())] for what, found in made.items()]
    width = max(map(len, rows))
    text = f"# GPU calls\n\n{', '.join(f'{k} {v}' for k, v in machine().items())}\n\n"
    text += table(["what", *[""] * (width - 1)], [row + [""] * (width - len(row)) for row in rows])
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{given.name}.json").write_text(json.dumps({"machine": machine(), "calls": made}, indent=1))
    (out / f"{given.name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
