"""What attention is: the nest that ``lowering/attention.py`` writes, as plain data.  Works on LOOPS and on SCHEDULED kernels.

    for … { for i in L {
      acc top = max; for j in S { acc s; for d in D { s add= product(query, key) }; scores[… j] = score(s); top max= score(s) }
      shift = …; acc total = add
      for j in S { weight = exp(scores[… j] - shift); weights[… j] = narrow(weight); total add= weight }
      for e in E { acc mixed = add; for j in S { mixed add= product(wide(weights[… j]), value) }; lets and stores }
      lets and stores
    } }

Queries, keys, values, the function of a score and what is made of the sums are any expressions.  That ``scores`` and ``weights``
are read nowhere else is the caller's to know: they are temps, or memory of the row's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowc.ir.index import Axis, Index, Opaque, atoms, depends_on, ix, split
from lowc.ir.nodes import (
    Acc,
    Alloc,
    Buffer,
    Const,
    Expr,
    For,
    FromIndex,
    Let,
    Load,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.types import DType
from lowc.ir.walk import Substitution, exprs, free_atoms, parts, same
from lowc.scheduler.contraction import folded, is_product
from lowc.scheduler.nest import chain, estimate


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """``outer``: the loops around, outermost first; ``rows`` is that of them which queries change with, and keys and values do
    not (None if there is none).  ``query`` varies with ``outer`` and ``depth``, ``key`` with ``outer``, ``keys``, ``depth``,
    ``value`` with ``outer``, ``keys``, ``columns``: factors as they stand in the products, widened.

    ``of_key``, ``of_value``: lets by whose values a key and a value are read, as the pages of a cache that a table tells.

    ``score``: what is made of ``product``, the sum over the depth; it may depend on ``keys`` and ``outer``, and on ``lets``, by
    whose values it reads something (a table at places that data tells).  ``weight``: the dtype to which weights are rounded.
    ``mix``: what is made of ``mixed``, a sum of weighted values, for each of ``columns``; ``rest``: what else is made of a row.
    Both are lets and stores, over ``outer``, ``shift`` (what is taken off scores, the greatest of them or 0) and ``total`` (the
    sum of weights).  ``memory``: of scores and weights.
    """

    outer: tuple[For, ...]
    rows: For | None
    keys: Axis
    depth: Axis
    columns: Axis
    query: Expr
    key: Expr
    value: Expr
    product: Var
    score: Expr
    weight: DType
    shift: Var
    total: Var
    mixed: Var
    mix: tuple[Stmt, ...]
    rest: tuple[Stmt, ...]
    memory: tuple[Buffer, Buffer]
    lets: tuple[Let, ...] = ()
    of_key: tuple[Let, ...] = ()
    of_value: tuple[Let, ...] = ()

    @property
    def gathered(self) -> bool:
        """Whether data tells where keys or values are."""
        return bool(self.of_key or self.of_value)


def find(loop: Stmt) -> Attention | None:
    """The Attention that ``loop`` is, or None."""
    if not isinstance(loop, For):
        return None
    outer = tuple(chain((loop,)))
    body = [s for s in outer[-1].body if not isinstance(s, Alloc)]
    if len(body) < 6:
        return None
    top, scored, shift, total, weighed, mixing, *rest = body
    if not (isinstance(top, Acc) and isinstance(scored, For) and isinstance(shift, Let) and isinstance(total, Acc)):
        return None
    if not isinstance(weighed, For) or not isinstance(mixing, For) or not all(isinstance(s, Let | Store) for s in rest):
        return None
    if (top.reducer, total.reducer) != ("max", "add") or not _is_shift(shift.value, top.vars[0]):
        return None
    scores = _scores(scored, top.vars[0])
    if scores is None:
        return None
    product, depth, (query, key, of_key), score, lets, kept = scores
    weights = _weights(weighed, scored.axis, kept, shift.var, total.vars[0])
    if weights is None:
        return None
    found = _mixed(mixing, scored.axis, weights)
    if found is None:
        return None
    mixed, (value, of_value), mix = found
    if mixing.axis in free_atoms(key):
        return None
    told = ({a for s in of for a in free_atoms(s.value)} for of in (of_key, of_value))
    used = [free_atoms(query), *(free_atoms(e) | more for e, more in zip((key, value), told, strict=True))]
    if not used[0].isdisjoint(Opaque(s.var.name) for s in of_key) or scored.axis in used[0]:
        return None
    candidates = [f for f in outer if f.axis in used[0] and f.axis not in used[1] | used[2]]
    rows = max(candidates, key=lambda f: estimate(f.axis.extent), default=None)
    return Attention(
        outer, rows, scored.axis, depth, mixing.axis, query, key, value, product, score, weights.buffer.dtype, shift.var,
        total.vars[0], mixed, mix, tuple(rest), (kept.buffer, weights.buffer), lets, of_key, of_value,
    )  # fmt: skip


def of_queries(loop: For) -> Attention | None:
    """The attention that ``loop`` is, with rows of queries alone; None if it is none, or data tells where keys are.

    Those are the innermost loop, whatever else queries change with.  Batches that have all the same keys, as of a cache in pages,
    could be rows of one query, but masks leave out more for each.
    """
    found = find(loop)
    if found is None or found.gathered:
        return None
    last = found.outer[-1]
    if found.rows is None or found.rows is last:
        return found
    own = last.axis in free_atoms(found.query) and last.axis not in free_atoms(found.key) | free_atoms(found.value)
    return replace(found, rows=last if own else None)


def seen(found: Attention) -> tuple[Index | None, Expr]:
    """(how many keys a row sees at most, as the first of its masks that says so does; the score of those that it sees), (None,
    the score) if all.

    ``select(mask[i, j], select(j <= i + 3, x, -inf), -inf)`` is (i + 4, select(mask[i, j], x, -inf)).
    """
    conditions, score = masks(found.score)
    for number, condition in enumerate(conditions):
        limit = _bound(condition, found, -1)
        if limit is not None:
            return limit, masked([*conditions[:number], *conditions[number + 1 :]], score)
    return None, found.score


def sees(found: Attention) -> tuple[Index | None, Index | None, Expr]:
    """(how many keys a row sees at most, the first key that it sees, the score of those that it sees), each as the first of its
    masks that says so does; None for what no mask says."""
    conditions, score = masks(found.score)
    bounds: list[Index | None] = []
    for step in (-1, 1):
        rooms = [_bound(c, found, step) for c in conditions]
        number = next((n for n, room in enumerate(rooms) if room is not None), None)
        bounds.append(None if number is None else rooms[number])
        if number is not None:
            del conditions[number]
    limit, room = bounds
    return limit, None if room is None else -room + 1, masked(conditions, score)


def since(found: Attention) -> Index | None:
    """The first key that a row sees, as one of its masks says, no less than that of the row before; None if no mask does.

    ``select(i - j < 64, x, -inf)`` is i - 63.
    """
    for condition in masks(found.score)[0]:
        room = _bound(condition, found, 1)
        if room is not None:
            return -room + 1
    return None


def masks(score: Expr) -> tuple[list[Expr], Expr]:
    """(the conditions under which a key is seen, outermost first, the score where all of them hold)."""
    conditions: list[Expr] = []
    while isinstance(score, Op) and score.name == "select" and is_constant(score.args[2], float("-inf")):
        conditions.append(score.args[0])
        score = score.args[1]
    return conditions, score


def masked(conditions: Sequence[Expr], score: Expr) -> Expr:
    """What ``masks`` makes ``conditions`` and ``score`` of."""
    for condition in reversed(conditions):
        score = Op("select", (condition, score, Const(float("-inf"), score.dtype)), score.dtype)
    return score


def _bound(condition: Expr, found: Attention, step: int) -> Index | None:
    """What an index, positive where ``condition`` holds, is but for the keys times ``step``: the same for all rows, or, against
    the keys, 1 more or less with each."""
    room = room_of(condition)
    if room is None:
        return None
    by, rest = split(room, found.keys)
    told = {Opaque(s.var.name) for s in found.lets}
    if by != ix(step) or depends_on(rest, found.keys) or not told.isdisjoint(atoms(rest)):
        return None
    down, others = (ix(0), rest) if found.rows is None else split(rest, found.rows.axis)
    if found.rows is not None and depends_on(others, found.rows.axis):
        return None
    return rest if down in (ix(0), ix(-step)) else None


def sight(score: Expr) -> tuple[Index | None, Expr]:
    """(an index that is positive where a key is seen, the score where it is), by the outermost mask of ``score``; (None, the
    score) if there is none.

    ``select(j <= i + 3, x, -inf)`` is (i + 4 - j, x).
    """
    if not isinstance(score, Op) or score.name != "select" or not is_constant(score.args[2], float("-inf")):
        return None, score
    room = room_of(score.args[0])
    return room, score if room is None else score.args[1]


def room_of(condition: Expr) -> Index | None:
    """An index that is positive where ``condition`` holds; None if it is no comparison of indices."""
    if not isinstance(condition, Op) or condition.name not in ("le", "lt", "ge", "gt"):
        return None
    low, high = (_as_index(a) for a in condition.args)
    if low is None or high is None:
        return None
    if condition.name in ("ge", "gt"):
        low, high = high, low
    return high - low + (1 if condition.name in ("le", "ge") else 0)


# ---------------------------------------------------------------- the three loops


def _scores(loop: For, top: Var) -> tuple[Var, Axis, tuple[Expr, Expr, tuple[Let, ...]], Expr, tuple[Let, ...], Store] | None:
    """(sum of products, depth, its factors and lets that they need, the score of it, lets that it needs, where it is kept)."""
    body = loop.body
    if len(body) < 4 or not isinstance(body[0], Acc) or not isinstance(body[1], For):
        return None
    acc, depth, store, update = body[0], body[1], body[-2], body[-1]
    if not isinstance(store, Store) or not isinstance(update, Update) or not all(isinstance(s, Let) for s in body[2:-2]):
        return None
    if acc.reducer != "add" or update.vars[0].name != top.name or update.mask is not None or not _is_plain(store):
        return None
    pair = factors_of(depth, acc.vars[0])
    lets = coordinates(body[2:-2])
    free = [s for s in body[2:-2] if all(s is not c for c in lets)]
    value, score = folded(free, store.value), folded(free, update.values[0])
    if pair is None or not same(value, score):
        return None
    return acc.vars[0], depth.axis, pair, score, tuple([Let(c.var, folded(free, c.value)) for c in lets]), store


def coordinates(body: Sequence[Stmt]) -> list[Let]:
    """The lets of ``body`` by whose values something is read in it: they are names in indices, and cannot be folded."""
    lets = [s for s in body if isinstance(s, Let)]
    loads = [p for s in body for e in exprs(s) for p in parts(e) if isinstance(p, Load | FromIndex)]
    used = {a for p in loads for i in (p.index if isinstance(p, Load) else (p.index,)) for a in atoms(i)}
    return [s for s in lets if Opaque(s.var.name) in used]


def _weights(loop: For, keys: Axis, kept: Store, shift: Var, total: Var) -> Store | None:
    """Where the weight of each score is kept."""
    body = loop.body
    if loop.axis.extent != keys.extent or len(body) < 2:
        return None
    store, update = body[-2], body[-1]
    if not isinstance(store, Store) or not isinstance(update, Update) or not all(isinstance(s, Let) for s in body[:-2]):
        return None
    if update.vars[0].name != total.name or update.mask is not None or not _is_plain(store):
        return None
    weight, narrow = folded(body[:-2], update.values[0]), folded(body[:-2], store.value)
    if isinstance(narrow, Op) and narrow.name == "cast" and narrow.dtype != weight.dtype:
        narrow = narrow.args[0]
    if not same(weight, narrow) or not isinstance(weight, Op) or weight.name != "exp":
        return None
    less = weight.args[0]
    if not isinstance(less, Op) or less.name != "sub" or not _reads(less.args[0], loop.axis, keys, kept):
        return None
    taken = less.args[1]
    if not isinstance(taken, Var) or taken.name != shift.name:
        return None
    there = Substitution({loop.axis: ix(keys)})
    return Store(store.buffer, tuple([there.index(i) for i in store.index]), store.value)


def _mixed(loop: For, keys: Axis, weights: Store) -> tuple[Var, tuple[Expr, tuple[Let, ...]], tuple[Stmt, ...]] | None:
    """(sum of weighted values, a value and lets that it needs, what is made of the sum)."""
    body = loop.body
    if len(body) < 3 or not isinstance(body[0], Acc) or not isinstance(body[1], For) or body[0].reducer != "add":
        return None
    if not all(isinstance(s, Let | Store) for s in body[2:]) or body[1].axis.extent != keys.extent:
        return None
    pair = factors_of(body[1], body[0].vars[0])
    if pair is None:
        return None
    weight, value, lets = pair
    if isinstance(weight, Op) and weight.name == "cast" and weight.dtype == body[0].vars[0].dtype:
        weight = weight.args[0]
    if not _reads(weight, body[1].axis, keys, weights):
        return None
    there = Substitution({body[1].axis: ix(keys)})
    return body[0].vars[0], (there.expr(value), tuple([Let(s.var, there.expr(s.value)) for s in lets])), tuple(body[2:])


def factors(loop: For, total: Var) -> tuple[Expr, Expr] | None:
    """The factors of the sum of products that ``loop`` adds up; None if data tells where they are."""
    found = factors_of(loop, total)
    return None if found is None or found[2] else found[:2]


def factors_of(loop: For, total: Var) -> tuple[Expr, Expr, tuple[Let, ...]] | None:
    """The factors of the sum of products that ``loop`` adds up, and the lets by whose values they are read."""
    update = loop.body[-1] if loop.body else None
    if not isinstance(update, Update) or update.vars[0].name != total.name or update.mask is not None:
        return None
    if not all(isinstance(s, Let) for s in loop.body[:-1]):
        return None
    lets = coordinates(loop.body)
    free = [s for s in loop.body[:-1] if all(s is not c for c in lets)]
    product = folded(free, update.values[0])
    if not isinstance(product, Op) or not is_product(product):
        return None
    return product.args[0], product.args[1], tuple([Let(c.var, folded(free, c.value)) for c in lets])


# ---------------------------------------------------------------- expressions


def _is_plain(store: Store) -> bool:
    return store.mask is None and not store.reducer


def _is_shift(value: Expr, top: Var) -> bool:
    """Whether ``value`` is ``select(top == -inf, 0, top)``."""
    if not isinstance(value, Op) or value.name != "select" or not is_constant(value.args[1], 0.0):
        return False
    condition = value.args[0]
    if not isinstance(condition, Op) or condition.name != "eq" or not is_constant(condition.args[1], float("-inf")):
        return False
    return all(isinstance(a, Var) and a.name == top.name for a in (condition.args[0], value.args[2]))


def is_constant(value: Expr, number: float) -> bool:
    """Whether ``value`` is the constant ``number``."""
    return isinstance(value, Const) and value.value == number


def _as_index(value: Expr) -> Index | None:
    if isinstance(value, FromIndex):
        return value.index
    return ix(int(value.value)) if isinstance(value, Const) and value.dtype.kind == "i" else None


def _reads(value: Expr, axis: Axis, keys: Axis, kept: Store) -> bool:
    """Whether ``value`` loads what ``kept`` stores for the same key; ``axis`` is that of keys where it is loaded."""
    if not isinstance(value, Load) or value.buffer is not kept.buffer or value.mask is not None:
        return False
    there = Substitution({axis: ix(keys)})
    return tuple([there.index(i) for i in value.index]) == kept.index

