"""MACHINE kernels as functions of one thread: one method a statement, and ``eval``, the one way from an expression to a value.

A kernel ``k(a: f32[…], …)`` becomes ``ptx_kernel void @k_k(ptr addrspace(1) %a, …, i64 %s0, …, %error, i64 %step)``.
Accumulators and @local memory are allocas, which LLVM turns into registers; what a vector loop computes is a list of scalars, one
a lane.  A thread walks through every statement in which threads wait for one another, taking part or not (``Thread.active``).
"""

from collections.abc import Callable, Sequence
from math import prod

from lowc.backends.llvm.evaluation import evaluate_in_order
from lowc.backends.llvm.types import constant as constant_text
from lowc.backends.llvm.types import memory
from lowc.backends.llvm.values import Val, binary, const, select
from lowc.backends.nvptx import access, relay, turns
from lowc.backends.nvptx.combine import Exchange, across, barrier, linear, merge
from lowc.backends.nvptx.operations import apply
from lowc.backends.nvptx.plan import Plan, dimension, scans, updates
from lowc.backends.nvptx.scan import Scan
from lowc.backends.nvptx.thread import (
    Group,
    Lanes,
    Memory,
    Thread,
    Vals,
    always,
    known,
    lanes_of,
    operand,
    sized,
    uniform,
    value,
)
from lowc.errors import CodegenError
from lowc.ir.index import Index, constant
from lowc.ir.index import prove_nonneg as proven
from lowc.ir.nodes import (
    APART,
    Acc,
    Alloc,
    Barrier,
    Buffer,
    Const,
    Expr,
    For,
    FromIndex,
    If,
    Kernel,
    Let,
    Load,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.ops import FIRST_INDEX, identity
from lowc.ir.outlets import outlets
from lowc.ir.relays import quad
from lowc.ir.tiles import is_outlet, pipelines
from lowc.ir.types import DType, i64
from lowc.ir.walk import statements

MAX_UNROLLED = 64  # iterations of a loop, and strips of a vector loop
MAX_STRIPS = 8  # strips that are unrolled so that their loads are under way together
STATIC_SHARED = 24 << 10  # bytes of shared memory of a kernel that need no asking; exchanges take another 24 KB at most
MAX_LOCAL = 64 << 10  # bytes of local memory of a thread
DYNAMIC = "@lowc_shared"


class Emitter:
    """Emits the statements of one kernel.

    ``shared``: bytes of dynamic shared memory taken so far; ``dynamic``: whether shared allocs go there.  ``loops``: how many
    loops (in the code) are around.  ``covered``: ids of the thread loops that all threads take part in here.  ``pipeline``: emits
    a pipelined loop that multiplies, ``outlet`` one that takes results out.  ``unset``: arrays of sums that the pipeline sets.
    ``resident``: emits a fill outside of pipelines, for who fills; ``placed``: shared memory that has a place already.
    ``step``: of a loop of teams: the first iteration and how many further the next is.
    """

    def __init__(self, thread: Thread, kernel: Kernel, plan: Plan, prefix: str) -> None:
        self.t = thread
        self.b = thread.b
        self.plan = plan
        self.prefix = prefix
        self.exchange = Exchange(self.b, f"{prefix}.x")
        self.memo: dict[int, Vals] = {}
        self.loops = 0
        self.covered: set[int] = set()
        self.local = 0
        self.shared = 0
        self.pipeline: Callable[[For], None] | None = None
        self.outlet: Callable[[For, Callable[[Stmt], None]], None] | None = None
        self.resident: Callable[[For], None] | None = None
        self.unset: frozenset[str] = frozenset()
        self.placed: frozenset[str] = frozenset()
        self.step: tuple[str, int] = ("0", 1)
        tiles = {id(s) for loop in (*pipelines(kernel.body), *outlets(kernel.body)) for s in loop.body}
        allocs = [s.buffer for s in statements(kernel.body) if isinstance(s, Alloc) and id(s) not in tiles]
        total = sum(-(-_size(b) * b.dtype.bytes // 16) * 16 for b in allocs if b.space == "shared")
        self.dynamic = total > STATIC_SHARED

    # ------------------------------------------------------------ statements

    def body(self, body: Sequence[Stmt]) -> None:
        """``body`` in order; what it accumulates across threads is combined after the last update."""
        last: dict[int, list[Group]] = {}
        around = self.b.mark
        for number, stmt in enumerate(body):
            self.b.at(stmt)
            self.memo.clear()  # what was loaded for one statement need not be what the next one would load
            self.stmt(stmt)
            if isinstance(stmt, For) and not self.t.open:
                self.b.forget_loads()  # what is to stay in registers between loops of a block, ``share`` has put there
            group = self.declared(stmt)
            if group is not None and group.over:
                name = group.vars[0][0]
                updated = [n for n in range(number + 1, len(body)) if updates(body[n], name)]
                last.setdefault(max(updated, default=number), []).append(group)
            for over in dict.fromkeys(g.over for g in last.get(number, ())):
                self.close([g for g in last[number] if g.over == over])
        self.memo.clear()
        self.b.mark = around

    def declared(self, stmt: Stmt) -> Group | None:
        if isinstance(stmt, Acc):
            return self.t.groups[stmt.vars[0].name]
        if isinstance(stmt, Alloc) and stmt.reducer and stmt.buffer.space == "local":
            return self.t.groups[stmt.buffer.name]
        return None

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, Let):
            self.t.variables[stmt.var.name] = self.eval(stmt.value)
        elif isinstance(stmt, Acc):
            self.acc(stmt)
        elif isinstance(stmt, Alloc):
            self.alloc(stmt)
        elif isinstance(stmt, Barrier):
            barrier(self.t)
        elif isinstance(stmt, For) and stmt.kind.name == "thread":
            found = quad(stmt)
            if found is not None:
                relay.combine(self.t, found)
            else:
                self.thread_loop(stmt)
        elif isinstance(stmt, For) and stmt.kind.name == "instr" and not self.t.open:
            if self.resident is not None:
                self.resident(stmt)
        elif isinstance(stmt, For) and is_outlet(stmt):
            if self.outlet is None:
                raise CodegenError(f"results taken out over {stmt.axis} of a kernel without a ring")
            self.outlet(stmt, self.stmt)
        elif isinstance(stmt, For) and stmt.kind.name == "pipeline":
            if self.pipeline is None:
                raise CodegenError(f"a pipeline over {stmt.axis} without a ring")
            self.pipeline(stmt)
        elif isinstance(stmt, For) and stmt.kind.name == "teams":
            self.teams(stmt)
        elif id(stmt) in self.plan.collective:
            self.walk(stmt)
        elif isinstance(stmt, Store):
            self.under(self.alone(stmt), lambda: self.store(stmt))
        elif isinstance(stmt, Update):
            self.under(self.counted(stmt.vars[0].name), lambda: self.update(stmt))
        elif isinstance(stmt, For):
            self.under(self.t.active, lambda: self.loop(stmt))
        else:
            assert isinstance(stmt, If)
            self.under(self.t.active, lambda: self.condition(stmt))

    def under(self, condition: str, body: Callable[[], None]) -> None:
        """``body`` for the threads for which ``condition`` ("": always) holds."""

        def then() -> list[str]:
            active, self.t.active = self.t.active, ""
            body()
            self.t.active = active
            return []

        if condition:
            self.b.branch(condition, [], then)
        else:
            body()

    def also(self, condition: str, other: str) -> str:
        if not condition or not other:
            return condition or other
        return self.b.pure(f"and i1 {condition}, {other}")

    def first_of(self, dims: frozenset[str]) -> str:
        """Whether a thread is number 0 in ``dims``."""
        condition = ""
        for d in sorted(dims):
            condition = self.also(condition, self.b.pure(f"icmp eq i32 {self.t.tid[d]}, 0"))
        return condition

    def alone(self, stmt: Store) -> str:
        """Which threads carry out a store: one of those that do the same, in local memory each."""
        name = stmt.buffer.name
        if stmt.buffer.space == "local":
            if stmt.reducer and name in self.t.groups:
                return self.counted(name)
            if stmt.reducer and self.plan.over.get(name):
                raise CodegenError(f"threads add to {name}, of which each has its own and which is no accumulator")
            return self.t.active
        used = frozenset(d for d, n in self.t.threads.items() if n > 1)
        return self.also(self.first_of(used - self.t.open), self.t.active)

    def counted(self, name: str) -> str:
        """Which threads carry out an update of ``name``: one of those that would add the same to its total."""
        return self.also(self.first_of(self.t.groups[name].over - self.t.open), self.t.active)

    def store(self, stmt: Store) -> None:
        mask = None if stmt.mask is None else self.eval(stmt.mask)
        access.store(self.t, stmt.buffer, stmt.index, self.eval(stmt.value), mask, stmt.reducer)

    # ------------------------------------------------------------ accumulators

    def acc(self, stmt: Acc) -> None:
        lanes = self.t.lanes.count if self.t.lanes is not None else 1
        start = _identities(stmt)
        places: list[list[str]] = []
        for _ in range(lanes):
            places.append([self.b.alloca(v.type, max(1, v.dtype.bytes)) for v in start])
            for v, place in zip(start, places[-1], strict=True):
                self.b.line(f"store {v.type} {v.text}, ptr {place}")
        over = self.plan.over.get(stmt.vars[0].name, frozenset())
        named = tuple((var.name, v) for var, v in zip(stmt.vars, start, strict=True))
        group = Group(named, stmt.reducer, 0, over, places)
        for var in stmt.vars:
            self.t.groups[var.name] = group
            self.t.variables.pop(var.name, None)

    def contributions(self, stmt: Update) -> list[list[Val]]:
        """What an update adds, for each lane: the identity where its mask is off."""
        group = self.t.groups[stmt.vars[0].name]
        values = [self.eval(v) for v in stmt.values]
        mask = None if stmt.mask is None else self.eval(stmt.mask)
        lanes = self.t.lanes.count if self.t.lanes is not None else 1
        new: list[list[Val]] = []
        for n in range(lanes):
            one = [access.lane(v, n) for v in values]
            if mask is not None:
                held = access.lane(mask, n)
                one = [select(self.b, held, v, start) for v, (_, start) in zip(one, group.vars, strict=True)]
            new.append(one)
        return new

    def update(self, stmt: Update) -> None:
        group = self.t.groups[stmt.vars[0].name]
        new = self.contributions(stmt)
        if len(group.places) == 1:
            new = [self.tree(group.reducer, new)]
        for places, one in zip(group.places, new, strict=True):
            old = [
                Val(self.b.op(f"load {v.type}, ptr {p}"), v.dtype) for p, v in zip(places, one, strict=True)
            ]
            for p, v in zip(places, merge(self.t, group.reducer, old, one), strict=True):
                self.b.line(f"store {v.type} {v.text}, ptr {p}")

    def tree(self, reducer: str, values: list[list[Val]]) -> list[Val]:
        """Accumulators combined pair by pair."""
        while len(values) > 1:
            rest = values[len(values) // 2 * 2 :]
            pairs = zip(values[::2], values[1::2], strict=False)
            values = [merge(self.t, reducer, a, c) for a, c in pairs] + rest
        return values[0]

    def close(self, groups: list[Group]) -> None:
        """Combines accumulators across threads, all with the same exchange."""
        spots = [(g, n) for g in groups for _ in g.places for n in range(max(1, g.size))]
        lanes = [p for g in groups for p in g.places for _ in range(max(1, g.size))]
        held = [
            (g.reducer, [self.element(g, k, p, n) for k, p in enumerate(ps)])
            for (g, n), ps in zip(spots, lanes, strict=True)
        ]
        again = self.loops > 0
        combined = across(self.t, held, groups[0].over, self.exchange, again)
        for (g, n), ps, (_, values) in zip(spots, lanes, combined, strict=True):
            for p, v in zip(ps, values, strict=True):
                self.put(g, p, n, v)

    def element(self, group: Group, var: int, place: str, n: int) -> Val:
        dtype = group.vars[var][1].dtype
        if not group.size:
            return Val(self.b.op(f"load {Val('', dtype).type}, ptr {place}"), dtype)
        text = self.b.op(f"load {memory(dtype)}, ptr {self.at(place, dtype, n)}")
        return Val(self.b.pure(f"icmp ne i8 {text}, 0") if dtype.kind == "b" else text, dtype)

    def put(self, group: Group, place: str, n: int, v: Val) -> None:
        if not group.size:
            self.b.line(f"store {v.type} {v.text}, ptr {place}")
            return
        text = self.b.pure(f"zext i1 {v.text} to i8") if v.dtype.kind == "b" else v.text
        self.b.line(f"store {memory(v.dtype)} {text}, ptr {self.at(place, v.dtype, n)}")

    def at(self, pointer: str, dtype: DType, n: int) -> str:
        return self.b.pure(f"getelementptr {memory(dtype)}, ptr {pointer}, i64 {n}") if n else pointer

    def alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        if buffer.space == "shared":
            if buffer.name not in self.placed:
                self.alloc_shared(stmt)
            return
        distributed = self.plan.distributed.get(buffer.name, 0)
        size = max(1, _size(buffer, distributed))
        lanes = self.t.lanes.count if self.t.lanes is not None else 1
        self.local += size * lanes * buffer.dtype.bytes
        if self.local > MAX_LOCAL:
            raise CodegenError(f"local memory {buffer.name} does not fit in a thread's")
        element = memory(buffer.dtype)
        pointers = [self.b.alloca(f"[{size} x {element}]", 16) for _ in range(lanes)]
        self.t.memory[buffer.name] = Memory(tuple(pointers), 0, distributed)
        if stmt.reducer:
            start = const(identity(stmt.reducer, buffer.dtype), buffer.dtype)
            over = self.plan.over.get(buffer.name, frozenset())
            group = Group(((buffer.name, start),), stmt.reducer, size, over, [[p] for p in pointers])
            self.t.groups[buffer.name] = group
            for pointer in pointers if buffer.name not in self.unset else ():
                for n in range(size):
                    self.put(group, pointer, n, start)

    def alloc_shared(self, stmt: Alloc) -> None:
        buffer, globals_ = stmt.buffer, self.b.module.globals
        size = max(1, _size(buffer))
        if self.dynamic:
            globals_.setdefault(DYNAMIC, f"{DYNAMIC} = external addrspace(3) global [0 x i8], align 16")
            pointer = self.b.pure(f"getelementptr i8, ptr addrspace(3) {DYNAMIC}, i32 {self.shared}")
            self.shared += -(-size * buffer.dtype.bytes // 16) * 16
        else:
            pointer = f'@"{self.prefix}.s.{buffer.name}"'
            element = memory(buffer.dtype)
            globals_[pointer] = (
                f"{pointer} = internal addrspace(3) global [{size} x {element}] undef, align 16"
            )
        self.t.memory[buffer.name] = Memory((pointer,), 3)
        if stmt.reducer:
            self.fill_shared(stmt, pointer, size)

    def fill_shared(self, stmt: Alloc, pointer: str, size: int) -> None:
        """All threads set the elements, each some."""
        if self.t.open:
            raise CodegenError(
                f"shared memory {stmt.buffer.name} is set by all threads, and declared in a loop of them"
            )
        dtype = stmt.buffer.dtype
        start = const(identity(stmt.reducer, dtype), dtype)
        text = ("1" if start.text == "true" else "0") if dtype.kind == "b" else start.text
        if self.loops:
            barrier(self.t)

        def each(index: str, _: list[str]) -> Sequence[str]:
            place = self.b.op(f"getelementptr {memory(dtype)}, ptr addrspace(3) {pointer}, i32 {index}")
            self.b.line(f"store {memory(dtype)} {text}, ptr addrspace(3) {place}, align {dtype.bytes}")
            return ()

        self.b.loop(linear(self.t), str(size), prod(self.t.threads.values()), [], each, False, "i32")
        barrier(self.t)

    # ------------------------------------------------------------ control

    def scoped(self, body: Sequence[Stmt]) -> None:
        """``body`` with names that end with it."""
        t = self.t
        variables, groups, places = dict(t.variables), dict(t.groups), dict(t.memory)
        self.body(body)
        t.variables, t.groups, t.memory = variables, groups, places

    def condition(self, stmt: If) -> None:
        cond = self.eval(stmt.cond)
        if len(cond) > 1:
            raise CodegenError("a condition that differs from lane to lane")
        self.under(access.lane(cond, 0).text, lambda: self.scoped(stmt.body))

    def walk(self, stmt: Stmt) -> None:
        """A loop or condition in which threads wait for one another: all must take the same way."""
        t = self.t
        if isinstance(stmt, If):
            if t.open:
                raise CodegenError("threads that wait for one another under a condition in a thread loop")
            cond = self.eval(stmt.cond)
            self.b.branch(cond[0].text, [], lambda: self.nothing(lambda: self.scoped(stmt.body)))
            return
        assert isinstance(stmt, For)
        if not uniform(t, stmt.axis.extent, self.plan.varying):
            raise CodegenError(
                f"threads that wait for one another in the loop {stmt.axis}, as long as a thread says"
            )
        if stmt.kind.name == "vector":
            raise CodegenError(f"threads that wait for one another in the vector loop {stmt.axis}")
        self.loop(stmt)

    def nothing(self, body: Callable[[], None]) -> list[str]:
        body()
        return []

    def thread_loop(self, stmt: For) -> None:
        t, axis, d = self.t, stmt.axis, dimension(stmt)
        width = t.threads[d]
        tid = t.tid[d]
        covered = id(stmt) in self.covered or proven(axis.extent - width)
        inside = "" if covered else turns.within(t, tid, axis.extent, width)
        outer, t.open = t.open, t.open | {d}
        if id(stmt) in self.plan.scans:
            t.axes[axis.name] = (tid, 32)
            scan = Scan(t, self.exchange, self.plan.scans[id(stmt)], self.body, self.contributions, self.loops > 0)
            scan.run(stmt, self.also(t.active, inside))
        elif id(stmt) not in self.plan.collective:
            t.axes[axis.name] = (tid, 32) if width > 1 else 0
            condition = self.also(t.active, inside)
            if condition:
                turns.prepare(t, stmt.body)
            self.under(condition, lambda: self.scoped(stmt.body))
        else:
            active = t.active
            if not covered:
                # a thread beyond the end goes along as the last one does, and writes nothing
                if not uniform(t, axis.extent, self.plan.varying):
                    raise CodegenError(
                        f"threads that wait for one another in the loop {axis}, as long as a thread says"
                    )
                last, bits = operand(t, axis.extent - 1)
                last = sized(self.b, last, bits, 32)
                at = self.b.call("llvm.smin.i32", "i32", [("i32", tid), ("i32", last)])
                t.axes[axis.name] = (at, 32)
                t.active = self.also(t.active, inside)
            else:
                t.axes[axis.name] = (tid, 32) if width > 1 else 0
            self.scoped(stmt.body)
            t.active = active
        t.open = outer

    # ------------------------------------------------------------ loops

    def loop(self, stmt: For) -> None:
        kind = stmt.kind
        if kind.name == "vector" and kind.width > 1 and self.t.lanes is None and not scans(stmt):
            self.vector_loop(stmt)
            return
        if kind.name not in ("serial", "unroll", "vector", "instr"):
            raise CodegenError(f"a {kind.name} loop inside a block")
        extent = constant(stmt.axis.extent)
        wanted = kind.name != "serial" or stmt.axis.name in self.plan.indexing
        if extent is not None and (extent <= 1 or (wanted and extent <= max(MAX_UNROLLED, kind.width))):
            for n in range(extent):
                self.t.axes[stmt.axis.name] = n
                if kind.key == APART:
                    self.b.branch(always(self.t), [], lambda: self.nothing(lambda: self.scoped(stmt.body)))
                else:
                    self.scoped(stmt.body)
            return
        if any(len(self.lanes_in(i)) > 1 for i in (stmt.axis.extent,)):
            raise CodegenError(f"the loop {stmt.axis} is not equally long in all lanes")
        whole = None if id(stmt.body[0]) in self.plan.collective | set(self.plan.scans) else turns.full(stmt)
        if whole is not None:
            self.turns(stmt, whole)
            return
        end, bits = operand(self.t, stmt.axis.extent)
        self.counted_loop(stmt, "0", end, bits, (self.t.range(stmt.axis.extent)[0] or 0) >= 1)

    def turns(self, stmt: For, whole: Index) -> None:
        """A loop over ``whole`` turns that every thread takes part in, and perhaps one more that only some do."""
        bits = 32 if self.t.fits(whole) and self.t.fits(stmt.axis.extent) else 64
        full, end = (operand(self.t, i, bits=bits)[0] for i in (whole, stmt.axis.extent))
        self.covered.add(id(stmt.body[0]))
        start = self.groups(stmt, full, bits) if turns.light(stmt) else "0"
        self.counted_loop(stmt, start, full, bits, False)
        self.covered.remove(id(stmt.body[0]))
        more = self.b.pure(f"icmp slt i{bits} {full}, {end}")
        self.t.axes[stmt.axis.name] = (full, bits)
        self.b.branch(more, [], lambda: self.nothing(lambda: self.scoped(stmt.body)))

    def groups(self, stmt: For, full: str, bits: int) -> str:
        """A loop over groups of turns; gives the first turn after it."""

        def each(index: str, _: list[str]) -> Sequence[str]:
            first = self.b.pure(f"mul i{bits} {index}, {turns.GROUP}")
            for n in range(turns.GROUP):
                self.t.axes[stmt.axis.name] = (self.b.pure(f"add i{bits} {first}, {n}"), bits)
                self.scoped(stmt.body)
            return ()

        count = self.b.pure(f"sdiv i{bits} {full}, {turns.GROUP}")
        self.loops += 1
        self.b.loop("0", count, 1, [], each, False, f"i{bits}")
        self.loops -= 1
        return self.b.pure(f"mul i{bits} {count}, {turns.GROUP}")

    def teams(self, stmt: For) -> None:
        """A loop whose iterations teams have in turn, as one of them walks through it."""
        first, step = self.step

        def each(index: str, _: list[str]) -> Sequence[str]:
            self.t.axes[stmt.axis.name] = (index, bits)
            self.scoped(stmt.body)
            return ()

        end, bits = operand(self.t, stmt.axis.extent)
        self.loops += 1
        self.b.loop(sized(self.b, first, 32, bits), end, step, [], each, False, f"i{bits}")
        self.loops -= 1

    def lanes_in(self, index: Index) -> range:
        return range(lanes_of(self.t, (index,)))

    def counted_loop(self, stmt: For, low: str, high: str, bits: int, runs: bool) -> None:
        """A loop in the code."""

        def each(index: str, _: list[str]) -> Sequence[str]:
            self.t.axes[stmt.axis.name] = (index, bits)
            self.scoped(stmt.body)
            return ()

        self.loops += 1
        self.b.loop(low, high, 1, [], each, runs, f"i{bits}")
        self.loops -= 1

    def vector_loop(self, stmt: For) -> None:
        axis, width = stmt.axis, stmt.kind.width
        extent = constant(axis.extent)
        if extent is not None:
            self.strips(stmt, extent // width)
            for n in range(extent // width * width, extent):
                self.t.axes[axis.name] = n
                self.scoped(stmt.body)
            return
        end, bits = operand(self.t, axis.extent)
        if self.t.range(axis.extent)[1] == width:
            # one strip, or less
            whole = self.b.pure(f"icmp eq i{bits} {end}, {width}")
            self.b.branch(whole, [], lambda: self.nothing(lambda: self.strips(stmt, 1)))
            start = self.b.pure(f"select i1 {whole}, i{bits} {width}, i{bits} 0")
        else:
            most = self.b.call(f"llvm.smax.i{bits}", f"i{bits}", [(f"i{bits}", end), (f"i{bits}", "0")])
            start = self.b.pure(f"sub i{bits} {most}, {self.b.pure(f'urem i{bits} {most}, {width}')}")
            self.strip_loop(stmt, start, False, bits)
        self.counted_loop(stmt, start, end, bits, False)

    def strips(self, stmt: For, count: int) -> None:
        width, axis = stmt.kind.width, stmt.axis
        if count <= MAX_STRIPS or (axis.name in self.plan.indexing and count <= MAX_UNROLLED):
            for n in range(count):
                self.t.lanes = Lanes(axis, width, n * width)
                self.scoped(stmt.body)
                self.t.lanes = None
            return
        self.strip_loop(stmt, str(count * width), True)

    def strip_loop(self, stmt: For, end: str, runs: bool, bits: int = 32) -> None:
        def each(index: str, _: list[str]) -> Sequence[str]:
            self.t.lanes = Lanes(stmt.axis, stmt.kind.width, index, bits)
            self.scoped(stmt.body)
            self.t.lanes = None
            return ()

        self.loops += 1
        self.b.loop("0", end, stmt.kind.width, [], each, runs, f"i{bits}")
        self.loops -= 1

    # ------------------------------------------------------------ expressions

    def eval(self, root: Expr) -> Vals:
        """The value of ``root`` here."""
        return evaluate_in_order(root, self.memo, self.evaluate)

    def fresh(self, root: Expr) -> Vals:
        """The value of ``root`` here, where nothing of a statement before is known."""
        self.memo.clear()
        return self.eval(root)

    def evaluate(self, expr: Expr) -> Vals:
        """``expr``, whose parts are in the memo."""
        t = self.t
        if isinstance(expr, Const):
            return (Val(constant_text(expr.value, expr.dtype), expr.dtype),)
        if isinstance(expr, Var):
            return t.variable(expr.name)
        if isinstance(expr, Load):
            mask = None if expr.mask is None else self.memo[id(expr.mask)]
            return access.load(t, expr.buffer, expr.index, mask)
        if isinstance(expr, FromIndex):
            lanes = self.lanes_in(expr.index)
            return tuple(apply(self.b, "cast", [value(t, expr.index, n)], expr.dtype, t.ops) for n in lanes)
        if expr.name == "rarely":
            return self.rarely(expr)
        if expr.name == "soon":
            return self.memo[id(expr.args[0])]
        args = [self.memo[id(a)] for a in expr.args]
        if expr.name == "cast":
            return access.convert(t, args[0], expr.dtype)
        count = max(len(a) for a in args)
        return tuple(self.one(expr, [access.lane(a, n) for a in args]) for n in range(count))

    def one(self, expr: Op, args: list[Val]) -> Val:
        """``expr`` in one lane."""
        if expr.name == "check_index":
            return access.checked_index(self.t, *args)
        if expr.name == "check_nonzero":
            return access.checked_nonzero(self.t, *args)
        return apply(self.b, expr.name, args, expr.dtype, self.t.ops)

    def rarely(self, expr: Op) -> Vals:
        """select(cond, a, b), with a branch around ``a`` that is taken if no lane of this thread wants it."""
        cond, other = self.memo[id(expr.args[0])], self.memo[id(expr.args[2])]
        lanes = self.t.lanes.count if self.t.lanes is not None else 1
        wanted = access.lane(cond, 0)
        for n in range(1, len(cond)):
            wanted = binary(self.b, "or", wanted, cond[n])
        outside = self.memo

        def then() -> list[str]:
            self.memo = dict(outside)
            new = self.eval(expr.args[1])
            return [
                select(self.b, access.lane(cond, n), access.lane(new, n), access.lane(other, n)).text
                for n in range(lanes)
            ]

        before = [(v.type, v.text) for v in (access.lane(other, n) for n in range(lanes))]
        texts = self.b.branch(wanted.text, before, then)
        self.memo = outside
        return tuple(Val(x, expr.dtype) for x in texts)


def _identities(stmt: Acc) -> list[Val]:
    first = const(identity(stmt.reducer, stmt.vars[0].dtype), stmt.vars[0].dtype)
    return [first] if len(stmt.vars) == 1 else [first, const(FIRST_INDEX, i64)]


def _size(buffer: Buffer, distributed: int = 0) -> int:
    """Elements of an alloc that a thread has of its own, or a block."""
    sizes = [known(n, f"a size of {buffer.name}") for n in buffer.shape[distributed:]]
    steps = [known(n, f"a stride of {buffer.name}") for n in buffer.strides[distributed:]]
    return 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
