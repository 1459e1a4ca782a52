"""Gradients of convolutions on a CPU: lowc's own kernels beside ATen's, by itself and called by lowc; and training steps of whole
models.  Results in ``benchmarks/results/convolution.md``.

    python -m benchmarks.convolution_gradients [--only depthwise] [--dtype bfloat16] [--threads 1] [--inductor]

A shape is its two gradients, of the input and of weights, each a row of its own: what is timed is the call of
``aten.convolution_backward`` that asks for one.  A model is a step of training, forward and backward.  Operands lie channels last
where the name says so, as lowc has them in training.  Sides and clocks are those of ``benchmarks.convolution``; errors are those
of the gradient against float64 (of a model: of all gradients together, in the norm).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.convolution import BLOCK, SIDES, Model, convnext, mobilenet, resnet
from benchmarks.sides import beside_inductor, by_choice, timed, titled


@dataclass(frozen=True)
class Shape:
    """An input [batch, channels, size, size]; ``made``: channels of results (0: as many, each by itself).  ``of``: 0 for the
    gradient of the input, 1 for that of weights."""

    batch: int
    channels: int
    size: int
    taps: int
    made: int = 0
    step: int = 1
    last: bool = True
    of: int = 0


def both(name: str, shape: Shape) -> dict[str, Shape | Model]:
    lies = ", channels last" if shape.last else ""
    return {f"{name}, {what}{lies}": Shape(*values(shape), of=n) for n, what in enumerate(("input", "weights"))}


def values(shape: Shape) -> tuple[Any, ...]:
    return shape.batch, shape.channels, shape.size, shape.taps, shape.made, shape.step, shape.last


SHAPES: dict[str, Shape | Model] = {
    **both("depthwise 3x3 4x32x112", Shape(4, 32, 112, 3)),
    **both("depthwise 3x3 4x96x56", Shape(4, 96, 56, 3)),
    **both("depthwise 3x3 4x96x56", Shape(4, 96, 56, 3, last=False)),
    **both("depthwise 3x3 stride 2 4x144x56", Shape(4, 144, 56, 3, step=2)),
    **both("depthwise 3x3 4x384x14", Shape(4, 384, 14, 3)),
    **both("depthwise 3x3 4x960x7", Shape(4, 960, 7, 3)),
    **both("depthwise 5x5 4x576x14", Shape(4, 576, 14, 5)),
    **both("depthwise 7x7 4x96x56", Shape(4, 96, 56, 7)),
    **both("depthwise 7x7 4x96x56", Shape(4, 96, 56, 7, last=False)),
    **both("depthwise 7x7 4x384x14", Shape(4, 384, 14, 7)),
    **both("depthwise 7x7 8x768x7", Shape(8, 768, 7, 7)),
    **both("1x1 4x24x56 to 144", Shape(4, 24, 56, 1, 144)),
    **both("1x1 4x64x56 to 256", Shape(4, 64, 56, 1, 256)),
    **both("1x1 4x256x56 to 64", Shape(4, 256, 56, 1, 64)),
    **both("1x1 4x512x28 to 128", Shape(4, 512, 28, 1, 128)),
    **both("1x1 4x1024x14 to 256", Shape(4, 1024, 14, 1, 256)),
    **both("1x1 4x512x7 to 2048", Shape(4, 512, 7, 1, 2048)),
    **both("3x3 8x16x28 to 32", Shape(8, 16, 28, 3, 32)),
    **both("3x3 4x64x56", Shape(4, 64, 56, 3, 64)),
    **both("3x3 4x64x56", Shape(4, 64, 56, 3, 64, last=False)),
    **both("3x3 4x256x14", Shape(4, 256, 14, 3, 256)),
    "step of MobileNetV2, 4 images": Model(mobilenet, 4),
    "step of ConvNeXt, 6 blocks, 4 images": Model(convnext, 4),
    "step of ResNet-18, 4 images": Model(resnet, 4),
}


def measure(name: str, dtype: torch.dtype, threads: int, inductor: bool) -> dict[str, Any]:
    """Milliseconds of a call, median and least, for "eager", "library" (ATen's, called by lowc), "own", "auto" and perhaps
    "inductor", and the errors against float64."""
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    shape = SHAPES[name]
    make = step if isinstance(shape, Model) else gradient
    function, args, exact = make(shape, dtype)
    sides: dict[str, Callable[..., Tensor]] = {"eager": function(None)}
    for whose in SIDES:
        options: dict[str, str | int | bool] = {"convolution": whose, "strict_errors": True, "cache": False}
        sides[whose] = function(lambda f, options=options: torch.compile(f, backend="lowc", options=options))
        sides[whose](*args)
    if inductor:
        sides["inductor"] = function(torch.compile)
    return timed(sides, args, exact, threads, BLOCK)


Compiled = Callable[..., Any]
Sides = tuple[Callable[[Any], Callable[..., Tensor]], tuple[Tensor, ...], Tensor]


def gradient(shape: Shape, dtype: torch.dtype) -> Sides:
    """(a function of how to compile that gives a side, its arguments, the exact result)."""
    groups, made = (1, shape.made) if shape.made else (shape.channels, shape.channels)
    layout = torch.channels_last if shape.last else torch.contiguous_format
    x = torch.randn(shape.batch, shape.channels, shape.size, shape.size).to(dtype).to(memory_format=layout)
    w = torch.randn(made, shape.channels // groups, shape.taps, shape.taps).to(dtype).to(memory_format=layout)
    rest = ([shape.step] * 2, [shape.taps // 2] * 2, [1, 1], False, [0, 0], groups)
    g = torch.randn_like(torch.ops.aten.convolution(x, w, None, *rest))
    mask = [shape.of == n for n in range(3)]

    def side(how: Any) -> Callable[..., Tensor]:
        def backward(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
            return torch.ops.aten.convolution_backward(g, x, w, None, *rest, mask)[shape.of]

        return how(backward) if how else backward

    return side, (g, x, w), side(None)(g.double(), x.double(), w.double())


def step(shape: Model, dtype: torch.dtype) -> Sides:
    model, x = shape.model().train(), shape.input()
    exact = gradients(model.double(), model, x.double())
    model, x = model.to(dtype), x.to(dtype)

    def side(how: Any) -> Callable[..., Tensor]:
        call = how(lambda x: model(x)) if how else model
        return lambda x: gradients(call, model, x)

    return side, (x,), exact


def gradients(call: Callable[..., Tensor], model: nn.Module, x: Tensor) -> Tensor:
    """All gradients of a step in one row."""
    model.zero_grad()
    call(x).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def markdown(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    return titled(by_choice(results, "gradient of", SIDES, given.inductor), given)


def main() -> None:
    title = "Gradients of convolutions on the CPU"
    beside_inductor(__doc__, "benchmarks.convolution_gradients", SHAPES, measure, markdown, title)


if __name__ == "__main__":
    main()
