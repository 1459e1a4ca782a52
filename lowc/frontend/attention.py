"""Attention in its parts, two matrix products around a softmax: for artifacts, where ATen's kernel cannot be called."""

import math
from typing import Any

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """(result [B, H, L, E], log of the sums [B, H, L]) of ``aten._scaled_dot_product_flash_attention_for_cpu``.

    Computed in f32 where the operands are narrower, as ATen's kernel does, and rounded once.  Dropout is NotImplemented.
    """
    if dropout_p:
        return NotImplemented
    dtype = query.dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query.to(wide) * factor, key.to(wide).transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = torch.where(columns <= rows, scores, -math.inf)
    if attn_mask is not None:
        scores = torch.where(attn_mask, scores, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    largest = scores.amax(-1, keepdim=True)
    # A row of which all is masked out is NaN in eager's formula, and 0 in its kernel; shifting by a finite number gives 0 / 0.
    shifted = (scores - torch.where(largest == -math.inf, 0.0, largest)).exp()
    total = shifted.sum(-1, keepdim=True)
    weights = torch.where(total == 0, 0.0, shifted / total)
    result = torch.matmul(weights, value.to(wide)).to(dtype)
    # ATen's result is [B, L, H, E] in memory, seen as [B, H, L, E].
    dense = result.transpose(1, 2).contiguous().transpose(1, 2)
    return dense, (total.log() + largest).squeeze(-1).float()
