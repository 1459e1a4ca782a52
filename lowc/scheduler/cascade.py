"""Long sums in blocks, blocks of blocks …: no accumulator takes many more than ``CHAIN`` additions.

The rounding error of a sum grows with the number of additions in a row (an f32 that counts in ones even stops at 2^24), so each
accumulator of floats hands on its sum after ``CHAIN`` additions, to one of the next level, which does so too.  This looks at a
kernel whose axes are bound, since lanes and strips in flight are accumulators of their own:

    acc s = add; for k in 1000000 vector(8, 8) { s add= x[k] }
      →  acc s = add; for … { acc p = add; for … { acc q = add; for … vector(8, 8) { q add= … }; p add= q }; s add= p }

It does not touch scans (each sum there is a result), products (whose rounding errors are the same in any order), sums of
integers, nor additions to memory that outlives the kernel.
"""

from collections.abc import Sequence

from lowc.ir.index import Index, constant, upper_bound
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Acc, Alloc, For, If, Kernel, Stmt, Store, Update
from lowc.ir.walk import statements, stores
from lowc.scheduler.apply import Block, Schedule
from lowc.scheduler.sums import outer_rows, outer_sums

CHAIN = 64  # additions in one accumulator before a block ends
DOWN = 16  # where each turn adds once to a sum, as down a column: on lanes a sum of so many would be a tree, and as exact
SLACK = 2  # chains up to so many times that long stay whole
UNKNOWN = 1 << 20  # iterations of a loop of unknown extent


def choose(kernel: Kernel) -> Schedule:
    """Blocks for the sums of ``kernel``."""
    plan: list[Block] = []
    _body(kernel.body, plan)
    return tuple(plan)


def _body(body: Sequence[Stmt], plan: list[Block]) -> dict[str, int]:
    """Additions to each accumulator and each array of them, by name, in one run of ``body``; blocks go to ``plan``."""
    added: dict[str, int] = {}
    inside: set[str] = set()
    for stmt in body:
        new: dict[str, int] = {}
        if isinstance(stmt, Acc):
            inside.update(v.name for v in stmt.vars)
        elif isinstance(stmt, Alloc):
            inside.add(stmt.buffer.name)
        elif isinstance(stmt, Update):
            if stmt.reducer == "add" and stmt.vars[0].dtype.kind == "f":
                new = {stmt.vars[0].name: 1}
        elif isinstance(stmt, Store):
            if stmt.reducer == "add" and stmt.buffer.space == "local" and stmt.buffer.dtype.kind == "f":
                new = {stmt.buffer.name: 1}
        elif isinstance(stmt, If):
            new = _body(stmt.body, plan)
        elif isinstance(stmt, For):
            new = _loop(stmt, plan)
        for name, count in new.items():
            added[name] = added.get(name, 0) + count
    return {name: count for name, count in added.items() if name not in inside}


def _loop(loop: For, plan: list[Block]) -> dict[str, int]:
    """As ``_body``, for ``loop``, which gets blocks where that is too many."""
    each = _body(loop.body, plan)
    if loop.kind.name == "parallel":
        return each
    axis, strip = loop.axis, 1
    turns = most = _most(axis.extent)
    if loop.kind.name == "vector":
        strip = loop.kind.width * max(1, loop.kind.interleave)
        turns = most // strip + -(-(most % strip) // loop.kind.width)  # the last ones all go to one accumulator
    apart = {s.buffer.name for s in stores(loop.body) if axis in index_atoms(s.index[0])}
    total = {name: count if name in apart else count * turns for name, count in each.items()}
    mine = {u.vars[0].name for u in outer_sums(loop)} | {b.name for b in outer_rows(loop)}
    own = any(isinstance(s, Acc) or (isinstance(s, Alloc) and s.reducer) for s in statements(loop.body))
    chain = DOWN if strip == 1 and not own and all(each.get(name, 1) == 1 for name in mine) else CHAIN
    long = [name for name in mine if total.get(name, 0) > SLACK * chain]
    if not long or turns < 2:
        return total
    size = strip * _turns(max(1, chain // max(each[name] for name in long)), strip, axis.extent)
    sizes, blocks = [size], -(-most // size)
    while blocks > SLACK * CHAIN:
        sizes.append(CHAIN)
        blocks = -(-blocks // CHAIN)
    plan.append(Block(axis.name, tuple(sizes)))
    return total | dict.fromkeys(mine, blocks)


def _turns(wanted: int, strip: int, extent: Index) -> int:
    """``wanted``, or somewhat less where the extent then divides into whole blocks."""
    known = constant(extent)
    if known is not None:
        for turns in range(wanted, wanted // 2, -1):
            if known % (turns * strip) == 0:
                return turns
    return wanted


def _most(extent: Index) -> int:
    known = constant(extent)
    if known is not None:
        return max(0, known)
    top = upper_bound(extent)
    return UNKNOWN if top is None else max(0, min(top, UNKNOWN))
