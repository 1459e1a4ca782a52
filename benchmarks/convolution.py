"""Convolutions on a CPU, with batch norm and activation: lowc's own kernel beside ATen's, by itself and called by lowc; and whole
models of them.  Results in ``benchmarks/results``.

    python -m benchmarks.convolution                        all shapes and models, f32
    python -m benchmarks.convolution --only depthwise --dtype bfloat16
    python -m benchmarks.convolution --threads 1            by the time of the thread, which neighbours disturb less
    python -m benchmarks.convolution --inductor             torch's compiler as well (a C++ compiler is needed)

All sides run in one process, round by round in turn, with the same settings of the allocator; the table has the median of each
and the ratio of medians.  Each shape is a process of its own.  Errors are those of the whole result against float64.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.sides import beside_inductor, by_choice, timed, titled

BLOCK = 0.02  # seconds: calls are timed in blocks of at least this
SIDES = ("library", "own", "auto")


@dataclass(frozen=True)
class Shape:
    """An input [batch, channels, size, size]; ``made``: channels of results (0: as many, each by itself)."""

    batch: int
    channels: int
    size: int
    taps: int
    made: int = 0
    step: int = 1
    last: bool = False

    def model(self) -> nn.Module:
        made = self.made or self.channels
        return layer(self.channels, made, self.taps, self.step, 1 if self.made else self.channels)

    def input(self) -> Tensor:
        return torch.randn(self.batch, self.channels, self.size, self.size)


def layer(channels: int, made: int, taps: int, step: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    convolution = nn.Conv2d(channels, made, taps, step, taps // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(made), nn.ReLU() if act else nn.Identity())


class Inverted(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, channels: int, made: int, step: int, wider: int) -> None:
        super().__init__()
        inner = channels * wider
        first = [layer(channels, inner, 1)] if wider > 1 else []
        self.body = nn.Sequential(*first, layer(inner, inner, 3, step, inner), layer(inner, made, 1, act=False))
        self.residual = step == 1 and channels == made

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class Next(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)


class Basic(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, channels: int, made: int, step: int) -> None:
        super().__init__()
        self.body = nn.Sequential(layer(channels, made, 3, step), layer(made, made, 3, act=False))
        self.beside = layer(channels, made, 1, step, act=False) if step > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.beside(x))


def mobilenet() -> nn.Module:
    blocks: list[nn.Module] = [layer(3, 32, 3, 2)]
    channels = 32
    for made, count, step in ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)):
        for number in range(count):
            blocks.append(Inverted(channels, made, step if number == 0 else 1, 1 if made == 16 else 6))
            channels = made
    return nn.Sequential(*blocks, layer(channels, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def convnext() -> nn.Module:
    stages: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4)]
    for channels, count in ((96, 3), (192, 3)):
        stages += [Next(channels) for _ in range(count)]
        stages.append(nn.Conv2d(channels, 2 * channels, 2, 2))
    return nn.Sequential(*stages)


def resnet() -> nn.Module:
    blocks: list[nn.Module] = [layer(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for made in (64, 128, 256, 512):
        blocks += [Basic(channels, made, 1 if made == channels else 2), Basic(made, made, 1)]
        channels = made
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


@dataclass(frozen=True)
class Model:
    """A whole model of images [batch, 3, 224, 224]."""

    make: Callable[[], nn.Module]
    batch: int = 1
    last: bool = False

    def model(self) -> nn.Module:
        return self.make()

    def input(self) -> Tensor:
        return torch.randn(self.batch, 3, 224, 224)


SHAPES: dict[str, Shape | Model] = {
    "depthwise 3x3 1x32x112": Shape(1, 32, 112, 3),
    "depthwise 3x3 stride 2 1x96x112": Shape(1, 96, 112, 3, step=2),
    "depthwise 3x3 4x96x56": Shape(4, 96, 56, 3),
    "depthwise 3x3 4x96x56, channels last": Shape(4, 96, 56, 3, last=True),
    "depthwise 3x3 1x384x14": Shape(1, 384, 14, 3),
    "depthwise 5x5 1x576x14": Shape(1, 576, 14, 5),
    "depthwise 7x7 4x96x56": Shape(4, 96, 56, 7),
    "depthwise 7x7 1x384x14, channels last": Shape(1, 384, 14, 7, last=True),
    "3x3 1x64x56": Shape(1, 64, 56, 3, 64),
    "3x3 4x64x56": Shape(4, 64, 56, 3, 64),
    "3x3 4x128x28": Shape(4, 128, 28, 3, 128),
    "3x3 4x256x14": Shape(4, 256, 14, 3, 256),
    "3x3 4x512x7": Shape(4, 512, 7, 3, 512),
    "3x3 stride 2 4x64x56 to 128": Shape(4, 64, 56, 3, 128, 2),
    "7x7 stride 2 4x3x224 to 64": Shape(4, 3, 224, 7, 64, 2),
    "3x3 stride 2 1x3x224 to 32": Shape(1, 3, 224, 3, 32, 2),
    "3x3 4x64x56, channels last": Shape(4, 64, 56, 3, 64, last=True),
    "1x1 1x24x56 to 144": Shape(1, 24, 56, 1, 144),
    "1x1 4x64x56 to 256": Shape(4, 64, 56, 1, 256),
    "1x1 4x256x56 to 64": Shape(4, 256, 56, 1, 64),
    "1x1 4x64x56 to 256, channels last": Shape(4, 64, 56, 1, 256, last=True),
    "model MobileNetV2": Model(mobilenet),
    "model MobileNetV2, channels last": Model(mobilenet, last=True),
    "model ConvNeXt, 6 blocks": Model(convnext),
    "model ResNet-18": Model(resnet),
    "model ResNet-18, channels last": Model(resnet, last=True),
}


def measure(name: str, dtype: torch.dtype, threads: int, inductor: bool) -> dict[str, Any]:
    """Milliseconds of a call, median and least, for "eager", "library" (ATen's, called by lowc), "own", "auto" and perhaps
    "inductor", and the errors against float64."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    shape = SHAPES[name]
    model, x = shape.model().eval(), shape.input()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            for values in (part.weight, part.running_var):
                nn.init.uniform_(values, 0.5, 1.5)  # type: ignore[arg-type]
            nn.init.normal_(part.bias, std=0.1)
            nn.init.normal_(part.running_mean, std=0.1)  # type: ignore[arg-type]
    layout = torch.channels_last if shape.last else torch.contiguous_format
    with torch.no_grad():
        exact = model.double()(x.double())
        model, x = model.to(dtype).to(memory_format=layout), x.to(dtype).to(memory_format=layout)
        sides: dict[str, Callable[..., Tensor]] = {"eager": model}
        for whose in SIDES:  # functions of their own, that compiled code of the one is not taken for the other
            options: dict[str, str | int | bool] = {"convolution": whose, "strict_errors": True, "cache": False}
            sides[whose] = torch.compile(lambda x: model(x), backend="lowc", options=options, fullgraph=True)
            sides[whose](x)
        if inductor:
            sides["inductor"] = torch.compile(lambda x: model(x), fullgraph=True)
        return timed(sides, (x,), exact, threads, BLOCK)


def markdown(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    return titled(by_choice(results, "convolution, batch norm, ReLU", SIDES, given.inductor), given)


def main() -> None:
    beside_inductor(__doc__, "benchmarks.convolution", SHAPES, measure, markdown, "Convolutions on the CPU")


if __name__ == "__main__":
    main()
