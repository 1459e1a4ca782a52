"""MACHINE kernels as LLVM functions: one method a statement, and ``eval``, the one way from an expression to a value.

A kernel ``k(a: f32[…], …)`` becomes ``void @k(ptr %a, …, i64 %s0, …, ptr %error)``.  A parallel loop becomes a function of its own over a range
of iterations, and a worker through which the OpenMP runtime calls it on each thread.
"""

from collections.abc import Sequence

from lowc.backends.llvm.builder import Builder, ModuleText
from lowc.backends.llvm.types import memory
from lowc.backends.x86 import access, transpose
from lowc.backends.x86.operations import Val, apply, const, select, splat
from lowc.backends.x86.reduce import across_lanes, combine, identities
from lowc.backends.x86.region import Lanes, Region, scalar_index, varies, vector_index
from lowc.errors import CodegenError
from lowc.ir.index import Axis, Opaque, constant, lower_bound
from lowc.ir.index import atoms as index_atoms
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
from lowc.ir.types import DType, bool_, i64
from lowc.ir.walk import buffers, exprs, indices, parts, statements, stores, symbols

MAX_STACK = 1 << 20  # bytes of local memory in one function; a thread's stack is 8 MiB or, set by the user, less


def emit_kernel(text: ModuleText, kernel: Kernel, ops: frozenset[str], threads: bool) -> None:
    """Adds ``kernel`` to ``text``.  Raises CodegenError for what has no code."""
    b = Builder(text)
    region = Region(b, ops, "%error")
    for param in kernel.params:
        region.pointers[param.name] = f"%{quoted(param.name)}"
    for size in kernel.sizes:
        region.sizes[size.name] = f"%{quoted(size.name)}"
    emitter = Emitter(region, kernel, threads)
    emitter.body(kernel.body)
    params = [f"ptr noalias {p}" for p in region.pointers.values() if not p.startswith("%a.")]
    names = [f"ptr noalias %{quoted(p.name)}" for p in kernel.params]
    names += [f"i64 %{quoted(s.name)}" for s in kernel.sizes]
    _ = params
    b.finish(f"internal void @{quoted(kernel.name)}({', '.join([*names, 'ptr %error'])})")


def quoted(name: str) -> str:
    """A name as LLVM takes it after % or @."""
    return f'"k.{name}"'


