"""Attention: which results the ops of ATen have, how a causal mask lies where there are more keys than queries, and how rows of
``logsumexp`` are padded.  What is computed is in ``attention_nest.py``.
"""

import math
from collections.abc import Sequence

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant, lower_bound
from lowc.ir.nodes import Expr
from lowc.lowering import few_queries
from lowc.lowering.attention_nest import Attention
from lowc.lowering.builder import Builder
from lowc.lowering.matmul import copied_along
from lowc.lowering.scalars import const, op, select
from lowc.lowering.values import Value

Outputs = Sequence[TensorMeta | Index | None]
Results = tuple[Value | Index | None, ...]


def for_cpu(
    b: Builder,
    outs: Outputs,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> Results:
    """``aten._scaled_dot_product_flash_attention_for_cpu``: (result, logsumexp)."""
    return _lowered(b, outs, Attention(query, key, value, attn_mask, is_causal, scale), dropout_p)


def flash(
    b: Builder,
    outs: Outputs,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Results:
    """``aten._scaled_dot_product_flash_attention``, whose causal mask lies at the last key."""
    if is_causal and query.shape[2] != key.shape[2]:
        raise NotLowered("a causal mask that begins at the last key")
    return _lowered(b, outs, Attention(query, key, value, None, is_causal, scale, "flash"), dropout_p)


def efficient(
    b: Builder,
    outs: Outputs,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Results:
    """``aten._scaled_dot_product_efficient_attention``: rows of ``logsumexp`` are padded to a multiple of 32 with inf."""
    return _lowered(b, outs, Attention(query, key, value, attn_bias, is_causal, scale, "efficient"), dropout_p)


def cudnn(
    b: Builder,
    outs: Outputs,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Results:
    """``aten._scaled_dot_product_cudnn_attention``, whose ``logsumexp`` is [B, H, L, 1]."""
    if is_causal and query.shape[2] != key.shape[2]:
        raise NotLowered("a causal mask of more keys than queries, or fewer")
    return _lowered(b, outs, Attention(query, key, value, attn_bias, is_causal, scale, "cudnn"), dropout_p)


def lines_of(x: Value) -> bool:
    """Whether the engine that copies on a GPU takes ``x`` as it lies: contiguous rows, several of them, that begin at multiples
    of 16 bytes."""
    if x.strides is None or any(constant(s) == 0 for s in x.strides[-2:]):
        return False
    return bool(x.shape) and copied_along(x) == len(x.shape) - 1


def _lowered(b: Builder, outs: Outputs, asked: Attention, dropout: float) -> Results:
    """A value for each result that something needs, None for others.

    The state of random numbers, which a backward pass is given and without dropout makes no use of, is 0.  Raises NotLowered if
    any other result is needed than that and the first two.
    """
    if dropout:
        raise NotLowered("dropout")
    states = {n: m for n, m in enumerate(outs) if n > 1 and isinstance(m, TensorMeta) and b.needs(n)}
    if any(m.dtype.kind not in "iu" for m in states.values()):
        raise NotLowered("another result that only ATen has")
    check(asked, b.alone)
    wanted = "sums" if b.needs(1) else "result"
    if why := b.attention(asked.q, asked.k, asked.v, asked.bias, asked.causal, wanted, asked.library):
        raise NotLowered(why)
    out, lse = outs[0], outs[1]
    assert isinstance(out, TensorMeta) and isinstance(lse, TensorMeta)
    result = b.result(out)
    sums = b.result(lse, f"{b.stem}_logsumexp") if b.needs(1) else None
    if sums is not None and len(sums.shape) == 3 and sums.shape[2] != out.shape[2]:
        _pad(b, sums, out.shape[2])
    few_queries.attention(b, asked, result, () if sums is None else ((sums, _logarithm),))
    zeros = {n: b.map(m, lambda _, m=m: const(0, m.dtype), f"{b.stem}_state") for n, m in states.items()}
    return (result, sums, *(zeros.get(n) if not isinstance(m, Index) else m for n, m in enumerate(outs) if n > 1))


def check(asked: Attention, alone: bool = False) -> None:
    """Raises NotLowered for what the kernels are not for.  ``alone``: without keys the result is 0, as by the formula."""
    q, k, v = asked.q, asked.k, asked.v
    said = ", ".join(f"{x.dtype}{list(x.shape)}" for x in (q, k, v))
    if any(len(x.shape) != 4 for x in (q, k, v)) or q.dtype.kind != "f" or not q.dtype == k.dtype == v.dtype:
        raise NotLowered(f"attention of {said}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise NotLowered(f"attention of {said}")
    heads, shared = constant(q.shape[1]), constant(k.shape[1])
    if q.shape[1] != k.shape[1] and (heads is None or not shared or heads % shared):
        raise NotLowered(f"attention of {heads or q.shape[1]} heads of queries and {shared or k.shape[1]} of keys")
    if (lower_bound(k.shape[2]) or 0) < 1 and not alone:
        raise NotLowered("attention with, perhaps, no keys")
    if constant(q.shape[3]) is None or constant(v.shape[3]) is None:
        raise NotLowered("attention with heads of a width that only the call tells")
    if asked.bias is not None and asked.bias.dtype.kind not in "bf":
        raise NotLowered(f"attention with a mask of {asked.bias.dtype}")


def _pad(b: Builder, sums: Value, rows: Index) -> None:
    """inf for what lies behind the ``rows`` of a result."""
    with b.kernel(), b.loops((*sums.shape[:2], sums.shape[2] - rows), range(3)) as at:
        b.store(sums, (at[0], at[1], rows + at[2]), const(math.inf, sums.dtype))


def _logarithm(total: Expr, shift: Expr) -> Expr:
    """Of the sum of exponentials of scores; 0 for a row that sees nothing."""
    zero = const(0.0, total.dtype)
    return select(op("eq", total, zero), zero, op("add", shift, op("log", total)))
