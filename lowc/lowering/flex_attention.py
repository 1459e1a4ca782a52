"""``lowc::flex_attention``: attention whose scores are made by a function, the same nest as any other (``attention.py``).

    s = sum over d of q[b, h, i, d] * k[b, h / G, j, d]
    score = select(mask(b, h, i, j), modified(s * scale, b, h, i, j), -inf)

A mask that is a conjunction is written as masks one inside the other, among which schedules find those that say from where to
where a row sees keys (``scheduler.attention.seen``):  ``(i >= j) & (i - j < 64) & (document[i] == document[j])``  becomes

    select(i >= j, select(i - j < 64, select(document[i] == document[j], modified, -inf), -inf), -inf)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lowc.errors import NotLowered
from lowc.ir.element_function import Function, depends, parsed
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index
from lowc.ir.nodes import Const, Expr, Op
from lowc.ir.types import bool_
from lowc.lowering import few_queries, flex_tiles
from lowc.lowering.attention import Outputs, Results, check
from lowc.lowering.attention_backward import LN2, Backward, by_function
from lowc.lowering.attention_nest import Attention, OfRow
from lowc.lowering.builder import Builder
from lowc.lowering.element_function import evaluate
from lowc.lowering.scalars import cast, const, op, select, truth
from lowc.lowering.values import Coords, Value, is_one
from lowc.lowering.views import expanded

Table = dict[str, Callable[..., Any]]
GRADIENT = 5  # of the parameters of a joint function: behind the score, and where it is


def lowering(table: Table) -> Callable[..., Results]:
    """The function of ``lowc::flex_attention``, with ``table`` for the ops of the functions that it is given."""

    def lower(b: Builder, outs: Outputs, tensors: Sequence[Value], sizes: Sequence[Index], call: str) -> Results:
        """(result, logarithms of sums, greatest scores), the latter over log(2); None for what nothing needs."""
        (modify, mask), (scale,) = parsed(call)
        functions = _Functions(table, tensors, sizes, mask)
        asked = _asked(functions, modify, scale)
        check(asked, b.alone)
        if why := b.attention(asked.q, asked.k, asked.v, None, False, "result", "flex"):
            raise NotLowered(why)
        metas = [m for m in outs if isinstance(m, TensorMeta)]
        result = b.result(metas[0])
        if b.gpu:
            _, asked = _by_tiles(b, functions, asked, modify, scale)
        formulas = (_logarithm, _greatest)
        rows = [b.result(m, f"{b.stem}_{n}") if b.needs(n) else None for n, m in enumerate(metas[1:], 1)]
        of_rows: list[OfRow] = [(row, formula) for row, formula in zip(rows, formulas, strict=True) if row is not None]
        few_queries.attention(b, asked, result, of_rows)
        return (result, *rows)

    return lower


def lowering_backward(table: Table) -> Callable[..., tuple[Value | None, ...]]:
    """The function of ``lowc::flex_attention_backward``, likewise."""

    def lower(
        b: Builder, outs: Outputs, tensors: Sequence[Value], sizes: Sequence[Index], call: str
    ) -> tuple[Value | None, ...]:
        """Gradients of queries, keys and values; None for what nothing needs."""
        (modify, joint, mask), (scale, has_sums) = parsed(call)
        functions = _Functions(table, tensors, sizes, mask)
        asked = _asked(functions, modify, scale)
        if asked.k is not tensors[1]:
            raise NotLowered("gradients of attention by a function of one batch of keys for several of queries")
        tiles: list[flex_tiles.Condition] = []
        if b.gpu and not (depends(modify, 0) and depends(joint, GRADIENT)):
            raise NotLowered("gradients of attention by scores that are not of products, on a GPU")
        if b.gpu:
            tiles, asked = _by_tiles(b, functions, asked, modify, scale)

        def slope(b: Builder, product: Expr, place: Coords, gradient: Expr) -> Expr:
            at = [b.index(i) for i in place]
            found = cast(functions.of(b, joint, [product, *at, gradient]), product.dtype)
            return _masked(functions.masked(b, found, at, 0.0), [c(place) for c in tiles], 0.0)

        of_sums = tensors[6] if has_sums else None
        return by_function(b, outs, Backward(asked, tensors[5], tensors[3], tensors[4], slope, of_sums))

    return lower


@dataclass(frozen=True, slots=True)
class _Functions:
    """What functions of elements are made of, and that of the mask."""

    table: Table
    tensors: Sequence[Value]
    sizes: Sequence[Index]
    mask: Function

    def of(self, b: Builder, function: Function, parameters: Sequence[Expr]) -> Expr:
        return evaluate(b, function, self.tensors, self.sizes, parameters, self.table)

    def conjuncts(self, b: Builder, at: Sequence[Expr]) -> list[Expr]:
        """What has to hold for a key to be seen."""
        return list(_conjuncts(truth(self.of(b, self.mask, at))))

    def masked(self, b: Builder, value: Expr, at: Sequence[Expr], other: float) -> Expr:
        """``value`` where the mask says that a key is seen, else ``other``."""
        return _masked(value, self.conjuncts(b, at), other)


def _masked(value: Expr, conditions: Sequence[Expr], other: float) -> Expr:
    for condition in reversed(conditions):
        value = select(condition, value, const(other, value.dtype))
    return value


def _asked(
    functions: _Functions, modify: Function, scale: float, tiles: Sequence[flex_tiles.Condition] = ()
) -> Attention:
    """``tiles``: conditions that follow from the mask."""
    query, key, value = functions.tensors[:3]
    if len(query.shape) == len(key.shape) and is_one(key.shape[0]) and not is_one(query.shape[0]):
        key, value = (expanded(x, (query.shape[0], *x.shape[1:])) for x in (key, value))

    def score(b: Builder, product: Expr, place: Coords) -> Expr:
        at = [b.index(i) for i in place]
        seen = functions.masked(b, cast(functions.of(b, modify, [product, *at]), product.dtype), at, -math.inf)
        return _masked(seen, [c(place) for c in tiles], -math.inf)

    return Attention(query, key, value, None, False, scale, "flex", score)


def _by_tiles(
    b: Builder, functions: _Functions, asked: Attention, modify: Function, scale: float
) -> tuple[list[flex_tiles.Condition], Attention]:
    """Conditions of whole tiles that follow from the mask, and ``asked`` with them."""
    shape = (*asked.q.shape[:3], asked.k.shape[2])
    tiles = flex_tiles.conditions(b, lambda at: functions.conjuncts(b, [b.index(i) for i in at]), shape)
    return tiles, _asked(functions, modify, scale, tiles)


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Op) and (condition.name == "and" or (condition.name == "select" and _never(condition.args[2]))):
        for part in condition.args[:2]:
            yield from _conjuncts(part)
    elif not (isinstance(condition, Const) and condition.value):
        yield condition


def _never(condition: Expr) -> bool:
    return isinstance(condition, Const) and condition.dtype == bool_ and not condition.value


def _logarithm(total: Expr, shift: Expr) -> Expr:
    """Of the sum of exponentials of scores, to base 2; -inf for a row that sees nothing."""
    return _of_row(total, op("add", shift, op("log", total)))


def _greatest(total: Expr, shift: Expr) -> Expr:
    """The greatest score, which is what is taken off all, over log(2); -inf for a row that sees nothing."""
    return _of_row(total, shift)


def _of_row(total: Expr, value: Expr) -> Expr:
    nothing = op("eq", total, const(0.0, total.dtype))
    return select(nothing, const(-math.inf, total.dtype), op("div", value, const(LN2, total.dtype)))
