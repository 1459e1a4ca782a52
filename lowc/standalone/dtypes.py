"""lowc's names of dtypes, numpy's, and the numbers that the C interface has for them."""

from typing import Any

import numpy as np

NUMBERS = {
    "bool": 0, "u8": 1, "i8": 2, "i16": 3, "u16": 4, "i32": 5, "u32": 6, "i64": 7, "u64": 8,
    "f16": 9, "bf16": 10, "f32": 11, "f64": 12,
}  # fmt: skip
_NUMPY = {
    "bool": "bool", "u8": "uint8", "i8": "int8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32", "i64": "int64",
    "u64": "uint64", "f16": "float16", "bf16": "uint16", "f32": "float32", "f64": "float64",
}  # fmt: skip


def numpy_dtype(name: str) -> "np.dtype[Any]":
    """The dtype of arrays that hold lowc's ``name``; numpy has no bf16, whose bits are in uint16.  Raises KeyError."""
    return np.dtype(_NUMPY[name])


def fits(dtype: "np.dtype[Any]", name: str) -> bool:
    """Whether arrays of ``dtype`` are lowc's ``name``, ml_dtypes' bfloat16 included."""
    return dtype == numpy_dtype(name) or (name == "bf16" and dtype.name == "bfloat16" and dtype.itemsize == 2)


def shown(name: str) -> str:
    """How messages call lowc's ``name``."""
    return "bfloat16 (its bits as uint16)" if name == "bf16" else _NUMPY.get(name, name)


def dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Strides in bytes of contiguous elements of ``size`` bytes."""
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(size)
        size *= max(extent, 1)
    return tuple(reversed(strides))
