"""Schedules of contractions that many blocks share a packed factor of: it is copied once, before the blocks.

    Ahead       the factor of the columns in panels of a tile's width; that of the rows only if it cannot be read as it lies
    Grid        blocks of rows x columns over the cores, so large that what they read of the rows stays in the L2 cache
    Outward     the sums of a block in an array; or of a tile, if that cache has room for rows of all the depth ("settled")
    Split       the depth in slices, so that no sum has longer chains
    Registers   tiles of as many sums as there are registers for

Which factor is that of the columns is free: where there are fewer rows than columns, it is the rows' (a linear layer's input is
packed, its weights are read as they lie), and sums are turned when they are stored.

What a schedule costs is estimated in cycles of a core that starts two multiply-adds in each.
"""

from dataclasses import dataclass, replace

from lowc.ir.index import Axis, constant
from lowc.ir.nodes import Expr, For, Kind
from lowc.ir.walk import free_atoms
from lowc.scheduler.ahead import Ahead, memory
from lowc.scheduler.apply import Bind, Reorder, Split, Tile
from lowc.scheduler.contract import Step
from lowc.scheduler.contraction import Contraction, as_it_lies, contiguous, innermost, is_fixed
from lowc.scheduler.grid import Grid
from lowc.scheduler.nest import estimate, iterations
from lowc.scheduler.outward import Outward
from lowc.scheduler.registers import Registers, Soon
from lowc.scheduler.settle import Settle
from lowc.scheduler.tiles import DEPTH, STACK, flight, lengths, slices, tiles
from lowc.target import Target

