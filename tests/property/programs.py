"""Random LOOPS modules, of the form that lowering gives: one kernel for each op, views as index arithmetic, temps between.

``random_module(seed)`` returns a Program; ``Program.make_inputs(seed)`` gives storages and sizes for a call.  A module uses maps,
broadcasts, permutes, slices, flips, reshapes, cat and pad (masks and select), reductions (softmax and norms among them), scans,
gathers through ``check_index``, scatters (reducing stores), extern calls, and stores to inputs at its end.  Its checks never
fail and its integers are never divided by zero.

Floats: what hangs on the order of a float sum, or on the error of an expanded function, is *tainted*: it is used only where a
small difference stays small, and compared with a tolerance.  Everything else is to be compared bit by bit.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowc.ir.index import (
    ONE,
    ZERO,
    Index,
    Opaque,
    Symbol,
    constant,
    evaluate,
    ix,
    prove_nonneg,
)
from lowc.ir.interp import Tensor, pack, run_module
from lowc.ir.nodes import (
    Buffer,
    Expr,
    Extern,
    FromIndex,
    Launch,
    Module,
    Step,
    View,
)
from lowc.ir.numeric import from_storage, storage_dtype, to_storage
from lowc.ir.ops import REDUCERS
from lowc.ir.types import DType, accumulate_dtype, bf16, bool_, f32, f64, i32, i64
from lowc.ir.walk import make_kernel
from tests.property.scalars import Nest, Scalars, cast, const, op
from tests.property.views import Coords, Value, broadcast, contiguous, random_view, size, whole

DTYPES = (f32, f32, f32, f64, i64, i32, bool_, bf16)
EXTENTS = (1, 2, 2, 3, 4, 4, 5, 7, 8, 9, 16)
LARGE = (1, 3, 16, 17, 32, 40, 64, 100, 130)  # for what happens only where there is much to do
HINTS = (None, 2, 17, 64, 512, 4096)


@dataclass(frozen=True)
class Program:
    """``tainted``: for each output and then each input, whether it is to be compared with a tolerance."""

    seed: int
    module: Module
    tainted: tuple[bool, ...]
    described: tuple[str, ...]

    def make_inputs(self, seed: int, given: Mapping[str, int] | None = None) -> tuple[list[Any], dict[str, int]]:
        """Inputs for a call (storages, sizes), and the sizes of all symbols: small ones, or those ``given``."""
        rng = random.Random(seed)
        sizes = {s.name: rng.choice([s.lo, s.lo, s.lo + 1, s.lo + 2, 5, 8, 9]) for s in self.module.symbols}
        sizes |= given or {}
        inputs: list[Any] = []
        for item in self.module.inputs:
            if isinstance(item, Buffer):
                shape = tuple(evaluate(n, sizes) for n in item.shape)
                strides = tuple(evaluate(n, sizes) for n in item.strides)
                inputs.append(pack(random_array(rng, item.dtype, shape), strides))
            else:
                inputs.append(sizes[item.name] if item is not None else None)
        return inputs, sizes


def random_array(rng: random.Random, dtype: DType, shape: Sequence[int]) -> Any:
    """An array in storage form: small numbers, now and then a special one."""
    draw = np.random.default_rng(rng.randrange(2**32))
    if dtype.kind == "b":
        return draw.integers(0, 2, tuple(shape)).astype(np.bool_)
    if dtype.kind in "iu":
        out = draw.integers(-20 if dtype.kind == "i" else 0, 20, tuple(shape))
        return out.astype(storage_dtype(dtype))
    out = (
        np.round(draw.normal(0, 2, tuple(shape)) * 4) / 4
        if rng.random() < 0.5
        else draw.normal(0, 2, tuple(shape))
    )
    if rng.random() < 0.2:
        special = draw.choice([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, 1e-40], tuple(shape))
        out = np.where(draw.random(tuple(shape)) < 0.1, special, out)
    with np.errstate(all="ignore"):
        return to_storage(np.asarray(out), dtype)


def random_module(seed: int, steps: int = 0, symbolic: bool = False) -> Program:
    """A valid LOOPS module made from ``seed``, of about ``steps`` ops (0: a random number); with ``symbolic``, one that has
    sizes known only when it is called, most of them with hints."""
    return _Generator(seed, symbolic).program(steps)


def call_extern(step: Extern, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The extern calls that the modules make."""
    (tensor,) = args
    value = from_storage(tensor.array, tensor.dtype)
    if step.target == "test.negate":
        with np.errstate(all="ignore"):
            result = ~value if tensor.dtype == bool_ else -value
        return [Tensor(to_storage(result, tensor.dtype), tensor.dtype)]
    raise ValueError(step.target)


