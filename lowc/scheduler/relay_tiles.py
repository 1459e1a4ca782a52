"""What kernels of products in a row have in common: grids, tiles, instructions, and the strips that results leave through.

``relay`` makes attention of it; ``ir/relays.py`` says what the nests are.
"""

from collections.abc import Sequence
from dataclasses import replace

from lowc.errors import ScheduleError
from lowc.ir import outlets, tiles
from lowc.ir.boxes import dimensions
from lowc.ir.index import (
    ONE,
    Atom,
    Axis,
    FloorDiv,
    Index,
    atoms,
    constant,
    contiguous_strides,
    depends_on,
    floordiv,
    ix,
    minimum,
    mod,
    split,
)
from lowc.ir.nodes import APART, Alloc, Buffer, Expr, For, Kind, Load, Op, Stmt, Store, Var
from lowc.ir.types import DType, f32
from lowc.ir.walk import Substitution, both, free_atoms, with_mask
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import coordinate, coordinates, fresh, let
from lowc.scheduler.tile_epilogue import less

UNROLL = Kind("unroll", 128)
PAIR = Kind("vector", 2)
PIECE = 8  # columns of which a thread has two neighbours


def turn_by_turn(apart: int, loops: int) -> tuple[Kind, ...]:
    """Kinds of so many nested loops, the first of which run turn by turn: registers of a turn are those of the next."""
    return tuple([replace(UNROLL, key=APART) if n < apart else UNROLL for n in range(loops)])


