"""The C interface of artifacts through ctypes, on numpy arrays; needs nothing else."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from lowc.standalone.dtypes import NUMBERS


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class Library:
    """A library through ctypes.  ``run`` returns the code."""

    def __init__(self, path: Path, prefix: str = "lowc") -> None:
        self.functions = {}
        library = ctypes.CDLL(str(path))
        for name, count in (("run", 6), ("sizes", 3), ("workspace", 2), ("message", 1)):
            function = getattr(library, f"{prefix}_{name}")
            function.restype = ctypes.c_char_p if name == "message" else ctypes.c_int64
            function.argtypes = [ctypes.c_int64 if name == "message" else ctypes.c_void_p] * count
            self.functions[name] = function

    def run(self, inputs: Any, outputs: Any, workspace: int = 0, size: int = 0) -> int:
        return self.functions["run"](*inputs, *outputs, workspace, size)

    def message(self, code: int) -> str:
        return self.functions["message"](code).decode()


def tensors(*arrays: np.ndarray, strided: bool = False) -> tuple[Any, int]:
    """An array of lowc_tensor, and how many; it keeps what it points to."""
    made = (Tensor * max(len(arrays), 1))()
    kept = []
    for place, array in zip(made, arrays):
        sizes = np.array(array.shape, np.int64)
        strides = np.array([n // array.itemsize for n in array.strides], np.int64)
        kept += [sizes, strides, array]
        name = {"float32": "f32", "float64": "f64", "int64": "i64"}[array.dtype.name]
        place.data, place.sizes, place.strides = array.ctypes.data, sizes.ctypes.data, strides.ctypes.data if strided else None
        place.rank, place.dtype = array.ndim, NUMBERS[name]
    made.kept = kept  # type: ignore[attr-defined]
    return made, len(arrays)
