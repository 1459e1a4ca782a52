"""Random scalar expressions, and a small builder of kernels around them."""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from lowc.ir.index import (
    ZERO,
    Axis,
    Index,
    IndexLike,
    ix,
)
from lowc.ir.nodes import Acc, Buffer, Const, Expr, For, FromIndex, Let, Load, Op, Stmt, Store, Update, Var
from lowc.ir.numeric import constant as const_value
from lowc.ir.ops import OPS, REDUCERS, result_dtype
from lowc.ir.types import DType, bf16, bool_, f32, f64, i32, i64
from tests.property.views import Coords, Value, is_one


def op(name: str, *args: Expr) -> Op:
    return Op(name, args, result_dtype(OPS[name], tuple(a.dtype for a in args), None))


def cast(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype == dtype else Op("cast", (value,), dtype)


def const(value: bool | int | float, dtype: DType) -> Const:
    """A constant that its dtype can represent."""
    return Const(const_value(value, dtype).item(), dtype)


class Scalars:
    """Random expressions over ``clean`` and ``tainted`` leaves (functions that give an expression of a wanted dtype)."""

    def __init__(
        self, rng: random.Random, leaves: Sequence[tuple[Expr, bool]], coords: Sequence[Index]
    ) -> None:
        self.rng = rng
        self.leaves = list(leaves)
        self.coords = list(coords)

    def make(self, dtype: DType, depth: int, clean: bool = False) -> tuple[Expr, bool]:
        """An expression of ``dtype``, and whether it is tainted (never if ``clean``)."""
        if depth <= 0:
            return self.leaf(dtype, clean)
        clean = clean or dtype not in (f32, f64)
        if dtype.kind == "b":
            return self._bool(depth), False
        return self._float(dtype, depth, clean) if dtype.kind == "f" else (self._int(dtype, depth), False)

    def leaf(self, dtype: DType, clean: bool) -> tuple[Expr, bool]:
        """A leaf converted to ``dtype``, a coordinate, or a constant."""
        clean = clean or dtype not in (f32, f64)
        fit = [(e, t) for e, t in self.leaves if not (t and clean)]
        roll = self.rng.random()
        if fit and roll < 0.85:
            value, taint = self.rng.choice(fit)
            return self.convert(value, dtype), taint
        if self.coords and roll < 0.93:
            return cast(FromIndex(self.rng.choice(self.coords), i64), dtype), False
        number = self.rng.choice([0, 1, 2, 3, -1] + ([0.5, -1.5, 0.1] if dtype.kind == "f" else []))
        return const(bool(number) if dtype.kind == "b" else number, dtype), False

    def convert(self, value: Expr, dtype: DType) -> Expr:
        """A cast whose result does not hang on the target: floats become integers only in range."""
        if value.dtype.kind == "f" and dtype.kind in "iu":
            number = op("select", op("eq", value, value), value, const(0, value.dtype))
            number = op("max", op("min", number, const(100, value.dtype)), const(-100, value.dtype))
            return cast(number, dtype)
        return cast(value, dtype)

    def _bool(self, depth: int) -> Expr:
        name = self.rng.choice(["lt", "le", "eq", "ne", "gt", "and", "or", "xor", "not"])
        if name == "not":
            return op("not", self.make(bool_, depth - 1)[0])
        if name in ("and", "or", "xor"):
            return op(name, self.make(bool_, depth - 1)[0], self.make(bool_, depth - 1)[0])
        dtype = self.rng.choice([f32, i64, i32])
        return op(name, self.make(dtype, depth - 1, True)[0], self.make(dtype, depth - 1, True)[0])

    def _int(self, dtype: DType, depth: int) -> Expr:
        name = self.rng.choice(
            ["add", "sub", "mul", "max", "min", "neg", "abs", "and", "or", "xor", "shl", "shr"]
            + ["select", "floordiv", "floormod", "truncdiv", "truncmod", "cast"]
        )
        first = self.make(dtype, depth - 1)[0]
        if name in ("neg", "abs"):
            return op(name, first)
        if name == "cast":
            other = self.rng.choice([f32, i32, i64, bool_])
            return self.convert(self.make(other, depth - 1, True)[0], dtype)
        if name in ("shl", "shr"):
            return op(name, first, const(self.rng.choice([0, 1, 3]), dtype))
        second = self.make(dtype, depth - 1)[0]
        if name == "select":
            return op(name, self._bool(depth - 1), first, second)
        if "div" in name or "mod" in name:
            one = const(1, dtype)
            second = (
                op("or", second, one)
                if self.rng.random() < 0.5
                else const(self.rng.choice([1, 2, 3, 7]), dtype)
            )
            if self.rng.random() < 0.3:
                second = op("check_nonzero", second, const(True, bool_))
        return op(name, first, second)

    def _float(self, dtype: DType, depth: int, clean: bool) -> tuple[Expr, bool]:
        names = ["add", "sub", "mul", "max", "min", "neg", "abs", "select", "cast"]
        if clean:
            names += ["div", "floor", "round", "sqrt", "copysign", "fmod"]
        else:
            names += ["exp", "tanh", "sigmoid"]
        name = self.rng.choice(names)
        if name == "cast":
            other = self.rng.choice([t for t in (f32, f64, bf16, i64, bool_) if t != dtype])
            value, taint = self.make(other, depth - 1, clean)
            return self.convert(value, dtype), taint
        if name in ("exp", "tanh", "sigmoid"):  # a target expands maths with an error of its own
            value, _ = self.make(dtype, depth - 1, clean)
            return op(name, op("min", value, const(4, dtype))), True
        if name == "select":
            yes, no = self.make(dtype, depth - 1, clean), self.make(dtype, depth - 1, clean)
            return op(name, self._bool(depth - 1), yes[0], no[0]), yes[1] or no[1]
        parts = [self.make(dtype, depth - 1, clean) for _ in range(OPS[name].arity)]
        if name == "copysign":  # of a NaN that an operation makes, IEEE 754 leaves the sign open, and processors differ
            sign, taint = parts[1]
            parts[1] = op("select", op("eq", sign, sign), sign, const(1, dtype)), taint
        return op(name, *[p for p, _ in parts]), any(t for _, t in parts)


@dataclass
class Nest:
    """A kernel being built."""

    blocks: list[list[Stmt]] = field(default_factory=lambda: [[]])
    params: dict[str, Buffer] = field(default_factory=dict)
    count: int = 0

    def emit(self, stmt: Stmt) -> None:
        self.blocks[-1].append(stmt)

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    @contextmanager
    def loop(self, extent: IndexLike, letter: str = "i") -> Iterator[Index]:
        extent = ix(extent)
        if is_one(extent):
            yield ZERO
            return
        axis = Axis(self.name(letter), extent)
        self.blocks.append([])
        yield ix(axis)
        self.blocks[-2].append(For(axis, tuple(self.blocks.pop())))

    @contextmanager
    def loops(
        self, shape: Sequence[Index], letter: str = "i", order: Sequence[int] | None = None
    ) -> Iterator[Coords]:
        coords = [ZERO] * len(shape)
        with ExitStack() as stack:
            for dim in range(len(shape)) if order is None else order:
                coords[dim] = stack.enter_context(self.loop(shape[dim], letter))
            yield tuple(coords)

    def load(self, value: Value, coords: Coords, mask: Expr | None = None) -> Expr:
        self.params.setdefault(value.buffer.name, value.buffer)
        return Load(value.buffer, value.coords(coords), mask)

    def store(
        self, value: Value, coords: Coords, item: Expr, mask: Expr | None = None, reducer: str = ""
    ) -> None:
        self.params.setdefault(value.buffer.name, value.buffer)
        self.emit(Store(value.buffer, value.coords(coords), cast(item, value.dtype), mask, reducer))

    def let(self, value: Expr) -> Var:
        var = Var(self.name("v"), value.dtype)
        self.emit(Let(var, value))
        return var

    def acc(self, reducer: str, dtype: DType) -> tuple[Var, ...]:
        names = [Var(self.name("v"), dtype)]
        if REDUCERS[reducer].arity == 2:
            names.append(Var(self.name("v"), i64))
        self.emit(Acc(tuple(names), reducer))
        return tuple(names)

    def update(self, accs: tuple[Var, ...], reducer: str, *values: Expr, mask: Expr | None = None) -> None:
        self.emit(Update(accs, reducer, values, mask))
