"""Artifacts made by hand, whose native functions are Python: what the tests of the runtime run."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowc.artifact import Artifact, Native, runs
from lowc.host import TORCH_NAMES
from lowc.ir import types
from lowc.ir.index import Index, IndexLike, Symbol, evaluate, ix
from lowc.ir.nodes import Buffer, Extern, Kernel, Launch, Load, Module, Store, View
from lowc.ir.types import DType
from lowc.runtime.program import Program, bind


def buffer(
    name: str, *shape: IndexLike, dtype: DType = types.f32, strides: Sequence[IndexLike] | None = None
) -> Buffer:
    sizes = tuple(map(ix, shape))
    if strides is not None:
        return Buffer(name, dtype, sizes, tuple(map(ix, strides)))
    steps: list[Index] = []
    step = ix(1)
    for size in reversed(sizes):
        steps.append(step)
        step = step * size
    return Buffer(name, dtype, sizes, tuple(reversed(steps)))


def whole(b: Buffer) -> View:
    return View(b, b.dtype, b.shape, b.strides, ix(0))


def launch(
    reads: Sequence[Buffer], writes: Sequence[Buffer], origin: str = "", sizes: Sequence[Symbol] = ()
) -> Launch:
    """A launch whose kernel, if it were generated, would touch these buffers; what it does is up to the
    test.
    """
    zero = tuple(ix(0) for _ in writes[0].shape) if writes else ()
    body = tuple(Store(b, tuple(ix(0) for _ in b.shape), Load(writes[0], zero)) for b in writes)
    params = tuple(dict.fromkeys((*reads, *writes)))
    return Launch(Kernel("k", params, tuple(sizes), body), params, (origin,) if origin else ())


def artifact(module: Module) -> Artifact:
    """Each run of launches is one native call ``f0``, ``f1``, ..."""
    placed = {name for name, _ in module.placed}
    slots = [b.name for b in module.inputs if isinstance(b, Buffer)] + [
        t.name for t in module.temps if t.name not in placed
    ]
    slots += (["workspace"] if placed else []) + [s.name for s in module.symbols]
    program: list[Native | Extern] = []
    for run in runs(module):
        native = sum(isinstance(s, Native) for s in program)
        program.append(run if isinstance(run, Extern) else Native(f"f{native}", run))
    return Artifact("test", b"", tuple(slots), tuple(program), module)


def load(
    module: Module, constants: Sequence[torch.Tensor] = (), **functions: Callable[..., object]
) -> Program:
    """``functions``: f0=..., each called with the slots by name (addresses and sizes) as keywords; an int
    that it returns is the error code.
    """
    made = artifact(module)

    def native(function: Callable[..., object]) -> Callable[[Any], int]:
        def call(slots: Any) -> int:
            values = (ctypes.c_int64 * len(made.slots)).from_buffer_copy(slots)
            code = function(**dict(zip(made.slots, values, strict=True)))
            return code if isinstance(code, int) else 0

        return call

    return bind(made, {name: native(f) for name, f in functions.items()}, constants)


def at(address: int, b: Buffer, **sizes: int) -> torch.Tensor:
    """The contiguous tensor of type ``b`` at ``address``."""
    shape = [evaluate(n, sizes) for n in b.shape]
    count = max(1, int(torch.Size(shape).numel()))
    dtype = getattr(torch, TORCH_NAMES[b.dtype.name])
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=count)[: torch.Size(shape).numel()].view(shape)
