"""Pipelines that multiply twice: what threads make of the sums of one product is the left factor of a second one.

    alloc q: bf16[2, 128, 64] @shared; for … instr(tma) { q[…] = x[…] }                     # resident: there for all turns
    for j in N pipeline(2) {
      alloc k, v @shared; alloc sums: f32[256, 64] @local = add; a fill of k; a fill of v
      for t in 256 thread(256) { for r in 64 instr(wgmma) { for d in 128 { sums[t, r] add= product(q…, k…) } } }
      thread loops: held[t, r] = f(sums[t, r]); …
      for t in 256 thread(256) { for r in 64 instr(wgmma) { for i in 128 {                    # a HeldProduct
        total[t, r] add= product(f32(held[owner(t, i), number(r, i)]), f32(v[…, i, …]))
      } } }
    }

The hardware wants the left factor in registers as it leaves sums there, so that a thread's weights are where its scores
were; ``owner`` and ``number`` say who holds row ``row(t, r)`` of it at depth ``i``.  Several such pipelines in turn have tiles of
the same shapes.

There may be two first products, of two resident tiles, and one or two second ones, of several things held; each takes one of
the tiles of a turn, and a tile may be taken by a first and by a second one.

A turn may have a third product, of what threads spread over a tile and of a resident tile, whose sums are added to memory:

    alloc slopes: bf16[1, 128, 64] @shared; alloc near: f32[64] @shared; …           # in the pipeline, beside the two tiles
    for t in 64 thread(256) { near[t] = x[…] }                                       # behind the fills: what rows of tiles have
    …
    for t in 256 thread(256) { for n in 32 instr(spread) { slopes[column // 64, row(t, n), column % 64] = held[t, n] } }
    the second products
    for t in 256 thread(256) { for r in 32 instr(wgmma) { for i in 128 { sums[t, r] add= product(f32(slopes…), f32(q…)) } } }
    thread loops: y[…] add= sums[t, r]

What a turn does besides may be under an If whose condition all threads find alike; not that of the first turn of all, but where
turns have a product across.

Four neighbouring threads have a row; they combine what they hold of it by a Quad:

    for t in 256 thread(256) { for h in 2 instr(quad) { for n in 4 { all[t, h] max= part[t // 4 * 4 + n, h] } } }
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from lowc.ir.index import Index, constant, floordiv, ix, mod
from lowc.ir.nodes import Alloc, Buffer, Expr, For, If, Let, Load, Op, Stmt, Store
from lowc.ir.tiles import (
    GROUP,
    GROUP_ROWS,
    SPAN,
    WGMMA,
    Fill,
    TileProduct,
    column,
    fill,
    is_dense,
    is_outlet,
    narrow_load,
    place,
    row,
    tile_product,
)
from lowc.ir.walk import parts, single, statements

Product = TypeVar("Product")
QUAD, SPREAD = "quad", "spread"
GATHERED = ("f32", "i32", "i64")  # types of what is gathered
FOUR = 4  # threads that have a row of sums


def owner(thread: Index, depth: Index) -> Index:
    """The thread that holds, of a row of ``thread``, what is at ``depth``."""
    return floordiv(thread, ix(FOUR)) * FOUR + floordiv(mod(depth, ix(8)), ix(2))


def number(sum_: Index, depth: Index) -> Index:
    """Its number there, for the row of sum number ``sum_``."""
    return floordiv(depth, ix(8)) * 4 + mod(floordiv(sum_, ix(2)), ix(2)) * 2 + mod(depth, ix(2))


@dataclass(frozen=True, slots=True, eq=False)
class HeldProduct:
    """``loop``: over ``threads``, sums of ``columns``, ``depth`` deep, of what threads hold and of a tile, added to ``sums``."""

    loop: For
    sums: Buffer
    held: Buffer
    right: Buffer
    threads: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Quad:
    """``loop``: combines by ``reducer``, into ``whole``, what four threads have in ``part``: ``count`` elements each."""

    loop: For
    whole: Buffer
    part: Buffer
    reducer: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """``loop``: threads put ``count`` of what each holds into a ``tile`` that lies along the columns of the sums they are of."""

    loop: For
    held: Buffer
    tile: Buffer
    threads: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Across:
    """The third product of a turn: ``gathers`` (thread loops, one store to shared memory each), the ``spread``, the ``product``
    of its tile and a resident one, and the thread loop that ``adds`` the sums to memory."""

    gathers: tuple[For, ...]
    spread: Spread
    product: TileProduct
    adds: For

    @property
    def gathered(self) -> tuple[Buffer, ...]:
        return tuple([s.buffer for g in self.gathers for s in g.body if isinstance(s, Store)])


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """``loop``, a pipeline: ``fills`` of two tiles, then ``firsts``, ``work`` (thread loops, lets), ``seconds``, and perhaps a
    product ``across``.  ``local``: memory of threads that is declared in it.  ``seen``: under which condition there is a turn."""

    loop: For
    fills: tuple[Fill, Fill]
    local: tuple[Alloc, ...]
    firsts: tuple[TileProduct, ...]
    work: tuple[For | Let, ...]
    seconds: tuple[HeldProduct, ...]
    across: Across | None = None
    seen: Expr | None = None

    @property
    def simple(self) -> bool:
        """Whether the first tile is of the only first product, the second one of the only second product."""
        if self.across is not None:
            return False
        rights = [p.right for p in (*self.firsts, *self.seconds)]
        return len(rights) == 2 and rights[0] is self.fills[0].tile and rights[1] is self.fills[1].tile


@dataclass(frozen=True, slots=True, eq=False)
class Relay:
    """``residents``: the fills of the left factors of the first products; ``turns``: pipelines one after the other."""

    residents: tuple[Fill, ...]
    turns: tuple[Turns, ...]


def _nest(loop: Stmt, key: str) -> tuple[list[For], Store] | None:
    """The loops over threads, what a thread has, and what is combined, and the store in them."""
    found = single(loop)
    if found is None:
        return None
    nest, inside = found
    if len(nest) != 3 or not isinstance(inside, Store) or not inside.reducer or inside.mask is not None:
        return None
    if nest[0].kind.name != "thread" or nest[1].kind.key != key or nest[2].kind.name != "serial":
        return None
    if inside.index != (ix(nest[0].axis), ix(nest[1].axis)) or any(constant(f.axis.extent) is None for f in nest):
        return None
    return nest, inside


def held_product(loop: Stmt) -> HeldProduct | None:
    """The HeldProduct that a thread loop is, or None."""
    found = _nest(loop, WGMMA)
    if found is None or found[1].reducer != "add":
        return None
    nest, inside = found
    value = inside.value
    if not isinstance(value, Op) or value.name != "product" or value.dtype.name != "f32":
        return None
    left, right = narrow_load(value.args[0], "local"), narrow_load(value.args[1])
    if left is None or right is None or left.dtype != right.dtype or len(right.buffer.shape) != 3:
        return None
    threads, each, depth = (constant(f.axis.extent) or 0 for f in nest)
    t, r, i = (ix(f.axis) for f in nest)
    if threads % GROUP or depth % 16 or each % 4 or right.index != place(right.buffer, column(t, r), i):
        return None
    if 2 * each > (constant(right.buffer.shape[0]) or 0) * SPAN or constant(right.buffer.shape[1]) != depth:
        return None
    if left.index != (owner(t, i), number(r, i)) or left.buffer.shape != (ix(threads), ix(depth // 2)):
        return None
    return HeldProduct(nest[0], inside.buffer, left.buffer, right.buffer, threads, 2 * each, depth)


def quad(loop: Stmt) -> Quad | None:
    """The Quad that a thread loop is, or None."""
    found = _nest(loop, QUAD)
    if found is None:
        return None
    nest, inside = found
    part = inside.value
    t, h, n = (ix(f.axis) for f in nest)
    if not isinstance(part, Load) or part.mask is not None or part.buffer.space != "local" or inside.buffer.space != "local":
        return None
    if constant(nest[2].axis.extent) != FOUR or part.index != (floordiv(t, ix(FOUR)) * FOUR + n, h):
        return None
    return Quad(nest[0], inside.buffer, part.buffer, inside.reducer, constant(nest[1].axis.extent) or 0)


def spread(loop: Stmt) -> Spread | None:
    """The Spread that a thread loop is, or None."""
    if not isinstance(loop, For) or loop.kind.name != "thread" or len(loop.body) != 1:
        return None
    inner = loop.body[0]
    if not isinstance(inner, For) or inner.kind.key != SPREAD or len(inner.body) != 1:
        return None
    store, threads, count = inner.body[0], constant(loop.axis.extent), constant(inner.axis.extent)
    if not isinstance(store, Store) or store.reducer or store.mask is not None or not threads or not count:
        return None
    t, n, value, tile = ix(loop.axis), ix(inner.axis), store.value, store.buffer
    if not isinstance(value, Load) or value.mask is not None or value.buffer.space != "local" or value.index != (t, n):
        return None
    high = threads * GROUP_ROWS // GROUP
    if tile.space != "shared" or tile.dtype != value.dtype or tile.dtype.bits != 16 or not is_dense(tile):
        return None
    if tile.shape != (ix(2 * count // SPAN), ix(high), ix(SPAN)) or store.index != place(tile, column(t, n), row(t, n)):
        return None
    return Spread(loop, value.buffer, tile, threads, count) if value.buffer.shape == (ix(threads), ix(count)) else None


def _gather(loop: Stmt) -> bool:
    """Whether a thread loop sets an array of the block, each thread an element, from what is none of it."""
    if not isinstance(loop, For) or loop.kind.name != "thread" or len(loop.body) != 1:
        return False
    store = loop.body[0]
    if not isinstance(store, Store) or store.reducer or store.mask is not None or store.buffer.space != "shared":
        return False
    if any(isinstance(p, Load) and p.buffer.space != "global" for p in parts(store.value)):
        return False
    return store.index == (ix(loop.axis),) and store.buffer.shape == (loop.axis.extent,) and store.buffer.dtype.name in GATHERED


def _across(rest: Sequence[Stmt], extra: Sequence[Buffer]) -> tuple[Across, Sequence[Stmt]] | None:
    """The Across in what follows the fills of a pipeline, and what is left of that; ``extra``: shared memory beside the tiles."""
    count = next((n for n, s in enumerate(rest) if not _gather(s)), len(rest))
    gathers = tuple([s for s in rest[:count] if isinstance(s, For)])
    spreads = [(n, found) for n, s in enumerate(rest) if (found := spread(s)) is not None]
    product, adds = tile_product(rest[-2]), rest[-1]
    if len(spreads) != 1 or product is None or not isinstance(adds, For) or adds.kind.name != "thread":
        return None
    at, found = spreads[0]
    made = Across(gathers, found, product, adds)
    own = {id(b) for b in (*made.gathered, found.tile)}
    if product.left is not found.tile or any(product.deep) or {id(b) for b in extra} != own:
        return None
    return made, (*rest[count:at], *rest[at + 1 : -2])


def turns(loop: Stmt) -> Turns | None:
    """The Turns that a loop is, or None."""
    if not isinstance(loop, For) or loop.kind.name != "pipeline" or is_outlet(loop):
        return None
    allocs = [s for s in loop.body if isinstance(s, Alloc)]
    rest, seen = loop.body[len(allocs) :], None
    if len(rest) == 1 and isinstance(rest[0], If):
        rest, seen = rest[0].body, rest[0].cond
    tiles = [s.buffer for s in allocs if s.buffer.space == "shared"]
    if any(isinstance(s, Alloc) for s in rest) or len(tiles) < 2 or len(rest) < 5:
        return None
    fills, across = (fill(rest[0]), fill(rest[1])), None
    if len(tiles) > 2:
        found = _across(rest[2:], tiles[2:])
        if found is None:
            return None
        tiles, across, rest = tiles[:2], found[0], (*rest[:2], *found[1])
    firsts = _several([tile_product(s) for s in rest[2:4]])
    seconds = _several([held_product(s) for s in reversed(rest[-2:])])
    if fills[0] is None or fills[1] is None or not firsts or not seconds:
        return None
    inside = rest[2 + len(firsts) : len(rest) - len(seconds)]
    work = tuple([s for s in inside if isinstance(s, Let) or (isinstance(s, For) and s.kind.name == "thread")])
    if len(work) < len(inside) or fills[0].tile is not tiles[0] or fills[1].tile is not tiles[1]:
        return None
    products = (*firsts, *seconds)
    if {id(p.right) for p in products} != {id(t) for t in tiles} or len({p.threads for p in products}) > 1:
        return None
    local = tuple([s for s in allocs if s.buffer.space == "local"])
    unset = {id(s.buffer) for s in local if s.reducer == "add"}
    if any(p.rows != p.high or id(p.sums) not in unset for p in firsts):
        return None
    seconds = tuple(reversed(seconds))
    if across is not None:
        if id(across.product.sums) not in unset or across.product.threads != firsts[0].threads or len(firsts) < 2:
            return None
        if len(seconds) < 2 or across.spread.held is not seconds[1].held or seconds[0].right is seconds[1].right:
            return None
    return Turns(loop, (fills[0], fills[1]), local, firsts, work, seconds, across, seen)


def _several(found: Sequence[Product | None]) -> tuple[Product, ...]:
    """Those before the first that is None."""
    out: list[Product] = []
    for each in found:
        if each is None:
            break
        out.append(each)
    return tuple(out)


def relay(body: Sequence[Stmt]) -> Relay | None:
    """The Relay in ``body``, a block's statements, or None.  Its pipelines may have others behind that take results out."""
    loops = [s for s in body if isinstance(s, For) and s.kind.name == "pipeline" and not is_outlet(s)]
    found = [turns(loop) for loop in loops]
    each = tuple([f for f in found if f is not None])
    if not loops or len(each) < len(found):
        return None
    residents = tuple([f for f in map(fill, body) if f is not None])
    first = each[0]
    if any(f.across is not None and all(f.across.product.right is not r.tile for r in residents) for f in each):
        return None
    if any({id(p.left) for p in f.firsts} != {id(r.tile) for r in residents} for f in each):
        return None
    if any(f.seen is not None and f.across is None and (not f.simple or f is first) for f in each):
        return None
    for other in each[1:]:
        ours, theirs = ([(p.held, p.sums) for p in f.seconds] for f in (first, other))
        if [f.across and f.across.spread.held for f in (first, other)].count(None) == 1:
            return None
        if ours != theirs or other.simple != first.simple or other.loop.kind.width != first.loop.kind.width:
            return None
        pairs = [(a.tile, b.tile) for a, b in zip(first.fills, other.fills, strict=True)]
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
            return None
    return Relay(residents, each)


def block_body(body: Sequence[Stmt]) -> Sequence[Stmt]:
    """What is inside the block loops of a kernel, and inside the loop over the turns of a block if that is all it does but for
    lets."""
    while body and all(isinstance(s, Let) for s in body[:-1]):
        last = body[-1]
        if not isinstance(last, For) or last.kind.name not in ("block", "serial"):
            break
        body = last.body
    return body


def has_relay(body: Sequence[Stmt]) -> bool:
    """Whether a pipeline in ``body`` multiplies twice."""
    return any(turns(s) is not None for s in statements(body))


def exchanges(loop: Stmt) -> bool:
    """Whether a thread loop is an instruction by which threads read what others hold."""
    return held_product(loop) is not None or quad(loop) is not None
