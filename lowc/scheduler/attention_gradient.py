"""What the gradients of attention are: the nests that ``lowering/attention_backward.py`` writes, as plain data.  Works on LOOPS
and on SCHEDULED kernels.

    for … { for near in R {                                                 # rows of queries, or of keys
      for others in O {                                                     # rows of keys, or of the queries of all heads
        acc s; for d in D { s add= product(near factor, other factor) }
        acc g; for e in E { g add= product(near factor, other factor) }
        weight = exp(score(s) - …); weights[… others] = weight; slopes[… others] = weight * (g - …)       # one of both, or both
      }
      for c in C { acc a; for others { a add= product(wide(slopes[… others]), factor) }; lets and stores }    # for each of both
      for others { for c in C { sums[…] add= product(wide(slopes[… others]), near factor) } }                # perhaps
    } }

A ``Side`` is one nest.  ``whole`` makes one of both: what rows of keys have, and for each row of queries its sum over the keys,
of slopes that are the same numbers.  That what is kept is read nowhere else is the caller's to know, as with attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowc.ir.index import Atom, Axis, Index, Opaque, atoms, constant, depends_on, floordiv, ix, mod, split
from lowc.ir.nodes import Acc, Alloc, Expr, For, Let, Load, Op, Stmt, Store, Var
from lowc.ir.walk import Substitution, exprs, free_atoms, parts, same, statements, stores
from lowc.scheduler.attention import factors, is_constant, masks, room_of
from lowc.scheduler.contraction import folded, is_product
from lowc.scheduler.nest import chain, estimate, numel


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """``total``: the sum over ``depth`` of ``near``, a factor that belongs to a row, times ``other``."""

    total: Var
    depth: Axis
    near: Expr
    other: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """``body``, lets and stores, is made of ``total``, for each of ``columns``: the sum of what is kept as number ``kept`` times
    ``factor``."""

    columns: Axis
    total: Var
    kept: int
    factor: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """``outer``: the loops around, outermost first; ``near`` is that of them along which rows lie (None if there is one row).
    ``others``: the loops over other rows, outermost first.  ``lets`` and ``kept``, stores: what is made of the totals of
    ``products``.  ``mixes``: sums over the others; ``across``: the sum over ``near``, for each of the others, which is one store
    that adds to memory where not all of it is the kernel's.
    """

    outer: tuple[For, ...]
    near: For | None
    others: tuple[Axis, ...]
    products: tuple[Product, ...]
    lets: tuple[Let, ...]
    kept: tuple[Store, ...]
    mixes: tuple[Mix, ...]
    across: Mix | None = None

    @property
    def batch(self) -> list[Axis]:
        return [f.axis for f in self.outer if f is not self.near]


def find(loop: Stmt) -> Side | None:
    """The Side that ``loop`` is, or None."""
    if not isinstance(loop, For):
        return None
    outer = tuple(chain((loop,)))
    body = [s for s in outer[-1].body if not isinstance(s, Alloc)]
    if len(body) < 2 or not isinstance(body[0], For):
        return None
    loops = chain((body[0],))
    others, inner = tuple([f.axis for f in loops]), loops[-1].body
    if len(inner) < 5 or not all(isinstance(s, Let | Store) for s in inner[4:]):
        return None
    found = [_product(inner[n], inner[n + 1], others) for n in (0, 2)]
    products = tuple([p for p in found if p is not None])
    tail = body[1:]
    lets = tuple([s for s in inner[4:] if isinstance(s, Let)])
    kept = tuple([s for s in inner[4:] if isinstance(s, Store)])
    if len(products) < 2 or not 1 <= len(kept) <= 2 or any(s.mask is not None or s.reducer for s in kept):
        return None
    across = _across(tail[-1], others, kept)
    if across is not None:
        tail = tail[:-1]
    mixes = tuple([m for s in tail if (m := _mix(s, others, kept)) is not None])
    if len(mixes) < len(tail) or not _apart(loop, kept):
        return None
    theirs = {a for e in (*(p.other for p in products), *(m.factor for m in mixes)) for a in free_atoms(e)}
    mine = [free_atoms(p.near) for p in products]
    rows = [f for f in outer if all(f.axis in m for m in mine) and f.axis not in theirs]
    near = max(rows, key=lambda f: estimate(f.axis.extent), default=None)
    return Side(outer, near, others, products, lets, kept, mixes, across)


def gradient(body: Sequence[Stmt]) -> Side | None:
    """The Side that the body of a kernel is, one nest or both; None if it is neither."""
    sides = [find(s) for s in body]
    if len(sides) == 1:
        return sides[0]
    return whole(sides[0], sides[1]) if len(sides) == 2 and sides[0] is not None and sides[1] is not None else None


def reads(side: Side) -> list[Load]:
    """What weights and slopes are made of, each load once."""
    values = [s.value for s in (*side.lets, *side.kept)]
    return list({id(p): p for v in values for p in parts(v) if isinstance(p, Load)}.values())


def whole(queries: Side, keys: Side) -> Side | None:
    """``keys`` with the sums of ``queries`` as ``across``; None unless both are of the same attention."""
    if queries.near is None or keys.near is None or len(queries.others) != 1 or len(queries.mixes) != 1 or queries.across:
        return None
    at = _places(queries, keys)
    if at is None or any(len(s.products) != 2 for s in (queries, keys)):
        return None
    there = Substitution(at)
    for mine, theirs in zip(queries.products, keys.products, strict=True):
        if mine.depth.extent != theirs.depth.extent:
            return None
        there.atoms[mine.depth] = ix(theirs.depth)
        there.rename(mine.total.name, theirs.total)
        if not same(there.expr(mine.near), theirs.other) or not same(there.expr(mine.other), theirs.near):
            return None
    slope = there.expr(folded(queries.lets, queries.kept[0].value))
    for number, store in enumerate(keys.kept):
        if store.buffer.dtype == queries.kept[0].buffer.dtype and same(slope, folded(keys.lets, store.value)):
            mix = queries.mixes[0]
            across = Mix(mix.columns, mix.total, number, there.expr(mix.factor), there.body(mix.body))
            return replace(keys, across=across)
    return None


def visible(side: Side) -> Index | None:
    """An index that is positive where a row sees another, ``c + other - near`` or ``c + near - other``; None if all are seen."""
    if side.near is None:
        return None
    first, *others = [rooms(folded(side.lets, store.value)) for store in side.kept]
    told = {Opaque(s.var.name) for s in side.lets}
    for room in first:
        near, rest = split(room, side.near.axis)
        step, rest = split(rest, side.others[-1])
        if constant(near) not in (1, -1) or constant(step) != -(constant(near) or 0) or not told.isdisjoint(atoms(rest)):
            continue
        if all(room in them for them in others) and not any(depends_on(rest, a) for a in (side.near.axis, *side.others)):
            return room
    return None


def rooms(value: Expr) -> list[Index]:
    """Indices that are positive where ``value`` is not 0: ``exp(masked score - …)``, times something, or a choice of it and 0."""
    found: list[Index | None] = []
    while isinstance(value, Op):
        if value.name in ("cast", "mul"):
            value = value.args[0]
        elif value.name == "select" and is_constant(value.args[2], 0.0):
            found.append(room_of(value.args[0]))
            value = value.args[1]
        elif value.name == "exp" and isinstance(value.args[0], Op) and value.args[0].name == "sub":
            found += map(room_of, masks(value.args[0].args[0])[0])
            break
        else:
            break
    return [room for room in found if room is not None]


# ---------------------------------------------------------------- parts


def _product(acc: Stmt, loop: Stmt, others: Sequence[Axis]) -> Product | None:
    if not isinstance(acc, Acc) or acc.reducer != "add" or not isinstance(loop, For):
        return None
    pair = factors(loop, acc.vars[0])
    if pair is None:
        return None
    used = [any(a in free_atoms(e) for a in others) for e in pair]
    if used == [False, True]:
        return Product(acc.vars[0], loop.axis, pair[0], pair[1])
    return Product(acc.vars[0], loop.axis, pair[1], pair[0]) if used == [True, False] else None


def _mix(loop: Stmt, others: Sequence[Axis], kept: Sequence[Store]) -> Mix | None:
    if not isinstance(loop, For) or len(loop.body) < 3:
        return None
    acc, summed, *rest = loop.body
    if not isinstance(acc, Acc) or acc.reducer != "add" or not isinstance(summed, For):
        return None
    loops = chain((summed,))
    at = _aligned([f.axis for f in loops], others)
    pair = factors(loops[-1], acc.vars[0])
    if at is None or pair is None or not all(isinstance(s, Let | Store) for s in rest):
        return None
    weight = pair[0]
    if isinstance(weight, Op) and weight.name == "cast":
        weight = weight.args[0]
    there = Substitution(at)
    weight, factor = there.expr(weight), there.expr(pair[1])
    if not isinstance(weight, Load) or weight.mask is not None:
        return None
    for number, store in enumerate(kept):
        if store.buffer is weight.buffer and store.index == weight.index:
            return Mix(loop.axis, acc.vars[0], number, factor, tuple(rest))
    return None


def _across(loop: Stmt, others: Sequence[Axis], kept: Sequence[Store]) -> Mix | None:
    """Of loops over the others and over columns that add to memory."""
    if not isinstance(loop, For):
        return None
    loops = chain((loop,))
    store = loops[-1].body[0]
    at = _aligned([f.axis for f in loops[:-1]], others)
    if at is None or len(loops[-1].body) != 1 or not isinstance(store, Store) or store.reducer != "add" or store.mask is not None:
        return None
    there = Substitution(at)
    value, index = there.expr(store.value), tuple([there.index(i) for i in store.index])
    if not isinstance(value, Op) or not is_product(value):
        return None
    weight = value.args[0]
    if isinstance(weight, Op) and weight.name == "cast":
        weight = weight.args[0]
    if not isinstance(weight, Load) or weight.mask is not None:
        return None
    total = Var("across", value.dtype)
    for number, other in enumerate(kept):
        if other.buffer is weight.buffer and other.index == weight.index:
            return Mix(loops[-1].axis, total, number, value.args[1], (Store(store.buffer, index, total, None, "add"),))
    return None


def _aligned(axes: Sequence[Axis], others: Sequence[Axis]) -> dict[Atom, Index] | None:
    """What each of ``axes`` is where the same rows are told by ``others``."""
    if [a.extent for a in axes] == [a.extent for a in others]:
        return {a: ix(b) for a, b in zip(axes, others, strict=True)}
    if len(axes) == 1 and axes[0].extent == numel([a.extent for a in others]):
        return {axes[0]: _number(others)}
    return None


def _number(axes: Sequence[Axis]) -> Index:
    """The number of an iteration of loops over ``axes``."""
    number = ix(0)
    for axis in axes:
        number = number * axis.extent + axis
    return number


def _places(queries: Side, keys: Side) -> dict[Atom, Index] | None:
    """What axes of ``queries`` are by those of ``keys``: rows of queries are the same in the same order."""
    assert queries.near is not None
    assert keys.near is not None
    if queries.others[0].extent != keys.near.axis.extent:
        return None
    theirs, mine = [*keys.batch, *keys.others], [*queries.batch, queries.near.axis]
    if numel([a.extent for a in theirs]) != numel([a.extent for a in mine]):
        return None
    at: dict[Atom, Index] = {queries.others[0]: ix(keys.near.axis)}
    number = _number(theirs)
    for axis in reversed(mine):
        at[axis] = number if axis is mine[0] else mod(number, axis.extent)
        number = floordiv(number, axis.extent)
    return at


def _apart(loop: For, kept: Sequence[Store]) -> bool:
    """Whether nothing that the nest stores, but for what is kept, is read in it."""
    read = {id(p.buffer) for s in statements((loop,)) for e in exprs(s) for p in parts(e) if isinstance(p, Load)}
    return read.isdisjoint({id(s.buffer) for s in stores((loop,))} - {id(s.buffer) for s in kept})
