"""Tensors as a safetensors file: 8 bytes length of the head, JSON, data.  Read and written without a library, on numpy alone.

The head is {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}, offsets from the end of the head.
The format is huggingface/safetensors'; data begins at a multiple of 64 bytes, each tensor at a multiple of its element's size.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.standalone.dtypes import numpy_dtype

NAMES = {
    "bool": "BOOL", "u8": "U8", "i8": "I8", "i16": "I16", "u16": "U16", "i32": "I32", "u32": "U32", "i64": "I64", "u64": "U64",
    "f16": "F16", "bf16": "BF16", "f32": "F32", "f64": "F64",
}  # fmt: skip
_ALIGN = 64
_MOST = 100 << 20  # bytes of a head, as in the library


def write(tensors: Mapping[str, tuple[str, tuple[int, ...], memoryview]]) -> list[bytes | memoryview]:
    """The parts of a file: ``tensors`` has (lowc's dtype, shape, contiguous data) by name."""
    head: dict[str, Any] = {}
    parts: list[bytes | memoryview] = []
    place = 0
    # Largest elements first, so that no tensor needs padding, which the format does not know.
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: -numpy_dtype(item[1][0]).itemsize):
        head[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [place, place + data.nbytes]}
        place += data.nbytes
        parts.append(data)
    text = json.dumps(head).encode()
    text = text.ljust(-(-(len(text) + 8) // _ALIGN) * _ALIGN - 8)
    return [struct.pack("<Q", len(text)), text, *parts]


def offsets(parts: Sequence[bytes | memoryview], keys: Sequence[str]) -> list[int]:
    """Where the data of each of ``keys`` begins in the file that ``write`` made."""
    head = json.loads(bytes(parts[1]))
    return [8 + len(parts[1]) + head[key]["data_offsets"][0] for key in keys]


def read(content: memoryview) -> dict[str, tuple[str, tuple[int, ...], np.ndarray]]:
    """(lowc's dtype, shape, data as an array) of each tensor in a file, without a copy.  Raises ValueError for what is none."""
    if len(content) < 8:
        raise ValueError("it is cut off")
    (length,) = struct.unpack_from("<Q", content)
    if length > min(_MOST, len(content) - 8):
        raise ValueError("its head is cut off")
    data = content[8 + length :]
    dtypes = {theirs: ours for ours, theirs in NAMES.items()}
    found: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = {}
    try:
        for name, row in json.loads(bytes(content[8 : 8 + length])).items():
            if name == "__metadata__":
                continue
            dtype, shape, (begin, end) = dtypes[row["dtype"]], tuple(map(int, row["shape"])), row["data_offsets"]
            array = np.dtype(numpy_dtype(dtype))
            if not 0 <= begin <= end <= len(data) or min(shape, default=0) < 0 or end - begin != _count(shape) * array.itemsize:
                raise ValueError(f"tensor {name} is not where its head says")
            found[name] = (dtype, shape, np.frombuffer(data[begin:end], array).reshape(shape))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"its head cannot be read ({type(error).__name__}: {error})") from error
    return found


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def refused(path: str, what: str) -> LowcError:
    """The error for weights that cannot be used."""
    return LowcError(f"the weights {path} cannot be used: {what}", hint="take the file that was written beside the artifact")
