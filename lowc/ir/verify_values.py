"""What ``verify_kernel`` checks of names, expressions and index expressions, and the state of its walk."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from lowc.errors import VerifyError
from lowc.ir.index import (
    Axis,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Symbol,
    constant,
    lower_bound,
    upper_bound,
)
from lowc.ir.lexer import NAME, RESERVED
from lowc.ir.nodes import Buffer, Const, Expr, For, FromIndex, Kernel, Load, Op, Var
from lowc.ir.ops import OPS, result_dtype
from lowc.ir.printer import Line, print_expr, print_kernel_lines
from lowc.ir.types import DTYPES, DType, bool_, i64

MOVES = frozenset({"cast", "bitcast", "select", "rarely", "pair", "quad"})
"""Ops that are no arithmetic: allowed on any dtype at MACHINE."""


@dataclass(frozen=True, slots=True)
class MachineOps:
    """What a backend has: names of ops, and the dtypes that they compute in (``MOVES`` excepted)."""

    ops: frozenset[str]
    dtypes: frozenset[DType]


@dataclass(slots=True)
class Group:
    """Accumulators declared together; ``depth`` loops were open then."""

    names: tuple[str, ...]
    reducer: str
    depth: int


@dataclass(slots=True)
class State:
    """The walk over a kernel.

    ``names`` in scope and the expressions and indices known to be ``good`` there; ``undo``: what each open block added to them.
    ``groups``: accumulators; ``arrays``: reducer of an alloc, and the number of loops around it.  ``varies``: the vector axes
    that a value differs along.  ``certain``: control comes here for sure, so that what is wrong here is wrong.  ``position``
    counts statements; ``first_load`` (certain, without a mask) and ``first_store`` are positions, by buffer name.
    """

    kernel: Kernel
    level: int
    machine: MachineOps | None
    names: dict[str, object] = field(default_factory=dict[str, object])
    declared: set[str] = field(default_factory=set[str])
    lets: set[str] = field(default_factory=set[str])
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    arrays: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    loops: list[For] = field(default_factory=list[For])
    vectors: list[str] = field(default_factory=list[str])
    varies: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    undo: list[list[str | int | Index]] = field(default_factory=list[list[str | int | Index]])
    good: set[int] = field(default_factory=set[int])
    good_indices: set[Index] = field(default_factory=set[Index])
    in_bounds: set[tuple[Index, Index]] = field(default_factory=set[tuple[Index, Index]])
    certain: bool = True
    position: int = 0
    first_load: dict[str, int] = field(default_factory=dict[str, int])
    first_store: dict[str, int] = field(default_factory=dict[str, int])
    loaded: set[str] = field(default_factory=set[str])
    stmt: object = None

    def fail(self, rule: str) -> NoReturn:
        name = self.kernel.name
        raise VerifyError(f"{name}: {rule}\n{excerpt(print_kernel_lines(self.kernel), self.stmt)}")


def excerpt(lines: list[Line], node: object, most: int = 6) -> str:
    """At most ``most`` of the lines, around the (last) line that shows ``node``, which is marked ``>``."""
    at = max((n for n, (_, shown) in enumerate(lines) if shown is node), default=0)
    start = max(0, min(at - most // 2, len(lines) - most))
    shown: list[str] = []
    for number, (line, _) in enumerate(lines[start : start + most], start):
        cut = line if len(line) <= 150 else line[:149] + "…"
        shown.append(f"{'>' if number == at else ' '} {cut}")
    return "\n".join(shown)


# ---------------------------------------------------------------- names


def check_name(name: str, fail: Callable[[str], NoReturn]) -> None:
    """A name is an identifier (dots allowed inside) and no word of the text form."""
    if not NAME.fullmatch(name):
        fail(f"{name!r} is no name")
    if name in RESERVED or name in DTYPES:
        fail(f"{name} is a word of the language and cannot be a name")


def declare(s: State, name: str, what: object) -> None:
    if name in s.declared:
        s.fail(f"the name {name} is already taken; names are unique in a kernel")
    check_name(name, s.fail)
    s.declared.add(name)
    s.names[name] = what
    s.undo[-1].append(name)


def leave(s: State) -> None:
    """Ends a block: its names, and what was found good with them, are forgotten."""
    for key in s.undo.pop():
        if isinstance(key, str):
            del s.names[key]
        elif isinstance(key, int):
            s.good.discard(key)
        else:
            s.good_indices.discard(key)


# ---------------------------------------------------------------- expressions


def check_expr(s: State, root: Expr) -> None:
    """Checks every node of ``root`` that was not found good in this scope before; a loop, so that depth is no limit."""
    stack: list[Expr] = [root]
    good = s.good
    while stack:
        expr = stack.pop()
        if id(expr) in good:
            continue
        good.add(id(expr))
        s.undo[-1].append(id(expr))
        if isinstance(expr, Op):
            _op(s, expr)
            stack.extend(expr.args)
        elif isinstance(expr, Load):
            check_access(s, expr.buffer, expr.index, expr.mask)
            note_load(s, expr.buffer, expr.mask)
        elif isinstance(expr, Var):
            check_value(s, expr)
        elif isinstance(expr, Const):
            _const(s, expr)
        else:
            if expr.dtype.kind not in "iu":
                s.fail(f"an index as a value of {expr.dtype}")
            check_index(s, expr.index)


def _op(s: State, op: Op) -> None:
    row = OPS.get(op.name)
    if row is None:
        s.fail(f"unknown op {op.name}")
    args = tuple(a.dtype for a in op.args)
    try:
        dtype = result_dtype(row, args, op.dtype)
    except ValueError as error:
        s.fail(f"{error}: {print_expr(op, 80)}")
    if dtype != op.dtype:
        s.fail(f"{op.name} of these arguments is {dtype}, not {op.dtype}: {print_expr(op, 80)}")
    if op.name == "bitcast" and args[0].bits != dtype.bits or op.name == "cast" and dtype.kind not in "biufx":
        s.fail(f"no {op.name} from {args[0]} to {dtype}")
    if op.name == "check_index" and (args[1] != args[0] or args[2] != bool_):
        s.fail(f"check_index takes (T, T, bool), got {', '.join(map(str, args))}")
    if op.name == "check_nonzero" and args[1] != bool_:
        s.fail(f"check_nonzero takes (T, bool), got {', '.join(map(str, args))}")
    if s.machine is not None:
        if op.name not in s.machine.ops:
            s.fail(f"the target has no {op.name}: {print_expr(op, 80)}")
        if op.name not in MOVES and args[0] not in s.machine.dtypes:
            s.fail(f"the target has no {op.name} of {args[0]}: {print_expr(op, 80)}")


def _const(s: State, const: Const) -> None:
    value, dtype = const.value, const.dtype
    kind = dtype.kind
    fits = isinstance(value, bool) if kind == "b" else not isinstance(value, bool)
    if kind in "iu":
        low = -(1 << dtype.bits - 1) if kind == "i" else 0
        fits = fits and isinstance(value, int) and low <= value < low + (1 << dtype.bits)
    if not fits or kind not in "biuf":
        s.fail(f"{value!r} is no constant of {dtype}")


def check_value(s: State, var: Var) -> None:
    declared = s.names.get(var.name)
    if not isinstance(declared, Var):
        s.fail(f"{var.name} is no value in scope")
    if declared.dtype != var.dtype:
        s.fail(f"{var.name} is {declared.dtype}, and used as {var.dtype}")


def check_mask(s: State, mask: Expr) -> None:
    check_expr(s, mask)
    if mask.dtype != bool_:
        s.fail(f"a condition of {mask.dtype}, not bool: {print_expr(mask, 80)}")


def check_access(s: State, buffer: Buffer, index: tuple[Index, ...], mask: Expr | None) -> None:
    declared = s.names.get(buffer.name)
    if declared is not buffer:
        known = isinstance(declared, Buffer)
        s.fail(
            f"{buffer.name} is {'another object than the one declared' if known else 'no buffer in scope'}"
        )
    if len(index) != len(buffer.shape):
        s.fail(f"{len(index)} indices for {buffer.name}, which has {len(buffer.shape)} dimensions")
    for position in index:
        check_index(s, position)
    if mask is not None:
        check_mask(s, mask)
    elif s.certain:
        for position, size in zip(index, buffer.shape, strict=True):
            _bounds(s, buffer, position, size)


def note_load(s: State, buffer: Buffer, mask: Expr | None) -> None:
    s.loaded.add(buffer.name)
    if mask is None and s.certain:
        s.first_load.setdefault(buffer.name, s.position)


# ---------------------------------------------------------------- indices


def check_index(s: State, index: Index) -> None:
    """The atoms of ``index`` are in scope."""
    if index in s.good_indices:
        return
    for monomial, _ in index.terms:
        for atom in monomial:
            if isinstance(atom, Axis):
                declared = s.names.get(atom.name)
                if declared is not atom and declared != atom:
                    if isinstance(declared, Axis):
                        s.fail(f"{atom} has extent {atom.extent} here, its loop has {declared.extent}")
                    s.fail(f"{atom} is no axis in scope")
            elif isinstance(atom, Symbol):
                if s.names.get(atom.name) != atom:
                    s.fail(f"the size {atom} (with this range) is not listed in the kernel's sizes")
            elif isinstance(atom, Opaque):
                declared = s.names.get(atom.name)
                if not isinstance(declared, Var) or atom.name not in s.lets:
                    s.fail(f"{atom} is no let in scope; only the value of a let can be a coordinate")
                if declared.dtype != i64:
                    s.fail(f"{atom} is {declared.dtype}; a coordinate is i64")
            else:
                for inner in operands(atom):
                    check_index(s, inner)
    s.good_indices.add(index)
    s.undo[-1].append(index)


def operands(atom: FloorDiv | Mod | Min | Max) -> tuple[Index, Index]:
    """The two index expressions inside ``atom``."""
    return (atom.num, atom.den) if isinstance(atom, FloorDiv | Mod) else (atom.a, atom.b)


def _bounds(s: State, buffer: Buffer, index: Index, size: Index) -> None:
    """Refuses an index that is certain to leave 0 .. size-1 in some iteration."""
    key = (index, size)
    if key in s.in_bounds:
        return
    ends = _attained(index)
    if ends is not None:
        low, high = ends
        below = (bound := constant(low)) is not None and bound < 0
        above = (bound := constant(size - 1 - high)) is not None and bound < 0
    else:
        below = (bound := upper_bound(index)) is not None and bound < 0
        above = (bound := lower_bound(index - size)) is not None and bound >= 0
    if below or above:
        ends_at = f"goes {'below 0' if below else f'to {ends[1]}'}" if ends else "is"
        s.fail(f"index {index} of {buffer.name} {ends_at}, out of its range 0 .. {size - 1}, without a mask")
    s.in_bounds.add(key)


def _attained(index: Index) -> tuple[Index, Index] | None:
    """The least and the largest value that ``index`` takes, if each axis is in one term and ranges freely; else None.

    The caller sees to it that all loops run (``certain``).
    """
    low = high = Index(())
    seen: set[Axis] = set()
    for monomial, coefficient in index.terms:
        axes = [a for a in monomial if not isinstance(a, Symbol)]
        if not axes:
            term = Index(((monomial, coefficient),))
            low, high = low + term, high + term
            continue
        axis = axes[0]
        if len(monomial) > 1 or not isinstance(axis, Axis) or axis in seen:
            return None
        if not all(isinstance(a, Symbol) for m, _ in axis.extent.terms for a in m):
            return None
        seen.add(axis)
        reach = (axis.extent - 1) * coefficient
        low, high = (low, high + reach) if coefficient > 0 else (low + reach, high)
    return low, high


# ---------------------------------------------------------------- what varies along a vector


def varying(s: State, root: Expr) -> frozenset[str]:
    """The open vector axes that ``root`` may depend on."""
    found: set[str] = set()
    seen: set[int] = set()
    stack: list[Expr] = [root]
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        if isinstance(expr, Op):
            stack.extend(expr.args)
        elif isinstance(expr, Var):
            found |= s.varies.get(expr.name, frozenset())
        elif isinstance(expr, Load):
            found |= s.varies.get(expr.buffer.name, frozenset())
            _index_names(s, expr.index, found)
            if expr.mask is not None:
                stack.append(expr.mask)
        elif isinstance(expr, FromIndex):
            _index_names(s, (expr.index,), found)
    return frozenset(found.intersection(s.vectors))


def _index_names(s: State, indices: Iterable[Index], found: set[str]) -> None:
    for index in indices:
        for monomial, _ in index.terms:
            for atom in monomial:
                if isinstance(atom, Axis):
                    found.add(atom.name)
                elif isinstance(atom, Opaque):
                    found |= s.varies.get(atom.name, frozenset())
                elif not isinstance(atom, Symbol):
                    _index_names(s, operands(atom), found)
