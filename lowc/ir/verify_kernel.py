"""The rules a kernel keeps (docs/design.md 1.3, 1.4), checked in one walk over its distinct nodes.

Checked: names unique and in scope, dtypes (``ops.result_dtype``), the number of indices of an access, accumulators against
their updates, buffer identity, sizes listed, uniform conditions, accesses that are certain to be out of bounds, and what the
level adds.  Not checked: races between iterations, masks that are too weak, indices that may (rather than must) be out of bounds.
"""

from dataclasses import dataclass

from lowc.errors import VerifyError
from lowc.ir.index import constant, lower_bound
from lowc.ir.matrices import is_amx, matrix_product
from lowc.ir.nodes import APART, LEVELS, Acc, Alloc, Buffer, For, If, Kernel, Let, Stmt, Store, Update
from lowc.ir.ops import REDUCERS
from lowc.ir.types import DType, i64
from lowc.ir.verify_values import (
    Group,
    MachineOps,
    State,
    check_access,
    check_expr,
    check_index,
    check_mask,
    check_value,
    declare,
    leave,
    note_load,
    varying,
)

KINDS = {
    "serial": 0, "parallel": 0, "vector": 1, "unroll": 1, "block": 0, "thread": 1, "warp": 0, "instr": 0, "pipeline": 1,
    "teams": 2,
}  # fmt: skip
"""Kinds of loops, and the least width of each."""
MOST_LANES = 128
"""Twice what a vector of any processor holds; each becomes instructions."""
SPACES = ("global", "shared", "local")


@dataclass(frozen=True, slots=True)
class Accesses:
    """Parameter numbers: ``needs`` are read before the kernel writes them, ``writes`` are stored to."""

    needs: frozenset[int]
    writes: frozenset[int]


def verify_kernel(kernel: Kernel, level: str, machine: MachineOps | None = None) -> Accesses:
    """Raises VerifyError if ``kernel`` breaks a rule of ``level``; ``machine`` adds those of a backend at MACHINE."""
    if level not in LEVELS:
        raise VerifyError(f"{kernel.name}: unknown level {level}")
    s = State(kernel, LEVELS.index(level), machine if level == "MACHINE" else None, stmt=kernel)
    s.undo.append([])
    for size in kernel.sizes:
        declare(s, size.name, size)
    for param in kernel.params:
        _param(s, param)
    _block(s, kernel.body)
    writes = {n for n, p in enumerate(kernel.params) if p.name in s.first_store}
    needs = {n for n, p in enumerate(kernel.params) if p.name in s.loaded and n not in writes}
    for n in writes:
        name = kernel.params[n].name
        if s.first_load.get(name, s.position + 1) <= s.first_store[name]:
            needs.add(n)
    return Accesses(frozenset(needs), frozenset(writes))


def _param(s: State, param: Buffer) -> None:
    declare(s, param.name, param)
    _buffer(s, param)
    if param.space != "global":
        s.fail(f"parameter {param.name} is in {param.space}; parameters are global")
    if s.level >= 1 and (len(param.shape) != 1 or constant(param.strides[0]) != 1):
        s.fail(
            f"parameter {param.name} is not one-dimensional with stride 1, as global buffers are from SCHEDULED on"
        )


def _buffer(s: State, buffer: Buffer) -> None:
    if buffer.space not in SPACES:
        s.fail(f"unknown space {buffer.space} of {buffer.name}")
    if len(buffer.shape) != len(buffer.strides):
        s.fail(f"{buffer.name} has {len(buffer.shape)} dimensions but {len(buffer.strides)} strides")
    for index in (*buffer.shape, *buffer.strides):
        check_index(s, index)


# ---------------------------------------------------------------- statements


