"""Expressions of the interpreter: index arithmetic, memory accesses, ops; compiled to lists of Python functions.

A value is a numpy scalar, or an array over the iterations that run at once (see ``interp_kernel``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.ir.index import Axis, FloorDiv, Index, Max, Min, Mod, Opaque, Symbol
from lowc.ir.nodes import Buffer, Const, Expr, FromIndex, Load, Op, Var
from lowc.ir.numeric import Array, constant, fit, from_storage, masked, operation, value_dtype
from lowc.ir.ops import CHECKS, OPS


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
class State:
    """``env``: values of axes, symbols, lets and accumulators by name; ``memory``: of buffers by name."""

    env: dict[str, Any]
    memory: dict[str, Memory]

    def find(self, buffer: Buffer) -> Memory:
        found = self.memory.get(buffer.name)
        if found is None:
            raise InterpError(f"no memory {buffer.name}")
        return found


Evaluate = Callable[[State, Context], list[Array]]
_Step = Callable[[State, Context, list[Array]], Array]


def both(a: Array | None, b: Array | None) -> Array | None:
    """The conjunction of two masks, where None is true."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


# ---------------------------------------------------------------- indices


def compile_indices(indices: Sequence[Index]) -> Callable[[State], tuple[Any, ...]]:
    """A function that gives the values of ``indices``: ints, or int64 arrays over lanes."""
    source = f"lambda e: ({''.join(f'{_source(i)}, ' for i in indices)})"
    run = eval(source, {"_div": _div, "_mod": _mod, "_min": _min, "_max": _max})

    def evaluate(state: State) -> tuple[Any, ...]:
        try:
            return run(state.env)
        except KeyError as error:
            raise InterpError(f"{error} has no value in {', '.join(map(str, indices))}") from None

    return evaluate


def _source(index: Index) -> str:
    terms = [
        "*".join([*([] if c == 1 and m else [f"({c})"]), *map(_source_of_atom, m)]) for m, c in index.terms
    ]
    return " + ".join(terms) or "0"


def _source_of_atom(atom: object) -> str:
    if isinstance(atom, Axis | Symbol | Opaque):
        return f"e[{atom.name!r}]"
    if isinstance(atom, FloorDiv | Mod):
        return f"{'_div' if isinstance(atom, FloorDiv) else '_mod'}({_source(atom.num)}, {_source(atom.den)})"
    assert isinstance(atom, Min | Max)
    return f"{'_min' if isinstance(atom, Min) else '_max'}({_source(atom.a)}, {_source(atom.b)})"


def _div(a: Any, b: Any) -> Any:
    return a // _max(b, 1)


def _mod(a: Any, b: Any) -> Any:
    return a % _max(b, 1)


def _min(a: Any, b: Any) -> Any:
    return min(a, b) if type(a) is int and type(b) is int else np.minimum(a, b)


def _max(a: Any, b: Any) -> Any:
    return max(a, b) if type(a) is int and type(b) is int else np.maximum(a, b)


def compile_address(buffer: Buffer, index: tuple[Index, ...]) -> Callable[[State, Memory, Array | None], Any]:
    """A function that says where in ``memory.data`` an access goes: 0 where its mask is false, InterpError out of bounds."""
    coordinates = compile_indices(index)
    rank = len(buffer.shape)
    if len(index) != rank:
        raise InterpError(f"{buffer.name} of {rank} dimensions is accessed with {len(index)} indices")

    def address(state: State, memory: Memory, ok: Array | None) -> Any:
        where: Any = 0
        if ok is not None and not isinstance(ok, np.ndarray):
            if not ok:
                return _lane(memory, 0)
            ok = None
        for number, value in enumerate(coordinates(state)):
            extent = memory.shape[number]
            if isinstance(value, np.ndarray) or ok is not None:
                outside = (value < 0) | (value >= extent)
                if np.any(outside if ok is None else outside & ok):
                    bad = outside if ok is None else outside & ok
                    raise _outside(memory, index[number], sample(value, bad), extent)
            elif not 0 <= value < extent:
                raise _outside(memory, index[number], int(value), extent)
            where = where + value * memory.strides[number]
        if ok is not None:
            where = masked(where, ok, 0)
        if np.any(where >= memory.size) if isinstance(where, np.ndarray) else where >= memory.size:
            if ok is None or np.any((where >= memory.size) & ok):
                raise InterpError(f"{buffer.name}: address {where} in memory of {memory.size} elements")
        return _lane(memory, where)

    return address


def _lane(memory: Memory, where: Any) -> Any:
    if not memory.lanes:
        return where
    return where + np.arange(prod(memory.lanes)).reshape(memory.lanes) * memory.size