class RelayTiles:
    """``outer``: the loops around, of which ``rows`` is shared among blocks, ``groups`` of 128 threads having 64 each."""

    def __init__(self, outer: Sequence[For], rows: Axis, groups: int, taken: set[str]) -> None:
        for each in outer:
            if any(depends_on(each.axis.extent, f.axis) for f in outer):
                raise ScheduleError(f"how long {each.axis} is depends on another loop")
        self.rows, self.groups, self.taken = rows, groups, taken
        self.batch = [f.axis for f in outer if f.axis is not rows]
        self.threads, self.high = groups * tiles.GROUP, groups * tiles.GROUP_ROWS
        self.lets: list[Stmt] = []
        self.at: dict[Atom, Index] = {}

    # ------------------------------------------------------------ names

    def axis(self, name: str, extent: int | Index) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    def local(self, name: str, count: int, reducer: str = "", dtype: DType = f32) -> Alloc:
        """An array of ``count`` for each thread."""
        shape, strides = (ix(self.threads), ix(count)), (ix(count), ONE)
        return Alloc(Buffer(fresh(name, self.taken), dtype, shape, strides, "local"), reducer)

    def named(self, name: str, index: Index) -> Index:
        return coordinate(name, index, self.taken, self.lets)

    def let(self, name: str, value: Expr, body: list[Stmt]) -> Var:
        return let(name, value, self.taken, body)

    def threaded(self, axis: Axis, body: Sequence[Stmt]) -> For:
        return For(axis, tuple(body), Kind("thread", self.threads))

    # ------------------------------------------------------------ the grid

    def tile(self) -> list[Stmt]:
        """What a block does for one tile of rows."""
        raise NotImplementedError

    def shared(self) -> tuple[Expr, ...]:
        """Factors that several heads may have in common."""
        raise NotImplementedError

    def grid(self, late_first: bool, most: int, heads: int = 1) -> tuple[Stmt, ...]:
        """Blocks, ``most`` at a time if that is not 0, ``late_first``: the last rows first; else those of so many ``heads`` come
        before others, the first rows of each first."""
        down = (self.rows.extent + (self.high - 1)) // self.high
        several = numel([a.extent for a in self.batch])
        total = several * down
        blocks = minimum(most, total) if most else total
        block = self.axis(f"{self.rows.name}_g", blocks)
        number, loop = ix(block), None
        if most and (constant(total) or most + 1) > most:
            loop = self.axis(f"{self.rows.name}_turn", 1 + floordiv(total - 1 - block, blocks))
            number = number + ix(loop) * blocks
        if late_first:
            matrix, tile = mod(number, several), down - 1 - floordiv(number, several)
        else:
            group, within = floordiv(number, down * heads), mod(number, down * heads)
            matrix, tile = group * heads + mod(within, ix(heads)), floordiv(within, ix(heads))
        self.at.update(coordinates(matrix, self.batch, "at", self.taken, self.lets))
        self.at[self.rows] = self.named(f"{self.rows.name}_tile", tile) * self.high
        self.share()
        body = self.tile()
        body = [*self.lets, *body]
        return (For(block, tuple(body) if loop is None else (For(loop, tuple(body)),), Kind("block")),)

    def share(self) -> None:
        """Gives names to what several heads have in common: ``h // 4``."""
        for factor in self.shared():
            for atom in list(free_atoms(factor)):
                if not isinstance(atom, FloorDiv) or atom in self.at or constant(atom.den) is None:
                    continue
                inside = [a for a in atoms(atom.num) if isinstance(a, Axis)]
                if len(inside) == 1 and inside[0] in self.batch and atom.num == ix(inside[0]):
                    self.at[atom] = self.named(f"{inside[0].name}_shared", floordiv(self.at[inside[0]], atom.den))

    # ------------------------------------------------------------ tiles

    def fill(
        self, name: str, value: Expr, across: Axis, start: Index, size: int, along: Axis, turned: bool
    ) -> tuple[Buffer, For]:
        """The tile of ``value`` for ``size`` places of ``across`` from ``start`` on, and all of ``along``, which rows of the tile
        lie along; and the nest that fills it.  ``turned``: ``along`` are columns, not the depth, of the product."""
        chunks = -(-(constant(along.extent) or 0) // tiles.SPAN)
        chunk, i, k = self.axis("c", chunks), self.axis(across.name, size), self.axis("k", tiles.SPAN)
        flat = chunks == 1 and not turned
        axes = (i, k) if flat else (chunk, i, k)
        at = {**self.at, across: start + i, along: ix(k) + (ix(0) if flat else ix(chunk) * tiles.SPAN)}
        shape = tuple([a.extent for a in axes])
        tile = Buffer(fresh(name, self.taken), value.dtype, shape, contiguous_strides(shape), "shared")
        inside: Expr | None = None
        told = dimensions(value.mask) if isinstance(value, Load) else []  # a range of keys ends where all of them do
        whole = any(split(coordinate, across)[0] == ONE for coordinate, _ in told)
        for axis in (along, *(() if whole else (across,)), *self.batch):
            if axis in at:
                inside = both(inside, less(at[axis], axis.extent))
        for atom, there in self.at.items():
            if isinstance(atom, FloorDiv):
                axis = next(a for a in atoms(atom.num) if isinstance(a, Axis))
                inside = both(inside, less(there, floordiv(axis.extent + (atom.den - 1), atom.den)))
        assert inside is not None
        there = with_mask(Substitution(at).expr(value), inside, {})
        nest = nested(axes, (Store(tile, tuple([ix(a) for a in axes]), there),))[0]
        assert isinstance(nest, For)
        nest = For(nest.axis, nest.body, Kind("instr", 0, tiles.TMA))
        filled = tiles.fill(nest)
        if filled is None or tiles.box(filled) is None:
            raise ScheduleError(f"{name} is no box that the copying engine takes")
        return tile, nest

    def instruction(self, t: Axis, r: Axis, k: Axis, sums: Buffer, left: Load, right: Load) -> For:
        product = Op("product", (Op("cast", (left,), f32), Op("cast", (right,), f32)), f32)
        add = Store(sums, (ix(t), ix(r)), product, None, "add")
        return self.threaded(t, (For(r, (For(k, (add,)),), Kind("instr", 0, tiles.WGMMA)),))

    def drain(self, store: Store, strip: Axis, columns: Axis) -> tuple[Buffer, For] | None:
        """A strip along ``columns``, and the nest that stores it, if the engine can."""
        if store.reducer or store.mask is not None or store.buffer.dtype.bits != 16:
            return None
        g, i = self.axis("g", self.groups), self.axis(self.rows.name, tiles.GROUP_ROWS)
        k = self.axis(columns.name, tiles.SPAN)
        row = self.at[self.rows] + ix(g) * tiles.GROUP_ROWS + i
        at = {**self.at, self.rows: row, columns: ix(strip) * tiles.SPAN + k}
        shape = (g.extent, i.extent, k.extent)
        buffer = Buffer(fresh("strip", self.taken), store.buffer.dtype, shape, contiguous_strides(shape), "shared")
        inside: Expr | None = None
        for axis in (*self.batch, self.rows, columns):
            inside = both(inside, less(at[axis], axis.extent))
        index = tuple([Substitution(at).index(n) for n in store.index])
        nest = nested((g, i, k), (Store(store.buffer, index, Load(buffer, (ix(g), ix(i), ix(k))), inside),))[0]
        assert isinstance(nest, For)
        nest = For(nest.axis, nest.body, Kind("instr", 0, tiles.TMA))
        found = outlets.drain(nest)
        return (buffer, nest) if found is not None and outlets.box(found) is not None else None
