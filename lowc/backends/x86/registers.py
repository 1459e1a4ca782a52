"""Arrays in local memory that are registers: those of which every access is a whole vector at a place that is known when the
code is emitted, once loops are unrolled and strips follow one another.

    alloc tile: f32[384] @local = add          # 24 registers of 16 lanes
    for k in 256 { … for i in 8 unroll(8) { for j in 48 vector(16, 3) { tile[i*48 + j] add= product(x, line[j]) } } }

An array is an ``accumulators.Group`` with a copy for each vector, so that loops carry it as they carry accumulators.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowc.backends.x86 import vector
from lowc.backends.x86.accumulators import Group
from lowc.backends.x86.dots import add_product
from lowc.backends.x86.operations import Val, const, select, splat
from lowc.backends.x86.reduce import combine
from lowc.backends.x86.region import scalar_index
from lowc.ir.index import Axis, Index, constant, split
from lowc.ir.nodes import Alloc, Buffer, For, If, Load, Op, Stmt, Store, Var
from lowc.ir.ops import identity
from lowc.ir.types import f32, f64, i32, i64, u32
from lowc.ir.walk import exprs, loads, parts, stores

if TYPE_CHECKING:
    from lowc.backends.x86.emit import Emitter

MOST = 32  # vectors of an array; more than there are registers are kept on the stack by LLVM, which is no worse than an array
UNROLLED = 64  # iterations, as in ``emit``


def width(alloc: Alloc, rest: Sequence[Stmt]) -> int:
    """Lanes of the vectors that ``alloc`` consists of, which ``rest`` accesses; 0 if it must be memory."""
    size = constant(alloc.buffer.shape[0]) if len(alloc.buffer.shape) == 1 else None
    if size is None or alloc.buffer.dtype not in (f32, f64, i32, i64, u32):
        return 0
    found: set[int] = set()
    if not _known(rest, alloc.buffer, [], None, found) or len(found) != 1:
        return 0
    (lanes,) = found
    return lanes if size % lanes == 0 and size // lanes <= MOST else 0


def _known(body: Sequence[Stmt], buffer: Buffer, unrolled: list[Axis], strip: For | None, found: set[int]) -> bool:
    """Whether all accesses to ``buffer`` in ``body`` are whole vectors at known places; adds their lanes to ``found``."""
    for stmt in body:
        places: list[Index] = []
        if isinstance(stmt, Store) and stmt.buffer is buffer:
            places += stmt.index
        for expr in exprs(stmt):
            for part in parts(expr):
                if isinstance(part, Load) and part.buffer is buffer:
                    if part.mask is not None:
                        return False
                    places += part.index
        for place in places:
            if strip is None or not _whole(place, strip, unrolled):
                return False
            found.add(strip.kind.width)
        if isinstance(stmt, If) and not _known(stmt.body, buffer, unrolled, strip, found):
            return False
        if isinstance(stmt, For):
            extent = constant(stmt.axis.extent)
            if stmt.kind.name == "parallel" and _touches(stmt.body, buffer):
                return False  # other cores have other registers
            inner, around = list(unrolled), strip
            if stmt.kind.name == "vector":
                around = stmt if extent == stmt.kind.width * vector.flight(stmt) else None
            elif stmt.kind.name == "unroll" and extent is not None and extent <= UNROLLED:
                inner.append(stmt.axis)
            if not _known(stmt.body, buffer, inner, around, found):
                return False
    return True


def _touches(body: Sequence[Stmt], buffer: Buffer) -> bool:
    return any(access.buffer is buffer for access in (*loads(body), *stores(body)))


def _whole(place: Index, strip: For, unrolled: Sequence[Axis]) -> bool:
    """Whether ``place`` is a multiple of the lanes, known but for unrolled axes, plus the axis of ``strip``."""
    step, rest = split(place, strip.axis)
    if constant(step) != 1:
        return False
    for axis in unrolled:
        step, rest = split(rest, axis)
        if (constant(step) or 0) % strip.kind.width or constant(step) is None:
            return False
    left = constant(rest)
    return left is not None and left % strip.kind.width == 0


def declare(e: "Emitter", alloc: Alloc, lanes: int) -> None:
    """``alloc`` as registers of ``lanes`` lanes."""
    buffer = alloc.buffer
    start = const(identity(alloc.reducer or "add", buffer.dtype), buffer.dtype, lanes)
    count = (constant(buffer.shape[0]) or 0) // lanes
    e.r.arrays[buffer.name] = Group(
        (Var(buffer.name, buffer.dtype),), alloc.reducer, lanes, False, [[start] for _ in range(count)]
    )


def load(e: "Emitter", buffer: Buffer, index: Index) -> Val:
    return e.r.arrays[buffer.name].copies[_number(e, buffer, index)][0]


def store(e: "Emitter", stmt: Store) -> None:
    """A store to an array of registers, or an update of it."""
    group = e.r.arrays[stmt.buffer.name]
    number = _number(e, stmt.buffer, stmt.index[0])
    mask = None if stmt.mask is None else e.eval(stmt.mask)
    old = group.copies[number]
    fused = factors(e, stmt.value) if stmt.reducer == "add" else None
    if fused is not None:
        new = [add_product(e.b, fused, old[0], e.r.ops)]
    else:
        new = [splat(e.b, e.eval(stmt.value), group.lanes)]
        if stmt.reducer:
            new = combine(e.b, stmt.reducer, old, new, e.r.ops)
    if mask is not None:
        new = [select(e.b, mask, n, o) for n, o in zip(new, old, strict=True)]
    group.copies[number] = new


def factors(e: "Emitter", value: object) -> list[Val] | None:
    """The factors of a product of floats (or of a dot) that an addition takes up unrounded; None if there are none, or the target
    cannot."""
    if not isinstance(value, Op):
        return None
    rounds = value.name == "dot2" or (value.name == "product" and value.dtype.kind == "f")
    fused = value.name == "dot4" or (rounds and "fma" in e.r.ops)
    return [e.eval(a) for a in value.args] if fused else None


def _number(e: "Emitter", buffer: Buffer, index: Index) -> int:
    """Which of the registers of ``buffer`` the strip at hand is at ``index``."""
    return int(scalar_index(e.r, index)) // e.r.arrays[buffer.name].lanes
