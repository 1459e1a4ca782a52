"""Loop distribution: a loop over few columns that goes down their rows several times becomes one loop for each time.

    for c in 32 {                                       →  alloc m_row, r_row: f32[32]
      acc s = add; for k in K { s add= x[k*32 + c] }       for c in 32 { acc s = add; for k in K { s add= … }; m_row[c] = s / K }
      m = s / K
      acc v = add; for k in K { d = x[…] - m; … }          for c in 32 { acc v = add; for k in K { d = … - m_row[c]; … };
      r = rsqrt(v / K)                                                   r_row[c] = rsqrt(v / K) }
      for k in K { y[k*32 + c] = (x[…] - m) * r } }        for k in K { for c in 32 { y[…] = (x[…] - m_row[c]) * r_row[c] } }

Cores could share the columns alone, of which there are too few; each of the new loops they share by rows.  What one loop hands
to a later one lies in arrays over the columns.  For CPUs: the cores of a GPU are too many for one launch to have several such
loops, see ``split``.
"""

from collections.abc import Sequence

from lowc.ir.index import Axis, Index, Opaque, constant, ix, split
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import (
    PARALLEL,
    Acc,
    Alloc,
    Buffer,
    For,
    Kernel,
    Let,
    Load,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.scan import outer_updates, read
from lowc.ir.walk import Substitution, indices, make_kernel, names
from lowc.scheduler.conflict import conflict
from lowc.scheduler.nest import estimate, touched
from lowc.scheduler.rename import fresh
from lowc.target import Target

STRIP = 256  # columns that a core takes at least
MOST = 4096  # columns over which arrays stay in the nearest cache
LINES = 256  # bytes of a row that vectors of columns read at a time
SMALL = 16384  # elements that one core does sooner than several
ROWS = 256  # down which a loop must go to be worth a loop of its own


def few_columns(columns: int, target: Target) -> bool:
    """Whether cores had better share the rows below so many columns: each should have two strips that are a kilobyte wide."""
    return columns <= min(MOST, 2 * target.cores * STRIP)


def distribute(kernel: Kernel, target: Target) -> Kernel:
    """``kernel`` with such loops distributed."""
    taken = names(kernel.body) | {p.name for p in kernel.params}
    body: list[Stmt] = []
    for stmt in kernel.body:
        if isinstance(stmt, For) and _few(stmt, target) and (stages := _stages(stmt)):
            body.extend(_apart(stmt.axis, stages, taken))
        else:
            body.append(stmt)
    return make_kernel(kernel.name, tuple(body), kernel.params) if body != list(kernel.body) else kernel


def _few(loop: For, target: Target) -> bool:
    """Whether ``loop`` is over columns that are too few, or strips of so many rows that they are no longer in cache when they are
    gone down again; the arrays over the columns must stay there."""
    columns = constant(loop.axis.extent)
    if columns is None or not 1 < columns <= MOST:
        return False
    rows = max((estimate(s.axis.extent) for s in loop.body if isinstance(s, For)), default=0)
    return rows * columns >= SMALL and (few_columns(columns, target) or rows * LINES > target.l2)


def _stages(loop: For) -> list[list[Stmt]]:
    """What becomes a loop each: accumulators, the loop that reduces into them and what follows; a loop that stores, alone; what
    else there is.  Empty if ``loop`` is not of the form, or nothing is to be gained."""
    stages: list[list[Stmt]] = []
    opened: list[Stmt] = []
    for stmt in loop.body:
        reduced = any(isinstance(s, For) for s in opened)
        if isinstance(stmt, Acc | For) and reduced:
            stages.append(opened)
            opened, reduced = [], False
        if isinstance(stmt, Acc):
            opened.append(stmt)
        elif isinstance(stmt, For):
            own = {v.name for acc in opened if isinstance(acc, Acc) for v in acc.vars}
            if not _down(stmt, loop.axis) or own != {v.name for u in outer_updates(stmt) for v in u.vars}:
                return []
            if opened:
                opened.append(stmt)
            else:
                stages.append([stmt])
        elif not isinstance(stmt, Let | Store) or (isinstance(stmt, Store) and stmt.reducer):
            return []
        elif reduced:
            opened.append(stmt)
        elif not read([stmt]).isdisjoint(v.name for acc in opened if isinstance(acc, Acc) for v in acc.vars):
            return []
        elif stages and not _is_map(stages[-1]):
            stages[-1].append(stmt)
        else:
            stages.append([stmt])
    if opened and not any(isinstance(s, For) for s in opened):
        return []
    stages += [opened] if opened else []
    gains = len(stages) > 1 and any(isinstance(s, For) for s in loop.body) or bool(stages) and _is_map(stages[0])
    return stages if gains and not _by_data(loop) and not conflict(loop, PARALLEL) else []


def _by_data(loop: For) -> bool:
    """Whether an index in ``loop`` (of memory, or in a mask or an extent) is a let, which another loop would not have."""
    return any(isinstance(a, Opaque) for index in indices(loop.body) for a in index_atoms(index))


def _is_map(stage: Sequence[Stmt]) -> bool:
    return isinstance(stage[0], For)


def _down(loop: For, columns: Axis) -> bool:
    """Whether ``loop`` goes down long columns: what moves with it lies side by side along ``columns``."""
    simple = all(isinstance(s, Let | Update) or (isinstance(s, Store) and not s.reducer) for s in loop.body)
    if not simple or estimate(loop.axis.extent) < ROWS or columns in index_atoms(loop.axis.extent):
        return False
    if any(isinstance(s, Update) for s in loop.body) and any(isinstance(s, Store) for s in loop.body):
        return False
    moving = [a.index[0] for a in touched(loop.body) if loop.axis in index_atoms(a.index[0])]
    return bool(moving) and all(constant(_step(i, columns)) == 1 and constant(_step(i, loop.axis)) != 1 for i in moving)


def _step(index: Index, axis: Axis) -> Index:
    return split(index, axis)[0]


def _apart(axis: Axis, stages: Sequence[Sequence[Stmt]], taken: set[str]) -> list[Stmt]:
    rows: dict[str, Buffer] = {}
    loops: list[Stmt] = []
    for number, stage in enumerate(stages):
        column = Axis(fresh(axis.name, taken), axis.extent) if number else axis
        rename = Substitution({axis: ix(column)}, {name: Load(row, (ix(column),)) for name, row in rows.items()})
        later = read([s for rest in stages[number + 1 :] for s in rest])
        keep: list[Stmt] = []
        for var in _defined(stage):
            if var.name in later:
                rows[var.name] = Buffer(fresh(f"{var.name}_row", taken), var.dtype, (axis.extent,), (ix(1),), "local")
                keep.append(Store(rows[var.name], (ix(column),), var))
        if _is_map(stage):
            (loop,) = stage
            assert isinstance(loop, For)
            loops.append(For(loop.axis, (For(column, rename.body(loop.body)),)))
        else:
            loops.append(For(column, (*rename.body(stage), *keep)))
    return [*map(Alloc, rows.values()), *loops]


def _defined(stage: Sequence[Stmt]) -> list[Var]:
    """What is named in ``stage`` beside its loop."""
    return [v for s in stage for v in (s.vars if isinstance(s, Acc) else (s.var,) if isinstance(s, Let) else ())]
