"""linearise: LOOPS → SCHEDULED.  Buffers become one-dimensional, addresses linear, and loops that walk as one become one.

Before:  for i in 64 { for j in 32 { y[i, j] = exp(x[i, j]) } }      after:  for i in 2048 { y[i] = exp(x[i]) }

Two loops, one directly inside the other, collapse if in every address, mask and index value ``i*J + j`` stays together.
"""

from collections.abc import Sequence

from lowc.ir.index import ONE, Atom, Axis, FloorDiv, Index, Mod, atoms, constant, ix, substitute
from lowc.ir.nodes import Alloc, Buffer, For, If, Kernel, Module, Stmt
from lowc.ir.walk import Substitution, indices, make_kernel, map_statements, storage_size
from lowc.options import Options
from lowc.scheduler.nest import map_kernels
from lowc.target import Target


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with every kernel in linear addresses; kernels now have params of their own, launches keep the module's
    buffers."""
    return map_kernels(module, _linear, "SCHEDULED")


def _linear(kernel: Kernel) -> Kernel:
    flat: dict[int, Buffer] = {}

    def flatten(buffer: Buffer) -> Buffer:
        new = flat.get(id(buffer))
        if new is None:
            new = Buffer(buffer.name, buffer.dtype, (storage_size(buffer),), (ONE,), buffer.space)
            flat[id(buffer)] = new
        return new

    def access(buffer: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        return flatten(buffer), (address(buffer, index),)

    body = Substitution(access=access).body(kernel.body)
    body = map_statements(body, lambda s: (Alloc(flatten(s.buffer), s.reducer),) if isinstance(s, Alloc) else (s,))
    params = [flatten(p) for p in kernel.params]
    return make_kernel(kernel.name, collapse(body), params)


def address(buffer: Buffer, index: Sequence[Index]) -> Index:
    """The linear address of an access, in elements."""
    total = ix(0)
    for position, stride in zip(index, buffer.strides, strict=True):
        total = total + position * stride
    return total


# ---------------------------------------------------------------- collapsing


def collapse(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """``body`` with directly nested loops joined, from the innermost outwards."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            stmt = For(stmt.axis, collapse(stmt.body), stmt.kind)
            while (joined := _collapse_pair(stmt)) is not None:
                stmt = joined
        elif isinstance(stmt, If):
            stmt = If(stmt.cond, collapse(stmt.body))
        out.append(stmt)
    return tuple(out)


def _collapse_pair(outer: For) -> For | None:
    if len(outer.body) != 1 or not isinstance(outer.body[0], For):
        return None
    inner = outer.body[0]
    a, b = outer.axis, inner.axis
    if a in atoms(b.extent):
        return None
    if constant(b.extent) == 1 or constant(a.extent) == 1:
        keep, drop = (a, b) if constant(b.extent) == 1 else (b, a)
        return For(keep, Substitution({drop: ix(0)}).body(inner.body), outer.kind)
    joined = Axis(a.name, a.extent * b.extent)
    values: dict[Atom, Index] = {a: ix(joined) // b.extent, b: ix(joined) % b.extent}
    for index in indices(inner.body):
        found = set(atoms(index))
        if (a in found or b in found) and _divides(substitute(index, values), joined):
            return None
    return For(joined, Substitution(values).body(inner.body), outer.kind)


def _divides(index: Index, axis: Axis) -> bool:
    """Whether ``index`` divides something with ``axis`` in it."""
    for atom in atoms(index):
        if isinstance(atom, FloorDiv | Mod) and (axis in atoms(atom.num) or axis in atoms(atom.den)):
            return True
    return False
