"""Blocks of attention on a CPU: what its forms (``online``, ``online_dots``) have in common.

A form is a loop over blocks of rows; in it, loops over blocks of keys: first those that every row of the block sees, then those
that only some see, or that end with the last key.
"""

import functools
import math
from collections.abc import Callable, Sequence

from lowc.errors import ScheduleError
from lowc.ir.index import (
    Atom,
    Axis,
    Index,
    Opaque,
    constant,
    depends_on,
    floordiv,
    ix,
    maximum,
    minimum,
    mod,
    split,
)
from lowc.ir.nodes import Alloc, Buffer, Const, Expr, For, Kind, Load, Op, Stmt, Store
from lowc.ir.types import bool_
from lowc.ir.walk import Substitution, free_atoms, parts
from lowc.scheduler.attention import Attention, find, masks, seen, since
from lowc.scheduler.nest import numel
from lowc.scheduler.rename import coordinates
from lowc.scheduler.scratch import Scratch

Turn = Callable[[Index, Index, Expr], Sequence[Stmt]]


def attention(loop: For) -> Attention:
    """What ``loop`` is; raises ScheduleError where blocks are not possible."""
    found = find(loop)
    if found is None:
        raise ScheduleError(f"the loop over {loop.axis.name} is no attention")
    if any(depends_on(f.axis.extent, g.axis) for f in found.outer for g in found.outer):
        raise ScheduleError(f"how long a loop within {loop.axis.name} is depends on another loop")
    if constant(found.depth.extent) is None or constant(found.columns.extent) is None:
        raise ScheduleError(f"heads of {found.depth.extent} and {found.columns.extent}")
    return found


