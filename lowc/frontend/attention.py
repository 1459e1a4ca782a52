"""Attention in its parts, two matrix products around a softmax: for artifacts, where ATen's kernel cannot be called, and for what
lowc's own kernel does not do (``lowering/attention.py``): heads, or their width, that only the call tells."""

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

    ``key`` and ``value`` may have fewer heads, of which each then serves as many queries' heads, one behind the other (GQA).
    Computed in f32 where the operands are narrower, as ATen's kernel does, and rounded once.  NotImplemented: dropout, and what
    is left to one kernel.
    """
    known = all(type(each.shape[n]) is int for each in (query, key, value) for n in (1, 3))
    if dropout_p or known:
        return NotImplemented
    dtype = query.dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    key, value = (_repeated(each, query.shape[1]) for each in (key, value))
    scores = torch.matmul(query.to(wide) * factor, key.to(wide).transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = torch.where(columns <= rows, scores, -math.inf)
    if attn_mask is not None:
        scores = torch.where(attn_mask, scores, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        # a row of which all is masked out: 0 in ATen's kernel, and NaN by the formula
        weights = torch.ops.aten._safe_softmax.default(scores, -1)
    else:
        weights = torch.softmax(scores, -1)
    result = torch.matmul(weights, value.to(wide)).to(dtype)
    # ATen's result lies in memory as the queries do, and the views that follow in the graph count on that
    placed = torch.ops.aten.copy.default(torch.empty_like(query), result)
    return placed, torch.logsumexp(scores, -1).float()


def _repeated(each: Tensor, heads: int) -> Tensor:
    """``each`` [B, G, S, E] as [B, heads, S, E], every head ``heads // G`` times in a row."""
    if each.shape[1] == heads:
        return each
    return each.unsqueeze(2).expand(-1, -1, heads // each.shape[1], -1, -1).flatten(1, 2)