def _block(s: State, body: tuple[Stmt, ...]) -> None:
    s.undo.append([])
    for stmt in body:
        s.stmt = stmt
        s.position += 1
        if isinstance(stmt, For):
            _for(s, stmt)
        elif isinstance(stmt, Store):
            _store(s, stmt)
        elif isinstance(stmt, Let):
            _let(s, stmt)
        elif isinstance(stmt, Update):
            _update(s, stmt)
        elif isinstance(stmt, Acc):
            _acc(s, stmt)
        elif isinstance(stmt, Alloc):
            _alloc(s, stmt)
        elif isinstance(stmt, If):
            _if(s, stmt)
        else:
            _barrier(s)
    leave(s)


def _for(s: State, stmt: For) -> None:
    kind, axis = stmt.kind, stmt.axis
    if kind.name not in KINDS:
        s.fail(f"unknown kind of loop {kind.name}")
    if s.level == 0 and kind.name != "serial":
        s.fail(f"a {kind.name} loop at LOOPS, where all loops are serial")
    if kind.width < KINDS[kind.name] or kind.interleave < 1:
        s.fail(f"a {kind.name} loop needs a width and an interleave of at least 1")
    if kind.name == "vector" and (kind.width & (kind.width - 1) or kind.width > MOST_LANES or kind.interleave > MOST_LANES):
        s.fail(f"{kind.width} lanes, {kind.interleave} strips; lanes are a power of two, neither is above {MOST_LANES}")
    if kind.name == "thread":
        if kind.key not in ("", "y"):
            s.fail(f"a thread loop is of dimension x (unnamed) or y, not {kind.key}")
    elif kind.name == "unroll":
        if kind.key not in ("", APART):
            s.fail(f"turns of an unrolled loop are mixed (unnamed) or apart, not {kind.key}")
    elif bool(kind.key) != (kind.name == "instr"):
        s.fail("instr loops, and only they, name an instruction")
    elif is_amx(stmt) and matrix_product(stmt) is None:
        s.fail("the matrix unit has no such product: tiles of 16, factors of 32 bits, along the depth and along the columns")
    check_index(s, axis.extent)
    s.undo.append([])
    declare(s, axis.name, axis)
    s.loops.append(stmt)
    certain = s.certain
    s.certain = certain and (lower_bound(axis.extent) or 0) >= 1
    if kind.name == "vector":
        s.vectors.append(axis.name)
    _block(s, stmt.body)
    if kind.name == "vector":
        s.vectors.pop()
    s.certain = certain
    s.loops.pop()
    leave(s)


def _store(s: State, stmt: Store) -> None:
    check_access(s, stmt.buffer, stmt.index, stmt.mask)
    check_expr(s, stmt.value)
    buffer = stmt.buffer
    if stmt.value.dtype != buffer.dtype:
        s.fail(f"a value of {stmt.value.dtype} is stored to {buffer.name} of {buffer.dtype}")
    if stmt.reducer:
        _reducer(s, stmt.reducer, (buffer.dtype,))
        note_load(s, buffer, stmt.mask)
        if s.level == 3 and buffer.name in s.arrays:
            _no_race(s, buffer.name, s.arrays[buffer.name][1])
        if buffer.name in s.arrays and s.arrays[buffer.name][0] not in ("", stmt.reducer):
            s.fail(
                f"{buffer.name} was allocated for {s.arrays[buffer.name][0]}, and is updated by {stmt.reducer}"
            )
    s.first_store.setdefault(buffer.name, s.position)


def _let(s: State, stmt: Let) -> None:
    check_expr(s, stmt.value)
    var = stmt.var
    if var.dtype != stmt.value.dtype:
        s.fail(f"{var.name} is declared {var.dtype}, its value is {stmt.value.dtype}")
    declare(s, var.name, var)
    s.lets.add(var.name)
    if s.vectors:
        s.varies[var.name] = varying(s, stmt.value)


def _acc(s: State, stmt: Acc) -> None:
    _reducer(s, stmt.reducer, tuple(v.dtype for v in stmt.vars))
    group = Group(tuple(v.name for v in stmt.vars), stmt.reducer, len(s.loops))
    for var in stmt.vars:
        declare(s, var.name, var)
        s.groups[var.name] = group
        if s.vectors:
            s.varies[var.name] = frozenset(s.vectors)


