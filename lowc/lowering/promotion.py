"""Type promotion: the dtype in which an op with several operands computes.

torch's rules (``c10/core/ScalarType`` promoteTypes and ``TypeProperties`` result_type): tensors with dimensions beat
0-dim tensors, which beat Python numbers, as long as the category (bool < integer < float) is no higher; inside a category
the wider type wins.
"""

from collections.abc import Sequence

from lowc.errors import NotLowered
from lowc.ir.index import Index
from lowc.ir.types import DType, bool_, f32, i16, i64, u8
from lowc.lowering.values import Value

_SIGNED_ABOVE_U8 = i16


def promote(a: DType, b: DType) -> DType:
    """The common type of two tensors of equal rank of importance.  Raises NotLowered for pairs that torch does not promote."""
    if a == b:
        return a
    for dtype in (a, b):
        if dtype.kind not in "biuf":
            raise NotLowered(f"lowc does not compute in {dtype}")
    if a.kind == "b" or b.kind == "b":
        return b if a.kind == "b" else a
    if a.kind == "f" and b.kind == "f":
        return f32 if a.bits == b.bits else max(a, b, key=lambda d: d.bits)
    if a.kind == "f" or b.kind == "f":
        return a if a.kind == "f" else b
    if a.kind == b.kind == "i":
        return max(a, b, key=lambda d: d.bits)
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.kind != "i" or unsigned != u8:
        raise NotLowered(f"torch does not promote {a} with {b}")
    return max(signed, _SIGNED_ABOVE_U8, key=lambda d: d.bits)


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """``higher``, unless ``lower`` is of a higher category."""
    if higher is None or lower is None:
        return higher or lower
    if higher.kind == "f":
        return higher
    if higher == bool_ or lower.kind == "f":
        return promote(higher, lower)
    return higher


def number_dtype(default: DType, value: object) -> DType:
    """The type a Python number has as a tensor (a float: ``default``)."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int | Index):
        return i64
    if isinstance(value, float):
        return default
    raise NotLowered(f"{type(value).__name__} operands")


def common_dtype(default: DType, operands: Sequence[object]) -> DType:
    """The result type of ``operands`` (Values and numbers) where floats are of the type ``default``."""
    dimensioned: DType | None = None
    zero_dim: DType | None = None
    wrapped: DType | None = None
    for operand in operands:
        if isinstance(operand, Value):
            if operand.dtype.kind not in "biuf":
                raise NotLowered(f"lowc does not compute in {operand.dtype}")
            if operand.shape:
                dimensioned = operand.dtype if dimensioned is None else promote(dimensioned, operand.dtype)
            else:
                zero_dim = operand.dtype if zero_dim is None else promote(zero_dim, operand.dtype)
        else:
            dtype = number_dtype(default, operand)
            wrapped = dtype if wrapped is None else promote(wrapped, dtype)
    found = _combine(dimensioned, _combine(zero_dim, wrapped))
    if found is None:
        raise NotLowered("no operands")
    return found


def float_dtype(default: DType, dtype: DType) -> DType:
    """What an op computes in that makes floats, of the type ``default``, of integers."""
    return dtype if dtype.kind == "f" else default
