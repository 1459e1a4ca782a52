"""What compilation yields: code bytes and the host program, all plain data (it can be written to disk and read back)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from lowc.ir.index import Index

if TYPE_CHECKING:
    from lowc.ir.nodes import Extern, Module


@dataclass(frozen=True, slots=True)
class Native:
    """One native call: ``symbol`` is a function ``i64 (ptr slots)`` of the object that runs ``launches`` (numbers of steps
    of the module) in order.  It returns 0, or ``kind + 16 * step`` where kind 1 is an index out of range, kind 2 an integer
    division by zero."""

    symbol: str
    launches: tuple[int, ...]


def runs(module: "Module", apart: bool = False) -> "list[tuple[int, ...] | Extern]":
    """The steps of ``module`` as a host program takes them: numbers of launches that follow one another (``apart``: each by
    itself, to be timed), and calls of ATen."""
    from lowc.ir.nodes import Extern

    found: list[tuple[int, ...] | Extern] = []
    for number, step in enumerate(module.steps):
        if isinstance(step, Extern):
            found.append(step)
        elif found and isinstance(found[-1], tuple) and not apart:
            found[-1] = (*found[-1], number)
        else:
            found.append((number,))
    return found


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What the engine that copies boxes of a tensor needs to know of one; the driver writes it into 128 bytes, which are a param.

    ``param``: position of the buffer.  ``dtype``: in ``MAP_DTYPES``; "tf32": of f32, rounded to it on the way.  ``offset`` in
    bytes; ``sizes`` in elements, innermost first; ``strides`` in bytes, of the dimensions but the first, whose elements are
    neighbours; ``box``: elements along each dimension that are copied at a time.  All over the kernel's sizes.

    Of places (``ir/places.py``): ``box`` is how many channels of how many places, ``lower``, ``upper`` and ``steps`` are of the
    dimensions between the first and the last.
    """

    param: int
    dtype: str
    offset: Index
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    box: tuple[int, ...]
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """How a GPU kernel is launched.

    ``symbol``: its name in the PTX.  ``grid``: blocks, over the kernel's sizes.  ``threads``: of a block, (x, y).
    ``shared``: bytes of dynamic shared memory.  ``aligned``: positions of params that must be 16-byte aligned.  ``maps``: its
    last params.
    """

    symbol: str
    grid: Index
    threads: tuple[int, int]
    shared: int
    aligned: tuple[int, ...]
    maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a GPU kernel takes.

    ``registers``: 32-bit ones of a thread.  ``local``: bytes of its own memory.  ``spilled``: bytes that it stores and loads
    there for want of registers; None if unknown.  ``shared``: bytes of static shared memory of a block.
    """

    registers: int
    local: int
    spilled: int | None
    shared: int


class Record(IntEnum):
    """Kinds of records of a launch table: 8 words of 64 bits each, the first of which is the kind.

    ``LAUNCH``: function, blocks, threads (x + y << 32), bytes of dynamic shared memory, stream, address of the list of params,
    number of params + (first scratch slot << 32).  A param below 0 is the inverted address of its value; otherwise it is the slot
    that has the value.  ``MEMSET``: slot of the address, byte, number of bytes, stream.  ``RECORD`` and ``WAIT``: slot of the
    event, stream.  ``OFFSET``: slot to fill, slot of an address, bytes to add.  ``MAP``: blocks, slot of an address, first of the
    sixteen slots to fill, addresses of ``MAP_VALUES`` values and of a ``MAP_FORM``; nothing is done where there are no blocks.

    "blocks", "number of bytes", "bytes to add" and the values of a map are numbers, or the inverted (``~``) number of a slot.
    "stream" is a slot, or -1 for the stream of the call.
    """

    LAUNCH = 1
    MEMSET = 2
    RECORD = 3
    WAIT = 4
    OFFSET = 5
    MAP = 6


RECORD_WORDS = 8
MAP_SLOTS = 16  # of a tensor map's 128 bytes
MAP_RANK = 5  # dimensions at most
MAP_VALUES = 2 * MAP_RANK  # of a MAP record: the offset in bytes, then sizes, then strides in bytes
MAP_FORM = 3 + 2 * MAP_RANK + 2 * (MAP_RANK - 2)
"""32-bit words of a MAP record: the driver's number of the dtype, the rank, the box, the steps within it; 1 if it is of places;
their ``lower`` and ``upper``."""
MAP_DTYPES = {"f8e4m3": 0, "f8e5m2": 0, "f16": 6, "f32": 7, "bf16": 9, "tf32": 11}  # CUtensorMapDataType; of 8 bits: bytes

# What the walker of launch tables finds in its table of functions, behind the context.
DRIVER_FUNCTIONS = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuLaunchKernel",
    "cuMemsetD8Async",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """``code``: the object file.  ``slots``: what each 8-byte slot of the array passed to native calls holds, in order: the
    name of a module buffer that is an input or a non-placed temp (its address), "workspace" (its address), or the name of a
    symbol (its value). Placed temps have no slot: their address is workspace + offset, computed by the native code.
    ``program``: the steps of one call.  ``entries``: by kernel name, on a GPU, where ``Native.symbol`` names a launch table
    that the runtime makes. ``cubin``: on a GPU, ``code`` as ptxas has assembled it; empty if the driver is to do it."""

    target: str
    code: bytes
    slots: tuple[str, ...]
    program: "tuple[Native | Extern, ...]"
    module: "Module"
    entries: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    cubin: bytes = b""


_ENTRY = re.compile(rb"\.entry\s+([\w$.]+)")


def kernel_at(ptx: bytes, line: int) -> str:
    """The kernel in which a line of PTX (from 1) stands, empty if it is in none."""
    names = _ENTRY.findall(b"\n".join(ptx.splitlines()[:line]))
    return names[-1].decode() if names else ""
