"""Matrix products: how factors lie, batches, what comes before and after."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.property.contractions.case import Case, Draw, laid


def summed(x: Tensor) -> Tensor:
    """As a norm sums it up."""
    return x.float() if x.dtype.itemsize == 2 else x


FORMS = ("plain", "plain", "turned", "off", "apart")
AFTER: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "bias": lambda y, row, like: y + row,
    "scale": lambda y, row, like: y * 0.37,
    "scales": lambda y, row, like: y * row,
    "gelu": lambda y, row, like: F.gelu(y),
    "silu": lambda y, row, like: F.silu(y),
    "relu": lambda y, row, like: F.relu(y),
    "tanh": lambda y, row, like: torch.tanh(y * 0.1),
    "residual": lambda y, row, like: y + like,
    "gate": lambda y, row, like: y * torch.sigmoid(like),
    "sum": lambda y, row, like: y + y.sum(-1, keepdim=True) * 0.01,
    "norm": lambda y, row, like: y * torch.rsqrt(summed(y).square().mean(-1, keepdim=True) + 1.0).to(y.dtype),
    "greatest": lambda y, row, like: y - y.amax(-1, keepdim=True),
    "turned": lambda y, row, like: y.transpose(-1, -2).contiguous().transpose(-1, -2),
    "wider": lambda y, row, like: summed(y),
}
BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": F.relu,
    "scaled": lambda x: x * 0.5,
    "normed": lambda x: x * torch.rsqrt(summed(x).square().mean(-1, keepdim=True) + 1e-3).to(x.dtype),
    "shifted": lambda x: x + 1,
}


def product(draw: Draw) -> Case:
    dtype = torch.float64 if draw.chance(0.15) else draw.floats()
    way = draw.one("linear", "linear", "mm", "bmm", "shared", "addmm", "einsum")
    most = 700 if dtype != torch.float64 else 200
    m, n, k = (draw.size(most) for _ in range(3))
    left, right = draw.one(*FORMS), draw.one(*FORMS)
    before = draw.one("", "", "", *BEFORE)
    after = [draw.one(*AFTER) for _ in range(draw.one(0, 1, 1, 2, 3))]
    batch = {"bmm": (draw.size(6),), "shared": (draw.size(4), draw.size(3))}.get(way, ())
    shape_a = (*batch, m, k)
    shape_b = {"linear": (n, k), "shared": (k, n), "bmm": (*batch, k, n)}.get(way, (k, n))

    def function(a: Tensor, b: Tensor, row: Tensor, like: Tensor) -> Tensor:
        a = BEFORE[before](a)
        if way == "linear":
            y = F.linear(a, b, row)
        elif way == "addmm":
            y = torch.addmm(row, a, b, beta=0.5, alpha=1.5)
        elif way == "einsum":
            y = torch.einsum("mk,kn->mn", a, b)
        else:
            y = a @ b
        for name in after:
            y = AFTER[name](y, row, like)
        return y

    def args(device: torch.device) -> list[Any]:
        b = laid(shape_b, right, dtype, device)
        return [
            laid(shape_a, left, dtype, device), b, laid((n,), "plain", dtype, device),
            laid((*batch, m, n), draw_form, dtype, device),
        ]  # fmt: skip

    draw_form = draw.one("plain", "plain", "turned", "apart")
    gradients = draw.chance(0.2)
    dynamic = draw.chance(0.15)
    text = f"{way} {dtype} {shape_a} {left} x {shape_b} {right}, before {before!r}, after {after} (like {draw_form})"
    return Case(text, function, args, gradients, dynamic)


def integers(draw: Draw) -> Case:
    """Bytes by bytes, and floats by bytes."""
    m, n, k = draw.size(300), draw.size(300), draw.size(500)
    if draw.cuda:  # what torch itself takes there
        m, n, k = max(17, m), -(-n // 8) * 8, -(-k // 8) * 8
    weights = draw.chance(0.5)
    dtype = draw.one(torch.bfloat16, torch.float16 if draw.cuda else torch.float32, torch.float32)
    activation = draw.one("", "relu", "silu")

    def function(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        y = F.linear(x, w.to(x.dtype)) * scale if weights else (torch._int_mm(x, w.t()).float() * scale.float()).to(dtype)
        return {"": lambda y: y, "relu": F.relu, "silu": F.silu}[activation](y)

    def args(device: torch.device) -> list[Any]:
        x = laid((m, k), "plain", dtype if weights else torch.int8, device)
        return [x, laid((n, k), "plain", torch.int8, device), torch.rand(n, device=device).to(dtype) * 0.1]

    text = f"{'weights of bytes' if weights else 'bytes'} {dtype} {m}x{n}x{k} {activation}"
    return Case(text, function, args)
