"""Nests that are the meaning of hardware which moves and multiplies tiles (docs/design.md 1.5), recognised in their text.

    for k_o in 64 pipeline(4) {                                                   # a ring of 4 stages in shared memory
      alloc a: bf16[128, 64] @shared
      for i in 128 instr(tma) { for k in 64 { a[i, k] = x[… if i_at + i < M & k_o*64 + k < K] } }        # a Fill
      for t in 256 thread(256) { for r in 128 instr(wgmma) { for k in 64 {                               # a TileProduct
        sums[t, r] add= product(f32(a[row(t, r), k]), f32(b[column(t, r), k]))
      } } }
    }

``row`` and ``column`` are where the hardware has a thread's sum number ``r``, for 64 rows of each 128 threads; the sums of
further rows, as many again, are those after them.  A tile lies along the depth, ``[rows, 64]`` or ``[depth / 64, rows, 64]``, or
along its rows, ``[rows / 64, depth, 64]``; how the hardware swizzles it is between the fill and the product and not to be seen.

With ``instr(mma)`` each warp multiplies by itself (``mma.sync``).  Threads may have fewer rows at a time there; those beyond the
32 of each 16 rows have the next columns.  What fills the tiles is ``instr(async)``, copies that threads start and wait for later
(``ir/pieces.py``), or ``instr(copy)``.

Factors are f16 or bf16, widened, or f32 rounded to TF32 (8 bits of exponent, 10 of mantissa; to nearest, ties to even), which the
engine does while it copies, and warps as they read.  Tiles of f32 lie along the depth, ``[rows, 32]``; no thread computes them.
So do those of i8, ``[rows, 128]``, widened to i32, whose sums are exact (modulo 2**32): for warps alone.  And those of float8,
``[rows, 128]``, each factor of either type, widened to f32: for ``wgmma`` alone, which drops bits of their sums below about 14
that it keeps.  ``instr(wgmma_apart)`` means the same; it adds up each tile by itself, and its sums to the others in f32.  Float8
rounded to TF32 is what it was: that says that bits may be dropped.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product

from lowc.ir.boxes import Box, box_of
from lowc.ir.index import Index, constant, floordiv, ix, mod
from lowc.ir.nodes import Alloc, Buffer, Expr, For, Load, Op, Stmt, Store
from lowc.ir.places import places_of
from lowc.ir.types import DType, f8e4m3, f8e5m2, f32, i8, i32
from lowc.ir.walk import single, statements

COPY, TMA, ASYNC = "copy", "tma", "async"
WGMMA, MMA, APART = "wgmma", "mma", "wgmma_apart"
ABILITY = "wgmma"  # of a target
EIGHTHS = (f8e4m3, f8e5m2)
FILLS = (COPY, TMA, ASYNC)
KEYS = {f32: (TMA, ASYNC), i8: (ASYNC,), f8e4m3: (TMA,), f8e5m2: (TMA,)}
"""Of what fills tiles of types that have not 16 bits."""
WARP_ROWS = 16  # that a warp multiplies at a time
LINE = 128  # bytes of a row of a tile, over which the hardware swizzles
SPAN = 64  # elements of 16 bits in it
STEP = 32  # bytes of the depth that an instruction multiplies
GROUP = 128  # threads that multiply together, each group 64 rows
GROUP_ROWS = 64


def span(dtype: DType) -> int:
    """Elements of a row of a tile."""
    return LINE // dtype.bytes


def tf32(value: Expr) -> Expr:
    """What is multiplied of ``value`` of f32."""
    return Op("tf32", (value,), f32)


def of_tf32(expr: Expr) -> Expr | None:
    """The value of f32 of which ``expr`` is what is multiplied; None for anything else."""
    return expr.args[0] if isinstance(expr, Op) and expr.name == "tf32" and expr.dtype == f32 else None


def row(thread: Index, number: Index) -> Index:
    """The row of sum ``number`` of ``thread`` within the rows that threads multiply at a time, half as many as there are
    threads."""
    return floordiv(thread, ix(32)) * 16 + mod(floordiv(thread, ix(4)), ix(8)) + mod(floordiv(number, ix(2)), ix(2)) * 8


def column(thread: Index, number: Index) -> Index:
    """Its column."""
    return floordiv(number, ix(4)) * 8 + mod(thread, ix(4)) * 2 + mod(number, ix(2))


def held_at(row: Index, column: Index) -> tuple[Index, Index, Index, Index]:
    """Where the sum of a row and a column is among sums that lie in memory as threads have them, 64 rows at a time:
    ``[rows / 64, columns / 8, 128, 4]``.  The inverse of ``row`` and ``column``."""
    within = mod(row, ix(GROUP_ROWS))
    thread = floordiv(within, ix(16)) * 32 + mod(within, ix(8)) * 4 + floordiv(mod(column, ix(8)), ix(2))
    number = mod(floordiv(within, ix(8)), ix(2)) * 2 + mod(column, ix(2))
    return floordiv(row, ix(GROUP_ROWS)), floordiv(column, ix(8)), thread, number


def row_of_many(thread: Index, number: Index, each: int, high: int) -> Index:
    """The row in a tile that is multiplied ``high`` rows at a time, ``each`` sums of a thread for each."""
    return row(mod(thread, ix(2 * high)), number) + floordiv(number, ix(each)) * high


def column_of_many(thread: Index, number: Index, each: int, high: int) -> Index:
    """The column: every ``2 * high`` threads have the next ``2 * each``."""
    return column(thread, mod(number, ix(each))) + floordiv(thread, ix(2 * high)) * (2 * each)


def place(tile: Buffer, position: Index, depth: Index) -> tuple[Index, ...]:
    """Where a tile has the element of a row (of the left factor) or column (of the right one) at ``depth``."""
    if len(tile.shape) == 2:
        return position, depth
    return floordiv(position, ix(SPAN)), depth, mod(position, ix(SPAN))


def deep_place(tile: Buffer, position: Index, depth: Index) -> tuple[Index, ...]:
    """The same for a tile that lies along a depth of more than a row of it."""
    return floordiv(depth, ix(SPAN)), position, mod(depth, ix(SPAN))


# ---------------------------------------------------------------- fills


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """A nest that sets all of one tile: ``loops``, outermost first, are its dimensions.  ``key``: what carries it out, the
    engine that copies boxes (``TMA``) or threads (``COPY``)."""

    key: str
    loops: tuple[For, ...]
    store: Store

    @property
    def tile(self) -> Buffer:
        return self.store.buffer


def fill(stmt: Stmt) -> Fill | None:
    """The Fill that ``stmt`` is, or None."""
    found = copy_nest(stmt, FILLS)
    if found is None or found[1].mask is not None:
        return None
    loops, inside = found
    tile = inside.buffer
    if tile.space != "shared" or inside.index != tuple([ix(f.axis) for f in loops]):
        return None
    keys = KEYS.get(tile.dtype, FILLS if tile.dtype.bits == 16 else ())
    if loops[0].kind.key not in keys:
        return None
    if tile.shape != tuple([f.axis.extent for f in loops]) or constant(tile.shape[-1]) != span(tile.dtype):
        return None
    return Fill(loops[0].kind.key, loops, inside) if is_dense(tile) else None


def copy_nest(stmt: Stmt, keys: Collection[str]) -> tuple[tuple[For, ...], Store] | None:
    """The loops of an instruction of ``keys``, outermost first, and the store that each iteration makes; None for anything else.
    How often they run is known, and nothing is reduced."""
    if not isinstance(stmt, For) or stmt.kind.name != "instr" or stmt.kind.key not in keys:
        return None
    found = single(stmt)
    if found is None:
        return None
    loops, inside = found
    if any(constant(f.axis.extent) is None for f in loops) or any(f.kind.name != "serial" for f in loops[1:]):
        return None
    return (tuple(loops), inside) if isinstance(inside, Store) and not inside.reducer else None


def is_dense(tile: Buffer) -> bool:
    """Whether its elements lie one behind the other."""
    step = 1
    for size, stride in zip(reversed(tile.shape), reversed(tile.strides), strict=True):
        if constant(stride) != step:
            return False
        step *= constant(size) or 0
    return True


def box(found: Fill) -> Box | None:
    """The Box of ``found``; None if what it copies is none (``ir/boxes.py``, ``ir/places.py``).

    Every coordinate must be compared with its size in the mask (``start + axis < size``): that tells the dimensions apart.  The
    strides must be multiples of 16 bytes.
    """
    value = found.store.value
    if not isinstance(value, Load) or value.buffer.space != "global":
        return None
    what = found.loops, value.buffer, value.index[0], value.mask
    return box_of(*what) or places_of(*what)


# ---------------------------------------------------------------- products


@dataclass(frozen=True, slots=True, eq=False)
class TileProduct:
    """``loop``: over ``threads``, ``rows`` x ``columns`` sums of two tiles, ``depth`` deep, added to the array ``sums``.

    ``deep``: whether the left and the right tile lie along a depth of several rows, ``[depth / 64, rows, 64]``.  ``split``: each
    group of threads has all 64 rows and a share of the columns, instead of rows of its own.

    ``key``: what multiplies, ``WGMMA``, ``APART`` or ``MMA``.  ``shares``: of the columns, among parts of the threads
    (``MMA``)."""

    loop: For
    sums: Buffer
    left: Buffer
    right: Buffer
    threads: int
    rows: int
    columns: int
    depth: int
    deep: tuple[bool, bool] = (False, False)
    split: bool = False
    key: str = WGMMA
    shares: int = 1

    @property
    def high(self) -> int:
        """Rows that all threads multiply at a time."""
        return self.threads * GROUP_ROWS // GROUP // self.shares


def tile_product(loop: Stmt, keys: Collection[str] = (WGMMA,)) -> TileProduct | None:
    """The TileProduct by one of ``keys`` that a thread loop is, or None: every coordinate must be where the hardware has it."""
    found = single(loop)
    if found is None:
        return None
    nest, inside = found
    if len(nest) != 3 or not isinstance(inside, Store) or inside.reducer != "add" or inside.mask is not None:
        return None
    threads, numbers, depths = (f.axis for f in nest)
    key = nest[1].kind.key
    if nest[0].kind.name != "thread" or key not in keys or nest[2].kind.name != "serial":
        return None
    value = inside.value
    if not isinstance(value, Op) or value.name != "product" or value.dtype not in ((f32, i32) if key == MMA else (f32,)):
        return None
    left, right = (narrow_load(a) or _eighth_load(a) or _single_load(a) or _whole_load(a) for a in value.args)
    if left is None or right is None or inside.index != (ix(threads), ix(numbers)):
        return None
    eighths = left.dtype in EIGHTHS and right.dtype in EIGHTHS
    if not eighths and (left.dtype != right.dtype or key == APART) or eighths and key == MMA:
        return None
    sizes = [constant(i) for i in (threads.extent, numbers.extent, depths.extent)]
    count, each, depth = [n or 0 for n in sizes]
    if not count or count % GROUP or not depth or depth * left.dtype.bytes % STEP:
        return None
    if left.dtype.bits != 16 and (len(left.buffer.shape), len(right.buffer.shape)) != (2, 2):
        return None
    high = count * GROUP_ROWS // GROUP
    t, r, k = ix(threads), ix(numbers), ix(depths)
    if key == MMA:
        rows, columns = _across(left.buffer, False), _across(right.buffer, False)
        for shares in (n for n in (1, 2, 4, 8) if each * count == rows * columns and not high % (n * WARP_ROWS)):
            at_a_time, mine = high // shares, columns // (2 * shares)
            if mine % 8 or rows % at_a_time:
                continue
            places = row_of_many(t, r, mine, at_a_time), column_of_many(t, r, mine, at_a_time)
            if _is_at(left, places[0], k, depth, False) and _is_at(right, places[1], k, depth, False):
                return TileProduct(
                    nest[0], inside.buffer, left.buffer, right.buffer, count, rows, columns, depth, key=MMA, shares=shares
                )
        return None
    for left_deep, right_deep in product((False, True), repeat=2):
        rows, columns = _across(left.buffer, left_deep), _across(right.buffer, right_deep)
        if columns % 8 or rows % high or each * high * 2 != rows * columns:
            continue
        row_, column_ = row_of_many(t, r, columns // 2, high), column_of_many(t, r, columns // 2, high)
        if _is_at(left, row_, k, depth, left_deep) and _is_at(right, column_, k, depth, right_deep):
            deep = left_deep, right_deep
            return TileProduct(nest[0], inside.buffer, left.buffer, right.buffer, count, rows, columns, depth, deep, key=key)
    rows, columns = _across(left.buffer, False), _across(right.buffer, False)
    if rows == GROUP_ROWS and columns == 2 * each * (count // GROUP):
        mine = row(mod(t, ix(GROUP)), r), column(t, r) + floordiv(t, ix(GROUP)) * (2 * each)
        if _is_at(left, mine[0], k, depth, False) and _is_at(right, mine[1], k, depth, False):
            return TileProduct(nest[0], inside.buffer, left.buffer, right.buffer, count, rows, columns, depth, split=True)
    return None


def _is_at(factor: Load, position: Index, at: Index, depth: int, deep: bool) -> bool:
    """Whether ``factor`` is read there from a tile that lies that way."""
    if not deep:
        return factor.index == place(factor.buffer, position, at)
    if len(factor.index) != 3 or depth > (constant(factor.buffer.shape[0]) or 0) * SPAN:
        return False
    return factor.index == deep_place(factor.buffer, position, at)


def _across(tile: Buffer, deep: bool) -> int:
    """Rows (or columns) that a tile has of its factor."""
    if deep:
        return (constant(tile.shape[1]) or 0) if len(tile.shape) == 3 else 0
    return (constant(tile.shape[0]) or 0) * (1 if len(tile.shape) == 2 else SPAN)


def narrow_load(factor: Expr, space: str = "shared") -> Load | None:
    """The load of 16 bits, from a tile, that ``factor`` is the widening of."""
    if not isinstance(factor, Op) or factor.name != "cast" or not isinstance(factor.args[0], Load):
        return None
    load = factor.args[0]
    narrow = load.dtype.kind == "f" and load.dtype.bits == 16
    return load if narrow and load.mask is None and load.buffer.space == space else None


def of_eighth(factor: Expr) -> Expr | None:
    """The value of float8 that ``factor`` is in f32; None for anything else."""
    wide = of_tf32(factor) or factor
    narrow = wide.args[0] if isinstance(wide, Op) and wide.name == "cast" and wide.dtype == f32 else None
    return narrow if narrow is not None and narrow.dtype in EIGHTHS else None


def _eighth_load(factor: Expr) -> Load | None:
    """The load of float8 from a tile that ``factor`` is the widening of."""
    load = of_eighth(factor)
    return load if isinstance(load, Load) and load.mask is None and load.buffer.space == "shared" else None


def _single_load(factor: Expr) -> Load | None:
    """The load of f32 from a tile of which ``factor`` is what is multiplied."""
    load = of_tf32(factor)
    return load if isinstance(load, Load) and load.mask is None and load.buffer.space == "shared" else None


def _whole_load(factor: Expr) -> Load | None:
    """The load of i8 from a tile that ``factor`` is the widening of."""
    load = factor.args[0] if isinstance(factor, Op) and factor.name == "cast" and factor.dtype == i32 else None
    whole = isinstance(load, Load) and load.dtype == i8 and load.mask is None and load.buffer.space == "shared"
    return load if isinstance(load, Load) and whole else None


# ---------------------------------------------------------------- pipelines


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """``loop``: its tiles are a ring of as many stages as it is wide."""

    loop: For
    tiles: tuple[Buffer, ...]
    fills: tuple[Fill, ...]
    product: TileProduct


def pipelines(body: Sequence[Stmt]) -> list[For]:
    """The pipelined loops in ``body`` that multiply (the others are ``outlets``)."""
    found = [s for s in statements(body) if isinstance(s, For) and s.kind.name == "pipeline"]
    return [s for s in found if not is_outlet(s)]


def is_outlet(loop: For) -> bool:
    """Whether a pipelined loop ends with a store of the copying engine: what is in it takes results out."""
    last = loop.body[-1] if loop.body else loop
    if loop.kind.name != "pipeline" or not isinstance(last, For) or last.kind.name != "instr":
        return False
    return all(isinstance(s, For) or (isinstance(s, Store) and s.buffer.space == "global") for s in statements((last,)))


def pipeline(loop: For) -> Pipeline | None:
    """The Pipeline that ``loop`` is: allocs of tiles, a fill of each, and one product of two of them."""
    tiles = tuple([s.buffer for s in loop.body if isinstance(s, Alloc) and not s.reducer])
    if len(loop.body) != 2 * len(tiles) + 1:
        return None
    fills = [fill(s) for s in loop.body[len(tiles) : -1]]
    product = tile_product(loop.body[-1], (WGMMA, APART, MMA))
    if product is None or any(product.deep) or product.split or {id(product.left), id(product.right)} != {id(t) for t in tiles}:
        return None
    found = tuple([f for f in fills if f is not None])
    ways = (COPY, ASYNC) if product.key == MMA else (COPY, TMA)
    if [id(f.tile) for f in found] != [id(t) for t in tiles] or any(f.key not in ways for f in found):
        return None
    return Pipeline(loop, tiles, found, product)
