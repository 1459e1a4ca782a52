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
from math import prod
from typing import Any

import numpy as np

from lowc.ir.interp_expr import (
    Context,
    InterpError,
    Memory,
    State,
    both,
    compile_address,
    compile_exprs,
    compile_indices,
)
from lowc.ir.interp_lanes import Lanes, at_once
from lowc.ir.nodes import Acc, Alloc, Barrier, Buffer, For, If, Kernel, Let, Stmt, Store, Update
from lowc.ir.numeric import (
    Array,
    combiner,
    from_storage,
    masked,
    prefix,
    reduce_last,
    start,
    storage_dtype,
    to_storage,
)
from lowc.ir.ops import OPS, REDUCERS
from lowc.ir.scan import running

MAX_LANES = 1 << 21
"""Most iterations that run at once."""

Run = Callable[[State, Context], None]


def run_kernel(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    shuffle: random.Random | None = None,
) -> None:
    """Runs ``kernel`` on flat storages (by parameter name), which its stores change.

    With ``shuffle``, iterations of loops of any kind but serial run one by one in a random order, which exposes races; those of
    scans stay in order.
    Raises IndexError and ZeroDivisionError for failed checks, InterpError for programs that mean nothing.
    """
    state = State(dict(sizes or {}), {})
    for symbol in kernel.sizes:
        if symbol.name not in state.env:
            raise InterpError(f"{kernel.name} needs the size {symbol.name}")
    for buffer in kernel.params:
        data = buffers[buffer.name]
        if data.ndim != 1 or data.dtype != storage_dtype(buffer.dtype):
            raise InterpError(f"{buffer.name}: {buffer.dtype} cannot be {data.dtype} of shape {data.shape}")
        shape, strides = _form(buffer, state)
        state.memory[buffer.name] = Memory(buffer, data, shape, strides, len(data))
    body = _Compiler(at_once(kernel.body), shuffle).block(kernel.body)
    with np.errstate(all="ignore"):
        body(state, Context())