def _outside(memory: Memory, index: Index, value: int, extent: int) -> InterpError:
    return InterpError(f"{memory.buffer.name}: index {index} = {value} is outside 0 .. {extent - 1}")


def sample(value: Any, where: Any) -> int:
    """One of the values at which ``where`` is true."""
    value, where = np.broadcast_arrays(value, where)
    return int(value[where][0])


# ---------------------------------------------------------------- expressions


def compile_exprs(roots: Sequence[Expr]) -> Evaluate:
    """A function that gives the values of ``roots``; what they share is computed once."""
    place: dict[int, int] = {}
    steps: list[_Step] = []
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if id(expr) in place:
            continue
        parts = _parts(expr)
        if ready or not parts:
            place[id(expr)] = len(steps)
            steps.append(_compile(expr, [place[id(p)] for p in parts]))
        else:
            stack.append((expr, True))
            stack.extend([(part, False) for part in reversed(parts)])
    wanted = [place[id(root)] for root in roots]

    def evaluate(state: State, context: Context) -> list[Array]:
        values: list[Array] = []
        for step in steps:
            values.append(step(state, context, values))
        return [values[n] for n in wanted]

    return evaluate


def _parts(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Op):
        return expr.args
    return (expr.mask,) if isinstance(expr, Load) and expr.mask is not None else ()


def _compile(expr: Expr, parts: list[int]) -> _Step:
    if isinstance(expr, Op):
        return _compile_op(expr, parts)
    if isinstance(expr, Load):
        return _compile_load(expr, parts)
    if isinstance(expr, FromIndex):
        return _compile_from_index(expr)
    if isinstance(expr, Const):
        value = constant(expr.value, expr.dtype)
        return lambda state, context, values: value
    return _compile_var(expr)


def _compile_var(expr: Var) -> _Step:
    def variable(state: State, context: Context, values: list[Array]) -> Array:
        found = state.env.get(expr.name)
        if found is None:
            raise InterpError(f"{expr.name} has no value")
        return found

    return variable


def _compile_from_index(expr: FromIndex) -> _Step:
    index = compile_indices((expr.index,))
    dtype = expr.dtype

    def from_index(state: State, context: Context, values: list[Array]) -> Array:
        (value,) = index(state)
        return constant(value, dtype) if isinstance(value, int) else fit(value, dtype)

    return from_index


def _compile_op(expr: Op, parts: list[int]) -> _Step:
    row = OPS.get(expr.name)
    if row is None or len(parts) != row.arity:
        raise InterpError(f"no op {expr.name} of {len(parts)} arguments")
    run = operation(expr.name, [a.dtype for a in expr.args], expr.dtype)
    if expr.name in CHECKS:
        name = expr.name

        def checked(state: State, context: Context, values: list[Array]) -> Array:
            args = [values[p] for p in parts]
            _check(name, args, context)
            return run(*args)

        return checked
    if len(parts) == 1:
        (a,) = parts
        return lambda state, context, values: run(values[a])
    if len(parts) == 2:
        a, b = parts
        return lambda state, context, values: run(values[a], values[b])
    return lambda state, context, values: run(*[values[p] for p in parts])


def _check(name: str, args: list[Array], context: Context) -> None:
    """Raises what the call has to raise."""
    value, mask = args[0], both(args[-1], context.active)
    if name == "check_nonzero":
        if np.any((value == 0) & mask):
            raise ZeroDivisionError("ZeroDivisionError")
        return
    bad = ((value < 0) | (value >= args[1])) & mask
    if np.any(bad):
        size = np.broadcast_to(args[1], np.shape(bad))
        raise IndexError(
            f"index {sample(value, bad)} is out of bounds for dimension with size {sample(size, bad)}"
        )


def _compile_load(expr: Load, parts: list[int]) -> _Step:
    buffer, dtype = expr.buffer, expr.buffer.dtype
    address = compile_address(buffer, expr.index)
    narrow = dtype.name in ("f16", "bf16")
    nothing = np.zeros((), value_dtype(dtype))[()]

    def load(state: State, context: Context, values: list[Array]) -> Array:
        memory = state.find(buffer)
        mask = values[parts[0]] if parts else None
        ok = both(mask, context.active)
        where = address(state, memory, ok)
        if not memory.size:  # only masked-off accesses get here
            return np.zeros(np.shape(where), nothing.dtype)[()]
        value = memory.data[where]
        if narrow:
            value = from_storage(value, dtype)
        return value if mask is None else masked(value, mask, nothing)

    return load
