"""The primitive ``TensorCores``: a contraction of narrow floats by the tensor cores of a GPU, its epilogue where the sums are.

    for i in M { for j in N { acc s = add; for k in K { s add= product(f32(x[…]), f32(w[…])) }; y[…] = f(s) } }
      →  for g in 132 block { for turn in … {                  # each block takes tiles in turns
           i_at = …; j_at = …
           alloc sums: f32[256, 128] @local = add               # 128 x 256 of them, 128 in each thread
           for k_o in ceil(K/64) pipeline(4) {
             alloc left: bf16[128, 64] @shared; alloc right: bf16[256, 64] @shared
             for i in 128 instr(tma) { for k in 64 { left[i, k] = x[…] } }; …
             for t in 256 thread(256) { for r in 128 instr(wgmma) { for k in 64 { sums[t, r] add= product(…) } } }
           }
           for c in 4 pipeline(2) {                             # the epilogue, 64 columns at a time
             alloc strip: bf16[128, 64] @shared
             for t in 256 thread(256) { for h in 2 { for j in 8 { for v in 2 vector(2) { strip[…] = f(sums[…]) } } } }
             for i in 128 instr(tma) { for j in 64 { y[…] = strip[i, j] if … } }
           }
         } }

``ir/tiles.py`` and ``ir/outlets.py`` say what the nests in it are.  What a tile has beyond the edges is 0, and no result there is
stored.  Results that the copying engine cannot store (rows that are no multiple of 16 bytes) threads store themselves, without
strips, and those of columns behind the last whole strip.  Tiles are numbered so that blocks at work at one time share rows and
columns in the L2 cache.

Factors of f32 that are rounded (TF32, ``ir/tiles.py``) are the same with 32 elements where there are 64 of 16 bits,
if both lie along the depth; those of float8 with 128.

Where there is no ``wgmma``, or the engine cannot copy, the same is done with ``mma.sync`` (``key``): each block has one tile, its
threads start the copies themselves (``instr(async)``), multiply by warps, and store the results.

With two ``teams`` of threads the turns are ``teams(2)``: while one team computes and stores what it makes of its sums, the other
multiplies.
"""

from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir import tiles
from lowc.ir.index import (
    Atom,
    Axis,
    Index,
    constant,
    contiguous_strides,
    depends_on,
    floordiv,
    ix,
    lower_bound,
    minimum,
    mod,
)
from lowc.ir.nodes import SERIAL, Alloc, Buffer, Expr, For, Kind, Load, Op, Stmt, Store
from lowc.ir.pieces import is_async
from lowc.ir.types import DType, f32, i8, i32
from lowc.ir.walk import Substitution, both, free_atoms, with_mask, zero_outside
from lowc.scheduler.contraction import Contraction, contiguous, find
from lowc.scheduler.nest import nested, numel
from lowc.scheduler.rename import coordinate, fresh
from lowc.scheduler.tile_epilogue import Epilogue, less

FEW = 64  # sums of a thread at most, where it copies pieces of fewer than 16 bytes: it needs registers for them


@dataclass(frozen=True, slots=True)
class TensorCores:
    """``axis``: the outermost loop.  ``tile``: its rows and columns; ``groups`` of 128 threads do it, each 64 rows at a time;
    ``teams`` of so many threads have tiles in turn.  ``copies``: what fills the tiles of the left and the right factor,
    ``tiles.TMA``, ``tiles.ASYNC`` or ``tiles.COPY``.  ``blocks``: the most there are at a time, 0 for one for each tile;
    ``group``: rows of tiles that are done together.  ``strips``: how many are in turn for each team; 0 where threads store.
    ``key``: what multiplies; ``shares``: of the columns, among threads that have the same rows (``tiles.MMA``)."""

    axis: str
    tile: tuple[int, int]
    stages: int
    copies: tuple[str, str]
    blocks: int
    group: int = 8
    groups: int = 2
    teams: int = 1
    strips: int = 2
    key: str = tiles.WGMMA
    shares: int = 1


def tensor_cores(loop: For, step: TensorCores, taken: set[str]) -> tuple[Stmt, ...]:
    """``loop``, a contraction, by tiles; raises ScheduleError where it is none that tensor cores can do."""
    found = find(loop)
    if found is None or found.rows is None:
        raise ScheduleError(f"the loop over {loop.axis} is no product of two matrices")
    for each in found.outer:
        if any(depends_on(each.axis.extent, f.axis) for f in found.outer):
            raise ScheduleError(f"how long {each.axis} is depends on another loop")
    if (lower_bound(found.depth.axis.extent) or 0) < 1:
        raise ScheduleError(f"{found.depth.axis} may have no iteration")
    return Tiler(found, step, taken).grid()


