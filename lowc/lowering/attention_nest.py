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
the schedule.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.ir.index import Index, constant, floordiv, ix
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, accumulate_dtype, bool_
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import cast, const, op, select
from lowc.lowering.values import Coords, Value

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


@dataclass(frozen=True, slots=True)
class Over:
    """What a nest goes over: ``shape`` of its rows, ``keys`` of each.  ``query``, ``key`` and ``value`` load an element, told the
    place of a row, and the place, a key and a column; ``score`` is told a product, a place and a key."""

    shape: Coords
    keys: Index
    query: Callable[[Coords, Index], Expr]
    key: Callable[[Coords, Index, Index], Expr]
    value: Callable[[Coords, Index, Index], Expr]
    score: Callable[[Expr, Coords, Index], Expr]


def kernel(b: Builder, asked: Attention, result: Value, of_rows: Sequence[OfRow]) -> None:
    """The nest, which stores ``result`` and, of each row, all of ``of_rows``."""
    each = sharing(asked)
    over = Over(
        asked.q.shape[:3], asked.k.shape[2], lambda at, d: b.load(asked.q, (*at, d)),
        lambda at, j, d: b.load(asked.k, (at[0], floordiv(at[1], each), j, d)),
        lambda at, j, e: b.load(asked.v, (at[0], floordiv(at[1], each), j, e)),
        lambda product, at, j: score_of(b, asked, product, (*at, j)),
    )  # fmt: skip

    def mix(place: Coords, mixed: Expr, total: Expr) -> None:
        b.store(result, place, normal(mixed, total))

    def rest(place: Coords, total: Expr, shift: Expr) -> None:
        for sums, formula in of_rows:
            b.store(sums, (*place, ix(0))[: len(sums.shape)], formula(total, shift))

    nest(b, asked, over, mix, rest)


def normal(mixed: Expr, total: Expr) -> Expr:
    """Weighted values by the sum of weights; 0 for a row that sees nothing."""
    zero = const(0.0, total.dtype)
    return select(op("eq", total, zero), zero, op("div", mixed, total))


def nest(
    b: Builder, asked: Attention, over: Over, mix: Callable[[Coords, Expr, Expr], None],
    rest: Callable[[Coords, Expr, Expr], None], name: str = "",
) -> None:  # fmt: skip
    """The nest ``over`` rows.  ``mix`` stores what is made of a sum of weighted values, told its place and the sum of weights;
    ``rest`` what is made of a row, told that and what was taken off its scores."""
    wide = accumulate_dtype(asked.q.dtype)
    deep, across = asked.q.shape[3], asked.v.shape[3]
    nothing, zero = const(-math.inf, wide), const(0.0, wide)
    scores = b.temp(wide, (*over.shape, over.keys), name="scores")
    weights = b.temp(asked.v.dtype, (*over.shape, over.keys), name="weights")
    with b.kernel(name), b.loops(over.shape, range(len(over.shape))) as coords:
        place = tuple(coords)
        top = b.acc("max", wide)
        with b.loop(over.keys, "j") as j:
            score = b.acc("add", wide)
            with b.loop(deep, "d") as d:
                left, right = over.query(place, d), over.key(place, j, d)
                b.update(score, "add", op("product", cast(left, wide), cast(right, wide)))
            value = b.let(over.score(score[0], place, j))
            b.store(scores, (*place, j), value)
            b.update(top, "max", value)
        shift = b.let(select(op("eq", top[0], nothing), zero, top[0]))
        total = b.acc("add", wide)
        with b.loop(over.keys, "j") as j:
            weight = b.let(op("exp", op("sub", b.load(scores, (*place, j)), shift)))
            b.store(weights, (*place, j), weight)
            b.update(total, "add", weight)
        with b.loop(across, "e") as e:
            mixed = b.acc("add", wide)
            with b.loop(over.keys, "j") as j:
                left, right = b.load(weights, (*place, j)), over.value(place, j, e)
                b.update(mixed, "add", op("product", cast(left, wide), cast(right, wide)))
            mix((*place, e), mixed[0], total[0])
        rest(place, total[0], shift)
