"""DLPack: arrays handed over as capsules of Python's (https://dmlc.github.io/dlpack), read and made without a library.

A capsule that is read here keeps its name, so that it is its own end that lets the array go.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np

from lowc.standalone.dtypes import dense

CUDA, MANAGED = 2, 13  # kinds of devices
_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}
_BFLOAT = 4
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("index", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("kind", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(("PyCapsule_New", ctypes.pythonapi))
# for a capsule that is being destroyed, of which no reference may be taken
_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_inside = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_retain = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))


class Read(NamedTuple):
    """``strides`` in bytes; bf16 has dtype uint16.  ``capsule`` keeps the memory alive."""

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    capsule: object


def on_gpu(given: Any) -> bool:
    """Whether ``given`` speaks DLPack and is in a GPU's memory."""
    device = getattr(given, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (CUDA, MANAGED)


def read(given: Any, stream: int) -> Read:
    """What ``given`` hands over to whoever works on ``stream``.  Raises ValueError for a dtype that numpy does not have, and
    what ``given`` raises."""
    capsule = given.__dlpack__(stream=stream)
    found = _Managed.from_address(_pointer(capsule, _NAME)).tensor
    kind = "u" if (found.kind, found.bits) == (_BFLOAT, 16) else _KINDS.get(found.kind, "")
    if not kind or found.lanes != 1 or found.bits % 8 or (kind == "b" and found.bits != 8):
        raise ValueError(f"its dtype is of kind {found.kind} with {found.bits} bits and {found.lanes} lanes")
    dtype = np.dtype("bool" if kind == "b" else f"{kind}{found.bits // 8}")
    shape = tuple(found.shape[: found.rank])
    steps = found.strides
    strides = tuple(n * dtype.itemsize for n in steps[: found.rank]) if steps else dense(shape, dtype.itemsize)
    return Read(dtype, shape, strides, (found.data or 0) + found.offset, capsule)


def capsule(owner: object, address: int, dtype: "np.dtype[Any]", shape: tuple[int, ...], index: int) -> Any:
    """A capsule of contiguous memory of GPU ``index``, which keeps ``owner`` alive until whoever takes it lets it go."""
    numbers = {letter: number for number, letter in _KINDS.items()}
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(*(n // dtype.itemsize for n in dense(shape, dtype.itemsize)))
    made = _Managed()
    tensor = made.tensor
    tensor.data, tensor.device, tensor.index, tensor.rank = address or None, CUDA, index, len(shape)
    tensor.kind, tensor.bits, tensor.lanes = numbers[dtype.kind], 8 * dtype.itemsize, 1
    tensor.shape, tensor.strides = sizes, steps
    made.deleter = _let_go
    kept = (owner, made, sizes, steps)
    made.context = id(kept)
    _retain(kept)
    return _make(ctypes.addressof(made), _NAME, _dropped)


@_DELETER
def _let_go(managed: Any) -> None:
    _release(managed.contents.context)


@_DESTRUCTOR
def _dropped(unused: int) -> None:
    """A capsule that nobody took."""
    if _named(unused, _NAME):
        _release(_Managed.from_address(_inside(unused, _NAME)).context)