def run(
    program: Program,
    module: Module,
    seed: int,
    shuffle: random.Random | None = None,
    given: Mapping[str, int] | None = None,
) -> list[Any]:
    """Values of the outputs, then of the inputs after the call, of ``module`` (a form of ``program``'s) for sizes ``given``."""
    inputs, sizes = program.make_inputs(seed, given)
    outputs = run_module(module, inputs, call_extern, sizes, shuffle)
    return [*outputs, *inputs]


def dtypes(program: Program) -> list[DType | None]:
    """Of what ``run`` returns (None for numbers)."""
    outputs = [arg.dtype if isinstance(arg, View) else None for arg in program.module.outputs]
    return [*outputs, *(item.dtype if isinstance(item, Buffer) else None for item in program.module.inputs)]


def differences(program: Program, expected: Sequence[Any], found: Sequence[Any]) -> list[str]:
    """What differs between two results of ``run``: one line for each output or input that does."""
    out: list[str] = []
    given = list(zip(expected, dtypes(program), strict=True))[len(program.module.outputs) :]
    floats = [from_storage(a, t) for a, t in given if t is not None and t.kind == "f"]
    largest = max([float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in floats], default=0.0)
    for number, (a, b, dtype, taint) in enumerate(
        zip(expected, found, dtypes(program), program.tainted, strict=True)
    ):
        if dtype is None:
            if a != b:
                out.append(f"result {number}: {b} instead of {a}")
            continue
        a, b = from_storage(a, dtype), from_storage(b, dtype)
        if a.shape != b.shape:
            out.append(f"result {number}: shape {b.shape} instead of {a.shape}")
        elif taint:
            finite = np.abs(a[np.isfinite(a)])
            scale = float(finite.max(initial=0.0))
            rtol = 1e-4  # an f64 may come from an f32
            atol = rtol * scale + 2.0**-20 * largest  # of a sum that cancels, a rounding of its terms may be left
            with np.errstate(all="ignore"):
                good = np.isclose(b, a, rtol=rtol, atol=atol, equal_nan=True)
            if not good.all():
                out.append(f"result {number} ({dtype}, tolerance): {b[~good][:4]} instead of {a[~good][:4]}")
        else:
            bad = (a != b) & ~((a != a) & (b != b))
            if dtype.kind == "f":
                bad |= (np.signbit(a) != np.signbit(b)) & (a == a)
            if bad.any():
                out.append(f"result {number} ({dtype}): {b[bad][:4]} instead of {a[bad][:4]}")
    return out


# ---------------------------------------------------------------- modules