class Emitter:
    """Emits the statements of one function.  ``written``: names of the buffers that the kernel stores to."""

    def __init__(self, region: Region, kernel: Kernel, threads: bool) -> None:
        self.r = region
        self.b = region.b
        self.kernel = kernel
        self.threads = threads
        self.written = {s.buffer.name for s in stores(kernel.body)}
        self.memo: dict[int, Val] = {}
        self.kept: list[Expr] = []
        self.reducers: dict[str, tuple[tuple[Var, ...], str]] = {}
        self.stack = 0
        self.in_parallel = False
        self.regions = 0

    # ------------------------------------------------------------ statements

    def body(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            self.stmt(stmt)

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, Let):
            self.r.variables[stmt.var.name] = self.eval(stmt.value)
        elif isinstance(stmt, Store):
            self.store(stmt)
        elif isinstance(stmt, Update):
            self.update(stmt)
        elif isinstance(stmt, Acc):
            self.acc(stmt)
        elif isinstance(stmt, Alloc):
            self.alloc(stmt)
        elif isinstance(stmt, For):
            self.loop(stmt)
        elif isinstance(stmt, If):
            self.condition(stmt)
        else:
            raise CodegenError("no barriers on x86")

    def store(self, stmt: Store) -> None:
        mask = None if stmt.mask is None else self.eval(stmt.mask)
        value = self.eval(stmt.value)
        access.store(self.r, stmt.buffer, stmt.index[0], value, mask, stmt.reducer)

    def acc(self, stmt: Acc) -> None:
        lanes = self.r.lanes.count if self.r.lanes else 0
        for var, value in zip(stmt.vars, identities(stmt.vars, stmt.reducer, lanes), strict=True):
            self.r.variables[var.name] = value
            self.reducers[var.name] = (stmt.vars, stmt.reducer)
        self.memo.clear()

    def update(self, stmt: Update) -> None:
        old = [self.r.variables[v.name] for v in stmt.vars]
        values = [self.eval(v) for v in stmt.values]
        mask = None if stmt.mask is None else self.eval(stmt.mask)
        lanes = max(v.lanes for v in old)
        if any(v.lanes > lanes for v in values):
            raise CodegenError(f"lanes meet in {stmt.vars[0].name}")
        if lanes and self.r.lanes is not None:
            mask = access.both(self.r, mask, self.r.lanes.mask)
        values = [splat(self.b, v, lanes) for v in values]
        new = combine(self.b, stmt.reducer, old, values, self.r.ops)
        if mask is not None:
            new = [select(self.b, splat(self.b, mask, lanes), n, o) for n, o in zip(new, old, strict=True)]
        for var, value in zip(stmt.vars, new, strict=True):
            self.r.variables[var.name] = value
        self.memo.clear()

    def alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        count = constant(buffer.shape[0]) if len(buffer.shape) == 1 else None
        if count is None:
            raise CodegenError(f"local memory {buffer.name} has no known size")
        self.stack += count * buffer.dtype.bytes
        if self.stack > MAX_STACK:
            raise CodegenError(f"local memory {buffer.name} does not fit on a stack")
        pointer = self.b.alloca(f"[{max(1, count)} x {memory(buffer.dtype)}]", 64)
        self.r.pointers[buffer.name] = pointer
        if stmt.reducer:
            value = const(identity(stmt.reducer, buffer.dtype), buffer.dtype)
            self.fill(pointer, count, value)

    def fill(self, pointer: str, count: int, value: Val) -> None:
        element = memory(value.dtype)

        def each(index: str, _: list[str]) -> list[str]:
            place = self.b.op(f"getelementptr {element}, ptr {pointer}, i64 {index}")
            self.b.line(f"store {element} {value.text}, ptr {place}, align {value.dtype.bytes}")
            return []

        lanes = 16
        whole = count // lanes * lanes
        if whole:

            def many(index: str, _: list[str]) -> list[str]:
                place = self.b.op(f"getelementptr {element}, ptr {pointer}, i64 {index}")
                wide = splat(self.b, value, lanes)
                self.b.line(f"store {wide.type} {wide.text}, ptr {place}, align {value.dtype.bytes}")
                return []

            if value.dtype.kind != "b":
                self.b.loop("0", str(whole), lanes, [], many, True)
            else:
                whole = 0
        if count > whole:
            self.b.loop(str(whole), str(count), 1, [], each, True)

    def condition(self, stmt: If) -> None:
        cond = self.eval(stmt.cond)
        if cond.lanes:
            raise CodegenError("a condition that differs from lane to lane")
        names = self.carried(stmt.body)
        old = [self.r.variables[n] for n in names]

        def then() -> list[str]:
            self.scoped(stmt.body)
            return [self.r.variables[n].text for n in names]

        new = self.b.branch(cond.text, [(v.type, v.text) for v in old], then)
        for name, value, text in zip(names, old, new, strict=True):
            self.r.variables[name] = Val(text, value.dtype, value.lanes)
        self.memo.clear()

    def scoped(self, body: Sequence[Stmt]) -> None:
        """``body`` with names that end with it; accumulators from outside keep what the body made of them."""
        saved = dict(self.r.variables)
        names = self.carried(body)
        self.memo.clear()
        self.body(body)
        self.memo.clear()
        after = {n: self.r.variables[n] for n in names}
        self.r.variables.clear()
        self.r.variables.update(saved)
        self.r.variables.update(after)

    def carried(self, body: Sequence[Stmt]) -> list[str]:
        """Accumulators from outside that ``body`` updates."""
        inside = {v.name for s in statements(body) if isinstance(s, Acc) for v in s.vars}
        names = {v.name: None for s in statements(body) if isinstance(s, Update) for v in s.vars}
        return [n for n in names if n not in inside]

    # ------------------------------------------------------------ loops

    def loop(self, stmt: For) -> None:
        kind = stmt.kind.name
        if kind == "vector":
            self.vector_loop(stmt)
        elif kind == "parallel" and self.threads and not self.in_parallel and self.r.lanes is None:
            self.parallel_loop(stmt)
        elif kind == "instr" and stmt.kind.key == "transpose" and transpose.emit(self, stmt):
            return
        elif kind == "unroll":
            self.unrolled_loop(stmt)
        else:
            self.serial_loop(stmt, "0", scalar_index(self.r, stmt.axis.extent))

    def serial_loop(self, stmt: For, low: str, high: str) -> None:
        names = self.carried(stmt.body)
        old = [self.r.variables[n] for n in names]

        def each(index: str, values: list[str]) -> list[str]:
            self.r.axes[stmt.axis.name] = index
            for name, value, text in zip(names, old, values, strict=True):
                self.r.variables[name] = Val(text, value.dtype, value.lanes)
            self.scoped(stmt.body)
            return [self.r.variables[n].text for n in names]

        runs = low == "0" and (lower_bound(stmt.axis.extent) or 0) >= 1
        new = self.b.loop(low, high, 1, [(v.type, v.text) for v in old], each, runs)
        for name, value, text in zip(names, old, new, strict=True):
            self.r.variables[name] = Val(text, value.dtype, value.lanes)
        self.memo.clear()

    def unrolled_loop(self, stmt: For) -> None:
        extent = constant(stmt.axis.extent)
        if extent is None or extent > 64:
            self.serial_loop(stmt, "0", scalar_index(self.r, stmt.axis.extent))
            return
        for n in range(extent):
            self.r.axes[stmt.axis.name] = str(n)
            self.scoped(stmt.body)

    # ------------------------------------------------------------ vector loops

    def vector_loop(self, stmt: For) -> None:
        """Strips of lanes: several in flight while they last, then one by one, then the rest masked."""
        if self.r.lanes is not None:
            raise CodegenError("a vector loop inside a vector loop")
        width, flight = stmt.kind.width, max(1, stmt.kind.interleave)
        extent = constant(stmt.axis.extent)
        names = self.carried(stmt.body)
        groups = self.groups(names)
        copies = [self.lane_identities(groups, width) for _ in range(flight)]
        high = scalar_index(self.r, stmt.axis.extent)
        done = "0"
        if flight > 1 and (extent is None or extent >= flight * width):
            end = self.rounded(high, extent, flight * width)
            copies = self.strips(stmt, done, end, flight, copies, extent is not None)
            done = end
        merged = self.merge(groups, copies)
        if extent is None or extent % (flight * width) >= width or (flight == 1 and extent >= width):
            end = self.rounded(high, extent, width)
            certain = extent is not None and int(end) > int(done) if end.isdigit() and done.isdigit() else False
            merged = self.strips(stmt, done, end, 1, [merged], certain)[0]
            done = end
        if extent is None or extent % width:
            merged = self.tail(stmt, done, high, extent, merged)
        outer = [self.r.variables[n] for n in names]
        self.restore(groups, names, outer, merged)

    def rounded(self, high: str, extent: int | None, step: int) -> str:
        """The largest multiple of ``step`` up to the extent."""
        if extent is not None:
            return str(extent // step * step)
        count = self.b.pure(f"sdiv i64 {high}, {step}")
        return self.b.pure(f"mul i64 {count}, {step}")

    def groups(self, names: Sequence[str]) -> list[tuple[tuple[Var, ...], str]]:
        """The accumulators of ``names`` as (variables that belong together, reducer)."""
        return list({v[0][0].name: v for v in (self.reducers[n] for n in names)}.values())

    def lane_identities(self, groups: Sequence[tuple[tuple[Var, ...], str]], lanes: int) -> dict[str, Val]:
        out: dict[str, Val] = {}
        for variables, reducer in groups:
            out.update(zip([v.name for v in variables], identities(variables, reducer, lanes), strict=True))
        return out

    def strips(
        self, stmt: For, low: str, high: str, flight: int, copies: list[dict[str, Val]], runs: bool
    ) -> list[dict[str, Val]]:
        """A loop over full strips, ``flight`` of them an iteration; each has its copy of the accumulators."""
        width = stmt.kind.width
        order = [(n, name) for n in range(flight) for name in copies[n]]
        first = [(copies[n][name].type, copies[n][name].text) for n, name in order]
        outer = dict(self.r.variables)

        def each(index: str, values: list[str]) -> list[str]:
            current = [dict(c) for c in copies]
            for (n, name), text in zip(order, values, strict=True):
                current[n][name] = Val(text, copies[n][name].dtype, width)
            for n in range(flight):
                base = index if n == 0 else self.b.pure(f"add nsw i64 {index}, {n * width}")
                self.one_strip(stmt, base, None, current[n])
            return [current[n][name].text for n, name in order]

        new = self.b.loop(low, high, flight * width, first, each, runs)
        self.r.variables.clear()
        self.r.variables.update(outer)
        out = [dict(c) for c in copies]
        for (n, name), text in zip(order, new, strict=True):
            out[n][name] = Val(text, copies[n][name].dtype, width)
        return out

    def one_strip(self, stmt: For, base: str, mask: Val | None, accumulators: dict[str, Val]) -> None:
        """The body on one strip; ``accumulators`` is updated."""
        self.r.lanes = Lanes(stmt.axis, stmt.kind.width, base, mask)
        self.r.variables.update(accumulators)
        self.scoped(stmt.body)
        for name in accumulators:
            accumulators[name] = splat(self.b, self.r.variables[name], stmt.kind.width)
        self.r.lanes = None
        self.memo.clear()

    def tail(self, stmt: For, done: str, high: str, extent: int | None, accumulators: dict[str, Val]) -> dict[str, Val]:
        """The last, partial strip, under a mask; skipped at run time if there is none."""
        width = stmt.kind.width
        new = dict(accumulators)
        outer = dict(self.r.variables)
        if extent is not None:
            left = extent - int(done)
            bits = ", ".join("i1 true" if n < left else "i1 false" for n in range(width))
            self.one_strip(stmt, done, Val(f"<{bits}>", bool_, width), new)
        else:
            left_over = self.b.op(f"icmp slt i64 {done}, {high}")

            def then() -> list[str]:
                left = splat(self.b, Val(self.b.pure(f"sub i64 {high}, {done}"), i64), width)
                lanes = ", ".join(f"i64 {n}" for n in range(width))
                mask = self.b.pure(f"icmp slt {left.type} <{lanes}>, {left.text}")
                self.one_strip(stmt, done, Val(mask, bool_, width), new)
                return [v.text for v in new.values()]

            old = [(v.type, v.text) for v in accumulators.values()]
            texts = self.b.branch(left_over, old, then)
            new = {n: Val(t, v.dtype, width) for (n, v), t in zip(accumulators.items(), texts, strict=True)}
        self.r.variables.clear()
        self.r.variables.update(outer)
        return new

    def merge(self, groups: Sequence[tuple[tuple[Var, ...], str]], copies: list[dict[str, Val]]) -> dict[str, Val]:
        """The copies of the accumulators that were in flight as one, pair by pair."""
        while len(copies) > 1:
            half = (len(copies) + 1) // 2
            joined = copies[:half]
            for n, other in enumerate(copies[half:]):
                for variables, reducer in groups:
                    names = [v.name for v in variables]
                    new = combine(self.b, reducer, [joined[n][x] for x in names], [other[x] for x in names], self.r.ops)
                    joined[n].update(zip(names, new, strict=True))
            copies = joined
        return copies[0]

    def restore(
        self, groups: Sequence[tuple[tuple[Var, ...], str]], names: Sequence[str], outer: list[Val], lanes: dict[str, Val]
    ) -> None:
        """The accumulators after the loop: what they were before it, combined with all lanes."""
        before = dict(zip(names, outer, strict=True))
        for variables, reducer in groups:
            mine = [v.name for v in variables]
            single = across_lanes(self.b, reducer, [lanes[n] for n in mine], self.r.ops)
            new = combine(self.b, reducer, [before[n] for n in mine], single, self.r.ops)
            self.r.variables.update(zip(mine, new, strict=True))
        self.memo.clear()

    # ------------------------------------------------------------ parallel loops

    def parallel_loop(self, stmt: For) -> None:
        """The loop as ``@k.N(captured…, lo, hi)``, called through ``GOMP_parallel`` with each thread's share of the iterations."""
        if self.carried(stmt.body):
            raise CodegenError(f"a parallel loop updates {self.carried(stmt.body)[0]}")
        self.regions += 1
        name = f"{self.kernel.name}.{self.regions}"
        captured = self.captured(stmt)
        inner = Builder(self.b.module)
        region = Region(inner, self.r.ops, "%error")
        signature: list[str] = []
        passed: list[tuple[str, str]] = []
        for number, (kind, key, type_, text, dtype) in enumerate(captured):
            argument = f"%c{number}"
            signature.append(f"{type_} noalias {argument}" if type_ == "ptr" else f"{type_} {argument}")
            passed.append((type_, text))
            if kind == "pointer":
                region.pointers[key] = argument
            elif kind == "size":
                region.sizes[key] = argument
            elif kind == "axis":
                region.axes[key] = argument
            else:
                assert dtype is not None
                region.variables[key] = Val(argument, dtype)
        passed.append(("ptr", self.r.error))
        signature.append("ptr %error")
        emitter = Emitter(region, self.kernel, self.threads)
        emitter.written, emitter.in_parallel = self.written, True
        emitter.serial_loop(For(stmt.axis, stmt.body), "%lo", "%hi")
        inner.finish(f"internal void @{quoted(name)}({', '.join([*signature, 'i64 %lo', 'i64 %hi'])})")
        self.worker(name, passed)
        self.fork(name, passed, scalar_index(self.r, stmt.axis.extent))

    def captured(self, stmt: For) -> list[tuple[str, str, str, str, DType | None]]:
        """What the loop uses from outside, as (sort, name, LLVM type, operand, dtype)."""
        out: list[tuple[str, str, str, str, DType | None]] = []
        inside = {s.buffer.name for s in statements(stmt.body) if isinstance(s, Alloc)}
        for buffer in buffers(stmt.body):
            if buffer.name not in inside:
                out.append(("pointer", buffer.name, "ptr", self.r.pointers[buffer.name], None))
        for symbol in symbols((stmt,)):
            out.append(("size", symbol.name, "i64", self.r.sizes[symbol.name], None))
        used: dict[str, None] = {}
        for inner in statements(stmt.body):
            for expr in exprs(inner):
                used.update((p.name, None) for p in parts(expr) if isinstance(p, Var))
        axes: dict[str, None] = {}
        for index in indices((stmt,)):
            for atom in index_atoms(index):
                if isinstance(atom, Opaque):
                    used[atom.name] = None
                elif isinstance(atom, Axis):
                    axes[atom.name] = None
        for name in axes:
            if name in self.r.axes and name != stmt.axis.name:
                out.append(("axis", name, "i64", self.r.axes[name], None))
        for name in used:
            value = self.r.variables.get(name)
            if value is not None:
                out.append(("variable", name, value.type, value.text, value.dtype))
        return out

    def worker(self, name: str, passed: Sequence[tuple[str, str]]) -> None:
        """``@k.N.worker(ptr %context)``: unpacks, and runs this thread's share."""
        b = Builder(self.b.module)
        struct = "{ " + ", ".join([*(t for t, _ in passed), "i64"]) + " }"
        values: list[str] = []
        for number, (type_, _) in enumerate([*passed, ("i64", "")]):
            place = b.op(f"getelementptr {struct}, ptr %context, i32 0, i32 {number}")
            values.append(b.op(f"load {type_}, ptr {place}"))
        for function in ("omp_get_thread_num", "omp_get_num_threads"):
            b.module.declare(function, "i32", "")
        thread = b.op(f"sext i32 {b.op('call i32 @omp_get_thread_num()')} to i64")
        count = b.op(f"sext i32 {b.op('call i32 @omp_get_num_threads()')} to i64")
        extent = values[-1]
        low = b.op(f"sdiv i64 {b.op(f'mul i64 {thread}, {extent}')}, {count}")
        following = b.op(f"add i64 {thread}, 1")
        high = b.op(f"sdiv i64 {b.op(f'mul i64 {following}, {extent}')}, {count}")
        args = ", ".join(f"{t} {v}" for (t, _), v in zip(passed, values[:-1], strict=True))
        b.line(f"call void @{quoted(name)}({args}, i64 {low}, i64 {high})")
        b.finish(f"internal void @{quoted(name + '.worker')}(ptr %context)")

    def fork(self, name: str, passed: Sequence[tuple[str, str]], extent: str) -> None:
        """Packs what the workers need and runs them on all threads."""
        struct = "{ " + ", ".join([*(t for t, _ in passed), "i64"]) + " }"
        context = self.b.alloca(struct, 8)
        for number, (type_, text) in enumerate([*passed, ("i64", extent)]):
            place = self.b.op(f"getelementptr {struct}, ptr {context}, i32 0, i32 {number}")
            self.b.line(f"store {type_} {text}, ptr {place}")
        self.b.module.declare("GOMP_parallel", "void", "ptr, ptr, i32, i32")
        self.b.line(f"call void @GOMP_parallel(ptr @{quoted(name + '.worker')}, ptr {context}, i32 0, i32 0)")
        self.memo.clear()

    # ------------------------------------------------------------ expressions

    def eval(self, expr: Expr) -> Val:
        """The value of ``expr`` here: one for all lanes, or one a lane."""
        found = self.memo.get(id(expr))
        if found is None:
            found = self.evaluate(expr)
            self.memo[id(expr)] = found
            self.kept.append(expr)
        return found

    def evaluate(self, expr: Expr) -> Val:
        if isinstance(expr, Const):
            return const(expr.value, expr.dtype)
        if isinstance(expr, Var):
            return self.r.variables[expr.name]
        if isinstance(expr, Load):
            mask = None if expr.mask is None else self.eval(expr.mask)
            written = expr.buffer.name in self.written
            value = access.load(self.r, expr.buffer, expr.index[0], mask, written)
            return value
        if isinstance(expr, FromIndex):
            if varies(self.r, expr.index):
                value = vector_index(self.r, expr.index)
            else:
                value = Val(scalar_index(self.r, expr.index), i64)
            return apply(self.b, "cast", [value], expr.dtype, self.r.ops)
        assert isinstance(expr, Op)
        args = [self.eval(a) for a in expr.args]
        if expr.name == "check_index":
            return access.checked_index(self.r, args[0], args[1], args[2])
        if expr.name == "check_nonzero":
            return access.checked_nonzero(self.r, args[0], args[1])
        return apply(self.b, expr.name, args, expr.dtype, self.r.ops)



