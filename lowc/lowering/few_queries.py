"""Attention of few queries on a GPU: heads that share keys are rows of one tile, and ranges of keys are computed apart.

    for n in B { for h in H' { for c in C { for r in G * L {         # r // L: which of the heads that share keys
      … the nest of ``attention`` over the keys c * N … c * N + N - 1
      mixed_parts[n, h, c, r, e] = o; tops[n, h, c, r] = select(total == 0, -inf, shift); totals[n, h, c, r] = total
    } } } }
    for n in B { for h in H { for i in L { for e in E {                                                   # a kernel of its own
      shift = the greatest of tops, or 0; weight = exp(tops[c] - shift)
      out[n, h, i, e] = sum over c of weight * mixed_parts[c, e], by the sum over c of weight * totals[c]
    } } } }

So a cache is read once for all heads that share it, and by as many multiprocessors as there are.  Parts are added up in the order
of the keys: results do not change from run to run.  How many ranges: those of which a model expects the least time.  It was
measured (benchmarks/results/h200_attention.md).  After flash-decoding (Dao, Haziza, Massa, Sizov, 2023).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from lowc.ir.index import Index, constant, floordiv, ix, mod, sole_atom
from lowc.ir.nodes import Expr, Op, Var
from lowc.ir.types import accumulate_dtype, i64
from lowc.ir.walk import free_atoms, same
from lowc.lowering import flex_tiles
from lowc.lowering.attention_nest import Attention, OfRow, Over, kernel, nest, normal, score_of, sharing
from lowc.lowering.builder import Builder
from lowc.lowering.scalars import const, op, select
from lowc.lowering.values import Coords, Value

Place = Callable[[Coords], Coords]
FEW = 64  # queries of a head; more are the rows of a tile by themselves
ROWS = 64  # of a tile
KEYS = 128  # of a tile
MOST = 128  # ranges
WIDE = 256  # columns of keys and values for which times are
AT_ONCE = 8  # ranges whose results a thread loads without waiting
# Microseconds: of a tile of keys where few multiprocessors are at work, and where all are and memory has no more to give; of the
# beginning and the end; of the second kernel, of each range there, and of a MB of results of ranges.
ALONE, TOGETHER, BLOCK, COMBINED, RANGE, MEGABYTE = 1.2, 2.3, 1.6, 1.0, 0.06, 0.5


@dataclass(frozen=True, slots=True)
class Ranges:
    """``count`` ranges of ``size`` keys; ``exact``: that is how many keys there are.  ``packed``: so many heads that share keys
    are rows of one tile."""

    count: int
    size: Index
    exact: bool
    packed: int


def attention(b: Builder, asked: Attention, result: Value, of_rows: Sequence[OfRow]) -> None:
    """Stores what ``attention.kernel`` stores, by the kernels above where queries are few."""
    ranges = _ranges(b, asked)
    if ranges is None:
        kernel(b, asked, result, of_rows)
        return
    each, rows = ranges.packed, asked.q.shape[2]
    asked = _in_lines(b, asked, each)

    def place(at: Coords) -> Coords:
        """Batch, head and query of a row of the nest."""
        return at[0], at[1] * each + floordiv(at[3], rows), mod(at[3], rows)

    over = _over(b, asked, ranges, place)
    if ranges.count == 1:

        def finish(at: Coords, mixed: Expr, total: Expr) -> None:
            b.store(result, (*place(at), at[4]), normal(mixed, total))

        def of_row(at: Coords, total: Expr, shift: Expr) -> None:
            for sums, formula in of_rows:
                b.store(sums, (*place(at), ix(0))[: len(sums.shape)], formula(total, shift))

        nest(b, asked, over, finish, of_row)
        return
    wide = accumulate_dtype(asked.q.dtype)
    parts = b.temp(wide, (*over.shape, asked.v.shape[3]), name="mixed_parts")
    tops, totals = (b.temp(wide, over.shape, name=name) for name in ("tops", "totals"))

    def keep(at: Coords, total: Expr, shift: Expr) -> None:
        nothing = op("eq", total, const(0.0, wide))
        b.store(tops, at, select(nothing, const(-math.inf, wide), shift))
        b.store(totals, at, total)

    nest(b, asked, over, lambda at, mixed, _: b.store(parts, at, mixed), keep, f"{b.stem}_in_{ranges.count}_ranges_of_keys")
    _combine(b, ranges.count, (parts, tops, totals), result, of_rows, each)


def _over(b: Builder, asked: Attention, ranges: Ranges, place: Place) -> Over:
    heads, rows = asked.q.shape[1] // ranges.packed, asked.q.shape[2]
    last, shared = asked.k.shape[2], floordiv(sharing(asked), ix(ranges.packed))

    def key(at: Coords, j: Index) -> Index:
        return at[2] * ranges.size + j

    def inside(at: Coords, j: Index) -> Expr | None:
        return None if ranges.exact else op("lt", b.index(key(at, j)), b.index(last))

    def score(product: Expr, at: Coords, j: Index) -> Expr:
        value = score_of(b, asked, product, (*place(at), key(at, j)))
        seen = inside(at, j)
        return value if seen is None else select(seen, value, const(-math.inf, value.dtype))

    return Over(
        (asked.q.shape[0], heads, ix(ranges.count), ranges.packed * rows), ranges.size,
        lambda at, d: b.load(asked.q, (*place(at), d)),
        lambda at, j, d: b.load(asked.k, (at[0], floordiv(at[1], shared), key(at, j), d), inside(at, j)),
        lambda at, j, e: b.load(asked.v, (at[0], floordiv(at[1], shared), key(at, j), e), inside(at, j)),
        score,
    )  # fmt: skip


def _in_lines(b: Builder, asked: Attention, each: int) -> Attention:
    """``asked``, of queries whose rows for ``each`` heads lie at equal distances."""
    q = asked.q
    one = constant(q.shape[2]) == 1 and (q.strides is None or constant(q.strides[1]) != 0)
    if each == 1 or one:
        return asked
    if q.strides is not None and q.strides[1] == q.shape[2] * q.strides[2]:
        return asked
    return replace(asked, q=b.copy(q))


def _combine(
    b: Builder, count: int, parts: tuple[Value, Value, Value], result: Value, of_rows: Sequence[OfRow], each: int
) -> None:
    mixes, tops, totals = parts
    wide, (*shape, across) = tops.dtype, result.shape
    nothing, zero = const(-math.inf, wide), const(0.0, wide)

    def row(at: Coords) -> tuple[Coords, Coords]:
        """The place of a row among parts, before and behind the number of the part."""
        return (at[0], floordiv(at[1], ix(each))), (mod(at[1], ix(each)) * shape[2] + at[2],)

    at_once = min(AT_ONCE, -(-count // 2))

    def several(c: Index, first: Expr, load: Callable[[Index, Expr | None], Expr]) -> list[Expr]:
        """What ``load`` gives of the next ranges, ``first`` for those that there are not."""
        found: list[Expr] = []
        for number in (c * at_once + n for n in range(at_once)):
            there = None if count % at_once == 0 else op("lt", b.index(number), const(count, i64))
            value = load(number, there)
            found.append(b.let(value if there is None else select(there, value, first)))
        return found

    def reduced(name: str, parts: Sequence[Expr]) -> Expr:
        return reduce(lambda x, y: op(name, x, y), parts)

    def known(before: Coords, behind: Coords) -> Expr:
        """What is taken off scores."""
        top = b.acc("max", wide)
        with b.loop(-(-count // at_once), "c") as c:
            b.update(top, "max", reduced("max", tops_of(c, before, behind)))
        return b.let(select(op("eq", top[0], nothing), zero, top[0]))

    def tops_of(c: Index, before: Coords, behind: Coords) -> list[Expr]:
        return several(c, nothing, lambda n, there: b.load(tops, (*before, n, *behind), there))

    def weighed(c: Index, before: Coords, behind: Coords, shift: Expr, *what: tuple[Value, Coords]) -> list[Expr]:
        """Sums over the next ranges of what there is of each, times their weights."""
        found = tops_of(c, before, behind)
        loaded = [
            several(c, zero, lambda n, there, x=x, place=place: b.load(x, (*before, n, *behind, *place), there))
            for x, place in what
        ]
        weights = [b.let(op("exp", op("sub", top, shift))) for top in found]
        return [reduced("add", [op("mul", w, x) for w, x in zip(weights, each, strict=True)]) for each in loaded]

    with b.kernel(f"{b.stem}_combined"), b.loops((*shape, across), range(4)) as at:
        before, behind = row(tuple(at))
        shift = known(before, behind)
        total, mixed = b.acc("add", wide), b.acc("add", wide)
        with b.loop(-(-count // at_once), "c") as c:
            share, value = weighed(c, before, behind, shift, (totals, ()), (mixes, (at[3],)))
            b.update(total, "add", share)
            b.update(mixed, "add", value)
        b.store(result, tuple(at), normal(mixed[0], total[0]))
    if not of_rows:
        return
    with b.kernel(f"{b.stem}_combined"), b.loops(tuple(shape), range(3)) as at:
        before, behind = row(tuple(at))
        shift = known(before, behind)
        total = b.acc("add", wide)
        with b.loop(-(-count // at_once), "c") as c:
            b.update(total, "add", *weighed(c, before, behind, shift, (totals, ())))
        for sums, formula in of_rows:
            b.store(sums, (*at, ix(0))[: len(sums.shape)], formula(total[0], shift))


# ---------------------------------------------------------------- choosing


def _ranges(b: Builder, asked: Attention) -> Ranges | None:
    """None where queries are many, or nothing is gained."""
    batch, heads, rows, deep = (constant(n) for n in asked.q.shape)
    across, keys, each = constant(asked.v.shape[3]), constant(asked.k.shape[2]), constant(sharing(asked))
    if not b.processors or asked.causal or asked.q.dtype.bits != 16:
        return None
    if batch is None or heads is None or rows is None or not deep or not across or not each:
        return None
    if rows > FEW or not batch * heads * rows:
        return None
    told = _told(b, asked)
    packed = 1 if rows > 1 and told.differ else each
    blocks = batch * (heads // packed) * -(-rows * packed // ROWS)
    alone = None if packed == 1 else Ranges(1, asked.k.shape[2], True, packed)
    if keys is None:
        count = min(b.processors // blocks, MOST)
        if count < 2 or told.reads:
            return alone
        return Ranges(count, floordiv(asked.k.shape[2] + (count * KEYS - 1), ix(count * KEYS)) * KEYS, False, packed)
    tiles = -(-keys // KEYS)
    sizes = sorted({-(-tiles // n) for n in range(1, min(tiles, MOST) + 1)}, reverse=True)
    if told.reads:
        sizes = [n for n in sizes if keys % (n * KEYS) == 0]
    if told.left_out:  # all at a time: the first tile of each, computed whatever the mask says, takes no time of others'
        sizes = [n for n in sizes if blocks * -(-tiles // n) <= b.processors]
    outputs = batch * heads * rows * (across + 2) * 4e-6
    best = min(sizes, key=lambda n: _time(tiles, n, blocks, (deep + across) / WIDE, outputs, b.processors), default=tiles)
    count = -(-tiles // best)
    return alone if count == 1 else Ranges(count, ix(best * KEYS), count * best * KEYS == keys, packed)


def _time(tiles: int, size: int, blocks: int, width: float, outputs: float, processors: int) -> float:
    """Microseconds by the model, of ranges of ``size`` tiles; ``outputs``: MB of what a range gives."""
    count = -(-tiles // size)
    rounds, rest = divmod(blocks * count, processors)
    last = max(ALONE, TOGETHER * rest / processors) if rest else 0.0
    time = BLOCK + size * width * (rounds * TOGETHER + last)
    return time if count == 1 else time + COMBINED + (RANGE + MEGABYTE * outputs) * count


@dataclass(frozen=True, slots=True)
class _Told:
    """Whether scores are made of what is read: nothing is to be read beyond the last key.  Whether they ``differ`` from query
    to query by more than that: schedules read off such masks which keys a row sees, where rows are queries.  Whether tiles of
    keys are ``left_out``, as those of others' pages: nobody knows how many, and the first of a range never is.
    """

    reads: bool
    differ: bool
    left_out: bool


def _told(b: Builder, asked: Attention) -> _Told:
    if asked.score is None:
        return _Told(asked.bias is not None, False, False)
    shape = (*asked.q.shape[:3], asked.k.shape[2])
    with b.dropped(), b.loops(shape, range(4), "p") as at:
        score = asked.score(b, Var("product", accumulate_dtype(asked.q.dtype)), tuple(at))
        named = bool(b.nest.blocks[-1])
        reads, differ = bool(b.nest.params), named or sole_atom(at[2]) in free_atoms(score)
    left_out = False
    while isinstance(score, Op) and score.name == "select" and same(score.args[2], const(-math.inf, score.dtype)):
        of_keys = sole_atom(at[3]) in free_atoms(score.args[0])
        left_out = left_out or of_keys and flex_tiles.of_tile(score.args[0], at[2:])
        score = score.args[1]
    return _Told(reads, differ, left_out)
