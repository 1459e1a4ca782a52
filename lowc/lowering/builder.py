"""Builds the kernels of a module, one nest at a time.

A lowering function gets a ``Builder``.  Most call ``map`` or ``reduce``; the others write a nest themselves:

    with b.kernel("name"):
        with b.loop(n) as i:
            b.store(out, (i,), b.load(x, (i,)))
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import ONE, ZERO, Axis, Index, Opaque, Symbol, atoms, constant, ix, prove_nonneg
from lowc.ir.nodes import (
    Acc,
    Buffer,
    Const,
    Expr,
    For,
    FromIndex,
    Kernel,
    Launch,
    Let,
    Load,
    Op,
    Step,
    Stmt,
    Store,
    Update,
    Var,
    View,
)
from lowc.ir.ops import REDUCERS
from lowc.ir.types import DType, bool_, f32, i64
from lowc.ir.walk import children, parts
from lowc.lowering.scalars import bitcast, cast, const, index_value, op
from lowc.lowering.values import (
    Coords,
    Value,
    check_loadable,
    contiguous_strides,
    is_one,
    loop_order,
    overlaps,
    whole,
)

Operand = Value | Index | bool | int | float
_RESERVED = re.compile(r"[ijkv]\d+$")


@dataclass(slots=True)
class Nest:
    """The kernel being built: its open blocks, the buffers and symbols seen so far, and counters for names."""

    name: str
    blocks: list[list[Stmt]]
    params: dict[str, Buffer] = field(default_factory=dict)
    sizes: dict[Symbol, None] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)


Library = Callable[[Value, Value, bool], str]
Attends = Callable[[Value, Value, Value, Value | None, bool, str, str], str]
Convolves = Callable[[Value, Value, TensorMeta, Coords, Index, str], str]


class Builder:
    """``temps`` and ``steps`` of the module so far.  ``stem`` and ``origin`` are of the node being lowered;
    ``offsets`` holds the storage offsets of inputs, ``restrided`` the temps whose strides are not those that the graph says,
    ``used`` the results that something needs, as (node, number), ``given`` the sizes that inputs tell, ``strayed`` the temps that
    stand for windows of an input and do not lie as those do, with the op that made them, ``pending`` what collectives in flight
    read, by the temps that they fill.

    ``choose_parts``: what is put together from a few parts is a map that chooses among them, which threads of a GPU do without
    waiting for one another; else a nest for each part.

    ``deterministic``: what ``Graph.deterministic`` says.  ``atomic``: reducing stores happen in any order, as on a GPU; else in
    that of the loops.

    ``library``: why the product of two values is a call of ATen, "" for one that is to be a loop nest; told as well whether its
    sums may be of fewer bits than f32 has.  ``followed``: whether
    pointwise ops follow the node at hand.  ``alone``: nothing can be left to ATen, so that convolutions are loop nests as well.

    ``attention``: why attention of (queries, keys, values, a bias or None, whether it is causal, what is wanted, whose the op
    is in ATen) is a call of ATen, "" for a loop nest; see ``asked.Asked`` for what is wanted, and whose.
    ``default``: the type of floats that integers become.
    ``tf32``: products of f32 are of their factors as ``ir.tiles.tf32`` rounds them.
    ``convolution``: likewise of (the input, weights, what is made, steps, groups, what is wanted).
    ``node``: the name of the node at hand.
    ``processors``: how many share the tiles of a kernel that multiplies tiles of 16-bit floats; 0 where none does.
    """

    def __init__(
        self,
        taken: Sequence[str],
        choose_parts: bool = False,
        deterministic: bool = False,
        atomic: bool = False,
        library: Library | None = None,
        alone: bool = False,
        engine: bool = False,
        attention: Attends | None = None,
        convolution: Convolves | None = None,
        tf32: bool = False,
        default: DType = f32,
        processors: int = 0,
    ) -> None:
        """``taken``: names that no temp may have."""
        self.choose_parts = choose_parts
        self.deterministic = deterministic
        self.atomic = atomic
        self.library = library or (lambda *_: "")
        self.attention = attention or (lambda *_: "")
        self.convolution = convolution or (lambda *_: "")
        self.alone = alone
        self.engine = engine
        self.tf32 = tf32
        self.default = default
        self.processors = processors
        self.followed = False
        self.temps: list[Buffer] = []
        self.steps: list[Step] = []
        self.stem = ""
        self.node = ""
        self.origin: tuple[str, ...] = ()
        self.offsets: dict[str, Index] = {}
        self.restrided: set[str] = set()
        self.used: set[tuple[str, int]] = set()
        self.given: set[Symbol] = set()
        self.strayed: dict[str, str] = {}
        self.pending: dict[str, tuple[View, ...]] = {}
        self._taken = set(taken)
        self._kernels: dict[str, int] = {}
        self._nest: Nest | None = None

    # ------------------------------------------------------------ state

    def mark(self) -> tuple[int, int]:
        """How much there is so far, for ``rewind``."""
        return len(self.temps), len(self.steps)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forgets everything since ``mark`` (a lowering that raised NotLowered half-way)."""
        del self.temps[mark[0] :]
        del self.steps[mark[1] :]
        self._nest = None

    def fresh(self, name: str) -> str:
        """A buffer name that nothing has yet, close to ``name``."""
        name = re.sub(r"\W", "_", name) or "t"
        if _RESERVED.match(name):
            name += "_"
        unique, count = name, 1
        while unique in self._taken:
            count += 1
            unique = f"{name}_{count}"
        self._taken.add(unique)
        return unique

    def needs(self, number: int) -> bool:
        """Whether something uses result ``number`` of the node at hand."""
        return (self.node, number) in self.used

    # ------------------------------------------------------------ memory

    def storage_offset(self, buffer: Buffer) -> Index:
        """Where an input starts in its storage, in elements (0 for temps)."""
        return self.offsets.get(buffer.name, ZERO)

    def is_input(self, buffer: Buffer) -> bool:
        return buffer.name in self.offsets

    def temp(self, dtype: DType, shape: Coords, strides: Coords | None = None, name: str = "") -> Value:
        """A new temp, contiguous unless ``strides`` are given."""
        steps = contiguous_strides(shape) if strides is None else strides
        if strides is not None and overlaps(shape, strides):
            raise NotLowered("the result overlaps itself")
        buffer = Buffer(self.fresh(name or self.stem), dtype, shape, steps)
        self.temps.append(buffer)
        return whole(buffer)

    def result(self, out: TensorMeta, name: str = "") -> Value:
        """A new temp with the type and strides of ``out``."""
        if out.dtype.kind not in "biuf":
            raise NotLowered(f"lowc does not compute in {out.dtype}")
        return self.temp(out.dtype, out.shape, out.strides, name)

    def restride(self, out: TensorMeta, strides: Coords) -> Value:
        """A new temp of the type of ``out`` with strides that eager has where the graph's (fake tensors) are wrong."""
        target = self.temp(out.dtype, out.shape, strides)
        self.restrided.add(target.buffer.name)
        return target

    def view(self, value: Value) -> View:
        """``value`` as a window that ATen can take; one that is no strided window is copied first."""
        if value.strides is None:
            value = self.copy(value)
        assert value.strides is not None
        return View(value.buffer, value.dtype, value.shape, value.strides, value.offset)

    def copy(self, value: Value) -> Value:
        """A contiguous copy of ``value`` in a new temp."""
        out = self.temp(value.dtype, value.shape)
        self.fill(out, lambda c: self.load(value, c))
        return out

    # ------------------------------------------------------------ nests

    @property
    def gpu(self) -> bool:
        """Whether eager's kernels are those for a GPU, which treat NaN in other ways than those for a CPU."""
        return self.atomic

    @property
    def nest(self) -> Nest:
        assert self._nest is not None, "no kernel is open"
        return self._nest

    @contextmanager
    def kernel(self, stem: str = "") -> Iterator[None]:
        """Everything emitted inside is one kernel, launched once."""
        assert self._nest is None, "kernels do not nest"
        stem = stem or self.stem
        number = self._kernels.get(stem, -1) + 1
        self._kernels[stem] = number
        self._nest = nest = Nest(f"{stem}_{number}", [[]])
        yield
        for buffer in nest.params.values():
            self._note(*buffer.shape, *buffer.strides)
        params = tuple(nest.params.values())
        self.steps.append(
            Launch(Kernel(nest.name, params, tuple(nest.sizes), tuple(nest.blocks[0])), params, self.origin)
        )
        self._nest = None

    @contextmanager
    def dropped(self) -> Iterator[None]:
        """What is emitted inside goes nowhere: it is only looked at."""
        assert self._nest is None, "kernels do not nest"
        self._nest = Nest("dropped", [[]])
        yield
        self._nest = None

    @contextmanager
    def loop(self, extent: Index | int, letter: str = "i") -> Iterator[Index]:
        """A serial loop over 0 .. extent-1; yields its axis.  A size known to be 1 makes no loop."""
        nest = self.nest
        extent = ix(extent)
        if is_one(extent):
            yield ZERO
            return
        self._note(extent)
        axis = Axis(self._name(letter), extent)
        nest.blocks.append([])
        yield ix(axis)
        nest.blocks[-2].append(For(axis, tuple(nest.blocks.pop())))

    @contextmanager
    def loops(self, shape: Coords, order: Sequence[int], letter: str = "i") -> Iterator[list[Index]]:
        """A loop for each dimension in ``order``, outermost first; yields coordinates, 0 where there is no loop."""
        coords = [ZERO] * len(shape)
        entered = []
        for dim in order:
            scope = self.loop(shape[dim], letter)
            coords[dim] = scope.__enter__()
            entered.append(scope)
        yield coords
        for scope in reversed(entered):
            scope.__exit__(None, None, None)

    def _name(self, letter: str) -> str:
        number = self.nest.names.get(letter, 0)
        self.nest.names[letter] = number + 1
        return f"{letter}{number}"

    def _note(self, *indices: Index) -> None:
        for index in indices:
            for atom in atoms(index):
                if isinstance(atom, Symbol):
                    self.nest.sizes[atom] = None

    def _emit(self, stmt: Stmt) -> None:
        self.nest.blocks[-1].append(stmt)

    # ------------------------------------------------------------ scalars

    def let(self, value: Expr) -> Expr:
        """A name for ``value``, so that it is computed once; constants, names and indices stay as they are."""
        if isinstance(value, Const | Var | FromIndex):
            return value
        var = Var(self._name("v"), value.dtype)
        self._emit(Let(var, self.settle(value)))
        return var

    def settle(self, value: Expr) -> Expr:
        """``value`` with a name for every part that is used more than once."""
        uses: dict[int, int] = {}
        stack = [value]
        while stack:
            part = stack.pop()
            uses[id(part)] = uses.get(id(part), 0) + 1
            if uses[id(part)] == 1:
                stack.extend(children(part))
        if all(count == 1 for count in uses.values()):
            return value
        return self._settled(value, uses, {})

    def _settled(self, value: Expr, uses: dict[int, int], memo: dict[int, Expr]) -> Expr:
        if id(value) in memo:
            return memo[id(value)]
        new = value
        if isinstance(value, Op):
            new = Op(value.name, tuple(self._settled(a, uses, memo) for a in value.args), value.dtype)
        elif isinstance(value, Load) and value.mask is not None:
            new = Load(value.buffer, value.index, self._settled(value.mask, uses, memo))
        if uses[id(value)] > 1 and not isinstance(new, Const | Var | FromIndex):
            var = Var(self._name("v"), new.dtype)
            self._emit(Let(var, new))
            new = var
        memo[id(value)] = new
        return new

    def index(self, index: Index, dtype: DType = i64) -> Expr:
        """An index expression as a value."""
        self._note(index)
        return index_value(index, dtype)

    def load(self, value: Value, coords: Coords, mask: Expr | None = None, kinds: str = "biuf") -> Expr:
        """The element of ``value``, of one of ``kinds``, at ``coords``; 0 where ``mask`` is false."""
        check_loadable(value, kinds)
        assert value.coords is not None and len(coords) == len(value.shape), (value.shape, coords)
        buffer = self._touch(value.buffer)
        where = value.coords(coords)
        self._note(*where)
        return bitcast(Load(buffer, where, mask), value.dtype)

    def again(self, value: Expr) -> Expr:
        """``value``, made of loads and indices elsewhere, in the kernel that is open."""
        for part in parts(value):
            if isinstance(part, Load):
                self._touch(part.buffer)
                self._note(*part.index)
            elif isinstance(part, FromIndex):
                self._note(part.index)
        return value

    def read(self, value: Operand, coords: Coords, dtype: DType | None = None) -> Expr:
        """An operand at ``coords`` of the result, broadcast to it and converted to ``dtype`` (needed for numbers)."""
        if not isinstance(value, Value):
            return self.number(value, dtype)
        skipped = len(coords) - len(value.shape)
        inner = tuple(ZERO if is_one(n) else c for c, n in zip(coords[skipped:], value.shape, strict=True))
        loaded = self.load(value, inner)
        return loaded if dtype is None else cast(loaded, dtype)

    def number(self, value: Operand, dtype: DType | None) -> Expr:
        """A number of the graph as a value of ``dtype``."""
        if isinstance(value, Index):
            self._note(value)
            fixed = constant(value)
            if fixed is None:
                return cast(index_value(value), dtype or i64)
            value = fixed
        if dtype is None or isinstance(value, Value):
            raise NotLowered("a number without a type" if dtype is None else "a parameter that is a tensor")
        if isinstance(value, complex):
            raise NotLowered("complex numbers")
        if dtype.kind in "iu" and isinstance(value, float):
            if value != value or abs(value) == float("inf"):
                raise NotLowered(f"{value} as {dtype}")
            value = int(value)
        return const(value, dtype)

    def checked(self, position: Expr, size: Index, mask: Expr | None = None) -> tuple[Index, Expr | None]:
        """A data-dependent coordinate 0 .. size-1, and the mask under which loads may use it.

        The call raises IndexError where ``mask`` holds and ``position`` is out of range.  The returned mask also covers
        a ``size`` that may be 0, where no coordinate is safe.
        """
        if constant(size) == 0:
            raise NotLowered("indexes a dimension of size 0")
        limit = self.index(size)
        guard = const(True, bool_) if mask is None else mask
        if not prove_nonneg(size - 1):
            some = op("gt", limit, const(0, i64))
            mask = some if mask is None else op("and", mask, some)
        safe = self.let(op("check_index", cast(position, i64), limit, guard))
        if isinstance(safe, Var):
            return ix(Opaque(safe.name)), mask
        if isinstance(safe, Const):
            return ix(int(safe.value)), mask
        assert isinstance(safe, FromIndex)
        return safe.index, mask

    def inside(self, index: Index, low: Index, high: Index) -> Expr | None:
        """``low <= index < high`` as a mask; None where that is certain."""
        mask: Expr | None = None
        if not prove_nonneg(index - low):
            mask = op("ge", self.index(index), self.index(low))
        if not prove_nonneg(high - 1 - index):
            below = op("lt", self.index(index), self.index(high))
            mask = below if mask is None else op("and", mask, below)
        return mask

    # ------------------------------------------------------------ statements

    def _touch(self, buffer: Buffer) -> Buffer:
        self.nest.params.setdefault(buffer.name, buffer)
        return buffer

    def store(
        self, out: Value, coords: Coords, value: Expr, mask: Expr | None = None, reducer: str = ""
    ) -> None:
        """Writes ``value``, converted to out's dtype.

        Raises NotLowered for a reduction of floats whose order is open, if the graph is deterministic.
        """
        check_loadable(out, "biufx")
        # Sums round; even extremes depend on the order where zeros of both signs meet.
        if reducer and self.atomic and self.deterministic and out.dtype.kind == "f":
            raise NotLowered("deterministic algorithms are asked for, and atomic float operations come in any order")
        assert out.coords is not None
        where = out.coords(tuple(coords))
        self._note(*where)
        stored = self.settle(bitcast(cast(value, out.dtype), out.buffer.dtype))
        self._emit(Store(self._touch(out.buffer), where, stored, mask, reducer))

    def acc(self, reducer: str, dtype: DType) -> tuple[Var, ...]:
        """Declares the accumulators of ``reducer`` (a value, and for argmax and argmin its index)."""
        names = [Var(self._name("v"), dtype)]
        if REDUCERS[reducer].arity == 2:
            names.append(Var(self._name("v"), i64))
        self._emit(Acc(tuple(names), reducer))
        return tuple(names)

    def update(self, accs: tuple[Var, ...], reducer: str, *values: Expr, mask: Expr | None = None) -> None:
        self._emit(Update(accs, reducer, tuple(self.settle(v) for v in values), mask))

    # ------------------------------------------------------------ whole kernels

    def fill(self, out: Value, element: Callable[[Coords], Expr], stem: str = "") -> None:
        """One kernel that stores ``element(coords)`` to every element of ``out``, in the order of its strides."""
        with self.kernel(stem), self.loops(out.shape, loop_order(out.shape, _strides(out))) as coords:
            self.store(out, tuple(coords), element(tuple(coords)))

    def map(self, out: TensorMeta, element: Callable[[Coords], Expr], name: str = "") -> Value:
        """A new temp of the type of ``out`` filled with ``element(coords)``."""
        target = self.result(out, name)
        self.fill(target, element)
        return target

    def reduce(
        self,
        outs: Sequence[TensorMeta],
        source: Value,
        dims: Sequence[int],
        row: "Callable[[Row], Sequence[Expr]]",
    ) -> tuple[Value, ...]:
        """One kernel that reduces ``dims`` of ``source``: for each element kept, ``row`` emits loops and gives the results.

        The outs have the kept dimensions, or all with the reduced ones of size 1.
        """
        results = tuple(
            self.result(out, "" if len(outs) == 1 else f"{self.stem}_{n}") for n, out in enumerate(outs)
        )
        kept = [d for d in range(len(source.shape)) if d not in dims]
        keepdim = len(outs[0].shape) == len(source.shape)
        kept_shape = tuple(source.shape[d] for d in kept)
        out_strides = tuple(outs[0].strides[d] for d in (kept if keepdim else range(len(kept))))
        with self.kernel(), self.loops(kept_shape, loop_order(kept_shape, out_strides)) as coords:
            place = [ZERO] * len(source.shape)
            for dim, coordinate in zip(kept, coords, strict=True):
                place[dim] = coordinate
            values = row(Row(self, source, tuple(dims), tuple(place)))
            for result, value in zip(results, values, strict=True):
                self.store(result, tuple(place) if keepdim else tuple(coords), value)
        return results


