"""MACHINE kernels as LLVM functions: one method a statement, and ``eval``, the one way from an expression
to a value.

A kernel ``k(a: f32[…], …)`` becomes ``void @k(ptr %a, …, i64 %s0, …, ptr %error)``.  Vector loops are in
``vector``, parallel ones in ``parallel``, accumulators in ``accumulators``, loads and stores in ``access``.
"""

from collections.abc import Callable, Sequence

from lowc.backends.llvm.builder import Builder, ModuleText
from lowc.backends.llvm.evaluation import evaluate_in_order
from lowc.backends.llvm.types import constant as constant_text
from lowc.backends.llvm.types import memory
from lowc.backends.x86 import access, accumulators, amx, pairs, parallel, registers, transpose, vector
from lowc.backends.x86.accumulators import Group
from lowc.backends.x86.operations import Val, apply, binary, const, select, splat
from lowc.backends.x86.reduce import across_lanes
from lowc.backends.x86.region import Lanes, Region, quoted, scalar_index, varies, vector_index
from lowc.errors import CodegenError
from lowc.ir.index import constant, lower_bound
from lowc.ir.nodes import (
    Acc,
    Alloc,
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
from lowc.ir.ops import identity
from lowc.ir.pairs import PACKED, neighbours
from lowc.ir.types import i8, i64
from lowc.ir.walk import statements, stores

MAX_STACK = (
    1 << 20
)  # bytes of local memory in one function; a thread's stack is 8 MiB or, set by the user, less
MAX_UNROLLED = 64  # iterations; longer loops stay loops
CHECKS = {"check_index": access.checked_index, "check_nonzero": access.checked_nonzero}


def emit_kernel(text: ModuleText, kernel: Kernel, ops: frozenset[str], threads: bool) -> None:
    """Adds ``kernel`` to ``text``.  Raises CodegenError for what has no code."""
    b = Builder(text)
    b.at(kernel)
    region = Region(b, ops, "%error")
    for param in kernel.params:
        region.pointers[param.name] = f"%{quoted(param.name)}"
    for size in kernel.sizes:
        region.sizes[size.name] = f"%{quoted(size.name)}"
    Emitter(region, kernel, threads).function(kernel.body)
    params = [f"ptr noalias {p}" for p in region.pointers.values() if p.startswith('%"')]
    params += [f"i64 {s}" for s in region.sizes.values()]
    b.finish(f"internal void @{quoted(kernel.name)}({', '.join([*params, 'ptr %error'])})")


class Emitter:
    """Emits the statements of one function.

    ``written``: names of the buffers that the kernel stores to.  ``unrolls``: the (iteration, extent) of
    each unrolled loop around what is emitted now, ``flight`` that of the interleaved strip: they tell which
    copy of an accumulator an update goes to.  ``tiles``: whether the function has configured those of the matrix unit; ``fresh``:
    arrays of sums, the first product of which sets them.
    """

    def __init__(self, region: Region, kernel: Kernel, threads: bool) -> None:
        self.r = region
        self.b = region.b
        self.kernel = kernel
        self.threads = threads
        self.written = {s.buffer.name for s in stores(kernel.body)}
        self.memo: dict[int, Val] = {}
        self.stack = 0
        self.in_parallel = False
        self.regions = 0
        self.unrolls: list[tuple[int, int]] = []
        self.flight: tuple[int, int] = (0, 1)
        self.tiles = False
        self.fresh: set[str] = set()

    def inside(self, region: Region) -> "Emitter":
        """An emitter for the body of a parallel loop, in a function of its own."""
        other = Emitter(region, self.kernel, self.threads)
        other.written, other.in_parallel = self.written, True
        return other

    # ------------------------------------------------------------ statements

    def function(self, body: Sequence[Stmt]) -> None:
        """``body``, which is all that the function does."""
        with amx.configured(self, body):
            self.body(body)

    def body(self, body: Sequence[Stmt]) -> None:
        """``body`` in order; an accumulator that it declares is brought into its final form after its last
        update.
        """
        last: dict[int, list[Group]] = {}
        around = self.b.mark
        for number, stmt in enumerate(body):
            self.b.at(stmt)
            # what was loaded for one statement need not be what the next one would load
            self.memo.clear()
            if isinstance(stmt, Acc):
                group = self.acc(stmt, body[number + 1 :])
                name = stmt.vars[0].name
                updated = [n for n in range(number + 1, len(body)) if _updates(body[n], name)]
                if updated:
                    last.setdefault(updated[-1], []).append(group)
            elif isinstance(stmt, Alloc) and (lanes := self.register_lanes(stmt, body[number + 1 :])):
                registers.declare(self, stmt, lanes)
            elif isinstance(stmt, Alloc) and amx.sets(self, body[number : number + 2]):
                self.alloc(Alloc(stmt.buffer))
            elif not transpose.emit(self, stmt, body[number + 1 :]) and not amx.emit(self, stmt):
                self.stmt(stmt)
            for group in last.get(number, ()):
                accumulators.close(self.b, group, self.r.ops)
        self.memo.clear()
        self.b.mark = around

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, Let):
            self.r.variables[stmt.var.name] = self.eval(stmt.value)
        elif isinstance(stmt, Store):
            self.store(stmt)
        elif isinstance(stmt, Update):
            self.update(stmt)
        elif isinstance(stmt, Alloc):
            self.alloc(stmt)
        elif isinstance(stmt, For):
            self.loop(stmt)
        elif isinstance(stmt, If):
            self.condition(stmt)
        else:
            raise CodegenError("no barriers on x86")

    def register_lanes(self, stmt: Alloc, rest: Sequence[Stmt]) -> int:
        """Lanes of the registers that local memory can be, 0 if it cannot."""
        return 0 if self.r.lanes is not None else registers.width(stmt, rest)

    def store(self, stmt: Store) -> None:
        if stmt.buffer.name in self.r.arrays:
            registers.store(self, stmt)
            return
        mask = None if stmt.mask is None else self.eval(stmt.mask)
        value = self.eval(stmt.value)
        access.store(self.r, stmt.buffer, stmt.index[0], value, mask, stmt.reducer)

    def acc(self, stmt: Acc, rest: Sequence[Stmt]) -> Group:
        enclosing = self.r.lanes.count if self.r.lanes else 0
        group = accumulators.declare(stmt, accumulators.plan(stmt, rest), enclosing, len(self.unrolls))
        self.r.groups.update((v.name, group) for v in stmt.vars)
        return group

    def update(self, stmt: Update) -> None:
        group = self.r.groups[stmt.vars[0].name]
        fused = registers.factors(self, stmt.values[0]) if stmt.reducer == "add" else None
        values = fused or [self.eval(v) for v in stmt.values]
        mask = None if stmt.mask is None else self.eval(stmt.mask)
        if self.r.lanes is not None and group.lanes:
            mask = access.both(self.r, mask, self.r.lanes.mask)
        copy = 0
        for number, extent in self.unrolls[group.depth :]:
            copy = copy * extent + number
        copy = copy * self.flight[1] + self.flight[0]
        accumulators.update(self.b, group, copy, values, mask, self.r.lanes is not None, self.r.ops)

    def alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        count = constant(buffer.shape[0]) if len(buffer.shape) == 1 else None
        if count is None:
            raise CodegenError(f"local memory {buffer.name} has no known size")
        if self.r.lanes is not None:  # each lane has its own
            self.r.laned[buffer.name] = self.r.lanes.count
            count *= self.r.lanes.count
        self.stack += count * buffer.dtype.bytes
        if self.stack > MAX_STACK:
            raise CodegenError(f"local memory {buffer.name} does not fit on a stack")
        pointer = self.b.alloca(f"[{max(1, count)} x {memory(buffer.dtype)}]", 64)
        self.r.pointers[buffer.name] = pointer
        if stmt.reducer and count:
            start = identity(stmt.reducer, buffer.dtype)
            value = const(int(start), i8) if buffer.dtype.kind == "b" else const(start, buffer.dtype)
            self.fill(pointer, count, value)

    def fill(self, pointer: str, count: int, value: Val) -> None:
        """``count`` elements of local memory set to ``value``, a constant of a type as it is in memory."""
        lanes, done = 16, 0

        def stored(filled: Val, many: int) -> Callable[[str, list[str]], Sequence[str]]:
            def each(index: str, _: list[str]) -> Sequence[str]:
                place = self.b.op(f"getelementptr {value.type}, ptr {pointer}, i64 {index}")
                for n in range(many):
                    at = self.b.op(f"getelementptr {filled.type}, ptr {place}, i64 {n}") if n else place
                    self.b.line(f"store {filled.type} {filled.text}, ptr {at}, align {value.dtype.bytes}")
                return ()

            return each

        for wide, many in ((lanes, 8), (lanes, 1), (0, 1)):
            step = max(1, wide) * many
            end = count // step * step
            if end > done:
                self.b.loop(str(done), str(end), step, [], stored(splat(self.b, value, wide), many), True)
                done = end

    def condition(self, stmt: If) -> None:
        cond = self.eval(stmt.cond)
        if cond.lanes:
            raise CodegenError("a condition that differs from lane to lane")
        self.branch(cond.text, stmt.body)

    def branch(self, condition: str, body: Sequence[Stmt]) -> None:
        self.conditional(condition, self.carried(body), lambda: self.scoped(body))

    def conditional(self, condition: str, groups: list[Group], body: Callable[[], None]) -> None:
        """``body`` where ``condition`` holds; it may update ``groups``."""
        old = flat(groups)
        copies = [[list(c) for c in g.copies] for g in groups]

        def then() -> list[str]:
            body()
            return [v.text for v in flat(groups)]

        texts = self.b.branch(condition, [(v.type, v.text) for v in old], then)
        for group, before in zip(groups, copies, strict=True):
            group.copies = before
        unflatten(groups, texts)

    def scoped(self, body: Sequence[Stmt]) -> None:
        """``body`` with names that end with it."""
        r = self.r
        before = dict(r.variables), dict(r.groups), dict(r.laned), dict(r.arrays)
        self.body(body)
        r.variables, r.groups, r.laned, r.arrays = before

    def carried(self, body: Sequence[Stmt]) -> list[Group]:
        """The accumulators and arrays of registers from outside that ``body`` updates."""
        inside = {s.vars[0].name for s in statements(body) if isinstance(s, Acc)}
        names = {s.vars[0].name: None for s in statements(body) if isinstance(s, Update)}
        arrays = {s.buffer.name: None for s in stores(body) if s.buffer.name in self.r.arrays}
        return [*(self.r.groups[n] for n in names if n not in inside), *(self.r.arrays[n] for n in arrays)]

    # ------------------------------------------------------------ loops

    def loop(self, stmt: For) -> None:
        kind = stmt.kind.name
        if kind == "vector" and stmt.kind.width > 1:
            vector.emit(self, stmt)
        elif kind == "parallel" and self.threads and not self.in_parallel and self.r.lanes is None:
            parallel.emit(self, stmt)
        elif kind == "unroll":
            self.unrolled_loop(stmt)
        elif varies(self.r, stmt.axis.extent):
            self.uneven_loop(stmt)
        else:
            self.serial_loop(stmt, "0", scalar_index(self.r, stmt.axis.extent))

    def serial_loop(self, stmt: For, low: str, high: str) -> None:
        def each(index: str) -> None:
            self.r.axes[stmt.axis.name] = index
            transpose.fetch_next(self, stmt)
            self.scoped(stmt.body)

        runs = low == "0" and (lower_bound(stmt.axis.extent) or 0) >= 1
        self.carrying(self.carried(stmt.body), low, high, 1, each, runs)

    def carrying(
        self, groups: list[Group], low: str, high: str, step: int, body: Callable[[str], None], runs: bool
    ) -> None:
        """A loop whose iterations hand ``groups`` on; see ``Builder.loop``."""

        def each(index: str, values: list[str]) -> list[str]:
            unflatten(groups, values)
            body(index)
            return [v.text for v in flat(groups)]

        texts = self.b.loop(low, high, step, [(v.type, v.text) for v in flat(groups)], each, runs)
        unflatten(groups, texts)

    def unrolled_loop(self, stmt: For) -> None:
        extent = constant(stmt.axis.extent)
        if extent is None or extent > MAX_UNROLLED:
            self.serial_loop(stmt, "0", scalar_index(self.r, stmt.axis.extent))
            return
        for n in range(extent):
            self.r.axes[stmt.axis.name] = str(n)
            self.unrolls.append((n, extent))
            self.scoped(stmt.body)
            self.unrolls.pop()

    def uneven_loop(self, stmt: For) -> None:
        """A loop inside a vector loop whose extent differs from lane to lane: as often as the longest
        wants, under masks.
        """
        lanes = self.r.lanes
        assert lanes is not None
        extent = vector_index(self.r, stmt.axis.extent)
        if lanes.mask is not None:
            extent = select(self.b, lanes.mask, extent, const(0, i64, lanes.count))
        (most,) = across_lanes(self.b, "max", [extent], self.r.ops)

        def each(index: str) -> None:
            inside = binary(self.b, "gt", extent, splat(self.b, Val(index, i64), lanes.count))
            self.r.lanes = Lanes(lanes.axis, lanes.count, lanes.base, access.both(self.r, lanes.mask, inside))
            self.r.axes[stmt.axis.name] = index
            self.scoped(stmt.body)

        self.carrying(self.carried(stmt.body), "0", most.text, 1, each, False)
        self.r.lanes = lanes

    # ------------------------------------------------------------ expressions

    def eval(self, root: Expr) -> Val:
        """The value of ``root`` here: one for all lanes, or one a lane."""
        return evaluate_in_order(root, self.memo, self.evaluate)

    def evaluate(self, expr: Expr) -> Val:
        """``expr``, whose parts are in the memo."""
        if isinstance(expr, Const):
            return Val(constant_text(expr.value, expr.dtype), expr.dtype)
        if isinstance(expr, Var):
            return self.r.variable(expr.name)
        if isinstance(expr, Load):
            if expr.buffer.name in self.r.arrays:
                return registers.load(self, expr.buffer, expr.index[0])
            mask = None if expr.mask is None else self.memo[id(expr.mask)]
            return access.load(self.r, expr.buffer, expr.index[0], mask, expr.buffer.name in self.written)
        if isinstance(expr, FromIndex):
            if varies(self.r, expr.index):
                value = vector_index(self.r, expr.index)
            else:
                value = Val(scalar_index(self.r, expr.index), i64)
            return apply(self.b, "cast", [value], expr.dtype, self.r.ops)
        if expr.name == "rarely":
            return self.rarely(expr)
        if expr.name in PACKED:
            return self.packed(expr)
        if expr.name == "soon":
            if isinstance(expr.args[1], Load):
                access.fetch(self.r, expr.args[1].buffer, expr.args[1].index[0])
            return self.memo[id(expr.args[0])]
        args = [self.memo[id(a)] for a in expr.args]
        if expr.name in CHECKS:
            return CHECKS[expr.name](self.r, *args)
        return apply(self.b, expr.name, args, expr.dtype, self.r.ops)

    def packed(self, expr: Op) -> Val:
        """Two bf16, or four bytes, as 32 bits: as they lie in memory where they are neighbours."""
        first = neighbours(expr)
        if first is not None and (value := pairs.load(self.r, first, expr.dtype, first.buffer.name in self.written)):
            return value
        return apply(self.b, expr.name, [self.eval(a) for a in expr.args], expr.dtype, self.r.ops)

    def rarely(self, expr: Op) -> Val:
        """select(cond, a, b), with a branch around ``a`` that is taken if no lane wants it."""
        cond, other = self.memo[id(expr.args[0])], self.memo[id(expr.args[2])]
        lanes = self.r.lanes.count if self.r.lanes is not None else 0
        other = splat(self.b, other, lanes)
        wanted = accumulators.any_lane(self.b, cond)
        outside = self.memo

        def then() -> list[str]:
            self.memo = dict(outside)
            value = select(self.b, cond, splat(self.b, self.eval(expr.args[1]), lanes), other)
            return [value.text]

        (text,) = self.b.branch(wanted, [(other.type, other.text)], then)
        self.memo = outside
        return Val(text, expr.dtype, lanes)


def flat(groups: Sequence[Group]) -> list[Val]:
    """All values of the accumulators, in order."""
    return [v for g in groups for c in g.copies for v in c]


def unflatten(groups: Sequence[Group], texts: Sequence[str]) -> None:
    """Gives the accumulators new values of the types that they have."""
    rest = iter(texts)
    for group in groups:
        group.copies = [[Val(next(rest), v.dtype, v.lanes) for v in c] for c in group.copies]


def _updates(stmt: Stmt, name: str) -> bool:
    return any(isinstance(s, Update) and s.vars[0].name == name for s in statements((stmt,)))
