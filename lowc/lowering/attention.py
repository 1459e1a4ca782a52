"""Attention: one kernel, in which each row of queries sees all keys.

    for b in B { for h in H { for i in L {
      acc top = max
      for j in S {
        acc s = add; for d in D { s add= product(f32(q[b, h, i, d]), f32(k[b, h / G, j, d])) }
        score = select(j <= i, s * scale + bias[b, h, i, j], -inf); scores[b, h, i, j] = score; top max= score
      }
      shift = select(top == -inf, 0, top)                                    # a row that sees nothing: weights are 0, not NaN
      acc total = add
      for j in S { weight = exp(scores[b, h, i, j] - shift); weights[b, h, i, j] = bf16(weight); total add= weight }
      for e in E {
        acc o = add; for j in S { o add= product(f32(weights[b, h, i, j]), f32(v[b, h / G, j, e])) }
        out[b, h, i, e] = select(total == 0, 0, o / total)
      }
      logsumexp[b, h, i] = select(total == 0, 0, shift + log(total))              # exp(-inf - that) is 0 in a backward pass
    } } }

``scores`` and ``weights`` are temps that nothing else reads: ``localise`` makes them rows of scratch memory, and a schedule for
attention (``scheduler/attention.py`` finds the form) has none at all.  Weights of f16 and bf16 operands are rounded before they
are multiplied, as ATen's kernels do; sums are of f32.  By what the weights of a row are scaled when they are rounded is left to
the schedule.  What the ops of ATen differ in: which results they have, how a causal mask lies where there are more keys than
queries, and how rows of ``logsumexp`` are padded.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, constant, floordiv, ix, lower_bound
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, accumulate_dtype, bool_
from lowc.lowering.builder import Builder
from lowc.lowering.matmul import copied_along
from lowc.lowering.scalars import cast, const, op, select
from lowc.lowering.values import Coords, Value

Outputs = Sequence[TensorMeta | Index | None]
Results = tuple[Value | Index | None, ...]
Score = Callable[[Builder, Expr, Coords], Expr]
OfRow = tuple[Value, Callable[[Expr, Expr], Expr]]  # [B, H, L], and what it has of a row, of the sum of weights and the shift


@dataclass(frozen=True, slots=True)
class Attention:
    """What an op asks for: q [B, H, L, D], k [B, H / G, S, D], v [B, H / G, S, E], and a bias that broadcasts to
    [B, H, L, S] (bool: True where a key is seen).  ``library``: whose the op is in ATen: "flash", "efficient", "cudnn", or
    "cpu".  ``score``: what is made of a scaled product at (batch, head, query, key), if that is told by a function."""

    q: Value
    k: Value
    v: Value
    bias: Value | None
    causal: bool
    scale: float | None
    library: str = "cpu"
    score: Score | None = None


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
    kernel(b, asked, result, () if sums is None else ((sums, _logarithm),))
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


def sharing(asked: Attention) -> Index:
    """How many heads of queries share one of keys."""
    if asked.q.shape[1] == asked.k.shape[1]:
        return ix(1)
    return ix((constant(asked.q.shape[1]) or 1) // (constant(asked.k.shape[1]) or 1))


def scale_of(asked: Attention, wide: DType) -> Expr:
    """What a product of a query and a key is multiplied with."""
    return const(1 / math.sqrt(constant(asked.q.shape[3]) or 1) if asked.scale is None else asked.scale, wide)


def score_of(b: Builder, asked: Attention, product: Expr, place: Coords) -> Expr:
    """What is made of the product of a query and a key, at (batch, head, query, key)."""
    wide = product.dtype
    nothing = const(-math.inf, wide)
    value: Expr = op("mul", product, scale_of(asked, wide))
    if asked.score is not None:
        return asked.score(b, value, place)
    if asked.bias is not None:
        bias = b.read(asked.bias, place)
        value = select(bias, value, nothing) if bias.dtype == bool_ else op("add", value, cast(bias, wide))
    if asked.causal:
        value = select(op("le", b.index(place[3]), b.index(place[2])), value, nothing)
    return value


def _logarithm(total: Expr, shift: Expr) -> Expr:
    """Of the sum of exponentials of scores; 0 for a row that sees nothing."""
    zero = const(0.0, total.dtype)
    return select(op("eq", total, zero), zero, op("add", shift, op("log", total)))


def kernel(b: Builder, asked: Attention, result: Value, of_rows: Sequence[OfRow]) -> None:
    """The nest, which stores ``result`` and, of each row, all of ``of_rows``."""
    q, k, v = asked.q, asked.k, asked.v
    wide = accumulate_dtype(q.dtype)
    batch, heads, rows, deep = q.shape
    keys, across = k.shape[2], v.shape[3]
    each = sharing(asked)
    nothing, zero = const(-math.inf, wide), const(0.0, wide)
    scores = b.temp(wide, (batch, heads, rows, keys), name="scores")
    weights = b.temp(v.dtype, (batch, heads, rows, keys), name="weights")
    with b.kernel(), b.loops((batch, heads, rows), range(3)) as place:
        n, h, i = place
        shared = floordiv(h, each)
        top = b.acc("max", wide)
        with b.loop(keys, "j") as j:
            score = b.acc("add", wide)
            with b.loop(deep, "d") as d:
                left, right = b.load(q, (n, h, i, d)), b.load(k, (n, shared, j, d))
                b.update(score, "add", op("product", cast(left, wide), cast(right, wide)))
            value = b.let(score_of(b, asked, score[0], (n, h, i, j)))
            b.store(scores, (n, h, i, j), value)
            b.update(top, "max", value)
        shift = b.let(select(op("eq", top[0], nothing), zero, top[0]))
        total = b.acc("add", wide)
        with b.loop(keys, "j") as j:
            weight = b.let(op("exp", op("sub", b.load(scores, (n, h, i, j)), shift)))
            b.store(weights, (n, h, i, j), weight)
            b.update(total, "add", weight)
        with b.loop(across, "e") as e:
            mixed = b.acc("add", wide)
            with b.loop(keys, "j") as j:
                left, right = b.load(weights, (n, h, i, j)), b.load(v, (n, shared, j, e))
                b.update(mixed, "add", op("product", cast(left, wide), cast(right, wide)))
            b.store(result, (n, h, i, e), select(op("eq", total[0], zero), zero, op("div", mixed[0], total[0])))
        for sums, formula in of_rows:
            b.store(sums, (n, h, i, ix(0))[: len(sums.shape)], formula(total[0], shift))
