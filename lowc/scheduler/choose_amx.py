"""Schedules of contractions for the matrix unit of a CPU (``ir/matrices.py``), of pairs of bf16 or quads of bytes.

    Pairs, Quads  the factors 32 bits at a time, the depth a multiple of 16 of these: what is missing is 0 in both factors
    Ahead         the factor of the columns in panels of a product's width: rows of a panel are rows of tiles; that of the rows
                  only if it does not lie along the depth, or fills no tiles
    Pack          instead, where few rows meet it: each block packs its panels into memory of its own, which stays in its caches
    Grid          blocks of rows x columns over the cores, such that a block's rows stay in the L2 cache while panels pass by
    Outward       the sums of a product in an array, which is stored to and used at once; or those of a block
    Matrices      products of tiles

As with ``choose_ahead`` roles of rows and columns are free: weights that lie along the depth are best the rows, as tiles of them
are loaded where they lie, and the input of fewer rows is what is packed.

What a schedule costs is estimated in cycles of a core.  A product of tiles takes 16.  What follows was found by experiment on
an Emerald Rapids: panels of 32 columns are as fast as those of 16; rows need not be copied to be near one another; 128 to 256
rows of a block, of all the depth, are better than slices of it (750 to 900 GFLOP/s); asking for the next rows ahead was slower.
"""

from dataclasses import dataclass

from lowc.ir.index import constant
from lowc.ir.matrices import SIDE
from lowc.ir.nodes import Expr, For, Kernel, Kind
from lowc.scheduler import contract
from lowc.scheduler.ahead import memory
from lowc.scheduler.apply import Bind, Reorder, Tile
from lowc.scheduler.choose import PARALLEL_WORK
from lowc.scheduler.choose_ahead import (
    FORK,
    LARGEST,
    Form,
    copy_of,
    copying_of,
    elements,
    forms_of,
    how_copied,
    in_blocks,
    lies_across,
)
from lowc.scheduler.contract import Step
from lowc.scheduler.contraction import Contraction, find, is_fixed, is_masked_along
from lowc.scheduler.matrices import Matrices
from lowc.scheduler.nest import estimate, iterations
from lowc.scheduler.pack import Pack
from lowc.scheduler.pairs import Pairs
from lowc.scheduler.quads import Quads
from lowc.scheduler.tiles import STACK, lengths
from lowc.target import Target

LANES = 16  # elements of 32 bits in a vector
PRODUCTS = ((32, 32), (32, 16), (16, 32), (16, 16))  # rows and columns
DEPTH = 1024  # 32-bit elements of a slice: 2048 of bf16
PRODUCT, LOAD = 18.0, 12.0  # cycles for a product of tiles, and for the load of one from the L2 cache
START = 80.0  # and for the first and last steps of a product: sums are stored and read
STORED, TURNED = 0.15, 0.4  # and for a sum's epilogue, along its row or across rows
PACK, PACK_TURNED = 0.7, 0.9  # for an element of 32 bits that a block packs, as it lies or transposed
READ = 0.15  # and for each element of the rows that a block reads, from memory
LEAST = 1 << 16  # multiply-adds below which nothing is gained
FEW = 3  # rows, or columns, up to which it is not


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a product of tiles and of a block: (rows, columns).  ``deep``: a slice of the depth.  ``form``: "settled",
    sums of one product at a time; "block", sums of a block; "packed", the same, and panels of the columns are the block's own."""

    tile: tuple[int, int]
    block: tuple[int, int]
    deep: int
    form: str


def choices(
    kernel: Kernel, found: Contraction, first: Pairs | Quads, target: Target, threads: bool
) -> tuple[tuple[Step, ...], ...]:
    """Schedules for the contraction ``found`` that ``kernel`` is, best first, each beginning with ``first``; none if it is too
    small, or its depth is known only when it is called."""
    if found.rows is None or not constant(found.depth.axis.extent) or iterations((*found.outer, found.depth)) < LEAST:
        return ()
    if min(estimate(found.rows.axis.extent), estimate(found.columns.axis.extent)) <= FEW:
        return ()
    loop = contract.apply(kernel, first).body[-1]
    packed = find(loop, found.fixed) if isinstance(loop, For) else None
    return () if packed is None else tuple([(first, *plan) for _, plan in _choices(packed, target, threads)])


def _choices(found: Contraction, target: Target, threads: bool) -> list[tuple[float, tuple[Step, ...]]]:
    batch = tuple([f for f in found.outer if f is not found.rows and f is not found.columns])
    parallel = threads and target.cores > 1 and iterations((*found.outer, found.depth)) // (4 * LANES) >= PARALLEL_WORK
    kind, cores = (Kind("parallel"), target.cores) if parallel else (Kind(), 1)
    possible = [(*p, form) for form in forms_of(found, batch, LANES) for p in _sizes(form, target, cores)]
    possible.sort(key=lambda p: p[0])
    return [(cost, _plan(form, sizes, kind)) for cost, sizes, form in possible]