@dataclass(frozen=True, slots=True)
class Row:
    """What a reduction sees for one kept element: ``place`` has the kept coordinates and 0 for the reduced ``dims``."""

    builder: Builder
    source: Value
    dims: tuple[int, ...]
    place: Coords

    @contextmanager
    def loops(self) -> Iterator[Coords]:
        """Loops over the reduced dims in the order of the source's strides; yields coordinates in the source."""
        shape = self.source.shape
        order = [d for d in loop_order(shape, _strides(self.source)) if d in self.dims]
        with self.builder.loops(shape, order, "k") as coords:
            yield tuple(coords[d] if d in self.dims else self.place[d] for d in range(len(shape)))

    def fold(
        self, reducer: str, dtype: DType, element: Callable[[Coords, Expr], Sequence[Expr]]
    ) -> tuple[Var, ...]:
        """Accumulates ``element(coords, value of the source there)``; returns the accumulators."""
        accs = self.builder.acc(reducer, dtype)
        with self.loops() as coords:
            self.builder.update(accs, reducer, *element(coords, self.builder.load(self.source, coords)))
        return accs

    @property
    def count(self) -> Index:
        """How many elements are reduced."""
        total = ONE
        for dim in self.dims:
            total = total * self.source.shape[dim]
        return total


def _strides(value: Value) -> Coords:
    return value.strides if value.strides is not None else contiguous_strides(value.shape)
