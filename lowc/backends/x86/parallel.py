"""Parallel loops: the body as a function of its own over a range of iterations, which the OpenMP runtime
calls on each thread.

``for i in N parallel { … }`` in kernel k becomes ``@k.1(captured…, ptr %error, i64 %lo, i64 %hi)``, a
worker ``@k.1.worker(ptr %context)`` that unpacks what is captured and takes its thread's share of 0 .. N-1,
and a call ``GOMP_parallel(worker, context, 0, 0)``.  ``parallel(M)`` makes that one thread below M iterations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowc.backends.llvm.builder import Builder
from lowc.backends.x86 import amx
from lowc.backends.x86.operations import Val
from lowc.backends.x86.region import Region, quoted, scalar_index
from lowc.errors import CodegenError
from lowc.ir.index import Axis, Opaque
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Alloc, For, Var
from lowc.ir.types import DType
from lowc.ir.walk import buffers, exprs, indices, parts, statements, symbols

if TYPE_CHECKING:
    from lowc.backends.x86.emit import Emitter


@dataclass(frozen=True, slots=True)
class Capture:
    """Something from outside that the loop uses: ``sort`` is pointer, size, axis or variable (with its
    ``dtype``).
    """

    sort: str
    name: str
    type: str
    operand: str
    dtype: DType | None = None


def emit(e: "Emitter", stmt: For) -> None:
    """``for … parallel``.  Raises CodegenError if it updates an accumulator from outside."""
    groups = e.carried(stmt.body)
    if groups:
        raise CodegenError(f"a parallel loop updates {groups[0].vars[0].name}")
    e.regions += 1
    name = f"{e.kernel.name}.{e.regions}"
    captures = [*_captures(e, stmt), Capture("error", "", "ptr", e.r.error)]
    _body(e, stmt, name, captures)
    _worker(e, name, captures)
    _fork(e, name, captures, scalar_index(e.r, stmt.axis.extent), max(2, stmt.kind.width))
    if e.tiles:
        amx.configure(e.r)
    e.memo.clear()


def _captures(e: "Emitter", stmt: For) -> list[Capture]:
    out: list[Capture] = []
    own = {s.buffer.name for s in statements(stmt.body) if isinstance(s, Alloc)}
    out += [
        Capture("pointer", b.name, "ptr", e.r.pointers[b.name])
        for b in buffers(stmt.body)
        if b.name not in own
    ]
    out += [Capture("size", s.name, "i64", e.r.sizes[s.name]) for s in symbols((stmt,))]
    names: dict[str, None] = {}
    axes: dict[str, None] = {}
    for inner in statements(stmt.body):
        for expr in exprs(inner):
            names.update((p.name, None) for p in parts(expr) if isinstance(p, Var))
    for index in indices((stmt,)):
        for atom in index_atoms(index):
            if isinstance(atom, Opaque):
                names[atom.name] = None
            elif isinstance(atom, Axis):
                axes[atom.name] = None
    for name in axes:
        if name in e.r.axes and name != stmt.axis.name:
            out.append(Capture("axis", name, "i64", e.r.axes[name]))
    for name in names:
        if name in e.r.variables or name in e.r.groups:
            value = e.r.variable(name)
            out.append(Capture("variable", name, value.type, value.text, value.dtype))
    return out


def _body(e: "Emitter", stmt: For, name: str, captures: Sequence[Capture]) -> None:
    """``@k.N``: the iterations lo .. hi-1."""
    b = Builder(e.b.module)
    b.at(stmt)
    region = Region(b, e.r.ops, "%error")
    signature: list[str] = []
    for number, c in enumerate(captures):
        argument = f"%c{number}"
        signature.append(f"{c.type} noalias {argument}" if c.sort == "pointer" else f"{c.type} {argument}")
        if c.sort == "pointer":
            region.pointers[c.name] = argument
        elif c.sort == "size":
            region.sizes[c.name] = argument
        elif c.sort == "axis":
            region.axes[c.name] = argument
        elif c.dtype is not None:
            region.variables[c.name] = Val(argument, c.dtype)
        else:
            region.error = argument
    inner = e.inside(region)
    with amx.configured(inner, stmt.body):
        inner.serial_loop(For(stmt.axis, stmt.body), "%lo", "%hi")
    b.finish(f"internal void @{quoted(name)}({', '.join([*signature, 'i64 %lo', 'i64 %hi'])})")


def _struct(captures: Sequence[Capture]) -> str:
    return "{ " + ", ".join([*(c.type for c in captures), "i64"]) + " }"


def _worker(e: "Emitter", name: str, captures: Sequence[Capture]) -> None:
    """``@k.N.worker``: iterations thread*N/threads .. (thread+1)*N/threads, the same in every call with as
    many threads.
    """
    b = Builder(e.b.module)
    struct = _struct(captures)
    values: list[str] = []
    for number, type_ in enumerate([*(c.type for c in captures), "i64"]):
        place = b.op(f"getelementptr {struct}, ptr %context, i32 0, i32 {number}")
        values.append(b.op(f"load {type_}, ptr {place}"))
    for function in ("omp_get_thread_num", "omp_get_num_threads"):
        b.module.declare(function, "i32", "")
    thread = b.op(f"sext i32 {b.op('call i32 @omp_get_thread_num()')} to i64")
    count = b.op(f"sext i32 {b.op('call i32 @omp_get_num_threads()')} to i64")
    extent = values.pop()
    following = b.op(f"add i64 {thread}, 1")
    low, high = (b.op(f"sdiv i64 {b.op(f'mul i64 {t}, {extent}')}, {count}") for t in (thread, following))
    args = [f"{c.type} {v}" for c, v in zip(captures, values, strict=True)]
    b.line(f"call void @{quoted(name)}({', '.join([*args, f'i64 {low}', f'i64 {high}'])})")
    b.finish(f"internal void @{quoted(name + '.worker')}(ptr %context)")


def _fork(e: "Emitter", name: str, captures: Sequence[Capture], extent: str, least: int) -> None:
    """Packs what the workers need and runs them on all threads; fewer than ``least`` iterations stay on this
    one.
    """
    b = e.b
    struct = _struct(captures)
    context = b.alloca(struct, 8)
    for number, (type_, text) in enumerate([*((c.type, c.operand) for c in captures), ("i64", extent)]):
        place = b.op(f"getelementptr {struct}, ptr {context}, i32 0, i32 {number}")
        b.line(f"store {type_} {text}, ptr {place}")
    b.module.declare("GOMP_parallel", "void", "ptr, ptr, i32, i32")
    threads = "0"
    if not extent.isdigit() or int(extent) < least:
        few = b.op(f"icmp slt i64 {extent}, {least}")
        threads = b.op(f"select i1 {few}, i32 1, i32 0")
    b.line(f"call void @GOMP_parallel(ptr @{quoted(name + '.worker')}, ptr {context}, i32 {threads}, i32 0)")