def _update(s: State, stmt: Update) -> None:
    for value in stmt.values:
        check_expr(s, value)
    if stmt.mask is not None:
        check_mask(s, stmt.mask)
    names = tuple(v.name for v in stmt.vars)
    for var in stmt.vars:
        check_value(s, var)
        if var.name not in s.groups:
            s.fail(f"{var.name} is no accumulator; only what an acc declares can be updated")
    group = s.groups[names[0]] if names else Group((), "", 0)
    if group.names != names:
        s.fail(
            f"{', '.join(names) or 'nothing'} updated, but {', '.join(group.names)} were declared together"
        )
    if group.reducer != stmt.reducer:
        s.fail(f"{names[0]} was declared with {group.reducer}, and is updated by {stmt.reducer}")
    if len(stmt.values) != len(names):
        s.fail(f"{stmt.reducer} takes {len(names)} values, got {len(stmt.values)}")
    for var, value in zip(stmt.vars, stmt.values, strict=True):
        if var.dtype != value.dtype:
            s.fail(f"{var.name} is {var.dtype}, the value it is updated with is {value.dtype}")
    if s.level == 3:
        _no_race(s, names[0], group.depth)
    if s.vectors:
        for name in names:
            s.varies[name] = s.varies.get(name, frozenset()) | frozenset(s.vectors)


def _no_race(s: State, name: str, depth: int) -> None:
    """Grouping would depend on timing if parallel iterations updated one accumulator."""
    for loop in s.loops[depth:]:
        if loop.kind.name in ("parallel", "block"):
            s.fail(
                f"{name} is updated across the {loop.kind.name} axis {loop.axis.name}, which MACHINE forbids"
            )


def _alloc(s: State, stmt: Alloc) -> None:
    buffer = stmt.buffer
    declare(s, buffer.name, buffer)
    _buffer(s, buffer)
    if buffer.space not in ("local", "shared"):
        s.fail(f"alloc of {buffer.name} in {buffer.space}; an alloc is local or shared")
    if any(constant(size) is None for size in buffer.shape):
        s.fail(f"alloc of {buffer.name}, whose size is not a number")
    if stmt.reducer:
        _reducer(s, stmt.reducer, (buffer.dtype,))
    s.arrays[buffer.name] = (stmt.reducer, len(s.loops))
    if s.vectors:
        s.varies[buffer.name] = frozenset(s.vectors)


def _if(s: State, stmt: If) -> None:
    check_mask(s, stmt.cond)
    if s.vectors and (axes := varying(s, stmt.cond)):
        s.fail(f"the condition depends on the vector axis {sorted(axes)[0]}; use masks")
    certain = s.certain
    s.certain = False
    _block(s, stmt.body)
    s.certain = certain


def _barrier(s: State) -> None:
    if s.level == 0:
        s.fail("a barrier at LOOPS")
    for loop in s.loops:
        if loop.kind.name not in ("serial", "unroll", "block"):
            s.fail(
                f"a barrier inside the {loop.kind.name} loop {loop.axis.name}; barriers stand between thread loops"
            )


def _reducer(s: State, name: str, dtypes: tuple[DType, ...]) -> None:
    """A known reducer, of the right number of accumulators of dtypes that it takes."""
    if name not in REDUCERS:
        s.fail(f"unknown reducer {name}")
    row = REDUCERS[name]
    if len(dtypes) != row.arity:
        s.fail(f"{name} has {row.arity} accumulators, got {len(dtypes)}")
    if dtypes[0].kind not in row.kinds:
        s.fail(f"{name} does not take {dtypes[0]}")
    if row.arity == 2 and dtypes[1] != i64:
        s.fail(f"the index of {name} is i64, got {dtypes[1]}")
