"""Visiting and rewriting: the only place that knows how nodes nest.

Rewrites return the same object where nothing changed and keep sharing: a node reached twice is rewritten once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from lowc.ir.index import Atom, Axis, Index, Opaque, Symbol, atoms, constant, ix, substitute
from lowc.ir.nodes import (
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
from lowc.ir.ops import CHECKS
from lowc.ir.types import u8

# ---------------------------------------------------------------- expressions


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside ``expr``."""
    if isinstance(expr, Op):
        return expr.args
    if isinstance(expr, Load) and expr.mask is not None:
        return (expr.mask,)
    return ()


def rewrite(expr: Expr, node: Callable[[Expr], Expr], memo: dict[int, Expr]) -> Expr:
    """``expr`` with ``node`` applied to each part from the leaves up.

    ``memo`` maps ``id`` of a part to what it became; the caller keeps the parts alive while it uses the memo.
    """
    found = memo.get(id(expr))
    if found is not None:
        return found
    new = expr
    if isinstance(expr, Op):
        args = tuple([rewrite(a, node, memo) for a in expr.args])
        if any(a is not b for a, b in zip(args, expr.args, strict=True)):
            new = Op(expr.name, args, expr.dtype)
    elif isinstance(expr, Load) and expr.mask is not None:
        mask = rewrite(expr.mask, node, memo)
        if mask is not expr.mask:
            new = Load(expr.buffer, expr.index, mask)
    new = node(new)
    memo[id(expr)] = new
    return new


def parts(expr: Expr) -> list[Expr]:
    """``expr`` and everything inside it, each node object once."""
    found: list[Expr] = [expr]
    if type(expr) is not Op and type(expr) is not Load:
        return found
    seen = {id(expr)}
    for node in found:  # grows as it goes
        if type(node) is Op:
            inside = node.args
        elif type(node) is Load and node.mask is not None:
            inside = (node.mask,)
        else:
            continue
        for child in inside:
            if id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def has_check(expr: Expr) -> bool:
    """Whether evaluating ``expr`` can make the call raise."""
    return any(type(part) is Op and part.name in CHECKS for part in parts(expr))


def depth(expr: Expr, limit: int = 1 << 30) -> int:
    """Levels of nesting of ``expr``, counted up to ``limit``."""
    if limit <= 0:
        return 0
    return 1 + max((depth(c, limit - 1) for c in children(expr)), default=0)


# ---------------------------------------------------------------- statements


def exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that ``stmt`` itself evaluates (not those of its body)."""
    if isinstance(stmt, Let):
        return (stmt.value,)
    if isinstance(stmt, Store):
        return (stmt.value,) if stmt.mask is None else (stmt.value, stmt.mask)
    if isinstance(stmt, Update):
        return stmt.values if stmt.mask is None else (*stmt.values, stmt.mask)
    return (stmt.cond,) if isinstance(stmt, If) else ()


def statements(body: Sequence[Stmt]) -> list[Stmt]:
    """Every statement of ``body`` in text order, bodies of loops and conditions included."""
    found: list[Stmt] = []
    _add_statements(body, found)
    return found


def _add_statements(body: Sequence[Stmt], found: list[Stmt]) -> None:
    for stmt in body:
        found.append(stmt)
        if type(stmt) is For or type(stmt) is If:
            _add_statements(stmt.body, found)


def single(stmt: Stmt) -> tuple[list[For], Stmt] | None:
    """(the loops that ``stmt`` is, outermost first, what is in the innermost) if each holds one statement; else None."""
    loops: list[For] = []
    while isinstance(stmt, For):
        if len(stmt.body) != 1:
            return None
        loops.append(stmt)
        stmt = stmt.body[0]
    return loops, stmt


def loads(body: Sequence[Stmt]) -> Iterator[Load]:
    """Every load in ``body``."""
    for stmt in statements(body):
        for expr in exprs(stmt):
            for part in parts(expr):
                if isinstance(part, Load):
                    yield part


def stores(body: Sequence[Stmt]) -> Iterator[Store]:
    """Every store in ``body``."""
    for stmt in statements(body):
        if isinstance(stmt, Store):
            yield stmt


def buffers(body: Sequence[Stmt]) -> list[Buffer]:
    """The buffers that ``body`` touches, each once, in order of first mention."""
    found: dict[int, Buffer] = {}
    for stmt in statements(body):
        if isinstance(stmt, Store):
            found.setdefault(id(stmt.buffer), stmt.buffer)
        for expr in exprs(stmt):
            for part in parts(expr):
                if isinstance(part, Load):
                    found.setdefault(id(part.buffer), part.buffer)
    return list(found.values())


def indices(body: Sequence[Stmt]) -> Iterator[Index]:
    """Every index expression of ``body``: of accesses, of values made from indices, and extents of loops."""
    for stmt in statements(body):
        if isinstance(stmt, For):
            yield stmt.axis.extent
        elif isinstance(stmt, Store):
            yield from stmt.index
        elif isinstance(stmt, Alloc):
            yield from stmt.buffer.shape
        for expr in exprs(stmt):
            for part in parts(expr):
                if isinstance(part, Load):
                    yield from part.index
                elif isinstance(part, FromIndex):
                    yield part.index


def symbols(body: Sequence[Stmt]) -> list[Symbol]:
    """The size symbols that ``body`` needs, strides of buffers included, in order of first mention."""
    found: dict[Symbol, None] = {}
    for index in indices(body):
        for atom in atoms(index):
            if isinstance(atom, Symbol):
                found[atom] = None
            elif isinstance(atom, Axis):
                found.update((a, None) for a in atoms(atom.extent) if isinstance(a, Symbol))
    for buffer in buffers(body):
        for index in (*buffer.shape, *buffer.strides):
            found.update((a, None) for a in atoms(index) if isinstance(a, Symbol))
    return list(found)


def names(body: Sequence[Stmt]) -> set[str]:
    """Names bound in ``body``: axes, lets, accumulators, allocs."""
    bound: set[str] = set()
    for stmt in statements(body):
        if isinstance(stmt, For):
            bound.add(stmt.axis.name)
        elif isinstance(stmt, Let):
            bound.add(stmt.var.name)
        elif isinstance(stmt, Acc):
            bound.update(v.name for v in stmt.vars)
        elif isinstance(stmt, Alloc):
            bound.add(stmt.buffer.name)
    return bound


def map_statements(body: Sequence[Stmt], each: Callable[[Stmt], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """``body`` with every statement replaced by ``each(statement)``; bodies are mapped before the statement around them."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            inner = map_statements(stmt.body, each)
            stmt = stmt if _same_items(inner, stmt.body) else For(stmt.axis, inner, stmt.kind)
        elif isinstance(stmt, If):
            inner = map_statements(stmt.body, each)
            stmt = stmt if _same_items(inner, stmt.body) else If(stmt.cond, inner)
        out.extend(each(stmt))
    return tuple(out)


def map_exprs(stmt: Stmt, expr: Callable[[Expr], Expr]) -> Stmt:
    """``stmt`` with its own expressions replaced (not those of its body)."""
    if isinstance(stmt, Let):
        value = expr(stmt.value)
        return stmt if value is stmt.value else Let(stmt.var, value)
    if isinstance(stmt, Store):
        value, mask = expr(stmt.value), None if stmt.mask is None else expr(stmt.mask)
        if value is stmt.value and mask is stmt.mask:
            return stmt
        return Store(stmt.buffer, stmt.index, value, mask, stmt.reducer)
    if isinstance(stmt, Update):
        values = tuple([expr(v) for v in stmt.values])
        mask = None if stmt.mask is None else expr(stmt.mask)
        return Update(stmt.vars, stmt.reducer, values, mask)
    if isinstance(stmt, If):
        cond = expr(stmt.cond)
        return stmt if cond is stmt.cond else If(cond, stmt.body)
    return stmt


