"""Native calls without native code: launches run in the reference interpreter, on the same memory that
machine code would use.

``artifact(module)`` needs no backend and takes a module of any level; ``natives(artifact)`` are its
functions.  Slow, and exact by definition: ``LOWC_ISA=interp`` tells whether a wrong result comes from the
graph and its loops, or from the code made of them.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from lowc.artifact import Artifact, Native, runs
from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel, storage_size
from lowc.ir.nodes import Buffer, Extern, Launch, Module
from lowc.ir.numeric import storage_dtype


def artifact(module: Module) -> Artifact:
    """``module`` with each run of launches as one native call."""
    placed = {name for name, _ in module.placed}
    buffers = [
        b.name for b in (*module.inputs, *module.temps) if isinstance(b, Buffer) and b.name not in placed
    ]
    slots = (*buffers, *(["workspace"] if placed else []), *(s.name for s in module.symbols))
    program = [r if isinstance(r, Extern) else Native(f"run_{r[0]}", r) for r in runs(module)]
    return Artifact("interp", b"", slots, tuple(program), module)


def natives(made: Artifact) -> dict[str, Callable[[Any], int]]:
    """The functions of an artifact that ``artifact`` made, by name: each takes slots and returns an error
    code.
    """
    return {step.symbol: _native(made, step) for step in made.program if isinstance(step, Native)}


def _native(made: Artifact, native: Native) -> Callable[[Any], int]:
    module, count = made.module, len(made.slots)
    placed = dict(module.placed)

    def call(slots: Any) -> int:
        values = (ctypes.c_int64 * count).from_buffer_copy(slots) if count else ()
        known = dict(zip(made.slots, values, strict=True))
        sizes = {s.name: known[s.name] for s in module.symbols}
        for number in native.launches:
            launch = module.steps[number]
            assert isinstance(launch, Launch)
            memory = {}
            for param, buffer in zip(launch.kernel.params, launch.args, strict=True):
                inside = buffer.name in placed
                address = (
                    known["workspace"] + evaluate(placed[buffer.name], sizes)
                    if inside
                    else known[buffer.name]
                )
                memory[param.name] = _memory(address, buffer, sizes)
            try:
                run_kernel(launch.kernel, memory, {s.name: sizes[s.name] for s in launch.kernel.sizes})
            except IndexError:
                return 1 + 16 * number
            except ZeroDivisionError:
                return 2 + 16 * number
        return 0

    return call


def _memory(address: int, buffer: Buffer, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    """The elements at ``address`` that ``buffer`` spans."""
    shape, strides = ([evaluate(n, sizes) for n in part] for part in (buffer.shape, buffer.strides))
    dtype = np.dtype(storage_dtype(buffer.dtype))
    count = storage_size(shape, strides)
    if count == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(memoryview((ctypes.c_char * (count * dtype.itemsize)).from_address(address)), dtype)
