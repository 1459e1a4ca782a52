"""Convolutions on a GPU, with batch norm, activation and residual: by lowc's own kernels, by ATen's called by lowc, by eager
and by torch's compiler.

    python -m benchmarks.gpu_convolution [--only depthwise,1x1] [--dtype bf16] [--rounds 5] [--inductor] [--ways]

Microseconds of the device alone, as each side is captured in a CUDA graph, which is replayed: medians of rounds in which all
sides take turns (``benchmarks.gpu``); errors against float64, beside eager's.  ``--ways`` times instead the ways of
``choose_tensor_cores.plans`` that the model of costs has near the best one.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.convolution import convnext, layer, mobilenet, resnet
from benchmarks.gpu import BURST, DTYPES, burst
from benchmarks.gpu_matmul import Done, captured, forced, near, watched
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


class Silu(nn.Module):
    """silu(convolution(x) + bias) + x, as in a block of a U-Net."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.body(x)) + x


def _of(
    batch: int, size: int, channels: int, made: int, taps: int, step: int = 1, *, last: bool = True, added: bool = False
) -> Case:
    def make() -> nn.Module:
        body = layer(channels, made or channels, taps, step, groups=1 if made else channels, act=not added)
        return Residual(body) if added else body

    inputs = ((batch, channels, size), (batch, made or channels, size // step)) if added else ((batch, channels, size),)
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
    "3x3 32x64x56": _of(32, 56, 64, 64, 3),
    "3x3 32x64x56, residual": _of(32, 56, 64, 64, 3, added=True),
    "3x3 32x128x28": _of(32, 28, 128, 128, 3),
    "3x3 32x128x28, residual": _of(32, 28, 128, 128, 3, added=True),
    "3x3 32x256x14": _of(32, 14, 256, 256, 3),
    "3x3 32x256x14, residual": _of(32, 14, 256, 256, 3, added=True),
    "3x3 32x512x7": _of(32, 7, 512, 512, 3),
    "3x3 32x512x7, residual": _of(32, 7, 512, 512, 3, added=True),
    "3x3 by 2 32x64x56 to 128": _of(32, 56, 64, 128, 3, 2),
    "3x3 by 2 32x128x56": _of(32, 56, 128, 128, 3, 2),
    "3x3 by 2 32x256x28": _of(32, 28, 256, 256, 3, 2),
    "3x3 by 2 32x512x14": _of(32, 14, 512, 512, 3, 2),
    "1x1 by 2 32x256x56 to 512": _of(32, 56, 256, 512, 1, 2),
    "1x1 by 2 32x1024x14 to 2048": _of(32, 14, 1024, 2048, 1, 2),
    "3x3 4x256x14": _of(4, 14, 256, 256, 3),
    "3x3 1x64x56": _of(1, 56, 64, 64, 3),
    "3x3 1x128x28": _of(1, 28, 128, 128, 3),
    "3x3 1x256x14": _of(1, 14, 256, 256, 3),
    "3x3 1x512x7": _of(1, 7, 512, 512, 3),
    "3x3 4x512x7": _of(4, 7, 512, 512, 3),
    "3x3 8x512x7": _of(8, 7, 512, 512, 3),
    "3x3 1x512x14": _of(1, 14, 512, 512, 3),
    "3x3 2x512x14": _of(2, 14, 512, 512, 3),
    "3x3 2x1280x8, silu": Case(lambda: Silu(1280), ((2, 1280, 8),)),
    "3x3 1x1280x16, silu": Case(lambda: Silu(1280), ((1, 1280, 16),)),
    "3x3 2x320x64, silu": Case(lambda: Silu(320), ((2, 320, 64),)),
    "3x3 2x640x32, silu": Case(lambda: Silu(640), ((2, 640, 32),)),
    "3x3 2x1280x16, silu": Case(lambda: Silu(1280), ((2, 1280, 16),)),
    "3x3 1x512x128, silu": Case(lambda: Silu(512), ((1, 512, 128),)),
    "3x3 1x256x256, silu": Case(lambda: Silu(256), ((1, 256, 256),)),
    "5x5 8x96x28": _of(8, 28, 96, 96, 5),
    "7x7 8x64x56": _of(8, 56, 64, 64, 7),
    "model 4 bottlenecks 32x256x56": Case(lambda: nn.Sequential(*(Bottleneck(64) for _ in range(4))), ((32, 256, 56),)),
    "model ResNet-18 32": Case(resnet, ((32, 3, 224),)),
    "model 4 bottlenecks 32x256x56, rows": Case(
        lambda: nn.Sequential(*(Bottleneck(64) for _ in range(4))), ((32, 256, 56),), last=False
    ),
    "model ResNet-18 32, rows": Case(resnet, ((32, 3, 224),), last=False),
    "model MobileNetV2 32": Case(mobilenet, ((32, 3, 224),)),
    "model MobileNetV2 32, rows": Case(mobilenet, ((32, 3, 224),), last=False),
    "model ConvNeXt, 6 blocks 32": Case(convnext, ((32, 3, 224),)),
    "model ConvNeXt, 6 blocks 32, rows": Case(convnext, ((32, 3, 224),), last=False),
}


def prepared(case: Case, dtype: torch.dtype) -> tuple[nn.Module, list[Tensor]]:
    """The module and its inputs."""
    torch.manual_seed(0)
    model = case.make().eval().cuda()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            assert isinstance(part.running_var, Tensor) and isinstance(part.running_mean, Tensor)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.normal_(part.running_mean, std=0.1)
    layout = torch.channels_last if case.last else torch.contiguous_format
    inputs = [torch.randn(n, c, s, s, device="cuda") for n, c, s in case.shapes]
    return model.to(dtype).to(memory_format=layout), [x.to(dtype).to(memory_format=layout) for x in inputs]


def in_turn(replays: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Microseconds of a call by name, the median of ``rounds`` bursts of each; of calls that were captured in CUDA graphs."""
    counts = {side: max(1, round(BURST / max(burst(call, 3), 1e-3))) for side, call in replays.items()}
    times: dict[str, list[float]] = {side: [] for side in replays}
    for _ in range(rounds):
        for side, call in replays.items():
            times[side].append(burst(call, counts[side]))
    return {side: 1e3 * statistics.median(each) for side, each in times.items()}


def ways(case: Case, dtype: torch.dtype, rounds: int) -> str:
    """Microseconds of the ways of a convolution that the model of costs has near the best, with what it says, in spans."""
    model, given = prepared(case, dtype)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    done, calls = Done(), {}

    def made(whose: str) -> Callable[[], Any]:
        torch._dynamo.reset()
        options: dict[str, str | int | bool] = {"convolution": whose, "strict_errors": True, "cache": False}
        call = torch.compile(lambda *x: model(*x), backend="lowc", options=options, fullgraph=True)
        graph = captured(partial(call, *given), 1)
        kept.append((call, graph))
        return graph.replay

    kept: list[Any] = []
    with torch.no_grad():
        calls["library"] = made("library")
        with watched(done):
            calls["chosen"] = made("own")
        titles: dict[str, str] = {}
        for time, count, way in near(done.size, processors) if done.size is not None else ():
            name = f"{way.name}/{count}"
            with forced(way, count):
                calls[name] = made("own")
            titles[name] = f" (said {time:.1f})"
        times = in_turn(calls, rounds)
    return f"[{done.way}] " + " | ".join(f"{side} {time:.1f}{titles.get(side, '')}" for side, time in times.items())


def measure(case: Case, dtype: torch.dtype, rounds: int, inductor: bool) -> dict[str, Any]:
    """Of each side the median microseconds of a call, and its largest error against float64 by the largest result."""
    model, given = prepared(case, dtype)
    torch._dynamo.reset()
    with torch.no_grad():
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
        graphs = {side: captured(partial(call, *given), 1) for side, call in sides.items()}
        return found | in_turn({side: graph.replay for side, graph in graphs.items()}, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--ways", action="store_true")
    given = parser.parse_args()
    sides = ["eager", *SIDES, *(["inductor"] if given.inductor else [])]
    rows: list[list[str]] = []
    for name, case in CASES.items():
        if not any(part in name for part in given.only.split(",")):
            continue
        if given.ways:
            print(name, ways(case, DTYPES[given.dtype], given.rounds), flush=True)
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
