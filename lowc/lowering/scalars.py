"""Constructors of scalar expressions, with the dtype rules of ``ir.ops`` applied and nothing folded but constants."""

from lowc.ir import walk
from lowc.ir.index import Index, constant
from lowc.ir.nodes import Const, Expr, FromIndex, Op
from lowc.ir.ops import OPS, result_dtype
from lowc.ir.types import DType, bool_, compute_dtype, i64

Number = bool | int | float


def const(value: Number, dtype: DType) -> Const:
    """``value`` as a constant of ``dtype``; integers wrap, a float becomes an integer by truncation (finite ones only)."""
    if dtype.kind == "b":
        return Const(bool(value), dtype)
    if dtype.kind in "iu":
        whole = int(value) & (2**dtype.bits - 1)
        if dtype.kind == "i" and whole >= 2 ** (dtype.bits - 1):
            whole -= 2**dtype.bits
        return Const(whole, dtype)
    return Const(float(value), dtype)


def index_value(index: Index, dtype: DType = i64) -> Expr:
    """An index expression as a value."""
    number = constant(index)
    return FromIndex(index, dtype) if number is None else const(number, dtype)


def op(name: str, *args: Expr) -> Op:
    """Row ``name`` of the op table; raises ValueError if the arguments do not fit it."""
    return Op(name, args, result_dtype(OPS[name], tuple(a.dtype for a in args), None))


def cast(value: Expr, dtype: DType) -> Expr:
    """``value`` converted to ``dtype``; itself if it has it."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const) and dtype.kind != "x" and (dtype.kind != "f" or dtype.bits >= 32) and value.dtype.kind in "biu":
        return const(value.value, dtype)
    return Op("cast", (value,), dtype)


def bitcast(value: Expr, dtype: DType) -> Expr:
    """The bits of ``value`` read as ``dtype`` (of the same width)."""
    return value if value.dtype == dtype else Op("bitcast", (value,), dtype)


def widen(value: Expr) -> Expr:
    """``value`` in the type that arithmetic is carried out in (f32 for f16 and bf16)."""
    return cast(value, compute_dtype(value.dtype))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return op("select", condition, yes, no)


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """The conjunction of two masks, where None is true."""
    return a if b is None else walk.both(a, b)


def is_nan(value: Expr) -> Expr:
    return op("ne", value, value)


def truth(value: Expr) -> Expr:
    """``value != 0`` as bool (a NaN is true)."""
    return value if value.dtype == bool_ else op("ne", value, const(0, value.dtype))


def like(number: Number, value: Expr) -> Const:
    """``number`` in the dtype of ``value``."""
    return const(number, value.dtype)