LEAST = 1 << 20  # multiply-adds below which blocks copy what they need
LEAST_KEPT = 1 << 16  # and where panels of the columns are kept from call to call
LARGEST = 16 << 20  # bytes that a copy may take
COPY, TURN = 1.2, 1.6  # cycles for an element that is copied as it lies, or transposed, read from memory and written to it
FETCH = 0.3  # and for an element of a panel that a block reads, asked for ahead, from where all cores see it
STREAM = 0.1  # and for one of the rows
SUM, TURNED, SETTLED = 0.6, 1.2, 0.3  # and for a block's sum that is stored, as it lies, transposed, or still near
TILE = 60.0  # and for a tile
ADD = 3.0  # and for a vector of its sums that is added to memory
FORK = 6000.0  # and for a second loop over the cores
CHUNK = 128  # elements deep that a block of a copy is
ACROSS = 192  # elements of a row that a block of a copy reads at a time


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a tile and of a block: (rows, columns).  ``deep``: a slice of the depth.  ``settled``: sums of one tile at a time."""

    tile: tuple[int, int]
    block: tuple[int, int]
    deep: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Form:
    """``found`` with ``turned`` or its own roles of rows and columns; ``batch`` are the other loops around it."""

    found: Contraction
    batch: tuple[For, ...]
    turned: bool

    @property
    def rows(self) -> For:
        assert self.found.rows is not None
        return self.found.rows


def choose(
    found: Contraction, batch: tuple[For, ...], lanes: int, cores: int, kind: Kind, target: Target, turned: bool | None = None
) -> list[tuple[float, tuple[Step, ...]]]:
    """Schedules with their costs, best first; none if a copy would be too large, or not worth a loop of its own.

    ``turned``: whether roles of rows and columns are to be turned; None: either."""
    least = LEAST_KEPT if is_fixed(found, found.right) else LEAST
    if found.rows is None or iterations((*found.outer, found.depth)) < least:
        return []
    possible: list[tuple[float, Form, Sizes]] = []
    for form in [f for f in forms_of(found, batch, lanes) if turned in (None, f.turned)]:
        possible += [(cost, form, sizes) for cost, sizes in _sizes(form, lanes, target, cores)]
    possible.sort(key=lambda p: p[0])
    block = innermost(found.outer[-1].body)
    assert block is not None
    plans: list[tuple[float, tuple[Step, ...]]] = []
    for cost, form, sizes in possible:
        plan = _plan(form, sizes, lanes, kind)
        if sizes.settled:  # what may be refused, as it hangs on how sizes divide, comes first
            plans.append((cost, (*plan, Settle(f"{block[0].vars[0].name}_block"))))
        plans.append((cost, plan))
    return plans


def forms_of(found: Contraction, batch: tuple[For, ...], lanes: int) -> list[Form]:
    assert found.rows is not None
    forms = [Form(found, batch, False)]
    if estimate(found.rows.axis.extent) >= 4 and estimate(found.columns.axis.extent) >= lanes:
        roles = {"rows": found.columns, "columns": found.rows, "left": found.right, "right": found.left}
        forms.append(Form(replace(found, **roles, swapped=not found.swapped), batch, True))
    return forms


def how_copied(form: Form, tall: int) -> str:
    """How the rows are copied: not ("") where they lie along the depth and fill tiles, else as "rows" or in "panels"."""
    factor, rows, depth = form.found.left, form.rows.axis, form.found.depth.axis
    if lies_across(factor, rows, depth):
        return "panels"
    known = constant(rows.extent)
    return "" if as_it_lies(factor, depth) and known is not None and known % tall == 0 else "rows"


def lies_across(factor: Expr, along: Axis, depth: Axis) -> bool:
    """Whether ``factor`` lies along the axis that is not the depth."""
    return contiguous(factor, along) and not contiguous(factor, depth)


# ---------------------------------------------------------------- sizes


def _sizes(form: Form, lanes: int, target: Target, cores: int) -> list[tuple[float, Sizes]]:
    """The tile, block and slice of the least cost, and that cost: of those whose sums are settled, and of the others."""
    found = form.found
    rows, columns, depth = (estimate(f.axis.extent) for f in (form.rows, found.columns, found.depth))
    size = found.left.dtype.bytes
    count = iterations(form.batch)
    room = target.l2 * 7 // 10 // size
    known = not form.turned and None not in (constant(form.rows.axis.extent), constant(found.columns.axis.extent))
    best: dict[bool, tuple[float, Sizes]] = {}
    for cycles, tile in tiles(rows, columns, found.left.dtype, target):
        tall, across = tile
        copied = how_copied(form, tall)
        if copied == "panels" and tall & (tall - 1):
            continue  # as many lanes of a row are copied at a time
        right = elements(form, found.right, found.columns, across)
        left = elements(form, found.left, form.rows, tall) if copied else 0
        kept = [is_fixed(found, f) for f in (found.left, found.right)]
        if any(n * size > LARGEST and not k for n, k in zip((left, right), kept, strict=True)):
            continue
        copying = copying_of(form, found.right, found.columns) * right + copying_of(form, found.left, form.rows) * left
        if copied == "panels" and tall < lanes:
            copying += copying_of(form, found.left, form.rows) * left * (lanes / tall - 1)  # a panel's row is a part of a vector
        fixed = copying / cores + (FORK if cores > 1 and copying else 0)
        fetch = STREAM if right * size <= target.l2 // 2 else FETCH
        for high in lengths(rows, tall):
            for wide in lengths(columns, across):
                blocks = count * -(-rows // high) * -(-columns // wide)
                number = -(-high // tall) * -(-wide // across)
                base = number * tall * across * depth * cycles + wide * depth * fetch + high * depth * STREAM
                for deep in slices(found.depth):
                    adding = number * -(-depth // deep) * (TILE + ADD * tall * across / lanes)
                    stored = {True: SETTLED, False: TURNED if form.turned else SUM}
                    fits = {
                        True: known and (high + across) * depth <= room,
                        False: high * wide + (high + across) * deep <= room and high * wide * size <= STACK,
                    }
                    for settled in (True, False):
                        total = fixed + -(-blocks // cores) * (base + adding + high * wide * stored[settled])
                        if fits[settled] and (settled not in best or total < best[settled][0]):
                            best[settled] = total, Sizes(tile, (high, wide), deep, settled)
    return list(best.values())


def elements(form: Form, factor: Expr, along: For, unit: int) -> int:
    """Elements of a copy of ``factor``."""
    size = -(-estimate(along.axis.extent) // unit) * unit * estimate(form.found.depth.axis.extent)
    return size * iterations(_own(form, factor))


def _own(form: Form, factor: Expr) -> list[For]:
    """The loops of the batch that ``factor`` changes with."""
    used = free_atoms(factor)
    return [f for f in form.batch if f.axis in used]


def copying_of(form: Form, factor: Expr, along: For) -> float:
    if is_fixed(form.found, factor):
        return 0.0  # made once
    return COPY if lies_across(factor, along.axis, form.found.depth.axis) else TURN


# ---------------------------------------------------------------- the plan


def _plan(form: Form, sizes: Sizes, lanes: int, kind: Kind) -> tuple[Step, ...]:
    found, (tall, across) = form.found, sizes.tile
    plan = copy_of(form, found.right, "b", across, lanes, kind)
    if how_copied(form, tall):
        plan += copy_of(form, found.left, "a", tall, lanes, kind)
    steps, depth, turn = in_blocks(form, sizes.tile, sizes.block, sizes.settled, sizes.deep, lanes, kind)
    deep = constant(found.depth.axis.extent)
    soon = None if deep is None else Soon(across * deep, -(-sizes.block[0] // tall), turn)
    return (*plan, *steps, Registers(depth, tall, across, lanes, (memory("a"), memory("b")), soon))


def in_blocks(
    form: Form, tile: tuple[int, int], block: tuple[int, int], settled: bool, deep: int, lanes: int, kind: Kind
) -> tuple[list[Step], str, str]:
    """The steps that make blocks of which sums are in an array, or tiles of them if they are ``settled``, ``deep`` at a time; the
    names of the loop over the depth, and of that over tiles of rows ("" if there is none)."""
    found, steps, turn = form.found, list[Step](), ""
    rows, columns, depth = form.rows.axis.name, found.columns.axis.name, found.depth.axis.name
    (tall, across), (high, wide) = tile, block
    order = (*(f.axis.name for f in form.batch), rows, columns)
    if order != tuple(f.axis.name for f in found.outer):
        steps.append(Reorder(order))
    steps.append(Grid(order, (*([1] * len(form.batch)), high, wide), kind))
    i, j = f"{rows}_i", f"{columns}_i"
    if settled:
        steps += [Reorder((j, i)), Grid((j, i), (across, tall), Kind())]
        turn, i, j, high, wide = f"{i}_g", f"{i}_i", f"{j}_i", tall, across
        steps.append(Reorder((i, j)))
    steps.append(Outward((i, j), (high, wide)))
    if form.turned:
        side = next(n for n in (lanes, 8, 4) if n <= min(wide, estimate(found.columns.axis.extent)))
        steps += [Reorder((j, i)), Tile(j, i, side, side, 1, True)]
    else:
        steps.append(Bind(j, Kind("vector", lanes, "", across // lanes if settled else flight(found))))
    known = constant(found.depth.axis.extent)
    if known is None or known > deep:
        steps.append(Split(depth, deep))
        depth = f"{depth}_i"
    return steps, depth, turn


def copy_of(
    form: Form, factor: Expr, name: str, side: int, lanes: int, kind: Kind, row_by_row: bool = False, whole: int = 0
) -> list[Step]:
    """The steps that make a copy for tiles of a side, and share it among the cores.  ``row_by_row``: however it lies.  ``whole``:
    as in ``Ahead``."""
    found = form.found
    along, number = (found.columns, 1 - found.swapped) if factor is found.right else (form.rows, int(found.swapped))
    depth = found.depth.axis
    across = lies_across(factor, along.axis, depth)
    panel, unit = (side, 1) if name == "b" or (across and not row_by_row) else (0, side)
    known = constant(along.axis.extent)
    # of sizes that are not known, it must be proven that no two blocks meet
    group = 1 if known is None or panel and not across else ACROSS // panel + 1 if panel else 16
    chunk = 0 if whole else _share(constant(depth.extent) or 0, CHUNK if panel else DEPTH)
    outer = (*(f"{name}_{f.axis.name}" for f in _own(form, factor)), f"{name}_group", f"{name}_chunk")
    steps: list[Step] = [
        Ahead(depth.name, number, name, along.axis.name, panel, group, chunk, unit, whole),
        Grid(outer, (1,) * len(outer), kind),
    ]
    if whole:
        steps += _rest(form, factor, name, bool(panel), across, lanes, kind)
    if known is None or known % (panel or unit):
        steps.append(Bind(f"{name}_edge" if panel else f"{name}_edge_depth", Kind("vector", lanes)))
    if not panel and across:
        if group < lanes:
            steps.append(Bind(f"{name}_depth", Kind("vector", lanes)))
        elif min(estimate(along.axis.extent), estimate(depth.extent)) >= lanes:
            steps.append(Tile(f"{name}_panel", f"{name}_depth", lanes, lanes, 1, True))
    elif not panel:
        steps.append(Bind(f"{name}_depth", Kind("vector", lanes, "", 4)))
    elif across:
        steps.append(Bind(f"{name}_lane", Kind("vector", min(lanes, panel), "", max(1, panel // lanes))))
    else:
        steps.append(Reorder((f"{name}_panel", f"{name}_depth", f"{name}_lane")))
        if contiguous(factor, depth) and min(panel, estimate(depth.extent)) >= lanes:
            steps.append(Tile(f"{name}_depth", f"{name}_lane", lanes, lanes, 1, True))
    return steps


def _rest(form: Form, factor: Expr, name: str, panels: bool, across: bool, lanes: int, kind: Kind) -> list[Step]:
    """Cores and lanes for what is not deep and copied under masks."""
    rest = f"{name}_rest"
    outer = (*(f"{rest}_{f.axis.name}" for f in _own(form, factor)), f"{rest}_group", f"{rest}_chunk")
    steps: list[Step] = [Grid(outer, (1,) * len(outer), kind)]
    if panels and not across:
        steps.append(Reorder((f"{rest}_panel", f"{rest}_lane", f"{rest}_depth")))
    steps.append(Bind(f"{rest}_lane" if panels and across else f"{rest}_depth", Kind("vector", lanes)))
    return steps


def _share(depth: int, wanted: int) -> int:
    """About ``wanted``, a number that divides ``depth``, of vectors if possible; 0 if there is none."""
    near = [n for n in range(wanted // 2, min(2 * wanted, depth) + 1) if depth % n == 0]
    return min(near, key=lambda n: (n % 16 != 0, abs(n - wanted)), default=0)
