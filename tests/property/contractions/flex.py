"""``flex_attention``: scores and masks by functions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.property.contractions.case import Case, Draw

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
SCORES: dict[str, Score | None] = {
    "": None,
    "distance": lambda s, b, h, i, j: s - (h + 1) * 0.05 * (i - j).abs(),
    "capped": lambda s, b, h, i, j: 5.0 * torch.tanh(s / 5.0),
    "scaled": lambda s, b, h, i, j: s * 0.7 + 0.1,
    "by parity": lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, s, s - 1.0),
    "squared": lambda s, b, h, i, j: s - 0.01 * s * s,
}
MASKS: dict[str, Mask | None] = {
    "": None,
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j <= 37),
    "both sides": lambda b, h, i, j: (i - j).abs() <= 29,
    "prefix": lambda b, h, i, j: (j < 21) | (i >= j),
    "documents": lambda b, h, i, j: (i // 50 == j // 50) & (i >= j),
    "by heads": lambda b, h, i, j: (i >= j) | (h == 0),
}


def flex(draw: Draw) -> Case:
    dtype = draw.floats()
    batch, heads, shared = draw.size(3), draw.size(3), draw.one(1, 1, 2)
    rows = draw.size(400)
    keys = rows if draw.chance(0.7) else draw.size(400)
    deep = draw.one(16, 32, 64, 64, 96, 128, 128)
    score, mask = draw.one(*SCORES), draw.one(*MASKS)
    gradients = draw.cuda and draw.chance(0.5)  # torch refuses them on CPUs

    def function(q: Tensor, k: Tensor, v: Tensor, blocks: Any) -> Tensor:
        return flex_attention(q, k, v, score_mod=SCORES[score], block_mask=blocks, enable_gqa=shared > 1)

    def args(device: torch.device) -> list[Any]:
        sizes = (heads * shared, rows), (heads, keys), (heads, keys)
        made = [torch.randn(batch, h, n, deep, device=device).to(dtype) for h, n in sizes]
        asked = MASKS[mask]
        blocks = None if asked is None else create_block_mask(asked, batch, heads * shared, rows, keys, device=device.type)
        return [*made, blocks]

    text = f"flex {dtype} B{batch} H{heads}x{shared} {rows} x {keys} D{deep} {score!r} {mask!r}"
    return Case(text + " gradients" * gradients, function, args, gradients)
