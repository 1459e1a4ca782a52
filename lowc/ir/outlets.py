"""Pipelines that take results out: threads put strips of them into shared memory, and the copying engine stores them from there.

    for c in 4 pipeline(2) {                                          # two strips in turn
      alloc strip: bf16[128, 64] @shared
      for t in 256 thread(256) { … strip[row, column] = f(sums[…]) … }
      for i in 128 instr(tma) { for j in 64 { y[…] = strip[i, j] if i_at + i < M & c*64 + j_at + j < N } }      # a Drain
    }

Where each group of 128 threads sets a part of its own, ``strip[t // 128, …]``, groups need not wait for one another.

The engine stores a strip while threads are at the next ones, and the next tile.  A row of a strip is 128 bytes; how strips are
swizzled is between the threads and the engine, as with fills.  What is beyond the edges is not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.ir.boxes import Box, box_of
from lowc.ir.index import constant, floordiv, ix
from lowc.ir.nodes import Alloc, Buffer, For, Load, Stmt, Store
from lowc.ir.tiles import GROUP, TMA, copy_nest, is_dense, is_outlet
from lowc.ir.types import DType
from lowc.ir.walk import statements

LINE = 128  # bytes of a row of a strip


def span(dtype: DType) -> int:
    """Elements of a row of a strip."""
    return LINE // dtype.bytes


@dataclass(frozen=True, slots=True, eq=False)
class Drain:
    """A nest that stores all of one strip: ``loops``, outermost first, are its dimensions."""

    loops: tuple[For, ...]
    store: Store
    strip: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Outlet:
    """``loop``: ``work``, a thread loop, sets its ``strips``, which are as many in turn as it is wide.  ``apart``: each group of
    threads sets a part of each strip that is its own."""

    loop: For
    strips: tuple[Buffer, ...]
    work: For
    drains: tuple[Drain, ...]
    apart: bool


def drain(stmt: Stmt) -> Drain | None:
    """The Drain that ``stmt`` is, or None."""
    found = copy_nest(stmt, (TMA,))
    if found is None or found[1].buffer.space != "global":
        return None
    loops, inside = found
    value = inside.value
    if not isinstance(value, Load) or value.mask is not None or value.dtype.kind != "f" or value.dtype.bytes not in (2, 4):
        return None
    strip, axes = value.buffer, tuple([f.axis for f in loops])
    if strip.space != "shared" or value.index != tuple([ix(a) for a in axes]) or strip.shape != tuple([a.extent for a in axes]):
        return None
    if inside.buffer.dtype != strip.dtype or constant(strip.shape[-1]) != span(strip.dtype) or not is_dense(strip):
        return None
    return Drain(loops, inside, strip)


def box(found: Drain) -> Box | None:
    """The Box that ``found`` stores; None if it is none (``tiles.box``)."""
    return box_of(found.loops, found.store.buffer, found.store.index[0], found.store.mask)


def outlets(body: Sequence[Stmt]) -> list[For]:
    """The pipelined loops in ``body`` that take results out."""
    return [s for s in statements(body) if isinstance(s, For) and is_outlet(s)]


def outlet(loop: For) -> Outlet | None:
    """The Outlet that ``loop`` is: allocs of strips, a thread loop, and a drain of each strip."""
    strips = tuple([s.buffer for s in loop.body if isinstance(s, Alloc) and not s.reducer])
    turns, work = constant(loop.axis.extent), loop.body[len(strips)] if len(strips) < len(loop.body) else loop
    if not strips or len(loop.body) != 2 * len(strips) + 1 or turns is None or turns < 1 or turns % loop.kind.width:
        return None
    if not isinstance(work, For) or work.kind.name != "thread":
        return None
    drains = [drain(s) for s in loop.body[len(strips) + 1 :]]
    found = tuple([d for d in drains if d is not None])
    if [id(d.strip) for d in found] != [id(s) for s in strips]:
        return None
    return Outlet(loop, strips, work, found, all(_is_apart(work, s) for s in strips))


def _is_apart(work: For, strip: Buffer) -> bool:
    """Whether a thread sets nothing of ``strip`` but the part of its group of threads."""
    groups, rest = divmod(constant(work.axis.extent) or 0, GROUP)
    if rest or len(strip.shape) != 3 or constant(strip.shape[0]) != groups:
        return False
    stores = [s for s in statements(work.body) if isinstance(s, Store) and s.buffer is strip]
    return all(s.index[0] == floordiv(ix(work.axis), ix(GROUP)) for s in stores)