def _same_items(a: Sequence[object], b: Sequence[object]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------- substitution


class Substitution:
    """Replaces axes and symbols (by indices), variables (by name, by expressions) and buffers throughout statements.

    ``access`` rewrites the (buffer, index) of each load and store after the axes in it have been replaced.  A variable that
    is used as a coordinate can only be replaced by a Var, or by a FromIndex.  Loops whose axis is replaced by another plain
    axis are renamed.
    """

    def __init__(
        self,
        atoms_: Mapping[Atom, Index] | None = None,
        variables: Mapping[str, Expr] | None = None,
        access: Callable[[Buffer, tuple[Index, ...]], tuple[Buffer, tuple[Index, ...]]] | None = None,
    ) -> None:
        self.atoms: dict[Atom, Index] = dict(atoms_ or {})
        self.variables: dict[str, Expr] = {}
        self.access = access
        self.memo: dict[int, Expr] = {}
        self.kept: list[Expr] = []
        for name, value in (variables or {}).items():
            self.rename(name, value)

    def rename(self, name: str, value: Expr) -> None:
        """Replaces the variable ``name`` by ``value`` from here on."""
        self.variables[name] = value
        if isinstance(value, Var):
            self.atoms[Opaque(name)] = ix(Opaque(value.name))
        elif isinstance(value, FromIndex):
            self.atoms[Opaque(name)] = value.index

    def index(self, index: Index) -> Index:
        return substitute(index, self.atoms) if self.atoms else index

    def expr(self, expr: Expr) -> Expr:
        self.kept.append(expr)
        return rewrite(expr, self._node, self.memo)

    def _node(self, expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return self.variables.get(expr.name, expr)
        if isinstance(expr, FromIndex):
            index = self.index(expr.index)
            return expr if index is expr.index else FromIndex(index, expr.dtype)
        if isinstance(expr, Load):
            buffer, index = self._access(expr.buffer, expr.index)
            if buffer is expr.buffer and _same_items(index, expr.index):
                return expr
            return Load(buffer, index, expr.mask)
        return expr

    def _access(self, buffer: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        index = tuple([self.index(i) for i in index])
        return self.access(buffer, index) if self.access else (buffer, index)

    def var(self, var: Var) -> Var:
        new = self.variables.get(var.name, var)
        if not isinstance(new, Var):
            raise TypeError(f"{var.name} is bound here and cannot become an expression")
        return new

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            new = self.atoms.get(stmt.axis)
            axis = stmt.axis
            if new is not None:
                atom = new.terms[0][0][0]
                if not isinstance(atom, Axis) or new != ix(atom):
                    raise TypeError(f"axis {axis.name} is bound here and cannot become {new}")
                axis = atom
            else:
                extent = self.index(axis.extent)
                if extent != axis.extent:
                    axis = Axis(axis.name, extent)
                    self.atoms[stmt.axis] = ix(axis)
                    self.memo.clear()
            return For(axis, self.body(stmt.body), stmt.kind)
        if isinstance(stmt, Let):
            return Let(self.var(stmt.var), self.expr(stmt.value))
        if isinstance(stmt, Acc):
            return Acc(tuple([self.var(v) for v in stmt.vars]), stmt.reducer)
        if isinstance(stmt, Update):
            mask = None if stmt.mask is None else self.expr(stmt.mask)
            values = tuple([self.expr(v) for v in stmt.values])
            return Update(tuple([self.var(v) for v in stmt.vars]), stmt.reducer, values, mask)
        if isinstance(stmt, Store):
            buffer, index = self._access(stmt.buffer, stmt.index)
            mask = None if stmt.mask is None else self.expr(stmt.mask)
            return Store(buffer, index, self.expr(stmt.value), mask, stmt.reducer)
        if isinstance(stmt, If):
            return If(self.expr(stmt.cond), self.body(stmt.body))
        if isinstance(stmt, Alloc):
            return stmt
        assert isinstance(stmt, Barrier)
        return stmt

    def body(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return tuple([self.stmt(s) for s in body])


def with_mask(expr: Expr, mask: Expr, memo: dict[int, Expr]) -> Expr:
    """``expr`` under a condition: every load and every check in it happens only where ``mask`` holds as well."""

    def node(part: Expr) -> Expr:
        if isinstance(part, Load):
            return Load(part.buffer, part.index, both(part.mask, mask))
        if isinstance(part, Op) and part.name in CHECKS:
            return Op(part.name, (*part.args[:-1], both(part.args[-1], mask)), part.dtype)
        return part

    return rewrite(expr, node, memo)


def zero_outside(value: Expr, mask: Expr) -> Expr:
    """``value`` where ``mask`` holds, else 0: what a masked load of it is."""
    if value.dtype.kind == "x":  # there are no constants of float8
        return Op("bitcast", (zero_outside(Op("bitcast", (value,), u8), mask),), value.dtype)
    zero = Const(False if value.dtype.kind == "b" else 0.0 if value.dtype.kind == "f" else 0, value.dtype)
    return Op("select", (mask, value, zero), value.dtype)


def both(a: Expr | None, b: Expr) -> Expr:
    """The conjunction of two masks; None and the constant true hold everywhere."""
    if a is None or (isinstance(a, Const) and a.value is True):
        return b
    if a is b or (isinstance(b, Const) and b.value is True):
        return a
    return Op("and", (a, b), a.dtype)


# ---------------------------------------------------------------- facts


def free_atoms(expr: Expr) -> set[Atom]:
    """Axes, symbols and data coordinates that ``expr`` depends on directly, and ``Opaque(name)`` for each variable it reads."""
    found: set[Atom] = set()
    for part in parts(expr):
        if isinstance(part, Var):
            found.add(Opaque(part.name))
        elif isinstance(part, Load):
            for index in part.index:
                found.update(atoms(index))
        elif isinstance(part, FromIndex):
            found.update(atoms(part.index))
    return found


def storage_size(buffer: Buffer) -> Index:
    """Elements from the first to one past the last that ``buffer`` can touch; 0 if a dimension is surely 0."""
    last = ix(1)
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        if constant(size) == 0:
            return ix(0)
        last = last + (size - 1) * stride
    return last


def same(a: Expr, b: Expr) -> bool:
    """Whether two expressions are the same program text over the same buffers."""
    if a is b:
        return True
    if type(a) is not type(b) or a.dtype != b.dtype:
        return False
    if isinstance(a, Const) and isinstance(b, Const):
        return repr(a.value) == repr(b.value)
    if isinstance(a, Var) and isinstance(b, Var):
        return a.name == b.name
    if isinstance(a, FromIndex) and isinstance(b, FromIndex):
        return a.index == b.index
    if isinstance(a, Load) and isinstance(b, Load):
        if a.buffer is not b.buffer or a.index != b.index or (a.mask is None) != (b.mask is None):
            return False
        return a.mask is None or b.mask is None or same(a.mask, b.mask)
    assert isinstance(a, Op)
    assert isinstance(b, Op)
    return a.name == b.name and len(a.args) == len(b.args) and all(map(same, a.args, b.args))


def make_kernel(name: str, body: Sequence[Stmt], params: Sequence[Buffer]) -> Kernel:
    """A kernel over ``params`` with the symbols that its body and the shapes of its params need."""
    needed = dict.fromkeys(symbols(body))
    for param in params:
        for index in (*param.shape, *param.strides):
            needed.update((a, None) for a in atoms(index) if isinstance(a, Symbol))
    return Kernel(name, tuple(params), tuple(needed), tuple(body))
