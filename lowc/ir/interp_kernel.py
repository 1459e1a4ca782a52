"""The reference interpreter for kernels of any level, on numpy arrays, by the meaning given in ``nodes``.

Memory of a buffer is a flat array (*storage*, see ``numeric``: bf16 as bits in uint16) that its strides address.  Kinds of loops
are ignored: every loop is serial.  What lowering must not produce raises InterpError: an unmasked access out of bounds, an
unknown name.  Memory that nobody has written holds a pattern that shows (NaN in floats).

Speed: a loop whose iterations provably cannot meet (see ``interp_lanes``) is run for all its iterations at once, each statement
on arrays with one numpy axis for each such loop.  Inner loops take the *leading* numpy axes, so that numpy's broadcasting
gives outer values to inner statements.  The result is that of serial order, float sums excepted, whose grouping is free.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.ir.index import (
    Axis,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Symbol,
)
from lowc.ir.interp_lanes import at_once
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
from lowc.ir.numeric import (
    Array,
    apply,
    combine,
    constant,
    fit,
    from_storage,
    reduce_last,
    start,
    storage_dtype,
    to_storage,
    value_dtype,
)
from lowc.ir.ops import CHECKS, OPS, REDUCERS

MAX_LANES = 1 << 21
"""Most iterations that run at once."""


class InterpError(LowcError):
    """The program does something that has no meaning."""


@dataclass(frozen=True, slots=True)
class Memory:
    """``data``: one copy of the buffer's elements for each iteration of the loops (``lanes``) that its alloc was in."""

    buffer: Buffer
    data: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int
    lanes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """The iterations running at once (innermost loop first), and which of them are under a true condition."""

    lanes: tuple[int, ...] = ()
    active: Array | None = None


@dataclass(slots=True)
class Frame:
    """``env``: values of axes, symbols, lets and accumulators by name."""

    env: dict[str, Any]
    memory: dict[str, Memory]
    declared: dict[
        str, tuple[str, int]
    ]  # accumulator → its reducer, and the number of lanes axes around its Acc
    parallel: set[int]  # ids of the loops that may run all at once
    tapes: dict[int, "Tape"]
    indices: dict[Index, Callable[[Mapping[str, Any]], Any]]
    shuffle: random.Random | None


def run_kernel(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    shuffle: random.Random | None = None,
) -> None:
    """Runs ``kernel`` on flat storages (by parameter name), which its stores change.

    With ``shuffle``, iterations of loops of any kind but serial run one by one in a random order, which exposes races.
    Raises IndexError and ZeroDivisionError for failed checks, InterpError for programs that mean nothing.
    """
    env: dict[str, Any] = dict(sizes or {})
    frame = Frame(env, {}, {}, set(), {}, {}, shuffle)
    for symbol in kernel.sizes:
        if symbol.name not in env:
            raise InterpError(f"{kernel.name} needs the size {symbol.name}")
    for buffer in kernel.params:
        data = buffers[buffer.name]
        if data.ndim != 1 or data.dtype != storage_dtype(buffer.dtype):
            raise InterpError(f"{buffer.name}: {buffer.dtype} cannot be {data.dtype} of shape {data.shape}")
        shape, strides = (
            tuple(int(_index(frame, i)) for i in part) for part in (buffer.shape, buffer.strides)
        )
        frame.memory[buffer.name] = Memory(buffer, data, shape, strides, len(data))
    frame.parallel = at_once(kernel.body)
    with np.errstate(all="ignore"):
        _block(frame, kernel.body, Context())


