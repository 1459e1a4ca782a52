"""share: LOOPS → LOOPS.  What two loops of one block both compute at some cost is computed once and kept in a row of scratch.

Before:  for k in K { s add= exp(x[i, k] - m) }              after:   alloc e: f32[K] @local
         for j in K { out[i, j] = exp(x[i, j] - m) * r }              for k in K { v = exp(x[i, k] - m); e[k] = v; s add= v }
                                                                      for j in K { out[i, j] = e[j] * r }

Only expressions of unmasked loads from buffers that nothing writes, and of accumulators that nothing updates, from the first of
the loops on, in loops without inner loops, of a static extent that fits into a quarter of a core's L2; down the
columns of a matrix, along which the lanes of a vector then go, a row for each lane must fit on a stack.

``share_bounded`` is for kernels of GPUs whose rows have a symbolic length below a known one (``versions``): the row of scratch
has room for that, and what is loaded is loaded in a loop of its own, so that all loads are under way before a thread waits for
the first of them at the end of a turn.
"""

from collections.abc import Callable, Sequence

from lowc.ir.index import ONE, Axis, Index, Opaque, constant, ix, split, substitute, upper_bound
from lowc.ir.nodes import (
    Alloc,
    Buffer,
    Const,
    Expr,
    For,
    FromIndex,
    If,
    Kernel,
    Let,
    Load,
    Module,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.ops import CHECKS
from lowc.ir.walk import (
    Substitution,
    children,
    exprs,
    free_atoms,
    make_kernel,
    map_exprs,
    names,
    parts,
    statements,
    stores,
)
from lowc.options import Options
from lowc.scheduler.linearise import address
from lowc.scheduler.nest import estimate, map_kernels, weight
from lowc.scheduler.rename import fresh
from lowc.scheduler.tiles import STACK
from lowc.target import Target

REGISTERS = 128 << 10  # bytes of a block that threads hold in registers from one loop to the next
ROW_LEAST = 32  # elements of a row that is shared among threads at all
COSTLY = 10  # weight from which a store and a load from cache cost less
BOUND = Axis("·", ONE)  # stands for the axis of either loop in keys


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with costly expressions shared between neighbouring loops."""
    if target.kind == "nvptx":
        return map_kernels(module, lambda kernel: _share(kernel, REGISTERS, (True, False), constant))
    return map_kernels(module, lambda kernel: _share(kernel, target.l2 // 4, (False,), constant, target.vector_bits // 32))


def share_bounded(kernel: Kernel) -> Kernel:
    """``kernel``, for a GPU, with rows shared that have at most a known number of elements, loads included."""
    return _share(kernel, REGISTERS, (True, False), upper_bound)


def _share(
    kernel: Kernel, room: int, rounds: Sequence[bool], most: Callable[[Index], int | None], lanes: int = 1
) -> Kernel:
    """``rounds``: whether each is about loads.  ``most``: the room for a row of an extent, None if there is to be none.
    ``lanes``: rows of scratch that a loop down columns has at once."""
    body, shared = kernel.body, 0
    for of_loads in rounds:
        sharer = _Sharer(names(body) | {p.name for p in kernel.params}, room, of_loads, most, lanes)
        body = sharer.block(body, top=True)
        room, shared = sharer.room, shared + sharer.shared
    return make_kernel(kernel.name, body, kernel.params) if shared else kernel


class _Sharer:
    """``room``: bytes of scratch left for this kernel, ``stack``: of a stack, on which there are ``lanes`` rows down columns;
    ``written`` and ``updated``: the buffers and accumulators that the loops looked at, or statements behind them, change;
    ``of_loads``: it is about loads, whatever is computed from them.
    """

    def __init__(
        self, taken: set[str], room: int, of_loads: bool, most: Callable[[Index], int | None], lanes: int
    ) -> None:
        self.of_loads = of_loads
        self.most = most
        self.lanes = lanes
        self.written: set[int] = set()
        self.updated: set[str] = set()
        self.taken = taken
        self.room, self.stack = room, STACK
        self.shared = 0

    def block(self, body: Sequence[Stmt], top: bool) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, For):
                stmt = For(stmt.axis, self.block(stmt.body, False), stmt.kind)
            elif isinstance(stmt, If):
                stmt = If(stmt.cond, self.block(stmt.body, False))
            out.append(stmt)
        if top:
            return tuple(out)  # a row of a loop at the top would be as large as the whole tensor
        position = 0
        while position < len(out):
            stmt = out[position]
            if isinstance(stmt, For) and self.leaf(stmt):
                position += self.serve(out, position, stmt)
            position += 1
        return tuple(out)

    def leaf(self, loop: For) -> bool:
        return not any(isinstance(s, For | If | Alloc) for s in loop.body) and self.most(loop.axis.extent) is not None

    def serve(self, block: list[Stmt], position: int, loop: For) -> int:
        """Shares what ``loop``, at ``position`` of ``block``, computes with later loops; the number of statements added
        before it."""
        self.written = {id(s.buffer) for s in stores(block[position:])}
        self.updated = {v.name for s in statements(block[position:]) if isinstance(s, Update) for v in s.vars}
        later = [
            n
            for n in range(position + 1, len(block))
            if isinstance(block[n], For) and self.leaf(block[n]) and block[n].axis.extent == loop.axis.extent  # type: ignore[union-attr]
        ]
        if not later:
            return 0
        mine = self.costly(loop)
        added = 0
        for key, expr in mine.items():
            using = [n for n in later if key in self.costly(block[n + added])]  # type: ignore[arg-type]
            length = self.most(loop.axis.extent) or 0
            size = length * expr.dtype.bytes
            stack = size * (self.lanes if _down_columns(expr, loop.axis) else 1)
            if not using or size > self.room or stack > self.stack:
                continue
            self.room -= size
            self.stack -= stack
            row = Buffer(fresh("row", self.taken), expr.dtype, (ix(length),), (ONE,), "local")
            before: list[Stmt] = [Alloc(row)]
            if self.of_loads and self.most is not constant:
                before.append(self.fill(loop, expr, row))
                using = [position, *using]
            else:
                block[position + added] = self.keep(block[position + added], key, row)  # type: ignore[arg-type]
            for n in using:
                block[n + added] = self.take(block[n + added], key, row)  # type: ignore[arg-type]
            block[position + added : position + added] = before
            added += len(before)
            self.shared += 1
            if not self.of_loads:  # what else was found may have been part of that
                break
        return added

    def costly(self, loop: For) -> dict[object, Expr]:
        """The costly expressions of ``loop`` that can be shared, by key, the largest first."""
        inside = {s.var.name for s in loop.body if isinstance(s, Let)}
        found: dict[object, Expr] = {}
        for stmt in loop.body:
            for expr in exprs(stmt):
                self.search(expr, loop.axis, inside, found)
        return found

    def search(self, expr: Expr, axis: Axis, inside: set[str], found: dict[object, Expr]) -> None:
        if self.worth(expr, axis) and self.sharable(expr, axis, inside):
            found.setdefault(_key(expr, axis), expr)
        for child in children(expr):
            self.search(child, axis, inside, found)

    def worth(self, expr: Expr, axis: Axis) -> bool:
        if self.of_loads:
            if not isinstance(expr, Load) or expr.buffer.space != "global" or estimate(axis.extent) < ROW_LEAST:
                return False
            return constant(split(address(expr.buffer, expr.index), axis)[0]) == 1
        return isinstance(expr, Op) and expr.dtype.kind == "f" and weight(expr) >= COSTLY

    def sharable(self, expr: Expr, axis: Axis, inside: set[str]) -> bool:
        depends = False
        for part in parts(expr):
            if isinstance(part, Load) and (part.mask is not None or id(part.buffer) in self.written):
                return False
            if isinstance(part, Op) and part.name in CHECKS:
                return False
            if isinstance(part, Var) and part.name in self.updated:
                return False
        for atom in free_atoms(expr):
            depends = depends or atom == axis
            if isinstance(atom, Opaque) and atom.name in inside:
                return False
        return depends

    def fill(self, loop: For, expr: Expr, row: Buffer) -> For:
        """A loop that stores ``expr`` of ``loop`` alone."""
        axis = Axis(fresh(loop.axis.name, self.taken), loop.axis.extent)
        return For(axis, (Store(row, (ix(axis),), Substitution({loop.axis: ix(axis)}).expr(expr)),))

    def keep(self, loop: For, key: object, row: Buffer) -> For:
        """``loop`` with the expression named and stored."""
        name = Var(fresh(f"{row.name}_v", self.taken), row.dtype)
        inside = {s.var.name for s in loop.body if isinstance(s, Let)}
        out: list[Stmt] = []
        done = False
        for stmt in loop.body:
            found: dict[object, Expr] = {}
            for expr in exprs(stmt):
                self.search(expr, loop.axis, inside, found)
            if key in found and not done:
                out += [Let(name, found[key]), Store(row, (ix(loop.axis),), name)]
                done = True
            out.append(map_exprs(stmt, lambda e: self.swap(e, key, loop.axis, name)))
        return For(loop.axis, tuple(out), loop.kind)

    def take(self, loop: For, key: object, row: Buffer) -> For:
        load = Load(row, (ix(loop.axis),))
        body = tuple([map_exprs(s, lambda e: self.swap(e, key, loop.axis, load)) for s in loop.body])
        return For(loop.axis, body, loop.kind)

    def swap(self, expr: Expr, key: object, axis: Axis, new: Expr) -> Expr:
        """``expr`` with each part of that key replaced by ``new``."""
        if self.worth(expr, axis) and expr.dtype == new.dtype and _key(expr, axis) == key:
            return new
        if isinstance(expr, Op):
            args = tuple([self.swap(a, key, axis, new) for a in expr.args])
            if any(a is not b for a, b in zip(args, expr.args, strict=True)):
                return Op(expr.name, args, expr.dtype)
        return expr


def _down_columns(expr: Expr, axis: Axis) -> bool:
    """Whether no two neighbours along ``axis`` of what ``expr`` reads lie side by side."""
    steps = [split(address(p.buffer, p.index), axis)[0] for p in parts(expr) if isinstance(p, Load)]
    return all(constant(step) != 1 for step in steps)


def _key(expr: Expr, axis: Axis) -> object:
    """Equal for expressions that are the same but for the axis of their loop."""
    if isinstance(expr, Const):
        return repr(expr.value), expr.dtype
    if isinstance(expr, Var):
        return expr.name
    if isinstance(expr, FromIndex):
        return _bound(expr.index, axis), expr.dtype
    if isinstance(expr, Load):
        mask = None if expr.mask is None else _key(expr.mask, axis)
        return id(expr.buffer), tuple([_bound(i, axis) for i in expr.index]), mask
    return expr.name, expr.dtype, tuple([_key(a, axis) for a in expr.args])


def _bound(index: Index, axis: Axis) -> Index:
    return substitute(index, {axis: ix(BOUND)})