class _Generator:
    def __init__(self, seed: int, symbolic: bool = False) -> None:
        self.rng = random.Random(seed)
        self.hints = random.Random(f"hints {seed}") if symbolic else None
        self.seed = seed
        self.extents, self.limit = (EXTENTS, 2000) if self.rng.random() < 0.75 else (LARGE, 20000)
        self.symbols: list[Symbol] = []
        self.inputs: list[Buffer] = []
        self.temps: list[Buffer] = []
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self.described: list[str] = []

    # ------------------------------------------------------------ whole

    def program(self, steps: int) -> Program:
        rng = self.rng
        count = rng.choice([0, 0, 0, 1, 1, 2])
        for number in range(max(count, 1) if self.hints else count):
            hint = self.hints.choice(HINTS) if self.hints else None
            self.symbols.append(Symbol(f"s{number}", rng.choice([0, 1, 2, 2]), hint=hint))
        for number in range(rng.randint(1, 3)):
            self._input(number)
        makers = [self._map] * 5 + [self._view] * 6 + [self._reduce] * 3
        makers += [
            self._softmax,
            self._norm,
            self._scan,
            self._scan_best,
            self._arg_best,
            self._cat,
            self._pad,
            self._gather,
        ]
        makers += [self._scatter, self._copy, self._extern]
        for _ in range(steps or rng.choice([1, 2, 3, 4, 6, 8, 12])):
            rng.choice(makers)()
        while not self.temps:
            self._map()
            self.limit *= 2
        mutated = self._mutations()
        outputs, tainted = self._outputs(mutated)
        explicit = [s for s in self.symbols if rng.random() < 0.5]
        inputs = (*explicit, *self.inputs)
        taints = {b.name: t for b, t in mutated}
        tainted += [isinstance(i, Buffer) and taints.get(i.name, False) for i in inputs]
        module = Module("LOOPS", tuple(self.symbols), inputs, tuple(self.temps), outputs, tuple(self.steps))
        return Program(self.seed, module, tuple(tainted), tuple(self.described))

    def _input(self, number: int) -> None:
        rng = self.rng
        rank = rng.choice([0, 1, 1, 2, 2, 2, 3, 3] if self.extents is EXTENTS else [1, 2, 2])
        shape = [ix(rng.choice(self.extents)) for _ in range(rank)]
        if rng.random() < 0.06 and rank:
            shape[rng.randrange(rank)] = ZERO
        for place, symbol in enumerate(self.symbols):
            if number == 0 or rng.random() < 0.4:
                position = place if place < rank else rank
                shape[position : position + 1] = [ix(symbol)]
                rank = len(shape)
        if number and rng.random() < 0.4:
            shape = list(self.inputs[0].shape)
        order = list(range(len(shape)))
        if rng.random() < 0.25:
            rng.shuffle(order)
        buffer = self._buffer(f"in{number}", rng.choice(DTYPES), tuple(shape), order)
        self.inputs.append(buffer)
        self.values.append(whole(buffer))

    def _buffer(self, name: str, dtype: DType, shape: Coords, order: Sequence[int] | None = None) -> Buffer:
        """A dense buffer whose dimensions lie in ``order``, outermost first."""
        order = list(range(len(shape))) if order is None else order
        steps = contiguous([shape[d] for d in order])
        strides = [ZERO] * len(shape)
        for dim, step in zip(order, steps, strict=True):
            strides[dim] = step
        return Buffer(name, dtype, shape, tuple(strides))

    def _mutations(self) -> list[tuple[Buffer, bool]]:
        """Kernels at the end that store temps to inputs."""
        rng = self.rng
        done: list[tuple[Buffer, bool]] = []
        for buffer in self.inputs:
            if rng.random() > 0.25:
                continue
            sources = [v for v in self.values if v.buffer in self.temps and v.shape == buffer.shape]
            sources = [v for v in sources if not v.taint or buffer.dtype in (f32, f64)]
            if not sources:
                continue
            source = rng.choice(sources[-4:])
            with self._kernel("copy_") as nest, nest.loops(buffer.shape) as coords:
                item = Scalars(rng, [], []).convert(nest.load(source, coords), buffer.dtype)
                nest.store(whole(buffer), coords, item)
            done.append((buffer, source.taint))
        return done

    def _outputs(self, mutated: Sequence[tuple[Buffer, bool]]) -> tuple[tuple[Any, ...], list[bool]]:
        rng = self.rng
        written = {b.name for b, _ in mutated}
        candidates = [v for v in self.values if v.strides is not None and v.buffer.name not in written]
        temps = [v for v in candidates if v.buffer in self.temps]
        chosen = temps[-1:] + [v for v in candidates[-6:] if rng.random() < 0.3]
        outputs: list[Any] = []
        tainted: list[bool] = []
        for value in dict.fromkeys(chosen):
            assert value.strides is not None
            outputs.append(View(value.buffer, value.dtype, value.shape, value.strides, value.offset))
            tainted.append(value.taint)
        if self.symbols and rng.random() < 0.3:
            outputs.append(ix(rng.choice(self.symbols)) * 2 + 1)
            tainted.append(False)
        return tuple(outputs), tainted

    # ------------------------------------------------------------ building blocks

    @contextmanager
    def _kernel(self, stem: str) -> Iterator[Nest]:
        nest = Nest()
        yield nest
        params = tuple(nest.params.values())
        name = f"{stem}_{len(self.steps)}"
        self.steps.append(Launch(make_kernel(name, nest.blocks[0], params), params, (stem,)))
        self.described.append(stem)

    def _temp(self, dtype: DType, shape: Coords, taint: bool = False, dense: bool = False) -> Value:
        order = list(range(len(shape)))
        if not dense and self.rng.random() < 0.15:
            self.rng.shuffle(order)
        buffer = self._buffer(f"t{len(self.temps)}", dtype, shape, order)
        self.temps.append(buffer)
        value = whole(buffer, taint)
        self.values.append(value)
        return value

    def _retaint(self, value: Value, taint: bool) -> None:
        if taint and not value.taint:
            self.values[self.values.index(value)] = replace(value, taint=True)

    def _pick(self, fit: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value that fits, the latest more often."""
        fitting = [v for v in self.values if fit(v) and size(v.shape) <= self.limit]
        if not fitting:
            return None
        return self.rng.choice(fitting[-3:] if self.rng.random() < 0.7 else fitting)

    def _operands(self, shape: Coords, most: int) -> list[tuple[Value, Callable[[Coords], Coords]]]:
        """Values that broadcast to ``shape``, with the map of coordinates."""
        fitting = [(v, m) for v in self.values if (m := broadcast(v.shape, shape)) is not None]
        count = min(len(fitting), self.rng.randint(1, most))
        return self.rng.sample(fitting, count)

    # ------------------------------------------------------------ ops

    def _map(self) -> None:
        """An elementwise op on values that broadcast to the shape of one of them."""
        rng = self.rng
        base = self._pick()
        if base is None:
            return
        shape = base.shape
        if rng.random() < 0.15 and len(shape) < 4:
            shape = (ix(rng.choice([2, 3])), *shape)
        dtype = rng.choice(DTYPES)
        with self._kernel("map") as nest:
            order = list(range(len(shape)))
            if rng.random() < 0.1:
                rng.shuffle(order)
            with nest.loops(shape, order=order) as coords:
                first = broadcast(base.shape, shape)
                assert first is not None
                reads = [(base, first), *self._operands(shape, 2)]
                leaves = [(nest.load(v, m(coords)), v.taint) for v, m in reads]
                item, taint = Scalars(rng, leaves, coords).make(dtype, rng.choice([1, 2, 2, 3]))
                if rng.random() < 0.3:
                    item = nest.let(item)
                out = self._temp(dtype, shape, taint)
                nest.store(out, coords, item)

    def _copy(self) -> None:
        """A copy, as ATen's clone and contiguous are."""
        base = self._pick()
        if base is None:
            return
        with self._kernel("copy") as nest, nest.loops(base.shape) as coords:
            nest.store(self._temp(base.dtype, base.shape, base.taint), coords, nest.load(base, coords))

    def _view(self) -> None:
        base = self._pick(lambda v: len(v.shape) > 0)
        if base is not None:
            made = random_view(self.rng, base)
            if made is not None and len(made.shape) <= 4:
                self.values.append(made)

    def _split_dims(self, base: Value) -> tuple[list[int], list[int]]:
        """(kept, reduced) dimensions; at least one is reduced where there is one."""
        rank = len(base.shape)
        reduced = [d for d in range(rank) if self.rng.random() < 0.5] or ([rank - 1] if rank else [])
        return [d for d in range(rank) if d not in reduced], reduced

    @contextmanager
    def _rows(self, nest: Nest, base: Value, kept: Sequence[int]) -> Iterator[list[Index]]:
        """Loops over the kept dimensions; yields a coordinate for each dimension, 0 for the reduced ones."""
        place = [ZERO] * len(base.shape)
        with nest.loops([base.shape[d] for d in kept]) as coords:
            for dim, coordinate in zip(kept, coords, strict=True):
                place[dim] = coordinate
            yield place

    @contextmanager
    def _inner(
        self, nest: Nest, base: Value, place: Sequence[Index], reduced: Sequence[int]
    ) -> Iterator[Coords]:
        full = list(place)
        with nest.loops([base.shape[d] for d in reduced], "k") as coords:
            for dim, coordinate in zip(reduced, coords, strict=True):
                full[dim] = coordinate
            yield tuple(full)

    def _reduce(self) -> None:
        """A sum, product, maximum, ... over some dimensions, with an expression before and after."""
        rng = self.rng
        base = self._pick()
        if base is None:
            return
        kept, reduced = self._split_dims(base)
        kinds = [
            r
            for r in ("add", "add", "max", "min", "and", "or", "mul")
            if base.dtype.kind in REDUCERS[r].kinds
        ]
        if base.dtype.kind == "b":
            kinds.append("add")
        reducer = rng.choice(kinds)
        dtype = accumulate_dtype(base.dtype) if reducer in ("add", "mul") else base.dtype
        inexact = base.taint or (dtype.kind == "f" and reducer in ("add", "mul"))
        target = dtype if inexact else rng.choice([dtype, base.dtype])
        keepdim = rng.random() < 0.3
        shape = tuple(
            ONE if d in reduced else base.shape[d] for d in range(len(base.shape)) if keepdim or d in kept
        )
        with self._kernel("reduce") as nest, self._rows(nest, base, kept) as place:
            accs = nest.acc(reducer, dtype)
            with self._inner(nest, base, place, reduced) as full:
                item: Expr = cast(nest.load(base, full), dtype)
                mask = None
                if reducer == "mul" and dtype.kind == "f":
                    item = op("max", op("min", item, const(2, dtype)), const(0.5, dtype))
                elif rng.random() < 0.4 and dtype.kind != "b":
                    item = op(rng.choice(["neg", "abs"]), item)
                if rng.random() < 0.2 and reduced:
                    mask = op("lt", FromIndex(full[reduced[-1]], i64), const(3, i64))
                nest.update(accs, reducer, item, mask=mask)
            result: Expr = accs[0]
            if reducer in ("max", "min") and dtype.kind == "f":  # which of 0.0 and -0.0 is the larger is open
                result = op("add", result, const(0.0, dtype))
            if inexact and rng.random() < 0.3:
                total = ONE
                for dim in reduced:
                    total = total * base.shape[dim]
                result = op("div", result, cast(FromIndex(total, i64), dtype))
            out = self._temp(target, shape, inexact)
            nest.store(
                out,
                tuple(ZERO if d in reduced else place[d] for d in range(len(place)) if keepdim or d in kept),
                result,
            )

    def _softmax(self) -> None:
        """Three loops over rows: a maximum, a sum, and the result."""
        base = self._pick(lambda v: v.dtype.kind == "f" and len(v.shape) > 0 and not v.taint)
        if base is None:
            return
        dtype = accumulate_dtype(base.dtype)
        dim = self.rng.randrange(len(base.shape))
        kept = [d for d in range(len(base.shape)) if d != dim]
        with self._kernel("softmax") as nest, self._rows(nest, base, kept) as place:
            (best,) = nest.acc("max", dtype)
            with self._inner(nest, base, place, [dim]) as full:
                nest.update((best,), "max", cast(nest.load(base, full), dtype))
            (total,) = nest.acc("add", dtype)
            with self._inner(nest, base, place, [dim]) as full:
                nest.update((total,), "add", op("exp", op("sub", cast(nest.load(base, full), dtype), best)))
            out = self._temp(dtype, base.shape, True)
            with self._inner(nest, base, place, [dim]) as full:
                item = op("exp", op("sub", cast(nest.load(base, full), dtype), best))
                nest.store(out, full, op("div", item, total))

    def _norm(self) -> None:
        """Two sums in one loop, then the rows; the sums are results as well."""
        base = self._pick(lambda v: v.dtype in (f32, f64, bf16) and len(v.shape) > 0 and not v.taint)
        if base is None:
            return
        dtype = accumulate_dtype(base.dtype)
        kept, reduced = self._split_dims(base)
        with self._kernel("norm") as nest, self._rows(nest, base, kept) as place:
            one, two = nest.acc("add", dtype), nest.acc("add", dtype)
            with self._inner(nest, base, place, reduced) as full:
                item = cast(nest.load(base, full), dtype)
                nest.update(one, "add", item)
                nest.update(two, "add", op("mul", item, item))
            mean = self._temp(dtype, tuple(base.shape[d] for d in kept), True)
            out = self._temp(dtype, base.shape, True)
            nest.store(mean, tuple(place[d] for d in kept), one[0])
            scale = nest.let(op("rsqrt", op("add", two[0], const(1, dtype))))
            with self._inner(nest, base, place, reduced) as full:
                nest.store(out, full, op("mul", cast(nest.load(base, full), dtype), scale))

    def _scan(self) -> None:
        """A running sum or maximum along a dimension."""
        base = self._pick(lambda v: len(v.shape) > 0 and v.dtype != bool_)
        if base is None:
            return
        reducer = self.rng.choice(["add", "max", "min"])
        dtype = accumulate_dtype(base.dtype) if reducer == "add" else base.dtype
        dim = self.rng.randrange(len(base.shape))
        kept = [d for d in range(len(base.shape)) if d != dim]
        taint = base.taint or (reducer == "add" and dtype.kind == "f")
        with self._kernel("scan") as nest, self._rows(nest, base, kept) as place:
            accs = nest.acc(reducer, dtype)
            out = self._temp(dtype, base.shape, taint)
            with self._inner(nest, base, place, [dim]) as full:
                nest.update(accs, reducer, cast(nest.load(base, full), dtype))
                nest.store(out, full, accs[0])

    def _scan_best(self) -> None:
        """A running maximum and where it is (cummax)."""
        base = self._pick(lambda v: len(v.shape) > 0 and not v.taint)
        if base is None:
            return
        reducer = self.rng.choice(["argmax", "argmin"])
        dim = self.rng.randrange(len(base.shape))
        kept = [d for d in range(len(base.shape)) if d != dim]
        with self._kernel("cummax") as nest, self._rows(nest, base, kept) as place:
            accs = nest.acc(reducer, base.dtype)
            out, where = self._temp(base.dtype, base.shape), self._temp(i64, base.shape)
            with self._inner(nest, base, place, [dim]) as full:
                nest.update(accs, reducer, nest.load(base, full), FromIndex(full[dim], i64))
                nest.store(out, full, accs[0])
                nest.store(where, full, accs[1])

    def _arg_best(self) -> None:
        """argmax or argmin over some dimensions, of which the value is a result too."""
        base = self._pick(lambda v: not v.taint)
        if base is None:
            return
        kept, reduced = self._split_dims(base)
        reducer = self.rng.choice(["argmax", "argmin"])
        shape = tuple(base.shape[d] for d in kept)
        with self._kernel(reducer) as nest, self._rows(nest, base, kept) as place:
            accs = nest.acc(reducer, base.dtype)
            with self._inner(nest, base, place, reduced) as full:
                position = ZERO
                for dim in reduced:
                    position = position * base.shape[dim] + full[dim]
                nest.update(accs, reducer, nest.load(base, full), FromIndex(position, i64))
            where = self._temp(i64, shape)
            nest.store(where, tuple(place[d] for d in kept), accs[1])
            if self.rng.random() < 0.5:
                nest.store(self._temp(base.dtype, shape), tuple(place[d] for d in kept), accs[0])

    def _cat(self) -> None:
        """Two values side by side, by masked loads and select."""
        rng = self.rng
        base = self._pick(lambda v: len(v.shape) > 0)
        if base is None:
            return
        dim = rng.randrange(len(base.shape))
        others = [
            v
            for v in self.values
            if v.dtype == base.dtype and len(v.shape) == len(base.shape)
            if all(a == b for d, (a, b) in enumerate(zip(v.shape, base.shape, strict=True)) if d != dim)
        ]
        other = rng.choice(others)
        edge = base.shape[dim]
        shape = tuple(n + other.shape[d] if d == dim else n for d, n in enumerate(base.shape))
        with self._kernel("cat") as nest, nest.loops(shape) as coords:
            inside = op("lt", FromIndex(coords[dim], i64), FromIndex(edge, i64))
            left = nest.load(base, coords, inside)
            moved = tuple(c - edge if d == dim else c for d, c in enumerate(coords))
            right = nest.load(other, moved, op("not", inside))
            out = self._temp(base.dtype, shape, base.taint or other.taint)
            nest.store(out, coords, op("select", inside, left, right))

    def _pad(self) -> None:
        """A border of a constant, by masked loads."""
        rng = self.rng
        base = self._pick(lambda v: len(v.shape) > 0)
        if base is None:
            return
        dim = rng.randrange(len(base.shape))
        before, after = rng.choice([(1, 0), (0, 2), (1, 1), (2, 3)])
        shape = tuple(n + before + after if d == dim else n for d, n in enumerate(base.shape))
        with self._kernel("pad") as nest, nest.loops(shape) as coords:
            inner = coords[dim] - before
            low = op("ge", FromIndex(inner, i64), const(0, i64))
            inside = op("and", low, op("lt", FromIndex(inner, i64), FromIndex(base.shape[dim], i64)))
            item = nest.load(base, tuple(inner if d == dim else c for d, c in enumerate(coords)), inside)
            border = const(True if base.dtype == bool_ else 3, base.dtype)
            result = op("select", inside, item, border) if rng.random() < 0.7 else item
            nest.store(self._temp(base.dtype, shape, base.taint), coords, result)

    def _position(self, nest: Nest, index: Value, coords: Coords, size: Index) -> tuple[Index, Expr | None]:
        """A coordinate 0 .. size-1 read from ``index``, and the mask of loads with it."""
        limit = FromIndex(size, i64) if constant(size) is None else const(constant(size) or 0, i64)
        safe = op("max", limit, const(1, i64))
        raw = op("floormod", cast(nest.load(index, coords), i64), safe)
        negative = op("sub", raw, limit) if self.rng.random() < 0.3 else raw
        wrapped = op("select", op("lt", negative, const(0, i64)), op("add", negative, limit), negative)
        certain = prove_nonneg(size - 1)
        mask = None if certain else op("gt", limit, const(0, i64))
        checked = op("check_index", wrapped, limit, const(True, bool_) if mask is None else mask)
        return ix(Opaque(nest.let(checked).name)), mask

    def _gather(self) -> None:
        """index_select with an index of any rank."""
        base = self._pick(lambda v: len(v.shape) > 0)
        index = self._pick(lambda v: v.dtype in (i64, i32) and len(v.shape) <= 2)
        if base is None or index is None:
            return
        dim = self.rng.randrange(len(base.shape))
        rank = len(index.shape)
        shape = (*base.shape[:dim], *index.shape, *base.shape[dim + 1 :])
        if len(shape) > 4 or size(shape) > 4 * self.limit:
            return
        with self._kernel("gather") as nest, nest.loops(shape) as coords:
            where, mask = self._position(nest, index, coords[dim : dim + rank], base.shape[dim])
            place = (*coords[:dim], where, *coords[dim + rank :])
            nest.store(self._temp(base.dtype, shape, base.taint), coords, nest.load(base, place, mask))

    def _scatter(self) -> None:
        """A copy, then additions (or maxima) to rows that an index names."""
        rng = self.rng
        base = self._pick(lambda v: len(v.shape) > 0 and v.dtype in (f32, f64, i64, i32))
        index = self._pick(lambda v: v.dtype in (i64, i32) and len(v.shape) == 1)
        if base is None or index is None:
            return
        reducer = rng.choice(["add", "max"]) if base.dtype.kind == "i" else "add"
        taint = base.taint or (reducer == "add" and base.dtype.kind == "f")
        with self._kernel("copy") as nest, nest.loops(base.shape) as coords:
            out = self._temp(base.dtype, base.shape, taint)
            nest.store(out, coords, nest.load(base, coords))
        shape = (*index.shape, *base.shape[1:])
        with self._kernel("scatter") as nest, nest.loops(shape) as coords:
            leaves = [
                (nest.load(v, m(coords)), v.taint)
                for v, m in self._operands(shape, 2)
                if v.buffer != out.buffer
            ]
            item, tainted = Scalars(rng, leaves, coords).make(base.dtype, 1)
            where, mask = self._position(nest, index, coords[:1], base.shape[0])
            nest.store(out, (where, *coords[1:]), item, mask, reducer)
        self._retaint(out, tainted)

    def _extern(self) -> None:
        """A call of something that is no kernel."""
        base = self._pick(lambda v: v.strides is not None)
        if base is None:
            return
        assert base.strides is not None
        view = View(base.buffer, base.dtype, base.shape, base.strides, base.offset)
        out = self._temp(base.dtype, base.shape, base.taint)
        self.steps.append(Extern("test.negate", (view,), (), (out.buffer,), (), "the test wants a call"))
        self.described.append("extern")
