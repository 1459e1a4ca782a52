"""split: SCHEDULED → SCHEDULED, for GPUs.  A kernel of several nests becomes several launches: blocks cannot wait for others.

Before:  acc s = add                        after:   for c in 64 { acc p = add; for i in n/64 { p add= x[…] }; parts[c] = p }
         for i in n { s add= x[i] }                  acc s = add; for c in 64 { s add= parts[c] }; total[0] = s
         for i in n { y[i] = x[i] / s }              for i in n { t = total[0]; y[i] = x[i] / t }

Each large nest at the top of a kernel becomes a launch of its own, what lies between stays together in launches of one block.
Long reductions that too few blocks would share go in chunks, whose results a second launch combines, in order; long scans
likewise, with a third launch that scans each chunk from where the ones before it end.  Names that a
later launch needs go through memory.  Small kernels stay as they are: one block runs them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lowc.ir.index import Axis, Index, Opaque, constant, ix, minimum
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import (
    Acc,
    Buffer,
    Const,
    For,
    FromIndex,
    If,
    Launch,
    Let,
    Load,
    Module,
    Op,
    Step,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.ops import identity
from lowc.ir.scan import outer_updates, read, running
from lowc.ir.types import bool_, i64
from lowc.ir.walk import (
    Substitution,
    buffers,
    exprs,
    indices,
    loads,
    make_kernel,
    names,
    parts,
    statements,
    stores,
)
from lowc.options import Options
from lowc.scheduler import choose_attention, choose_mma, choose_tensor_cores
from lowc.scheduler.apply_simt import conflict_of_threads, is_scan, sunk
from lowc.scheduler.choose_simt import blocks_of_columns, is_column
from lowc.scheduler.nest import chain, depends, estimate, iterations, nested, numel, one_loop
from lowc.scheduler.rename import apart, fresh, renewed
from lowc.scheduler.slice_depth import slice_depth
from lowc.target import Target

SMALL = 8192  # iterations that one block may do by itself
CHUNK = 4096  # elements that a block takes at least of a reduction
RUN = 8  # elements that a thread may access at once
PLAIN = ("add", "mul", "max", "min")  # reducers of scans in chunks
SCAN_CHUNKS = 4  # chunks of a scan that make up for reading everything twice
COLUMN_CHUNK = 64  # elements of a column that a thread scans at least …
COLUMNS = 256  # … and how many threads a block of ``PARTS`` stands for there
PARTS = 4  # blocks for each multiprocessor in a reduction in chunks


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with kernels that one grid can run, or that one block should."""
    taken = {b.name for b in (*module.temps, *module.inputs) if b is not None}
    steps: list[Step] = []
    temps = list(module.temps)
    for step in module.steps:
        if isinstance(step, Launch):
            steps.extend(_Splitter(step, target, taken, temps).launches())
        else:
            steps.append(step)
    return replace(module, temps=tuple(temps), steps=tuple(steps))


@dataclass(slots=True)
class _Part:
    """Statements of one launch; ``grid``: a nest that many blocks share."""

    grid: bool
    body: list[Stmt] = field(default_factory=list[Stmt])