def _sizes(form: Form, target: Target, cores: int) -> list[tuple[float, Sizes]]:
    """The best product and block of each form, and its cost."""
    found = form.found
    rows, columns, depth = (estimate(f.axis.extent) for f in (form.rows, found.columns, found.depth))
    count = iterations(form.batch)
    deep = _slice(depth)
    room = target.l2 * 7 // 10 // 4
    known = None not in (constant(form.rows.axis.extent), constant(found.columns.axis.extent))
    right_across = lies_across(found.right, found.columns.axis, found.depth.axis)
    # masks of a padded depth would be evaluated for all of it
    may_pack = not is_fixed(found, found.right) and not is_masked_along(found.right, found.depth.axis)
    best: dict[str, tuple[float, Sizes]] = {}
    for tall, wide in PRODUCTS:
        copied = how_copied(form, tall) != ""
        right, left = elements(form, found.right, found.columns, wide), elements(form, found.left, form.rows, tall)
        if any(n * 4 > LARGEST and not is_fixed(found, f) for n, f in ((right, found.right), (left * copied, found.left))):
            continue
        own = copying_of(form, found.left, form.rows) * left * copied / cores
        fixed = own + copying_of(form, found.right, found.columns) * right / cores + (FORK if cores > 1 else 0)
        tiles = (tall // SIDE) * (wide // SIDE)
        step = max(PRODUCT * tiles, LOAD * (tall + wide) / SIDE)  # 16 elements deep
        for high in lengths(rows, tall):
            for broad in lengths(columns, wide):
                blocks = count * -(-rows // high) * -(-columns // broad)
                number = -(-high // tall) * -(-broad // wide)
                base = number * (depth / SIDE * step + START * tiles / 4 * -(-depth // deep)) + READ * high * depth
                stored = high * broad * (TURNED if form.turned else STORED)
                packing = broad * depth * (PACK if right_across else PACK_TURNED)
                fits = {
                    "settled": known and (high + wide) * depth <= room,
                    "block": high * broad * 4 <= STACK,
                    "packed": (high * broad + broad * deep) * 4 <= STACK // 2 and may_pack,
                }
                costs = {
                    "settled": fixed + -(-blocks // cores) * (base + stored),
                    "block": fixed + -(-blocks // cores) * (base + 2 * stored),
                    "packed": own + -(-blocks // cores) * (base + packing + 2 * stored),
                }
                for name, cost in costs.items():
                    if fits[name] and (name not in best or cost < best[name][0]):
                        best[name] = cost, Sizes((tall, wide), (high, broad), deep, name)
    return list(best.values())


def _slice(depth: int) -> int:
    """The depth in the fewest equal slices that are not too long."""
    steps = depth // SIDE
    count = next((n for n in range(-(-depth // DEPTH), steps + 1) if steps % n == 0), 1)
    return steps // count * SIDE if steps // count * SIDE >= DEPTH // 4 else min(depth, DEPTH)


def _plan(form: Form, sizes: Sizes, kind: Kind) -> tuple[Step, ...]:
    found, (tall, across) = form.found, sizes.tile
    plan = [] if sizes.form == "packed" else _copy(form, found.right, "b", across, kind)
    if how_copied(form, tall):
        plan += _copy(form, found.left, "a", tall, kind)
    steps, depth, _ = in_blocks(form, sizes.tile, sizes.block, sizes.form == "settled", sizes.deep, LANES, kind)
    plan += steps
    if sizes.form == "packed":
        plan += _pack(form, depth, across, (sizes.block[1], sizes.deep))
    plan.append(Matrices(depth, tall, across, (memory("a"), memory("b"))))
    return tuple(plan)


def _copy(form: Form, factor: Expr, name: str, side: int, kind: Kind) -> list[Step]:
    """The steps that copy a factor ahead; where the depth is padded, all but the last of it apart, without masks."""
    deep = constant(form.found.depth.axis.extent) or 0
    whole = max(0, deep - SIDE) if is_masked_along(factor, form.found.depth.axis) else 0
    return copy_of(form, factor, name, side, LANES, kind, name == "a", whole)


def _pack(form: Form, depth: str, across: int, room: tuple[int, int]) -> list[Step]:
    """The steps by which a block packs its columns."""
    found = form.found
    steps: list[Step] = [Pack(depth, 1 - found.swapped, "b", across, across, room)]
    if lies_across(found.right, found.columns.axis, found.depth.axis):
        steps += [Reorder(("b_depth", "b_panel", "b_lane")), Bind("b_lane", Kind("vector", LANES, "", across // LANES))]
    elif min(room[1], estimate(found.columns.axis.extent)) >= LANES:
        steps.append(Tile("b_depth", "b_lane", LANES, LANES, 1, True))
    return steps
