"""Tensors made of numbers: full, arange, *_like and their kin."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from lowc.errors import NotLowered
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Index, ix
from lowc.ir.nodes import Expr
from lowc.ir.types import DType, f64, i64
from lowc.lowering.builder import Builder, Operand
from lowc.lowering.scalars import cast, op
from lowc.lowering.values import Coords, Value, is_one

Lowering = Callable[..., Value]


def filled(b: Builder, out: TensorMeta, value: Operand) -> Value:
    return b.map(out, lambda c: b.read(value, c, out.dtype))


def full(b: Builder, out: TensorMeta, size: object, fill_value: Operand, **_: object) -> Value:
    return filled(b, out, fill_value)


def full_like(b: Builder, out: TensorMeta, self: Value, fill_value: Operand, **how: object) -> Value:
    """In the strides of ``out``, but a dimension of size 1 keeps the stride of ``self`` as in eager."""
    kept = "preserve" in str(how.get("memory_format") or "preserve")
    if not kept or self.strides is None or not any(map(is_one, out.shape)):
        return filled(b, out, fill_value)
    mixed = tuple(a if is_one(n) else z for n, a, z in zip(out.shape, self.strides, out.strides, strict=True))
    target = b.restride(out, mixed)
    b.fill(target, lambda c: b.read(fill_value, c, out.dtype))
    return target


def constant_like(value: float) -> Lowering:
    """zeros_like and ones_like."""

    def lower(b: Builder, out: TensorMeta, self: Value, **how: object) -> Value:
        return full_like(b, out, self, value, **how)

    return lower


def new_full(
    b: Builder, out: TensorMeta, self: Value, size: object, fill_value: Operand, **_: object
) -> Value:
    return filled(b, out, fill_value)


def constant_fill(value: float) -> Lowering:
    """zeros, ones, their *_like and new_* forms."""

    def lower(b: Builder, out: TensorMeta, *_: object, **__: object) -> Value:
        return filled(b, out, value)

    return lower


def undefined(fill: Lowering) -> Lowering:
    """empty and its kin: ``fill`` is as good as anything, but for deterministic algorithms, where torch has values of its own."""

    @wraps(fill)  # with its parameters, by which a call is judged
    def lower(b: Builder, out: TensorMeta, *args: Any, **kwargs: Any) -> Value:
        if b.deterministic:
            raise NotLowered("deterministic algorithms are asked for: torch fills new memory")
        return fill(b, out, *args, **kwargs)

    return lower


def scalar_tensor(b: Builder, out: TensorMeta, s: Operand, **_: object) -> Value:
    return filled(b, out, s)


def fill(b: Builder, out: TensorMeta, self: Value, value: Operand) -> Value:
    return filled(b, out, value)


def arange_end(b: Builder, out: TensorMeta, end: Operand, **_: object) -> Value:
    return arange(b, out, 0, end)


def arange(
    b: Builder, out: TensorMeta, start: Operand, end: Operand, step: Operand = 1, **_: object
) -> Value:
    """start + i * step, computed as ATen does: integers in i64, floats in f64, rounded once."""
    if out.dtype.kind in "iu":
        return b.map(out, lambda c: cast(_affine(b, c, start, step, i64), out.dtype))
    if out.dtype.kind != "f":
        raise NotLowered(f"arange of {out.dtype}")
    return b.map(out, lambda c: cast(_affine(b, c, start, step, f64), out.dtype))


def _affine(b: Builder, c: Coords, start: Operand, step: Operand, dtype: DType) -> Expr:
    if dtype == i64 and isinstance(start, int | Index) and isinstance(step, int | Index):
        return b.index(ix(start) + c[0] * ix(step))
    position = cast(b.index(c[0]), dtype)
    return op("add", b.number(start, dtype), op("mul", position, b.number(step, dtype)))


def iota(
    b: Builder, out: TensorMeta, length: object, *, start: Operand, step: Operand, dtype: DType, **_: object
) -> Value:
    return arange(b, out, start, 0, step)


def eye(b: Builder, out: TensorMeta, *_: object, **__: object) -> Value:
    return b.map(out, lambda c: cast(op("eq", b.index(c[0]), b.index(c[1])), out.dtype))


def triangle(upper: bool) -> Lowering:
    """triu and tril: zero on the other side of a diagonal."""

    def lower(b: Builder, out: TensorMeta, self: Value, diagonal: int = 0) -> Value:
        def element(c: Coords) -> Expr:
            kept = op("ge" if upper else "le", b.index(c[-1] - c[-2]), b.index(ix(diagonal)))
            loaded = b.load(self, c)
            return op("select", kept, loaded, b.number(0, self.dtype))

        return b.map(out, element)

    return lower
