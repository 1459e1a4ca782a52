"""Convolutions on a GPU, with batch norm, activation and residual: by lowc's own kernels, by ATen's called by lowc, by eager
and by torch's compiler.

    python -m benchmarks.gpu_convolution [--only depthwise,1x1] [--dtype bf16] [--rounds 5] [--inductor]

Microseconds of the device alone, as each side is captured in a CUDA graph, which is replayed: medians of rounds in which all
sides take turns (``benchmarks.gpu``); errors against float64, beside eager's.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.convolution import convnext, layer, mobilenet
from benchmarks.gpu import BURST, DTYPES, burst
from benchmarks.gpu_matmul import captured
from benchmarks.report import table

SIDES = ("library", "own", "auto")


class Residual(nn.Module):
    """relu(x + batch_norm(convolution(y)))."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(y))


class Bottleneck(nn.Module):
    """A block of ResNet-50, of ``4 * inner`` channels."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        last = layer(inner, 4 * inner, 1, act=False)
        self.body = nn.Sequential(layer(4 * inner, inner, 1), layer(inner, inner, 3), last)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


@dataclass(frozen=True)
class Case:
    """A module and the shapes [batch, channels, size, size] of its inputs."""

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, int, int], ...]
    last: bool = True


def _of(batch: int, size: int, channels: int, made: int, taps: int, *, last: bool = True, added: bool = False) -> Case:
    def make() -> nn.Module:
        body = layer(channels, made or channels, taps, groups=1 if made else channels, act=not added)
        return Residual(body) if added else body

    inputs = ((batch, channels, size), (batch, made or channels, size)) if added else ((batch, channels, size),)
    return Case(make, inputs, last)


CASES = {
    "depthwise 3x3 32x144x56": _of(32, 56, 144, 0, 3),
    "depthwise 3x3 32x144x56, rows": _of(32, 56, 144, 0, 3, last=False),
    "depthwise 5x5 32x672x14": _of(32, 14, 672, 0, 5),
    "depthwise 5x5 32x672x14, rows": _of(32, 14, 672, 0, 5, last=False),
    "depthwise 7x7 32x96x56": _of(32, 56, 96, 0, 7),
    "depthwise 7x7 32x96x56, rows": _of(32, 56, 96, 0, 7, last=False),
    "depthwise 7x7 32x768x7": _of(32, 7, 768, 0, 7),
    "1x1 32x64x56 to 256": _of(32, 56, 64, 256, 1),
    "1x1 32x256x56 to 64": _of(32, 56, 256, 64, 1),
    "1x1 32x64x56 to 256, residual": _of(32, 56, 64, 256, 1, added=True),
    "1x1 32x512x28 to 128": _of(32, 28, 512, 128, 1),
    "1x1 32x128x28 to 512, residual": _of(32, 28, 128, 512, 1, added=True),
    "1x1 32x1024x14 to 256": _of(32, 14, 1024, 256, 1),
    "1x1 32x256x14 to 1024, residual": _of(32, 14, 256, 1024, 1, added=True),
    "1x1 32x512x7 to 2048, residual": _of(32, 7, 512, 2048, 1, added=True),
    "1x1 32x24x56 to 144": _of(32, 56, 24, 144, 1),
    "model 4 bottlenecks 32x256x56": Case(lambda: nn.Sequential(*(Bottleneck(64) for _ in range(4))), ((32, 256, 56),)),
    "model MobileNetV2 32": Case(mobilenet, ((32, 3, 224),)),
    "model MobileNetV2 32, rows": Case(mobilenet, ((32, 3, 224),), last=False),
    "model ConvNeXt, 6 blocks 32": Case(convnext, ((32, 3, 224),)),
}


def measure(case: Case, dtype: torch.dtype, rounds: int, inductor: bool) -> dict[str, Any]:
    """Of each side the median microseconds of a call, and its largest error against float64 by the largest result."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = case.make().eval().cuda()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            assert isinstance(part.running_var, Tensor) and isinstance(part.running_mean, Tensor)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.normal_(part.running_mean, std=0.1)
    layout = torch.channels_last if case.last else torch.contiguous_format
    inputs = [torch.randn(n, c, s, s, device="cuda") for n, c, s in case.shapes]
    with torch.no_grad():
        model = model.to(dtype).to(memory_format=layout)
        given = [x.to(dtype).to(memory_format=layout) for x in inputs]
        sides: dict[str, Callable[..., Tensor]] = {"eager": model}
        for whose in SIDES:  # functions of their own, that compiled code of the one is not taken for the other
            options: dict[str, str | int | bool] = {"convolution": whose, "strict_errors": True}
            sides[whose] = torch.compile(lambda *x: model(*x), backend="lowc", options=options, fullgraph=True)
        if inductor:
            sides["inductor"] = torch.compile(lambda *x: model(*x), fullgraph=True)
        results = {side: call(*given) for side, call in sides.items()}
        exact = model.double()(*[x.double() for x in given])
        model.to(dtype)
        scale = float(exact.abs().max())
        found: dict[str, Any] = {
            f"{side} error": float((out.double() - exact).abs().max()) / scale for side, out in results.items()
        }
        assert all(out.stride() == results["eager"].stride() for out in results.values())
        calls = {side: captured(partial(call, *given), 1).replay for side, call in sides.items()}
        counts = {side: max(1, round(BURST / max(burst(call, 3), 1e-3))) for side, call in calls.items()}
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, call in calls.items():
                times[side].append(burst(call, counts[side]))
    return found | {side: 1e3 * statistics.median(each) for side, each in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inductor", action="store_true")
    given = parser.parse_args()
    sides = ["eager", *SIDES, *(["inductor"] if given.inductor else [])]
    rows: list[list[str]] = []
    for name, case in CASES.items():
        if not any(part in name for part in given.only.split(",")):
            continue
        found = measure(case, DTYPES[given.dtype], given.rounds, given.inductor)
        cells = [name, *(f"{found[side]:.1f}" for side in sides)]
        cells += [f"{min(found['library'], found['eager']) / found['own']:.2f}"]
        cells += [f"{found['own error'] / max(found['eager error'], 1e-12):.2f}"]
        rows.append(cells)
        print(" | ".join(cells), flush=True)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {given.dtype}\n")
    print(table(["case", *(f"{side} us" for side in sides), "best of ATen / own", "error own / eager"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