def storage_size(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory that a buffer spans."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def poisoned(size: int, dtype: np.dtype[Any]) -> Array:
    """Memory that nobody has written: NaN, large integers, true."""
    if dtype.kind in "fc":
        return np.full(size, np.nan, dtype)
    return np.full(size, True if dtype.kind == "b" else 0x7FC1 & np.iinfo(dtype).max, dtype)


# ---------------------------------------------------------------- indices


def _index(frame: Frame, index: Index) -> Any:
    """The value of an index: an int, or an int64 array over lanes."""
    found = frame.indices.get(index)
    if found is None:
        source = f"lambda e: {_source(index)}"
        found = eval(source, {"_div": _div, "_mod": _mod, "_min": np.minimum, "_max": np.maximum})  # noqa: S307
        frame.indices[index] = found
    try:
        return found(frame.env)
    except KeyError as error:
        raise InterpError(f"{error} has no value in {index}") from None


def _source(index: Index) -> str:
    return " + ".join("*".join([str(c), *map(_source_of_atom, m)]) for m, c in index.terms) or "0"


def _source_of_atom(atom: object) -> str:
    if isinstance(atom, Axis | Symbol | Opaque):
        return f"e[{atom.name!r}]"
    if isinstance(atom, FloorDiv | Mod):
        return f"{'_div' if isinstance(atom, FloorDiv) else '_mod'}({_source(atom.num)}, {_source(atom.den)})"
    assert isinstance(atom, Min | Max)
    return f"{'_min' if isinstance(atom, Min) else '_max'}({_source(atom.a)}, {_source(atom.b)})"


def _div(a: Any, b: Any) -> Any:
    return a // np.maximum(b, 1)


def _mod(a: Any, b: Any) -> Any:
    return a % np.maximum(b, 1)


def _address(frame: Frame, memory: Memory, index: tuple[Index, ...], ok: Array | None) -> Any:
    """Where in ``memory.data`` an access goes; 0 where ``ok`` is false."""
    if len(index) != len(memory.shape):
        raise InterpError(
            f"{memory.buffer.name} of {len(memory.shape)} dimensions is accessed with {len(index)} indices"
        )
    where: Any = 0
    for place, extent, stride in zip(index, memory.shape, memory.strides, strict=True):
        value = _index(frame, place)
        outside = (value < 0) | (value >= extent)
        if ok is not None:
            outside = outside & ok
        if np.any(outside):
            raise InterpError(
                f"{memory.buffer.name}: index {place} = {_sample(value, outside)} is outside 0 .. {extent - 1}"
            )
        where = where + value * stride
    outside = (where < 0) | (where >= memory.size)
    if np.any(outside if ok is None else outside & ok):
        raise InterpError(f"{memory.buffer.name}: address {where} in memory of {memory.size} elements")
    if ok is not None:
        where = np.where(ok, where, 0)
    if memory.lanes:
        where = where + np.arange(prod(memory.lanes)).reshape(memory.lanes) * memory.size
    return where


def _sample(value: Any, where: Any) -> int:
    """One of the values at which ``where`` is true."""
    value, where = np.broadcast_arrays(value, where)
    return int(value[where][0])


def _and(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Tape:
    """The distinct nodes of a statement's expressions in an order fit for evaluation, and where the roots stand."""

    nodes: tuple[tuple[Expr, tuple[int, ...]], ...]
    roots: tuple[int, ...]


def _tape(roots: Sequence[Expr]) -> Tape:
    place: dict[int, int] = {}
    nodes: list[tuple[Expr, tuple[int, ...]]] = []
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if id(expr) in place:
            continue
        parts = _parts(expr)
        if ready or not parts:
            place[id(expr)] = len(nodes)
            nodes.append((expr, tuple(place[id(p)] for p in parts)))
        else:
            stack.append((expr, True))
            stack.extend([(part, False) for part in reversed(parts)])
    return Tape(tuple(nodes), tuple(place[id(root)] for root in roots))


def _parts(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Op):
        return expr.args
    return (expr.mask,) if isinstance(expr, Load) and expr.mask is not None else ()


def _evaluate(frame: Frame, stmt: Stmt, roots: Sequence[Expr], context: Context) -> list[Array]:
    """The values of the expressions of ``stmt``."""
    tape = frame.tapes.get(id(stmt))
    if tape is None:
        tape = frame.tapes[id(stmt)] = _tape(roots)
    values: list[Array] = []
    for expr, parts in tape.nodes:
        if isinstance(expr, Op):
            values.append(_op(expr, [values[p] for p in parts], context))
        elif isinstance(expr, Load):
            values.append(_load(frame, expr, values[parts[0]] if parts else None, context))
        elif isinstance(expr, Var):
            if expr.name not in frame.env:
                raise InterpError(f"{expr.name} has no value")
            values.append(frame.env[expr.name])
        elif isinstance(expr, FromIndex):
            values.append(_from_index(frame, expr))
        else:
            assert isinstance(expr, Const)
            values.append(constant(expr.value, expr.dtype))
    return [values[root] for root in tape.roots]


def _from_index(frame: Frame, expr: FromIndex) -> Array:
    value = _index(frame, expr.index)
    return constant(value, expr.dtype) if isinstance(value, int) else fit(value, expr.dtype)


def _op(expr: Op, args: list[Array], context: Context) -> Array:
    row = OPS.get(expr.name)
    if row is None or len(args) != row.arity:
        raise InterpError(f"no op {expr.name} of {len(args)} arguments")
    if expr.name in CHECKS:
        _check(expr.name, args, context)
    return apply(expr.name, args, [a.dtype for a in expr.args], expr.dtype)


def _check(name: str, args: list[Array], context: Context) -> None:
    """Raises what the call has to raise."""
    value, mask = args[0], _and(args[-1], context.active)
    if name == "check_nonzero":
        if np.any((value == 0) & mask):
            raise ZeroDivisionError("ZeroDivisionError")
        return
    bad = ((value < 0) | (value >= args[1])) & mask
    if np.any(bad):
        size = np.broadcast_to(args[1], np.shape(bad))
        raise IndexError(
            f"index {_sample(value, bad)} is out of bounds for dimension with size {_sample(size, bad)}"
        )


def _load(frame: Frame, expr: Load, mask: Array | None, context: Context) -> Array:
    memory = _memory(frame, expr.buffer)
    ok = _and(mask, context.active)
    where = _address(frame, memory, expr.index, ok)
    if not memory.size:  # only masked-off accesses get here
        return np.zeros(np.shape(where), value_dtype(expr.dtype))
    value = from_storage(memory.data[where], expr.dtype)
    return value if mask is None else np.where(mask, value, np.zeros((), value.dtype))


def _memory(frame: Frame, buffer: Buffer) -> Memory:
    found = frame.memory.get(buffer.name)
    if found is None:
        raise InterpError(f"no memory {buffer.name}")
    return found


# ---------------------------------------------------------------- statements


def _block(frame: Frame, body: Sequence[Stmt], context: Context) -> None:
    for stmt in body:
        if isinstance(stmt, For):
            _for(frame, stmt, context)
        elif isinstance(stmt, Let):
            frame.env[stmt.var.name] = _evaluate(frame, stmt, (stmt.value,), context)[0]
        elif isinstance(stmt, Store):
            _store(frame, stmt, context)
        elif isinstance(stmt, Update):
            _update(frame, stmt, context)
        elif isinstance(stmt, Acc):
            initial = start(stmt.reducer, [v.dtype for v in stmt.vars], context.lanes)
            for var, value in zip(stmt.vars, initial, strict=True):
                frame.env[var.name] = value
                frame.declared[var.name] = (stmt.reducer, len(context.lanes))
        elif isinstance(stmt, If):
            _if(frame, stmt, context)
        elif isinstance(stmt, Alloc):
            _alloc(frame, stmt, context)
        else:
            assert isinstance(stmt, Barrier)


def _for(frame: Frame, stmt: For, context: Context) -> None:
    extent = int(_index(frame, stmt.axis.extent))
    if extent < 1:
        return
    name = stmt.axis.name
    shuffled = frame.shuffle is not None and stmt.kind.name != "serial"
    if (
        id(stmt) in frame.parallel
        and not shuffled
        and prod(context.lanes) * _volume(frame, stmt) <= MAX_LANES
    ):
        frame.env[name] = np.arange(extent).reshape((extent,) + (1,) * len(context.lanes))
        active = context.active
        _block(frame, stmt.body, Context((extent, *context.lanes), active))
        return
    order: Iterable[int] = range(extent)
    if shuffled and frame.shuffle is not None:
        order = frame.shuffle.sample(order, extent)
    for position in order:
        frame.env[name] = position
        _block(frame, stmt.body, context)


def _volume(frame: Frame, stmt: For) -> int:
    """How many iterations would run at once if ``stmt`` and what is in it did."""
    try:
        extent = max(0, int(_index(frame, stmt.axis.extent)))
    except InterpError:  # depends on what is not there yet; serial loops around it make it known later
        extent = 1
    inner = [_volume(frame, s) for s in stmt.body if isinstance(s, For) and id(s) in frame.parallel]
    return extent * max(inner, default=1)


def _if(frame: Frame, stmt: If, context: Context) -> None:
    cond = _evaluate(frame, stmt, (stmt.cond,), context)[0]
    active = _and(cond, context.active)
    if np.any(active):
        _block(frame, stmt.body, Context(context.lanes, None if np.all(active) else active))


def _alloc(frame: Frame, stmt: Alloc, context: Context) -> None:
    buffer = stmt.buffer
    shape, strides = (tuple(int(_index(frame, i)) for i in part) for part in (buffer.shape, buffer.strides))
    size = storage_size(shape, strides)
    count = size * prod(context.lanes)
    if stmt.reducer:
        data = to_storage(start(stmt.reducer, [buffer.dtype], (count,))[0], buffer.dtype)
    else:
        data = poisoned(count, storage_dtype(buffer.dtype))
    frame.memory[buffer.name] = Memory(buffer, data, shape, strides, size, context.lanes)


def _in_order(value: Array, lanes: tuple[int, ...]) -> Array:
    """One element for each iteration, in serial order."""
    return np.broadcast_to(value, lanes).transpose().reshape(-1)


def _store(frame: Frame, stmt: Store, context: Context) -> None:
    memory = _memory(frame, stmt.buffer)
    roots = (stmt.value,) if stmt.mask is None else (stmt.value, stmt.mask)
    value, *mask = _evaluate(frame, stmt, roots, context)
    ok = _and(mask[0] if mask else None, context.active)
    where = _address(frame, memory, stmt.index, ok)
    dtype = stmt.buffer.dtype
    places, values = _in_order(where, context.lanes), _in_order(value, context.lanes)
    if ok is not None:
        kept = _in_order(ok, context.lanes)
        places, values = places[kept], values[kept]
    if not stmt.reducer:
        memory.data[places] = to_storage(values, dtype)
    elif dtype.kind == "f" and dtype.bits < 32:  # rounds after each step
        for place, item in zip(places, values, strict=True):
            old = from_storage(memory.data[place], dtype)
            memory.data[place] = to_storage(combine(stmt.reducer, [old], [item], [dtype])[0], dtype)
    else:
        OPS[REDUCERS[stmt.reducer].op].numpy.at(
            memory.data, places, values.astype(memory.data.dtype, copy=False)
        )


def _update(frame: Frame, stmt: Update, context: Context) -> None:
    dtypes = [v.dtype for v in stmt.vars]
    roots = stmt.values if stmt.mask is None else (*stmt.values, stmt.mask)
    found = _evaluate(frame, stmt, roots, context)
    values, mask = found[: len(dtypes)], found[len(dtypes) :]
    ok = _and(mask[0] if mask else None, context.active)
    if stmt.vars[0].name not in frame.declared:
        raise InterpError(f"{stmt.vars[0].name} is no accumulator")
    reducer, depth = frame.declared[stmt.vars[0].name]
    if reducer != stmt.reducer:
        raise InterpError(f"{stmt.vars[0].name} is an accumulator of {reducer}, not of {stmt.reducer}")
    if ok is not None:
        neutral = start(reducer, dtypes, ())
        values = [np.where(ok, v, n) for v, n in zip(values, neutral, strict=True)]
    new = len(context.lanes) - depth
    if new:
        kept = context.lanes[new:]
        values = [np.moveaxis(np.broadcast_to(v, context.lanes), range(new), range(-new, 0)) for v in values]
        values = reduce_last(reducer, [v.reshape((*kept, -1)) for v in values], dtypes)
    old = [frame.env[v.name] for v in stmt.vars]
    for var, value in zip(stmt.vars, combine(reducer, old, values, dtypes), strict=True):
        frame.env[var.name] = value
