"""Choosing how tensor cores do a contraction.

A product takes rounds of tiles over the multiprocessors.  A tile takes a time for each span of the depth, and a time at its end:
for what is made of its sums, during which tensor cores wait, unless a second team of threads multiplies meanwhile.  Factors come
no faster than memory has them.  Where tiles are few, the depth goes in slices (``slice_depth``), which then cost a kernel that
adds them up.  All times are in spans of a tile of 128 x 256, which take 1024 cycles if nothing is in the way (docs/design.md
section 10).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from lowc.errors import ScheduleError
from lowc.ir import tiles
from lowc.ir.index import constant
from lowc.ir.nodes import For, Kernel, Load, Stmt, Store
from lowc.ir.types import i8
from lowc.ir.walk import exprs, parts
from lowc.scheduler.contraction import Contraction, contiguous, find, innermost, is_masked_along
from lowc.scheduler.nest import estimate, weight
from lowc.scheduler.slice_depth import slice_of
from lowc.scheduler.tensor_cores import TensorCores, narrow
from lowc.scheduler.tile_epilogue import STRIP
from lowc.target import Target

ABILITY = tiles.ABILITY
SHARED = 226 << 10  # bytes for the ring of tiles and the strips, of the 227 KB that a block may have
LONG = 2048  # bytes of the depth from which tiles of few columns, whose sums threads store, are for products of few rows
LEAST_STAGES = 3
STAGES = 8  # at most; twice as many of narrow tiles, so that as much is under way
START = 1.5  # until the first tiles are there
RASTER = 8  # rows of tiles that are done together
LOADED = 2  # what an element that an epilogue loads costs, in cheap instructions
ISSUE = 131072  # sums of which a multiprocessor computes one cheap instruction each while a span lasts
MEMORY = 2.4e6  # bytes that memory moves while a span lasts
PULLING = 90  # multiprocessors that it takes to have memory move that much
EMPTY = 0.4  # what a span takes longer for each 64 rows of a tile that the product does not have
TOGETHER = 0.1  # what is left of the shorter of both where multiplying and reading memory go on at one time
ADDING = 4.0  # what a kernel that adds up slices takes besides moving them …
SUM = 12  # … which takes as long as so many bytes of factors for each sum of a slice, written and read
DEEP = 4  # spans of the depth that a slice has at least
MOST_SLICES = 32
PARTS = 64 << 20  # bytes of sums of slices at most
SAVED = 0.9  # of the time that a product takes in one piece, at most, for slices to be worth it
MARGIN = 1.04  # of the time of finer ways, which are not measured each
AHEAD = 2  # turns that a team has at least: the first is no gain
COPIES = ((tiles.TMA, tiles.TMA), (tiles.COPY, tiles.TMA), (tiles.TMA, tiles.COPY), (tiles.COPY, tiles.COPY))
TRIES = 4  # ways that are tried, best first, should one not be legal


@dataclass(frozen=True, slots=True)
class Way:
    """A tile of rows x columns by ``groups`` of 128 threads in each of ``teams``.  ``span``: the time of one of its spans;
    ``end``: of its end, if its sums are only stored."""

    tile: tuple[int, int]
    groups: int
    teams: int
    span: float
    end: float

    @property
    def name(self) -> str:
        return f"{self.tile[0]}x{self.tile[1]}" + (f" in {self.teams} teams" if self.teams > 1 else "")


WAYS = (
    Way((128, 256), 2, 1, 1.0, 1.6),
    Way((128, 192), 2, 1, 0.80, 1.3),
    Way((128, 128), 2, 1, 0.53, 1.4),
    Way((128, 64), 2, 1, 0.44, 0.5),
    Way((64, 128), 1, 1, 0.40, 0.9),
    Way((64, 64), 1, 1, 0.22, 0.6),
    Way((64, 32), 1, 1, 0.25, 0.5),
    Way((128, 128), 1, 2, 0.53, 1.1),
    Way((128, 64), 1, 2, 0.44, 0.5),
)
FINER = tuple(Way((128, wide), 2, 1, 0.04 + wide / 256, 0.3 + wide / 160) for wide in range(136, 256, 8) if wide != 192)
"""Those whose last columns threads store, for products in one piece.  Their times are between those of others."""
APART = (
    Way((256, 128), 2, 1, 1.05, 1.6),
    Way((128, 128), 2, 1, 0.56, 1.4),
    Way((128, 64), 2, 1, 0.44, 0.5),
    Way((64, 128), 1, 1, 0.48, 0.9),
    Way((64, 64), 1, 1, 0.28, 0.6),
    Way((64, 32), 1, 1, 0.25, 0.5),
)
"""Those that have registers for a second set of sums, where spans are added up by themselves."""
NARROW = 128  # columns of a tile at most where threads copy: they need registers


@dataclass(frozen=True, slots=True)
class Size:
    """Of a product: how many there are (``batch``), and ``rows``, ``columns``, ``depth`` of each.  ``work``: what is made of an
    element of it, in cheap instructions; ``stored``: bytes of what is stored for it; ``width``: bytes of a factor's element;
    ``turned``: whether the right factor lies along the columns.  ``even``: whether slices of the depth are all of one length, as
    beyond its end the factors are no zeros by themselves.  ``apart``: whether spans are added up by themselves."""

    batch: int
    rows: int
    columns: int
    depth: int
    work: int = 0
    stored: int = 2
    width: int = 2
    turned: bool = False
    even: bool = False
    apart: bool = False


def choices(kernel: Kernel, target: Target, copies: Sequence[tuple[str, str]] = COPIES) -> tuple[TensorCores, ...]:
    """Ways to do ``kernel`` if that is one contraction for tensor cores, best first; none if it is none."""
    found = contraction(kernel, target)
    if found is None or found.rows is None:
        return ()
    size = size_of(found)
    out: list[TensorCores] = []
    for each in copies:
        suited = [w for w in ways_of(size) if tiles.COPY not in each or (w.teams == 1 and w.groups > 1 and w.tile[1] <= NARROW)]
        ordered = sorted(suited, key=lambda way: cost(size, way, target.cores))
        for way in ordered[:TRIES]:
            out += _steps(found, size, way, each, target)
    return tuple(out)


def ways_of(size: Size) -> Sequence[Way]:
    if size.apart:
        return APART
    # sums of slices are f32
    return (*WAYS, *FINER) if size.width <= 2 and 0 < size.stored <= 2 and not size.turned else WAYS


def _steps(found: Contraction, size: Size, way: Way, copies: tuple[str, str], target: Target) -> Iterator[TensorCores]:
    """``way`` with as much memory for strips as leaves enough for the ring."""
    high, wide = way.tile
    most = 3 if wide // STRIP == 3 else min(2, wide // STRIP)
    for strips in (most, 1, 0):
        left = SHARED - strips * way.teams * high * STRIP * size.stored
        stages = min(left // (tiles.LINE * (high + wide)), STAGES * (2 if wide < STRIP else 1))
        if stages >= LEAST_STAGES:
            axis = found.outer[0].axis.name
            key = tiles.APART if size.apart else tiles.WGMMA
            yield TensorCores(axis, way.tile, stages, copies, target.cores, RASTER, way.groups, way.teams, strips, key)
            return


def contraction(kernel: Kernel, target: Target, ability: str = ABILITY) -> Contraction | None:
    """The contraction that ``kernel`` is, if ``target`` has tensor cores for it."""
    if ability not in target.ops or len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return None
    found = find(kernel.body[0])
    if found is None or found.rows is None:
        return None
    try:
        dtype = narrow(found.left).dtype
        eighths = all(narrow(f).dtype in tiles.EIGHTHS for f in (found.left, found.right))
        alike = eighths or dtype == narrow(found.right).dtype
        return found if alike and not (dtype == i8 and ability == ABILITY or eighths and ability != ABILITY) else None
    except ScheduleError:
        return None


def cost(size: Size, way: Way, processors: int) -> float:
    """About how long products take that way."""
    high, wide = way.tile
    if wide < STRIP and (size.rows > high or size.turned or size.depth * size.width < LONG):
        return inf
    blocks = size.batch * -(-size.rows // high) * -(-size.columns // wide)
    rounds = -(-blocks // processors)
    if way.teams > 1 and (rounds < AHEAD * way.teams or size.width > 2 or (wide <= STRIP and size.columns > wide)):
        return inf
    empty = EMPTY * max(0, high - size.rows) / tiles.GROUP_ROWS
    multiplied = -(-size.depth * size.width // tiles.LINE) * (way.span + empty)
    end = way.end + high * wide * size.work / ISSUE
    moved = size.width * size.depth * (size.rows + size.columns) + size.stored * size.rows * size.columns
    come = size.batch * moved / MEMORY * max(1.0, PULLING / blocks)
    if way.teams == 1:
        work = rounds * (multiplied + end)
    else:
        work = max(rounds * multiplied + end, -(-rounds // way.teams) * (multiplied + end))
    time = START + max(come, work) + TOGETHER * min(come, work)
    return time * MARGIN if wide > STRIP and wide % STRIP else time


def plans(size: Size, processors: int) -> Iterator[tuple[float, int, Way]]:
    """(about how long it takes, slices of the depth, way) of all that can be done with products."""
    sums, span = size.batch * size.rows * size.columns, tiles.LINE // size.width
    for count in range(1, max(1, min(MOST_SLICES, size.depth // (DEEP * span), PARTS // (4 * max(1, sums)))) + 1):
        deep = slice_of(size.depth, count, span)
        if (count - 1) * deep >= size.depth or (size.even and count * deep != size.depth):
            continue
        part, added = size, 0.0
        if count > 1:
            part = replace(size, batch=size.batch * count, depth=deep, work=0, stored=0)
            added = ADDING + sums * (SUM * count + size.stored) / MEMORY
        for way in ways_of(size):
            if count == 1 or way.teams == 1:  # strips of f32 for two teams leave too little for the ring
                yield cost(part, way, processors) + added, count, way


def best(size: Size, processors: int) -> tuple[float, int]:
    """About how long products take at best, and in how many slices of their depth."""
    every = [(time, count) for time, count, _ in plans(size, processors)]
    whole = min(p for p in every if p[1] == 1)
    sliced = min((p for p in every if p[1] > 1), default=whole)
    return sliced if sliced[0] < SAVED * whole[0] else whole


def slices(found: Contraction, target: Target) -> int:
    """In how many slices of its depth a product is done, by a kernel for each tile of each and one that adds them up."""
    known = all(constant(f.axis.extent) is not None for f in (*found.outer, found.depth))
    return best(size_of(found), target.cores)[1] if known else 1


def size_of(found: Contraction) -> Size:
    """The Size of a contraction with rows; of sizes of the call, what is likely."""
    assert found.rows is not None
    count = 1
    for loop in found.outer:
        if loop is not found.rows and loop is not found.columns:
            count *= max(1, estimate(loop.axis.extent))
    rows, columns, depth = (estimate(f.axis.extent) for f in (found.rows, found.columns, found.depth))
    block = innermost(found.outer[-1].body)
    rest: Sequence[Stmt] = () if block is None else block[2]
    seen: dict[int, int] = {}
    work = sum(weight(e, seen) for s in rest for e in exprs(s))
    loaded = {id(p) for s in rest for e in exprs(s) for p in parts(e) if isinstance(p, Load)}
    stored = sum(s.buffer.dtype.bytes for s in rest if isinstance(s, Store))
    turned = not contiguous(found.right, found.depth.axis) and contiguous(found.right, found.columns.axis)
    dtype, even = narrow(found.left).dtype, is_masked_along(found.left, found.depth.axis)
    apart = dtype in tiles.EIGHTHS and tiles.of_tf32(found.left) is None
    return Size(count, rows, columns, depth, work + LOADED * len(loaded), stored, dtype.bytes, turned, even, apart)