class Blocks(Scratch):
    """``at``: what axes of ``found`` are; ``first``: the first row of the block; ``size``: keys at a time; ``limit``: how many
    keys a row sees, as many as the row before or one more (None: all), and ``inner`` the score where it does see one; ``begin``:
    the first key that it sees (None: 0)."""

    def __init__(self, found: Attention, size: int, lanes: int, taken: set[str]) -> None:
        super().__init__(found.product.dtype, lanes, taken)
        self.found, self.size = found, size
        self.rows = None if found.rows is None else found.rows.axis
        self.batch = [f.axis for f in found.outer if f is not found.rows]
        self.limit, self.inner = seen(found)
        self.begin = since(found)
        self.at: dict[Atom, Index] = {}
        self.first = ix(0)

    # ------------------------------------------------------------ loops

    def grid(self, rows: int, kind: Kind, block: Callable[[], Sequence[Stmt]]) -> tuple[Stmt, ...]:
        """The loop over blocks of ``rows``, of which ``block`` is made once ``at`` and ``first`` are known."""
        down = ix(1) if self.rows is None else (self.rows.extent + (rows - 1)) // rows
        number = self.axis("block", numel([a.extent for a in self.batch]) * down)
        matrix, tile = floordiv(ix(number), down), mod(ix(number), down)
        if self.limit is not None:  # blocks of few keys and of many take turns, so that cores have equal shares
            pair, late = floordiv(tile, ix(2)), mod(tile, ix(2))
            tile = pair + late * (down - 1 - pair * 2)
        lets: list[Stmt] = []
        self.at.update(coordinates(matrix, self.batch, "b", self.taken, lets))
        if self.rows is not None:
            self.first = self.named(f"{self.rows.name}_b", tile, lets) * rows
        body = (*lets, *block())
        if constant(number.extent) == 1:
            return Substitution({number: ix(0)}).body(body)
        return (For(number, body, kind),)

    def turns(self, rows: int, turn: Turn) -> tuple[Stmt, ...]:
        """The loops over blocks of keys for ``rows`` of queries; ``turn`` is told the first key, how many there are, and the
        score."""
        size, keys = self.size, self.found.keys.extent
        out: list[Stmt] = []
        last = whole = keys
        if self.limit is not None:
            last = self.named("last", minimum(keys, self.of_row(self.limit, rows - 1)), out)
            whole = minimum(keys, maximum(self.of_row(self.limit, 0), 0))
        if self.begin is not None:  # all blocks from there on have masks
            whole = minimum(keys, maximum(self.of_row(self.begin, 0), 0))
        whole = self.named("whole", floordiv(whole, ix(size)), out)
        edges = self.named("edges", floordiv(last + (size - 1), ix(size)) - whole, out)
        if constant(whole) != 0 and self.begin is None:
            number = self.axis("turn", whole)
            out.append(For(number, tuple(turn(ix(number) * size, ix(size), self.inner))))
        if constant(edges) == 1 and constant(last) is not None and constant(whole) is not None:
            out += turn(whole * size, last - whole * size, self.found.score)
        elif constant(edges) != 0:
            number = self.axis("turn", edges)
            start, lets = (whole + number) * size, list[Stmt]()
            count = self.named("count", minimum(size, last - start), lets)
            out.append(For(number, (*lets, *turn(start, minimum(size, count), self.found.score))))
        return tuple(out)

    def of_row(self, index: Index, row: int) -> Index:
        """``index`` for a row of the block."""
        rows = {} if self.rows is None else {self.rows: self.first + row}
        return Substitution({**self.at, **rows}).index(index)

    def told(self, score: Expr, lanes: Axis) -> Expr | None:
        """Where a key is seen as far as masks of ``score`` tell before there are scores, from what is contiguous along ``lanes``
        or one for all of them; None where none of them reads data."""
        needs = {Opaque(self.found.product.name), *(Opaque(s.var.name) for s in self.found.lets)}
        conditions: list[Expr] = []
        data = False
        for condition in masks(score)[0]:
            loads = [p for p in parts(condition) if isinstance(p, Load)]
            plain = all(p.mask is None and constant(split(p.index[0], lanes)[0]) in (0, 1) for p in loads)
            if plain and needs.isdisjoint(free_atoms(condition)):
                conditions.append(condition)
                data = data or bool(loads)
        return functools.reduce(lambda a, b: Op("and", (a, b), bool_), conditions) if data else None

    # ------------------------------------------------------------ rows

    def grown(self, top: Expr, best: Expr) -> tuple[list[Stmt], Expr, Expr, Expr]:
        """(statements before, what is taken off scores, the greatest score now, by what earlier sums shrink) where the greatest
        score was ``top`` and is ``best``."""
        body: list[Stmt] = []
        new = self.let("new", best, body)
        less = self.let("less", self.shift(new), body)
        return body, less, new, Op("exp", (Op("sub", (top, less), self.dtype),), self.dtype)

    def shift(self, top: Expr) -> Expr:
        """What is taken off scores: the greatest, or 0."""
        none = Op("eq", (top, Const(-math.inf, self.dtype)), bool_)
        return Op("select", (none, Const(0.0, self.dtype), top), self.dtype)

    def known(self, top: Expr, total: Expr) -> dict[str, Expr]:
        """What results of a row are made of."""
        return {self.found.total.name: total, self.found.shift.name: self.shift(top)}

    def narrowed(self, weight: Expr) -> Expr:
        """``weight`` as it is multiplied."""
        if self.found.weight == self.dtype:
            return weight
        return Op("cast", (Op("cast", (weight,), self.found.weight),), self.dtype)


def greater(one: Expr, other: Expr) -> Expr:
    """The greater, and ``other`` if one is NaN."""
    return Op("select", (Op("gt", (one, other), bool_), one, other), one.dtype)


def settled(add: Store) -> Store:
    return Store(add.buffer, add.index, add.value)


def shrunk(add: Store, by: Load) -> Store:
    """What was summed so far, as the greatest score has grown, and a tile's sum."""
    less = Op("mul", (Load(add.buffer, add.index), by), add.buffer.dtype)
    return Store(add.buffer, add.index, Op("add", (less, add.value), add.buffer.dtype))


def zeroed(buffer: Buffer) -> Alloc:
    return Alloc(buffer, "add")