class _Splitter:
    def __init__(self, step: Launch, target: Target, taken: set[str], temps: list[Buffer]) -> None:
        self.step, self.target = step, target
        self.blocks = PARTS * target.cores
        self.taken = taken
        self.temps = temps
        self.own: dict[int, Buffer] = {}
        self.names = names(step.kernel.body)
        self.parts: list[_Part] = []

    def launches(self) -> list[Launch]:
        body = self.step.kernel.body
        kernel, target = self.step.kernel, self.target
        if (found := choose_tensor_cores.contraction(kernel, target)) is not None:
            return self.slices(choose_tensor_cores.slices(found, target))
        if (found := choose_mma.possible(kernel, target)) is not None:
            return self.slices(choose_mma.slices(found, target))
        if choose_attention.ways(kernel, target):
            return [self.step]
        if _is_grid(body):
            self.grid(body[0])  # type: ignore[arg-type]
        elif sum(_work(s) for s in body) <= SMALL:
            return [self.step]
        else:
            for stmt in body:
                self.add(stmt)
        if len(self.parts) == 1:
            return [self.step]
        self.cross()
        return [self.launch(number, part) for number, part in enumerate(self.parts)]

    def slices(self, count: int) -> list[Launch]:
        """The step, which is a product, its depth in ``count`` slices."""
        if count < 2:
            return [self.step]
        memory, launches = slice_depth(self.step, count, fresh(f"{self.step.kernel.name}_parts", self.taken))
        self.temps.append(memory)
        return [*launches]

    # ------------------------------------------------------------ parts

    def small(self) -> list[Stmt]:
        """The body of the part of one block at the end."""
        if not self.parts or self.parts[-1].grid:
            self.parts.append(_Part(False))
        return self.parts[-1].body

    def add(self, stmt: Stmt) -> None:
        if not isinstance(stmt, For) or _work(stmt) <= SMALL:
            self.small().append(stmt)
            return
        updates = outer_updates(stmt)
        if not updates:
            self.grid(stmt)
        elif any(self.loops_of(u) > 1 for u in updates):
            self.small().append(stmt)
        elif running(stmt):
            if not self.scan((), stmt, (), 1):
                self.small().append(stmt)
        elif (spilled := self.spilled(stmt, updates)) is not None:
            self.grid(spilled[0])
            self.add(spilled[1])
        elif _stores(stmt):
            self.small().append(stmt)
        else:
            nest = _flat(stmt, self.names)
            chunks = self.chunks(estimate(nest.axis.extent), _work(stmt), 1)
            self.chunked(nest, updates, chunks, (), ())

    def spilled(self, nest: For, updates: Sequence[Update]) -> tuple[For, For] | None:
        """The rows of ``nest``, which update accumulators from outside once each, as a nest that stores what they contribute, and
        a loop that combines that; None if there are no inner loops that blocks could share, or updates are in them."""
        loops = chain((nest,))
        inner = loops[-1].body
        direct = [s for s in inner if isinstance(s, Update) and any(s.vars[0].name == u.vars[0].name for u in updates)]
        if not any(isinstance(s, For) for s in inner) and not _stores(nest) or len(direct) != len(updates):
            return None
        if any(_updates((s,), u.vars[0].name) for s in inner if isinstance(s, For | If) for u in updates):
            return None
        if any(depends(loop, loops) for loop in loops):
            return None
        if any(len(s.vars) > 1 and s.mask is not None for s in direct):
            return None
        row, rows = _number(loops), numel([f.axis.extent for f in loops])
        again = Axis(fresh(f"{nest.axis.name}_r", self.names), rows)
        body: list[Stmt] = []
        combine: list[Stmt] = []
        for stmt in inner:
            if not any(stmt is u for u in direct):
                body.append(stmt)
                continue
            assert isinstance(stmt, Update)
            held = [self.temp(f"{v.name}_rows", v, rows) for v in stmt.vars]
            for buffer, value in zip(held, stmt.values, strict=True):
                if stmt.mask is not None:
                    nothing = Const(identity(stmt.reducer, buffer.dtype), buffer.dtype)
                    value = Op("select", (stmt.mask, value, nothing), buffer.dtype)
                body.append(Store(buffer, (row,), value))
            combine.append(Update(stmt.vars, stmt.reducer, tuple([Load(b, (ix(again),)) for b in held])))
        (new,) = nested([f.axis for f in loops], body)
        assert isinstance(new, For)
        return new, For(again, tuple(combine))

    def loops_of(self, update: Update) -> int:
        """How many statements at the top of the kernel update what ``update`` does."""
        return sum(_updates((s,), update.vars[0].name) for s in self.step.kernel.body)

    def grid(self, nest: For) -> None:
        """``nest``, whose one long reduction goes in chunks if its outer loops make few blocks."""
        loops = chain((nest,))
        rows = iterations(loops)
        inner = loops[-1].body
        stages = [s for s in inner if isinstance(s, For)]
        alone = len(stages) == 1 and all(isinstance(s, Acc | For | Let | Store) for s in inner)
        # where a row reads what the one before it has stored, all rows' parts cannot be made first
        alone = alone and not any(map(conflict_of_threads, loops))
        if alone and is_column(loops, stages):
            rows = blocks_of_columns(loops, stages)
        if alone and rows < self.blocks:
            stage = stages[0]
            updates = outer_updates(stage)
            if running(stage) and self.scan(loops, stage, inner, rows):
                return
            chunks = self.chunks(max(1, estimate(stage.axis.extent)), _work(stage), rows)
            if updates and chunks > 1 and not running(stage) and not _stores(stage) and _lets(inner, stage) is not None:
                self.rows(loops, stage, updates, chunks)
                return
        self.parts.append(_Part(True, [nest]))

    def chunks(self, extent: int, work: int, rows: int) -> int:
        return max(1, min(self.blocks // rows, work // CHUNK, extent))

    def rows(self, loops: Sequence[For], stage: For, updates: Sequence[Update], chunks: int) -> None:
        """The nest ``loops`` around the reduction ``stage`` as one that makes partial results and one that combines them."""
        body = loops[-1].body
        chain_ = _flat(stage, self.names)
        first = self.chunked(chain_, updates, chunks, loops, _lets(body, stage) or ())
        self.around(loops, body, stage, first)

    def around(self, loops: Sequence[For], body: Sequence[Stmt], stage: For, first: For) -> None:
        """Adds the launch of ``loops`` around ``body``, in which ``first`` stands for ``stage``."""
        nest = nested([f.axis for f in loops], [first if stmt is stage else stmt for stmt in body])
        self.parts.append(_Part(True, list(apart(nest, set()))))

    def scan(self, loops: Sequence[For], stage: For, body: Sequence[Stmt], rows: int) -> bool:
        """Adds three launches for ``stage``, which reads what it accumulates, in the ``body`` of ``loops``: totals of chunks,
        their prefixes, and each chunk from the total of those before it.  False if that cannot be, or does not pay."""
        updates = outer_updates(stage)
        values = _values_of(stage, updates)
        extent = max(1, estimate(stage.axis.extent))
        chunks = self.chunks(extent, _work(stage), rows)
        if loops and is_column(loops, [stage]):
            chunks = min(extent // COLUMN_CHUNK, COLUMNS * self.blocks // iterations(loops))
        lets = _lets(body, stage) if body else ()
        if _meets(stage, [s for s in body if s is not stage]):  # the launch that has those comes before that of the stage
            return False
        if values is None or lets is None or chunks < SCAN_CHUNKS:
            return False
        chunk, inner, position = self.pieces(stage.axis, chunks)
        row, outer, place = self.row(loops)
        mine = place.index(row)
        place.atoms[stage.axis] = position
        own = {u.vars[0].name: Var(fresh(f"{u.vars[0].name}_p", self.names), u.vars[0].dtype) for u in updates}
        for name, var in own.items():
            place.rename(name, var)
        copied = renewed(place, (*lets, *stage.body), self.names)
        first_lets, inside = copied[: len(lets)], For(inner, copied[len(lets) :])
        accs = [Acc((own[u.vars[0].name],), u.reducer) for u in updates]
        # rows of symbolic length are apart as wholes only
        orders = [o for o in ((chunk, *outer), (*outer, chunk)) if not _collide(o, (*first_lets, *accs, inside))]
        if not orders:
            return False
        first = self.chunked(For(stage.axis, values), updates, chunks, loops, lets, True)
        count = chunk.extent
        total = numel([f.axis.extent for f in loops])
        stores: list[Store] = []
        starts: list[Update] = []
        later = Op("gt", (FromIndex(ix(chunk), i64), Const(0, i64)), bool_)
        for update in updates:
            var = update.vars[0]
            ends = self.temp(f"{var.name}_ends", var, total * count)
            stores.append(Store(ends, (row * count + first.axis,), var))
            start = Load(ends, (mine * count + chunk - 1,), later)
            starts.append(Update((own[var.name],), update.reducer, (start,), later))
        prefixes = For(first.axis, (*first.body, *stores))
        if loops:
            self.around(loops, body, stage, prefixes)
        else:
            self.small()[-1] = prefixes
        self.parts.append(_Part(True, [*nested(orders[0], (*first_lets, *accs, *starts, inside))]))
        return True

    def pieces(self, axis: Axis, chunks: int) -> tuple[Axis, Axis, Index]:
        """About ``chunks`` runs of ``axis``: an axis over them, one within a run, and what ``axis`` is by those."""
        extent = axis.extent
        known = constant(extent)
        if known is None:  # runs begin where a thread's do; there are none beyond the end
            size = (extent // (RUN * chunks) + 1) * RUN
            count = (extent + (size - 1)) // size
        else:
            count = ix(_even(known, chunks))
            size = (extent + (count - 1)) // count
        chunk = Axis(fresh(f"{axis.name}_c", self.names), count)
        whole = known is not None and size * count == extent
        inner = Axis(fresh(f"{axis.name}_i", self.names), size if whole else minimum(size, extent - ix(chunk) * size))
        return chunk, inner, ix(chunk) * size + inner

    def row(self, loops: Sequence[For]) -> tuple[Index, list[Axis], Substitution]:
        """The number of an iteration of ``loops``; axes for another launch's loops, and the substitution that puts them there."""
        outer = [Axis(fresh(f.axis.name, self.names), f.axis.extent) for f in loops]
        place = Substitution({f.axis: ix(a) for f, a in zip(loops, outer, strict=True)})
        return _number(loops), outer, place

    def chunked(
        self,
        stage: For,
        updates: Sequence[Update],
        chunks: int,
        loops: Sequence[For],
        lets: Sequence[Let],
        along: bool = False,
    ) -> For:
        """Adds the launch that makes ``chunks`` partial results of ``stage`` for each iteration of ``loops``; the loop that
        combines them, which without ``loops`` is added to the next launch.  ``lets``: of such an iteration, before the stage;
        ``along``: the results of a row lie side by side."""
        chunk, inner, position = self.pieces(stage.axis, chunks)
        row, outer, place = self.row(loops)
        rows = numel([f.axis.extent for f in loops])
        mine = place.index(row)
        place.atoms[stage.axis] = position

        def spot(chunk: Axis, row: Index) -> Index:
            return row * chunk.extent + chunk if along else ix(chunk) * rows + row

        accs: list[Stmt] = []
        keep: list[Stmt] = []
        load: dict[str, Load] = {}
        again = Axis(fresh(f"{stage.axis.name}_c", self.names), chunk.extent)
        for update in updates:
            own = tuple([Var(fresh(f"{v.name}_p", self.names), v.dtype) for v in update.vars])
            accs.append(Acc(own, update.reducer))
            for old, new in zip(update.vars, own, strict=True):
                place.rename(old.name, new)
                parts_ = self.temp(f"{old.name}_parts", old, chunk.extent * rows)
                keep.append(Store(parts_, (spot(chunk, mine),), new))
                load[old.name] = Load(parts_, (spot(again, row),))
        inside = renewed(place, (*lets, *stage.body), self.names)
        body = (*inside[: len(lets)], *accs, For(inner, inside[len(lets) :]), *keep)
        self.parts.append(_Part(True, [*nested((chunk, *outer), body)]))
        combine = For(again, tuple([Update(u.vars, u.reducer, tuple([load[v.name] for v in u.vars])) for u in updates]))
        if not loops:
            self.small().append(combine)
        return combine

    def temp(self, name: str, var: Var, size: Index) -> Buffer:
        """New memory for ``size`` values of ``var``'s dtype."""
        buffer = Buffer(fresh(name, self.taken), var.dtype, (size,), (ix(1),))
        self.temps.append(buffer)
        self.own[id(buffer)] = buffer
        return buffer

    # ------------------------------------------------------------ what crosses

    def cross(self) -> None:
        """Accumulators are declared in the part that updates them last; names that a later part needs go through memory."""
        self.sink_accumulators()
        defined: dict[str, tuple[int, Var]] = {}
        for number, part in enumerate(self.parts):
            for stmt in part.body:
                for var in stmt.vars if isinstance(stmt, Acc) else (stmt.var,) if isinstance(stmt, Let) else ():
                    defined[var.name] = number, var
        kept: dict[str, Buffer] = {}
        for number, part in enumerate(self.parts):
            wanted = [n for n in _used(part.body) if n in defined and defined[n][0] < number]
            lets: list[Let] = []
            rename = Substitution()
            for name in wanted:
                home, var = defined[name]
                if name not in kept:
                    kept[name] = self.temp(f"{name}_value", var, ix(1))
                    self.parts[home].body.append(Store(kept[name], (ix(0),), var))
                own = Var(fresh(name, self.names), var.dtype)
                lets.append(Let(own, Load(kept[name], (ix(0),))))
                rename.rename(name, own)
            if lets:
                body = rename.body(tuple(part.body))
                part.body = list(sunk(body[0], lets)) if part.grid and isinstance(body[0], For) else [*lets, *body]

    def sink_accumulators(self) -> None:
        """Moves each Acc at the top to the part of its first update that is at the top."""
        for number, part in enumerate(self.parts):
            for stmt in [s for s in part.body if isinstance(s, Acc)]:
                name = stmt.vars[0].name
                home = next((n for n in range(number, len(self.parts)) if _updates(self.parts[n].body, name)), number)
                if home != number:
                    part.body.remove(stmt)
                    self.parts[home].body.insert(0, stmt)
        self.parts = [p for p in self.parts if p.body]

    def launch(self, number: int, part: _Part) -> Launch:
        kernel = self.step.kernel
        argument = {id(p): a for p, a in zip(kernel.params, self.step.args, strict=True)} | self.own
        body = tuple(part.body)
        touched = {id(b) for b in buffers(body)}
        params = [*(p for p in kernel.params if id(p) in touched), *(b for k, b in self.own.items() if k in touched)]
        named = make_kernel(f"{kernel.name}_{number}", body, params)
        return Launch(named, tuple([argument[id(p)] for p in params]), self.step.origin)


# ---------------------------------------------------------------- facts


def _even(extent: int, chunks: int) -> int:
    """A number of chunks of equal size, a multiple of ``RUN``: the largest from a quarter of ``chunks`` on; else ``chunks``."""
    for count in range(chunks, chunks // 4, -1):
        if extent % count == 0 and extent // count % RUN == 0:
            return count
    return chunks


def _number(loops: Sequence[For]) -> Index:
    """The number of an iteration of directly nested ``loops``."""
    row = ix(0)
    for loop in loops:
        row = row * loop.axis.extent + loop.axis
    return row


def _is_grid(body: Sequence[Stmt]) -> bool:
    """Whether ``body`` is one nest that blocks can share."""
    return len(body) == 1 and isinstance(body[0], For) and not outer_updates(body[0]) and not conflict_of_threads(body[0])


def _work(stmt: Stmt) -> int:
    """Iterations of all loops in ``stmt``."""
    if isinstance(stmt, For):
        return max(0, estimate(stmt.axis.extent)) * sum(_work(s) for s in stmt.body)
    return sum(_work(s) for s in stmt.body) if isinstance(stmt, If) else 1


def _stores(stmt: For) -> bool:
    return any(isinstance(s, Store) for s in statements(stmt.body))


def _lets(body: Sequence[Stmt], stage: For) -> list[Let] | None:
    """The lets before ``stage`` in ``body``, which another launch can repeat; None if they or the stage see what is stored there,
    or what is accumulated."""
    before = body[: [s is stage for s in body].index(True)]
    lets = [s for s in before if isinstance(s, Let)]
    written = {id(s.buffer) for s in stores(before)}
    accumulated = {v.name for s in before if isinstance(s, Acc) for v in s.vars}
    if read(lets) & accumulated or not written.isdisjoint(id(a.buffer) for a in loads((*lets, stage))):
        return None
    return lets


def _meets(stage: For, others: Sequence[Stmt]) -> bool:
    """Whether one of ``stage`` and ``others`` writes what the other touches."""
    one = {id(s.buffer) for s in stores((stage,))}, {id(a.buffer) for a in loads((stage,))}
    two = {id(s.buffer) for s in stores(others)}, {id(a.buffer) for a in loads(others)}
    return bool(one[0] & (two[0] | two[1]) or two[0] & one[1])


def _collide(axes: Sequence[Axis], body: Sequence[Stmt]) -> bool:
    """Whether threads cannot share one of the loops over ``axes`` around ``body``."""
    return any(conflict_of_threads(loop) for loop in chain(nested(axes, body))[: len(axes)])


def _values_of(stage: For, updates: Sequence[Update]) -> tuple[Stmt, ...] | None:
    """What a scan accumulates, as a loop's body without what is done with the prefixes; None if it depends on those, or is not
    plain."""
    if len(running(stage)) != len(updates) or not is_scan(stage):
        return None
    held = {v.name for u in updates for v in u.vars}
    out: list[Stmt] = []
    for stmt in stage.body:
        if isinstance(stmt, Let):
            if read((stmt,)) & held:
                held.add(stmt.var.name)
            else:
                out.append(stmt)
        elif isinstance(stmt, Update):
            if read((stmt,)) & held or stmt.reducer not in PLAIN:
                return None
            out.append(stmt)
        elif not isinstance(stmt, Store) or stmt.reducer:
            return None
    last = max(n for n, s in enumerate(out) if isinstance(s, Update))
    return tuple(out[: last + 1])


def _updates(body: Sequence[Stmt], name: str) -> bool:
    return any(isinstance(s, Update) and s.vars[0].name == name for s in statements(body))


def _used(body: Sequence[Stmt]) -> list[str]:
    """Names of variables that ``body`` reads, as values or as coordinates."""
    found: dict[str, None] = {}
    for stmt in statements(body):
        for expr in exprs(stmt):
            found.update({p.name: None for p in parts(expr) if isinstance(p, Var)})
    for index in indices(body):
        found.update({a.name: None for a in index_atoms(index) if isinstance(a, Opaque)})
    return list(found)


def _flat(stage: For, taken: set[str]) -> For:
    """``stage`` with its directly nested loops joined, so that chunks are even."""
    loops: list[For] = []
    for loop in chain((stage,)):
        if depends(loop, loops):
            break
        loops.append(loop)
    return stage if len(loops) == 1 else one_loop(loops, f"{stage.axis.name}_f", taken)
