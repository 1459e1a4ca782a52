"""Gradients of attention, from its result and the logarithms of its rows' sums: three kernels.

    delta[b, h, i] = sum over e of grad[b, h, i, e] * out[b, h, i, e]

    for b, h, i {                                               # rows of queries
      for j in S {
        acc s = add; for d in D { s add= product(f32(q[b, h, i, d]), f32(k[b, h / G, j, d])) }
        acc g = add; for e in E { g add= product(f32(grad[b, h, i, e]), f32(v[b, h / G, j, e])) }
        slopes[…, j] = bf16(exp(score(s) - logsumexp[b, h, i]) * (g - delta[b, h, i]))
      }
      for d in D { acc a; for j in S { a add= product(f32(slopes[…, j]), f32(k[b, h / G, j, d])) }; grad_q[…, d] = a * scale }
    }

    for b, h / G, j {                                           # rows of keys, over all queries of the heads that share them
      for g in G { for i in L {                                 # h = h / G * G + g
        s, g likewise; weights[…, g, i] = bf16(exp(score(s) - logsumexp)); slopes[…, g, i] = bf16(weight * (g - delta))
      } }
      for e in E { acc a; for g, i { a add= product(f32(weights[…, g, i]), f32(grad[b, h, i, e])) }; grad_v[…, e] = a }
      for d in D { acc a; for g, i { a add= product(f32(slopes[…, g, i]), f32(q[b, h, i, d])) }; grad_k[…, d] = a * scale }
    }

So nothing is added up in memory, and gradients are the same in every run.  On GPUs, where the target wants it and nobody asks
for deterministic algorithms, rows of keys add to gradients of queries in memory instead, which takes five products instead of
seven: no kernel of queries, and

      for i in L { for d in D { sums[b, h, i, d] add= product(f32(slopes[…, i]), f32(k[b, h, j, d])) } }    # in that of keys
    for b, h, i, d { grad_q[…, d] = sums[b, h, i, d] * scale }

That kernel is of heads of queries, so that keys and values that several share have parts of their gradients first, one a head.
Sums lie as threads of tensor cores have them (``tiles.held_at``).  Weights and slopes of f16 and bf16 operands are
rounded before they are multiplied, as in ATen's kernels.  A row that sees nothing has weights 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lowc.errors import NotLowered
from lowc.ir import tiles
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, Index, floordiv, ix
from lowc.ir.nodes import Const, Expr
from lowc.ir.types import accumulate_dtype, f64
from lowc.lowering.attention import Outputs, check, lines_of
from lowc.lowering.attention_nest import Attention, scale_of, score_of, sharing
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast, op, select
from lowc.lowering.values import Coords, Value

Results = tuple[Value | None, ...]
Slope = Callable[[Builder, Expr, Coords, Expr], Expr]
LN2 = math.log(2)


@dataclass(frozen=True, slots=True)
class Backward:
    """``asked``: of the forward pass; ``grad`` of its result ``out``, [B, H, L, E]; ``lse``: logarithms of sums, [B, H, L]
    or more rows.  ``slope``: of scores by a function, what that makes of a scaled product, where it is, and the gradient of the
    score; logarithms are then to base 2 and -inf for a row that sees nothing.  ``grad_lse``: of these."""

    asked: Attention
    grad: Value
    out: Value
    lse: Value
    slope: Slope | None = None
    grad_lse: Value | None = None


def for_cpu(
    b: Builder, outs: Outputs, grad_out: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value,
    dropout_p: float, is_causal: bool, *, attn_mask: Value | None = None, scale: float | None = None,
) -> Results:  # fmt: skip
    asked = Attention(query, key, value, attn_mask, is_causal, scale)
    return _lowered(b, outs, Backward(asked, grad_out, out, logsumexp), dropout_p)


def flash(
    b: Builder, outs: Outputs, grad_out: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value,
    cum_seq_q: Value | None, cum_seq_k: Value | None, max_q: object, max_k: object, dropout_p: float, is_causal: bool,
    philox_seed: Value, philox_offset: Value, *, scale: float | None = None,
) -> Results:  # fmt: skip
    if is_causal and query.shape[2] != key.shape[2]:
        raise NotLowered("a causal mask that begins at the last key")
    asked = Attention(query, key, value, None, is_causal, scale, "flash")
    return _lowered(b, outs, Backward(asked, grad_out, out, logsumexp), dropout_p)


def efficient(
    b: Builder, outs: Outputs, grad_out_: Value, query: Value, key: Value, value: Value, attn_bias: Value | None, out: Value,
    logsumexp: Value, philox_seed: Value, philox_offset: Value, dropout_p: float, grad_input_mask: Sequence[bool],
    is_causal: bool = False, *, scale: float | None = None,
) -> Results:  # fmt: skip
    asked = Attention(query, key, value, attn_bias, is_causal, scale, "efficient")
    return _lowered(b, outs, Backward(asked, grad_out_, out, logsumexp), dropout_p)


def cudnn(
    b: Builder, outs: Outputs, grad_out: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value,
    philox_seed: Value, philox_offset: Value, attn_bias: Value | None, cum_seq_q: Value | None, cum_seq_k: Value | None,
    max_q: object, max_k: object, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> Results:  # fmt: skip
    if is_causal and query.shape[2] != key.shape[2]:
        raise NotLowered("a causal mask of more keys than queries, or fewer")
    asked = Attention(query, key, value, attn_bias, is_causal, scale, "cudnn")
    return _lowered(b, outs, Backward(asked, grad_out, out, logsumexp), dropout_p)


def by_function(b: Builder, outs: Outputs, found: Backward) -> Results:
    """Of scores by a function (``flex_attention.py``)."""
    check(found.asked)
    if found.asked.q.dtype == f64 and found.lse.dtype != f64:  # they are f32 whatever the operands are
        found = replace(found, lse=_logarithms(b, found.asked))
    return _lowered(b, outs, found, 0.0)


def _logarithms(b: Builder, asked: Attention) -> Value:
    """Of each row, the logarithm to base 2 of the sum of exponentials; -inf for one that sees nothing."""
    wide, each = accumulate_dtype(asked.q.dtype), sharing(asked)
    nothing, zero = Const(-math.inf, wide), Const(0.0, wide)
    result = b.temp(wide, asked.q.shape[:3], name="logarithms")
    with b.kernel(), b.loops(result.shape, range(3)) as (n, h, i):
        shift: Expr = zero
        total: Expr = zero
        for reducer in ("max", "add"):
            found = b.acc(reducer, wide)
            with b.loop(asked.k.shape[2], "j") as j:
                key = (n, floordiv(h, each), j)
                score = score_of(b, asked, _product(b, asked.q.shape[3], "d", asked.q, asked.k, (n, h, i), key), (n, h, i, j))
                b.update(found, reducer, score if reducer == "max" else op("exp", op("sub", score, shift)))
            total = found[0]
            if reducer == "max":
                shift = b.let(select(op("eq", total, nothing), zero, total))
        value = op("div", op("add", shift, op("log", total)), Const(LN2, wide))
        b.store(result, (n, h, i), select(op("eq", total, zero), nothing, value))
    return result


def _lowered(b: Builder, outs: Outputs, found: Backward, dropout: float) -> Results:
    """Gradients of queries, keys, values, where something needs them; raises NotLowered for one of a bias."""
    if dropout:
        raise NotLowered("dropout")
    if any(b.needs(n) for n in range(3, len(outs))):
        raise NotLowered("the gradient of a bias")
    check(found.asked)
    asked = found.asked
    if found.grad.dtype != asked.q.dtype or found.out.dtype != asked.q.dtype or found.lse.dtype.kind != "f":
        raise NotLowered(f"gradients of {found.grad.dtype} of attention of {asked.q.dtype}")
    if b.atomic and not b.alone and not lines_of(found.grad):
        raise NotLowered("rows of a gradient begin at no multiple of 16 bytes")
    needed = len(outs) >= 3 and all(isinstance(outs[n], TensorMeta) and b.needs(n) for n in range(3))
    added_up = needed and b.atomic and not (b.alone or b.deterministic)
    about = asked.q, asked.k, asked.v, asked.bias, asked.causal
    if not added_up or b.attention(*about, "sums of gradients", asked.library):
        added_up = False
        if why := b.attention(*about, "gradients", asked.library):
            raise NotLowered(why)
    results = [b.result(m) if isinstance(m, TensorMeta) and b.needs(n) else None for n, m in enumerate(outs)]
    delta = _delta(b, found)
    if added_up and results[0] is not None and results[1] is not None and results[2] is not None:
        _of_all(b, found, delta, (results[0], results[1], results[2]))
        return tuple(results)
    if results[0] is not None:
        _of_queries(b, found, delta, results[0])
    if results[1] is not None or results[2] is not None:
        _of_keys(b, found, delta, results[1], results[2])
    return tuple(results)


def _of_all(b: Builder, found: Backward, delta: Value, results: tuple[Value, Value, Value]) -> None:
    """Gradients of queries, keys and values; of keys and values that several heads share, parts for each head first."""
    asked, each = found.asked, sharing(found.asked)
    sums, shape = _zeros(b, asked), (*asked.q.shape[:2], asked.k.shape[2])
    of_key, of_value = results[1], results[2]
    parts = of_key, of_value
    if each != ONE:
        parts = tuple([b.temp(asked.q.dtype, (*shape, x.shape[3]), name="parts") for x in (asked.k, asked.v)])
    _of_keys(b, found, delta, parts[0], parts[1], sums)
    for result, part in zip((of_key, of_value), parts, strict=True) if each != ONE else ():
        wide = accumulate_dtype(result.dtype)
        with b.kernel(), b.loops(result.shape, range(4)) as (n, h, j, d):
            total = b.acc("add", wide)
            with b.loop(each, "g") as g:
                b.update(total, "add", cast(b.load(part, (n, h * each + g, j, d)), wide))
            b.store(result, (n, h, j, d), total[0])
    _settled(b, asked, sums, results[0])


def _settled(b: Builder, asked: Attention, sums: Value, result: Value) -> None:
    """Gradients of queries from their ``sums``."""
    with b.kernel(), b.loops(asked.q.shape, range(4)) as (n, h, i, d):
        total = b.load(sums, (n, h, *tiles.held_at(i, d)))
        b.store(result, (n, h, i, d), op("mul", total, scale_of(asked, accumulate_dtype(asked.q.dtype))))


def _zeros(b: Builder, asked: Attention) -> Value:
    """Sums for gradients of queries, for all rows that tiles of 128 have, and columns in multiples of 64."""
    batch, heads, rows, deep = asked.q.shape
    shape = (batch, heads, (rows + 127) // 128 * 2, (deep + 63) // 64 * 8, ix(128), ix(4))
    wide = accumulate_dtype(asked.q.dtype)
    sums = b.temp(wide, shape, name="sums")
    with b.kernel(), b.loops(shape, range(6)) as place:
        b.store(sums, tuple(place), Const(0.0, wide))
    return sums


def _delta(b: Builder, found: Backward) -> Value:
    """Of each row, the sum of gradient times result, less the gradient of the logarithm."""
    wide = accumulate_dtype(found.grad.dtype)
    shape = found.grad.shape[:3]
    delta = b.temp(wide, shape, name="delta")
    with b.kernel(), b.loops(shape, range(3)) as place:
        total = b.acc("add", wide)
        with b.loop(found.grad.shape[3], "e") as e:
            a, c = (cast(b.load(x, (*place, e)), wide) for x in (found.grad, found.out))
            b.update(total, "add", op("mul", a, c))
        value: Expr = total[0]
        if found.grad_lse is not None:
            of_sums = cast(b.load(found.grad_lse, tuple(place)), wide)
            value = op("sub", value, op("div", of_sums, Const(LN2, wide)))
        b.store(delta, tuple(place), value)
    return delta


def _product(b: Builder, extent: Index, letter: str, left: Value, right: Value, at_left: Coords, at_right: Coords) -> Expr:
    """The sum over the last dimension of both."""
    wide = accumulate_dtype(left.dtype)
    total = b.acc("add", wide)
    with b.loop(extent, letter) as n:
        a, c = b.load(left, (*at_left, n)), b.load(right, (*at_right, n))
        b.update(total, "add", op("product", cast(a, wide), cast(c, wide)))
    return total[0]


def _weight_and_slope(b: Builder, found: Backward, delta: Value, query: Coords, key: Coords, turned: bool) -> tuple[Expr, Expr]:
    """At the coordinates of a row of queries and one of keys.  ``turned``: keys are the left factors."""
    asked, wide = found.asked, accumulate_dtype(found.asked.q.dtype)
    pairs = ((asked.q, asked.k, "d"), (found.grad, found.asked.v, "e"))
    sums: list[Expr] = []
    for of_query, of_key, letter in pairs:
        left, right = ((of_key, key), (of_query, query)) if turned else ((of_query, query), (of_key, key))
        sums.append(_product(b, of_query.shape[3], letter, left[0], right[0], left[1], right[1]))
    score = score_of(b, asked, sums[0], (*query, key[2]))
    lse = cast(b.load(found.lse, (*query, ix(0))[: len(found.lse.shape)]), wide)
    if found.slope is not None:  # a row that sees nothing has scores of -inf, and weights 0
        lse = b.let(lse)
        lse = select(op("eq", lse, Const(-math.inf, wide)), Const(0.0, wide), op("mul", lse, Const(LN2, wide)))
    weight = b.let(op("exp", op("sub", score, lse)))
    slope = op("mul", weight, op("sub", sums[1], b.load(delta, query)))
    if found.slope is None:
        return weight, slope
    return weight, found.slope(b, op("mul", sums[0], scale_of(asked, wide)), (*query, key[2]), b.let(slope))


def _of_queries(b: Builder, found: Backward, delta: Value, result: Value) -> None:
    asked = found.asked
    keys, each, wide = asked.k.shape[2], sharing(asked), accumulate_dtype(asked.q.dtype)
    shape = asked.q.shape[:3]
    slopes = b.temp(asked.q.dtype, (*shape, keys), name="slopes")
    with b.kernel(), b.loops(shape, range(3)) as place:
        query = (place[0], place[1], place[2])
        with b.loop(keys, "j") as j:
            _, slope = _weight_and_slope(b, found, delta, query, (query[0], floordiv(query[1], each), j), False)
            b.store(slopes, (*query, j), slope)
        with b.loop(asked.q.shape[3], "d") as d:
            total = b.acc("add", wide)
            with b.loop(keys, "j") as j:
                a, c = b.load(slopes, (*query, j)), b.load(asked.k, (query[0], floordiv(query[1], each), j, d))
                b.update(total, "add", op("product", cast(a, wide), cast(c, wide)))
            b.store(result, (*query, d), op("mul", total[0], scale_of(asked, wide)))


def _of_keys(
    b: Builder, found: Backward, delta: Value, of_key: Value | None, of_value: Value | None, sums: Value | None = None
) -> None:
    """Of each head of keys or, with ``sums`` of gradients of queries, of each head of queries."""
    asked = found.asked
    rows, each, wide = asked.q.shape[2], sharing(asked), accumulate_dtype(asked.q.dtype)
    shape, share = asked.k.shape[:3], ONE
    if sums is not None:
        shape, share, each = (*asked.q.shape[:2], asked.k.shape[2]), each, ONE
    wanted = (("weights", of_value), ("slopes", of_key))
    kept = [b.temp(asked.q.dtype, (*shape, each, rows), name=n) if r else None for n, r in wanted]
    with b.kernel(), b.loops(shape, range(3)) as place:
        key = (place[0], place[1], place[2])
        with b.loop(each, "g") as g, b.loop(rows, "i") as i:
            of_key_ = (key[0], floordiv(key[1], share), key[2])
            values = _weight_and_slope(b, found, delta, (key[0], key[1] * each + g, i), of_key_, True)
            for memory, value in zip(kept, values, strict=True):
                if memory is not None:
                    b.store(memory, (*key, g, i), value)
        factors = ((kept[0], found.grad, of_value, None), (kept[1], asked.q, of_key, scale_of(asked, wide)))
        for memory, factor, result, scale in factors:
            if memory is None or result is None:
                continue
            with b.loop(factor.shape[3], "e") as e:
                total = b.acc("add", wide)
                with b.loop(each, "g") as g, b.loop(rows, "i") as i:
                    a, c = b.load(memory, (*key, g, i)), b.load(factor, (key[0], key[1] * each + g, i, e))
                    b.update(total, "add", op("product", cast(a, wide), cast(c, wide)))
                b.store(result, (*key, e), total[0] if scale is None else op("mul", total[0], scale))
        if sums is not None and kept[1] is not None:
            with b.loop(rows, "i") as i, b.loop(asked.q.shape[3], "d") as d:
                a, c = b.load(kept[1], (*key, ix(0), i)), b.load(asked.k, (key[0], floordiv(key[1], share), key[2], d))
                b.store(sums, (*key[:2], *tiles.held_at(i, d)), op("product", cast(a, wide), cast(c, wide)), reducer="add")
