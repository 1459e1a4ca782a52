"""Attention: lengths, widths, masks, shared heads, layouts."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.property.contractions.case import Case, Draw

LAYOUTS = ("plain", "heads inside", "one tensor")


def attention(draw: Draw) -> Case:
    dtype = draw.floats()
    batch, heads, shared = draw.size(3), draw.size(4), draw.one(1, 1, 1, 2, 3)
    rows = draw.size(500)
    keys = rows if draw.chance(0.6) else draw.size(500)
    deep = draw.one(8, 16, 32, 40, 64, 64, 96, 128, 128, 256, draw.size(200))
    mask = draw.one("", "", "causal", "causal", "bool", "float", "keys")
    scale = draw.one(None, None, 0.3, 0.05)
    layout = draw.one(*LAYOUTS) if rows == keys and shared == 1 else draw.one(*LAYOUTS[:2])
    after = draw.one("", "", "scaled", "joined", "residual")
    gradients = draw.chance(0.35)

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, like: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=mask == "causal", scale=scale, enable_gqa=shared > 1
        )
        if after == "scaled":
            return y * 0.5
        if after == "joined":
            return y.transpose(1, 2).reshape(batch, rows, heads * shared * deep)
        return y + like if after == "residual" else y

    def args(device: torch.device) -> list[Any]:
        def one(h: int, n: int) -> Tensor:
            if layout == "plain":
                return torch.randn(batch, h, n, deep, device=device).to(dtype)
            return torch.randn(batch, n, h, deep, device=device).to(dtype).transpose(1, 2)

        q, k, v = one(heads * shared, rows), one(heads, keys), one(heads, keys)
        if layout == "one tensor":
            whole = torch.randn(batch, rows, 3, heads, deep, device=device).to(dtype)
            q, k, v = (t.transpose(1, 2) for t in whole.unbind(2))
        bias = None
        if mask == "bool":
            bias = torch.rand(batch, 1, rows, keys, device=device) < 0.8
        elif mask == "keys":
            bias = (torch.arange(keys, device=device) < max(1, keys * 2 // 3)).expand(batch, 1, 1, keys)
        elif mask == "float":
            bias = torch.randn(rows, keys, device=device).to(dtype)
            if not gradients:
                bias = bias.masked_fill(torch.rand(rows, keys, device=device) < 0.2, -math.inf)
        return [q, k, v, bias, torch.randn(batch, heads * shared, rows, deep, device=device).to(dtype)]

    text = (
        f"attention {dtype} B{batch} H{heads}x{shared} {rows} x {keys} D{deep} mask {mask!r} scale {scale} {layout!r} "
        f"after {after!r}{' gradients' if gradients else ''}"
    )
    return Case(text, function, args, gradients)