def narrow(factor: Expr) -> Expr:
    """The value that tiles have of ``factor``: of 16 bits, float8 or i8, of which it is the widening, or of f32, which is
    multiplied as TF32.  Raises ScheduleError if there is none."""
    eighth = tiles.of_eighth(factor)
    if eighth is not None:
        return eighth
    if isinstance(factor, Op) and factor.name == "cast" and factor.dtype == f32:
        value = factor.args[0]
        if value.dtype.kind == "f" and value.dtype.bits == 16:
            return value
    if isinstance(factor, Op) and factor.name == "cast" and factor.dtype == i32 and factor.args[0].dtype == i8:
        return factor.args[0]
    single = tiles.of_tf32(factor)
    if single is None:
        raise ScheduleError("a factor is no value of 16 bits")
    return single


def widened(value: Expr) -> Expr:
    """What is multiplied of ``value``, which tiles have: the other way round."""
    return tiles.tf32(value) if value.dtype == f32 else Op("cast", (value,), total(value))


def total(value: Expr) -> DType:
    """The type of sums of products of ``value``."""
    return i32 if value.dtype == i8 else f32


class Tiler:
    def __init__(self, found: Contraction, step: TensorCores, taken: set[str]) -> None:
        assert found.rows is not None
        self.found, self.step, self.taken = found, step, taken
        self.rows, self.columns = found.rows.axis, found.columns.axis
        self.batch = [f.axis for f in found.outer if f is not found.rows and f is not found.columns]
        self.high, self.wide = step.tile
        self.threads = step.groups * tiles.GROUP
        self.at_a_time = step.groups * tiles.GROUP_ROWS // step.shares
        self.mine = self.wide // (2 * step.shares)  # sums of a thread for the rows that are multiplied at a time
        if self.high % self.at_a_time:
            raise ScheduleError(f"{self.high} rows for {step.groups} groups of threads, each {tiles.GROUP_ROWS} at a time")
        self.span, self.total = tiles.span(narrow(found.left).dtype), total(narrow(found.left))
        self.lets: list[Stmt] = []
        self.at: dict[Atom, Index] = {}

    def axis(self, name: str, extent: int | Index) -> Axis:
        return Axis(fresh(name, self.taken), ix(extent))

    def grid(self) -> tuple[Stmt, ...]:
        down = (self.rows.extent + (self.high - 1)) // self.high
        across = (self.columns.extent + (self.wide - 1)) // self.wide
        total = numel([a.extent for a in self.batch]) * down * across
        blocks = minimum(self.step.blocks, total) if self.step.blocks else total
        block = self.axis(f"{self.rows.name}_g", blocks)
        once = not self.step.blocks or (constant(total) or self.step.blocks + 1) <= self.step.blocks
        turns = ix(1) if once else 1 + floordiv(total - 1 - block, blocks)
        number: Index = ix(block)
        turn = self.axis(f"{self.rows.name}_turn", turns)
        if constant(turns) != 1:
            number = number + ix(turn) * blocks
        self.coordinates(number, down, across)
        body = (*self.lets, *self.tile())
        if constant(turns) != 1:
            body = (For(turn, body, Kind("teams", self.step.teams) if self.step.teams > 1 else SERIAL),)
        elif self.step.teams > 1:
            raise ScheduleError("one turn for several teams")
        return (For(block, body, Kind("block")),)

    def named(self, name: str, index: Index) -> Index:
        return coordinate(name, index, self.taken, self.lets)

    def coordinates(self, number: Index, down: Index, across: Index) -> None:
        """Where tile ``number`` begins: tiles go down within groups of rows of tiles, then across, then to the next group."""
        each = down * across
        matrix = floordiv(number, each)
        for axis in reversed(self.batch):
            self.at[axis] = self.named(f"{axis.name}_at", mod(matrix, axis.extent))
            matrix = floordiv(matrix, axis.extent)
        rest = mod(number, each) if self.batch else number
        group = floordiv(rest, across * self.step.group)
        height = minimum(self.step.group, down - group * self.step.group)
        within = mod(rest, across * self.step.group)
        row, column = group * self.step.group + mod(within, height), floordiv(within, height)
        # names are those of tiles, not of where they begin: that addresses are multiples of 16 bytes shall be seen
        self.at[self.rows] = self.named(f"{self.rows.name}_tile", row) * self.high
        self.at[self.columns] = self.named(f"{self.columns.name}_tile", column) * self.wide

    # ------------------------------------------------------------ the sums

    def tile(self) -> list[Stmt]:
        each = self.high * self.wide // self.threads
        shape, strides = (ix(self.threads), ix(each)), (ix(each), ix(1))
        sums = Buffer(fresh("sums", self.taken), self.total, shape, strides, "local")
        turns = (self.found.depth.axis.extent + (self.span - 1)) // self.span
        outer = self.axis(f"{self.found.depth.axis.name}_o", turns)
        left, left_fill = self.fill("left", self.found.left, self.rows, self.high, outer, self.step.copies[0])
        right, right_fill = self.fill("right", self.found.right, self.columns, self.wide, outer, self.step.copies[1])
        thread, number = self.axis("t", self.threads), self.axis("r", each)
        deep = self.axis("k", self.span)
        t, r, k = ix(thread), ix(number), ix(deep)
        row = tiles.row_of_many(t, r, self.mine, self.at_a_time)
        column = tiles.column_of_many(t, r, self.mine, self.at_a_time)
        places = ((left, row), (right, column))
        factors = tuple([widened(Load(buffer, tiles.place(buffer, where, k))) for buffer, where in places])
        add = Store(sums, (t, r), Op("product", factors, self.total), None, "add")
        instruction = For(number, (For(deep, (add,)),), Kind("instr", 0, self.step.key))
        multiply = For(thread, (instruction,), Kind("thread", self.threads))
        body = (Alloc(left), Alloc(right), left_fill, right_fill, multiply)
        return [Alloc(sums, "add"), For(outer, body, Kind("pipeline", self.step.stages)), *self.epilogue(sums)]

    def fill(self, name: str, factor: Expr, across: Axis, size: int, outer: Axis, key: str) -> tuple[Buffer, For]:
        """The tile of ``factor``, and the nest that fills it with ``size`` places along ``across``."""
        value = narrow(factor)
        depth = self.found.depth.axis
        masked: set[Atom] = free_atoms(value.mask) if isinstance(value, Load) and value.mask is not None else set()
        # a slice of a depth is whole spans, and the factor itself says where the depth ends
        sliced = depth in masked and (constant(depth.extent) or 1) % self.span == 0
        told = sliced and across in masked  # what a window sees (``im2col``)
        i, k = self.axis(across.name, self.span), self.axis("k", self.span)
        if contiguous(factor, across) and not contiguous(factor, depth):
            if value.dtype.bits != 16:
                raise ScheduleError(f"tiles of {value.dtype} lie along the depth")
            if size % tiles.SPAN:
                raise ScheduleError(f"{size} columns are no whole rows of a tile")
            chunk = self.axis("c", size // tiles.SPAN)
            axes, position = (chunk, k, i), ix(chunk) * tiles.SPAN + i
        else:
            i = Axis(i.name, ix(size))
            axes, position = (i, k), ix(i)
        shape = tuple([a.extent for a in axes])
        tile = Buffer(fresh(name, self.taken), value.dtype, shape, contiguous_strides(shape), "shared")
        at = {**self.at, across: self.at[across] + position, depth: ix(outer) * self.span + k}
        value = Substitution(at).expr(value)
        inside: Expr | None = None
        bounded = [*(() if sliced else (depth,)), across, *(() if told else self.batch)]
        if self.step.key == tiles.MMA:  # the engine needs to be told all dimensions
            whole = {depth: self.span, across: size}
            bounded = [a for a in bounded if a in whole and (constant(a.extent) or 1) % whole[a]]
        for axis in bounded:
            inside = both(inside, less(at[axis], axis.extent))
        if inside is not None:
            value = with_mask(value, inside, {})
            value = value if isinstance(value, Load) else zero_outside(value, inside)
        store = Store(tile, tuple([ix(a) for a in axes]), value)
        nest = nested(axes, (store,))[0]
        assert isinstance(nest, For)
        nest = For(nest.axis, nest.body, Kind("instr", 0, key))
        found = tiles.fill(nest)
        if found is None or (key == tiles.TMA and tiles.box(found) is None):
            raise ScheduleError(f"the {name} factor is no box that the copying engine takes")
        if key == tiles.ASYNC and not is_async(found):
            raise ScheduleError(f"the {name} factor is no pieces of memory")
        if key == tiles.ASYNC and self.high * self.wide > FEW * self.threads and not is_async(found, 16):
            raise ScheduleError("threads have no registers for many small pieces")
        return tile, nest

    def epilogue(self, sums: Buffer) -> list[For]:
        step = self.step
        return Epilogue(self.found, self.at, step.tile, self.threads, step.strips, self.taken, step.shares).nests(sums)
