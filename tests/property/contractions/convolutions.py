"""Convolutions: dimensions, groups, steps, layouts, what comes after."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.property.contractions.case import Case, Draw

PLAIN = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def convolution(draw: Draw) -> Case:
    dtype = draw.floats()
    dims = draw.one(1, 2, 2, 2, 2, 3)
    groups = draw.one(1, 1, 1, 2, 0)  # 0: one channel in each
    channels = draw.one(draw.size(96), 8 * draw.size(12), 64)
    made = draw.one(draw.size(96), 8 * draw.size(12), 64)
    if groups == 0:
        groups, made = channels, channels * draw.one(1, 1, 2)
    elif groups == 2:
        channels, made = -(-channels // 2) * 2, -(-made // 2) * 2
    taps = tuple(draw.one(1, 1, 3, 3, 3, 5, draw.size(7)) for _ in range(dims))
    if draw.chance(0.6):
        taps = (taps[0],) * dims
    step, padding, apart = draw.one(1, 1, 1, 2, 3), draw.one(0, 1, 1, 2), draw.one(1, 1, 1, 2)
    most = {1: 200, 2: 40, 3: 12}[dims]
    image = tuple(max(draw.size(most), (t - 1) * apart + 1) for t in taps)
    batch = draw.size(6)
    transposed = draw.chance(0.15)
    last = dims > 1 and draw.chance(0.5)
    biased = draw.chance(0.5)
    after = draw.one("", "relu", "norm relu", "residual relu", "silu")
    gradients = draw.chance(0.25)
    weights = (channels, made // groups, *taps) if transposed else (made, channels // groups, *taps)

    steps: dict[str, Any] = {"stride": step, "padding": padding, "dilation": apart, "groups": groups}
    if transposed:
        steps["padding"] = min(padding, *((t - 1) * apart for t in taps))

    def function(x: Tensor, w: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        bias = b if biased else None
        y = (TRANSPOSED if transposed else PLAIN)[dims](x, w, bias, **steps)
        if "norm" in after:
            y = y * scale.view(-1, *(1,) * dims) + b.view(-1, *(1,) * dims)
        if "residual" in after:
            y = y + y.detach().flip(0) * 0.5
        if "relu" in after:
            y = F.relu(y)
        return F.silu(y) if after == "silu" else y

    def args(device: torch.device) -> list[Any]:
        x = torch.randn(batch, channels, *image, device=device).to(dtype)
        w = (torch.randn(weights, device=device) * (weights[1] * 3) ** -0.5).to(dtype)
        if last:
            x, w = (t.contiguous(memory_format=LAST[dims]) for t in (x, w))
        return [x, w, torch.randn(made, device=device).to(dtype), (torch.rand(made, device=device) + 0.5).to(dtype)]

    words = ("transposed", transposed), ("channels last", last), ("bias", biased), ("gradients", gradients)
    said = " ".join(word for word, holds in words if holds)
    text = f"convolution {dtype} {(batch, channels, *image)} x {weights} {steps} after {after!r} {said}"
    return Case(text, function, args, gradients)