def storage_size(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory that a buffer spans."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def poisoned(size: int, dtype: np.dtype[Any]) -> Array:
    """Memory that nobody has written: NaN, large integers, true."""
    if dtype.kind in "fc":
        return np.full(size, np.nan, dtype)
    return np.full(size, True if dtype.kind == "b" else 0x7FC1 & np.iinfo(dtype).max, dtype)


def _form(buffer: Buffer, state: State) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides as numbers."""
    numbers = tuple(int(n) for n in compile_indices((*buffer.shape, *buffer.strides))(state))
    return numbers[: len(buffer.shape)], numbers[len(buffer.shape) :]


def _in_order(value: Array, lanes: tuple[int, ...]) -> Array:
    """One element for each iteration, in serial order."""
    return _spread(value, lanes).transpose().reshape(-1)


def _spread(value: Any, lanes: tuple[int, ...]) -> Array:
    """A value for each iteration."""
    return np.broadcast_to(value, lanes)


class _Compiler:
    """Turns statements into functions.  ``declared``: accumulator → reducer; ``depth``: how many lanes axes its Acc is under."""

    def __init__(self, lanes: Lanes, shuffle: random.Random | None) -> None:
        self.lanes = lanes
        self.shuffle = shuffle
        self.reducers: dict[str, str] = {}
        self.depth: dict[str, int] = {}

    def block(self, body: Sequence[Stmt]) -> Run:
        runs = [self.statement(stmt) for stmt in body]

        def block(state: State, context: Context) -> None:
            for run in runs:
                run(state, context)

        return block

    def statement(self, stmt: Stmt) -> Run:
        if isinstance(stmt, For):
            return self.loop(stmt)
        if isinstance(stmt, Let):
            return self.let(stmt)
        if isinstance(stmt, Store):
            return self.store(stmt)
        if isinstance(stmt, Update):
            return self.update(stmt)
        if isinstance(stmt, Acc):
            return self.acc(stmt)
        if isinstance(stmt, If):
            return self.condition(stmt)
        if isinstance(stmt, Alloc):
            return self.alloc(stmt)
        assert isinstance(stmt, Barrier)
        return lambda state, context: None

    def loop(self, stmt: For) -> Run:
        name = stmt.axis.name
        extent_of = compile_indices((stmt.axis.extent,))
        body = self.block(stmt.body)
        # a loop that reads what it accumulates is serial in meaning, whatever its kind
        shuffle = self.shuffle if stmt.kind.name not in ("serial", "pipeline") and not running(stmt) else None
        at_once = shuffle is None and id(stmt) in self.lanes.parallel
        volume = self.volume(stmt)
        scans = self.lanes.scans.get(id(stmt), ())

        def loop(state: State, context: Context) -> None:
            extent = int(extent_of(state)[0])
            if extent < 1:
                return
            if at_once and prod(context.lanes) * volume(state) <= MAX_LANES:
                state.env[name] = np.arange(extent).reshape((extent,) + (1,) * len(context.lanes))
                active = context.active
                body(state, Context((extent, *context.lanes), active))
                for scanned in scans:  # its prefixes end with the total
                    state.env[scanned] = state.env[scanned][-1]
                return
            order: Iterable[int] = range(extent)
            if shuffle is not None:
                order = shuffle.sample(order, extent)
            for position in order:
                state.env[name] = position
                body(state, context)

        return loop

    def volume(self, stmt: For) -> Callable[[State], int]:
        """How many iterations would run at once if ``stmt`` and what is in it did."""
        extent_of = compile_indices((stmt.axis.extent,))
        inner = [self.volume(s) for s in stmt.body if isinstance(s, For) and id(s) in self.lanes.parallel]

        def volume(state: State) -> int:
            try:
                extent = max(0, int(extent_of(state)[0]))
            except (
                InterpError
            ):  # depends on what is not there yet; serial loops around it make it known later
                extent = 1
            return extent * max((f(state) for f in inner), default=1)

        return volume

    def let(self, stmt: Let) -> Run:
        name, value = stmt.var.name, compile_exprs((stmt.value,))

        def let(state: State, context: Context) -> None:
            state.env[name] = value(state, context)[0]

        return let

    def condition(self, stmt: If) -> Run:
        cond, body = compile_exprs((stmt.cond,)), self.block(stmt.body)

        def condition(state: State, context: Context) -> None:
            active = both(cond(state, context)[0], context.active)
            if np.any(active):
                body(state, Context(context.lanes, None if np.all(active) else active))

        return condition

    def alloc(self, stmt: Alloc) -> Run:
        buffer, reducer = stmt.buffer, stmt.reducer

        def alloc(state: State, context: Context) -> None:
            shape, strides = _form(buffer, state)
            size = storage_size(shape, strides)
            count = size * prod(context.lanes)
            if reducer:
                data = np.full(count, to_storage(start(reducer, [buffer.dtype], ())[0], buffer.dtype))
            else:
                data = poisoned(count, storage_dtype(buffer.dtype))
            state.memory[buffer.name] = Memory(buffer, data, shape, strides, size, context.lanes)

        return alloc

    def store(self, stmt: Store) -> Run:
        buffer, dtype, reducer = stmt.buffer, stmt.buffer.dtype, stmt.reducer
        address = compile_address(buffer, stmt.index)
        roots = compile_exprs((stmt.value,) if stmt.mask is None else (stmt.value, stmt.mask))
        narrow = dtype.kind == "f" and dtype.bits < 32
        combine = combiner(reducer, [dtype]) if reducer else None

        def one(memory: Memory, place: Any, value: Array) -> None:
            if combine is not None:
                value = combine([from_storage(memory.data[place], dtype)], [value])[0]
            memory.data[place] = to_storage(value, dtype) if narrow else value

        def store(state: State, context: Context) -> None:
            memory = state.find(buffer)
            value, *mask = roots(state, context)
            ok = both(mask[0] if mask else None, context.active)
            where = address(state, memory, ok)
            if not context.lanes:
                if ok is None or ok:
                    one(memory, where, value)
                return
            places, values = _in_order(where, context.lanes), _in_order(value, context.lanes)
            if ok is not None:
                kept = _in_order(ok, context.lanes)
                places, values = places[kept], values[kept]
            if combine is None:
                memory.data[places] = to_storage(values, dtype)
            elif narrow:  # rounds after each step
                for place, item in zip(places, values, strict=True):
                    one(memory, place, item)
            else:
                combining: Any = OPS[REDUCERS[reducer].op].numpy
                combining.at(memory.data, places, values)

        return store

    def acc(self, stmt: Acc) -> Run:
        names, dtypes = [v.name for v in stmt.vars], [v.dtype for v in stmt.vars]
        for name in names:
            self.reducers[name] = stmt.reducer

        def acc(state: State, context: Context) -> None:
            for name, value in zip(names, start(stmt.reducer, dtypes, context.lanes), strict=True):
                state.env[name] = value
                self.depth[name] = len(context.lanes)

        return acc

    def update(self, stmt: Update) -> Run:
        names, dtypes, reducer = [v.name for v in stmt.vars], [v.dtype for v in stmt.vars], stmt.reducer
        if self.reducers.get(names[0]) != reducer:
            raise InterpError(f"{names[0]} is no accumulator of {reducer}")
        count = len(names)
        roots = compile_exprs(stmt.values if stmt.mask is None else (*stmt.values, stmt.mask))
        combine = combiner(reducer, dtypes)
        neutral = start(reducer, dtypes, ())
        scanned = id(stmt) in self.lanes.scanned

        def update(state: State, context: Context) -> None:
            found = roots(state, context)
            values = found[:count]
            ok = both(found[count] if len(found) > count else None, context.active)
            if ok is not None:
                values = [masked(v, ok, n) for v, n in zip(values, neutral, strict=True)]
            new = len(context.lanes) - self.depth[names[0]]
            old = [state.env[name] for name in names]
            if new and scanned:
                values = prefix(reducer, old, [_spread(v, context.lanes) for v in values], dtypes)
            else:
                if new:
                    last = range(-new, 0)
                    moved = [np.moveaxis(_spread(v, context.lanes), range(new), last) for v in values]
                    values = reduce_last(reducer, [v.reshape((*v.shape[:-new], -1)) for v in moved], dtypes)
                values = combine(old, values)
            for name, value in zip(names, values, strict=True):
                state.env[name] = value

        return update
