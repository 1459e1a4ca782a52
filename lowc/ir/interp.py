"""The reference interpreter: ``run_kernel`` (see ``interp_kernel``) and ``run_module``.

Buffers are flat storages: numpy arrays of ``storage_size`` elements that the buffer's strides address, of the type
``numeric.storage_dtype`` (bf16: its bits in uint16).  ``pack`` and ``unpack`` go from logical arrays to storages and back.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lowc.ir import arithmetic
from lowc.ir.index import Index, Symbol, constant, evaluate, sole_atom
from lowc.ir.interp_expr import InterpError
from lowc.ir.interp_kernel import poisoned, run_kernel, storage_size
from lowc.ir.nodes import Arg, Buffer, Extern, Launch, Module, View
from lowc.ir.numeric import Array, storage_dtype
from lowc.ir.types import DType

__all__ = ["InterpError", "Tensor", "pack", "poisoned", "run_kernel", "run_module", "storage_size", "unpack"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument or result of an extern call: ``array`` is a strided window of storage (writing to it writes there)."""

    array: Array
    dtype: DType


ExternCall = Callable[[Extern, tuple[Any, ...], dict[str, Any]], Sequence[Any]]
"""Carries out a call: gets the step, and its args and kwargs with Views as Tensors and Indices as ints; returns a Tensor, a
numpy array (in storage form), or a number for each of the step's ``results``."""


def pack(array: Array, strides: Sequence[int]) -> Array:
    """A flat storage whose ``strides`` (in elements) show ``array``; what lies between holds the poison pattern."""
    storage = poisoned(storage_size(array.shape, strides), array.dtype)
    if storage.size:
        unpack(storage, array.shape, strides)[...] = array
    return storage


def unpack(storage: Array, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Array:
    """The strided window of ``storage`` as an array that shares its memory (strides and offset in elements)."""
    if 0 in shape:
        return np.zeros(tuple(shape), storage.dtype)
    if offset < 0 or offset + storage_size(shape, strides) > len(storage):
        raise InterpError(
            f"a window {tuple(shape)} : {tuple(strides)} + {offset} in memory of {len(storage)} elements"
        )
    step = storage.dtype.itemsize
    return as_strided(storage[offset:], tuple(shape), [s * step for s in strides])


@dataclass(slots=True)
class _Call:
    module: Module
    sizes: dict[str, int]
    storages: dict[str, Array]
    workspace: Array | None


def run_module(
    module: Module,
    inputs: Sequence[Any],
    extern: ExternCall | None = None,
    sizes: Mapping[str, int] | None = None,
    shuffle: random.Random | None = None,
    after: Callable[[int, Mapping[str, Array]], None] | None = None,
) -> list[Any]:
    """Runs ``module`` on ``inputs``, one for each of its inputs: storages for buffers, ints for sizes, anything for None.

    Instead of a storage, an input may be a Tensor or an array of the buffer's number of dimensions: it is packed, and if a step
    writes to it, the array is written afterwards.  ``sizes`` gives symbols that are no inputs; those that are a dimension of an
    input given as a Tensor or a logical array are found.  ``after`` is told the number of each step that has run, and the
    storages by the buffers' names.  Returns the outputs: arrays in storage form, ints, or constants.
    """
    call = _Call(module, dict(sizes or {}), {}, None)
    arrays = [_logical(buffer, given) for buffer, given in zip(module.inputs, inputs, strict=True)]
    for item, given, array in zip(module.inputs, inputs, arrays, strict=True):
        if isinstance(item, Symbol):
            call.sizes[item.name] = int(given)
        elif isinstance(item, Buffer) and array is not None:
            find_sizes(call.sizes, item, array.shape)
    for item, given, array in zip(module.inputs, inputs, arrays, strict=True):
        if isinstance(item, Buffer):
            call.storages[item.name] = given if array is None else pack(array, _ints(call, item.strides))
    for number, step in enumerate(module.steps):
        if isinstance(step, Launch):
            memory = {p.name: _storage(call, a) for p, a in zip(step.kernel.params, step.args, strict=True)}
            run_kernel(step.kernel, memory, call.sizes, shuffle)
        else:
            _extern(call, step, extern)
        if after is not None:
            after(number, call.storages)
    for item, array in zip(module.inputs, arrays, strict=True):
        if isinstance(item, Buffer) and array is not None and array.flags.writeable:
            shape, strides = array.shape, _ints(call, item.strides)
            array[...] = unpack(call.storages[item.name], shape, strides)
    return [_output(call, arg) for arg in module.outputs]


def _logical(item: Buffer | Symbol | None, given: Any) -> Array | None:
    """The array with the buffer's shape, or None if ``given`` is a storage (or no buffer)."""
    if not isinstance(item, Buffer):
        return None
    if isinstance(given, Tensor):
        return given.array
    if given.dtype != storage_dtype(item.dtype):
        raise InterpError(f"{item.name} is {item.dtype}, not {given.dtype}")
    flat = given.ndim == 1 and (len(item.shape) != 1 or constant(item.strides[0]) == 1)
    return None if flat else given


def find_sizes(sizes: dict[str, int], buffer: Buffer, shape: Sequence[int]) -> None:
    """Adds to ``sizes`` the symbols that a dimension of ``buffer`` is, given the ``shape`` of what it holds."""
    if len(shape) == len(buffer.shape):
        for index, extent in zip(buffer.shape, shape, strict=True):
            if isinstance(atom := sole_atom(index), Symbol):
                sizes.setdefault(atom.name, int(extent))


def _ints(call: _Call, indices: Sequence[Index]) -> tuple[int, ...]:
    return tuple(int(evaluate(i, call.sizes)) for i in indices)


def _storage(call: _Call, buffer: Buffer) -> Array:
    """The memory of a buffer of the module; a temp gets it at first use, in the workspace once it has been placed."""
    found = call.storages.get(buffer.name)
    if found is not None:
        return found
    if all(buffer is not t for t in call.module.temps):
        raise InterpError(f"{buffer.name} is neither an input nor a temp")
    size = storage_size(_ints(call, buffer.shape), _ints(call, buffer.strides))
    dtype = storage_dtype(buffer.dtype)
    placed = dict(call.module.placed)
    if buffer.name in placed:
        workspace = call.workspace
        if workspace is None:
            workspace = poisoned(_ints(call, (call.module.workspace,))[0], np.dtype(np.uint8))
            call.workspace = workspace
        (offset,) = _ints(call, (placed[buffer.name],))
        window = workspace[offset : offset + size * dtype.itemsize]
        if window.size != size * dtype.itemsize or offset < 0:
            raise InterpError(f"{buffer.name} at {offset} is outside the workspace of {workspace.size} bytes")
        found = window.view(dtype)
    else:
        found = poisoned(size, dtype)
    call.storages[buffer.name] = found
    return found


def _argument(call: _Call, arg: Arg) -> Any:
    """An argument of an extern call, or an output."""
    if isinstance(arg, View):
        storage = _storage(call, arg.buffer)
        if arg.dtype != arg.buffer.dtype:
            storage = storage.view(storage_dtype(arg.dtype))
        shape, strides, (offset,) = (
            _ints(call, arg.shape),
            _ints(call, arg.strides),
            _ints(call, (arg.offset,)),
        )
        return Tensor(unpack(storage, shape, strides, offset), arg.dtype)
    if isinstance(arg, Index):
        return _ints(call, (arg,))[0]
    if isinstance(arg, tuple):
        return tuple(_argument(call, a) for a in arg)
    return arg


def _output(call: _Call, arg: Arg) -> Any:
    found = _argument(call, arg)
    return found.array.copy() if isinstance(found, Tensor) else found


def _extern(call: _Call, step: Extern, extern: ExternCall | None) -> None:
    if arithmetic.is_size(step):
        call.sizes.update({r.name: arithmetic.evaluate(step.args[0], call.sizes) for r in step.results if isinstance(r, Symbol)})
        return
    if extern is None:
        raise InterpError(f"nothing to call {step.target} with")
    args = tuple(_argument(call, a) for a in step.args)
    results = extern(step, args, {name: _argument(call, a) for name, a in step.kwargs})
    for item, result in zip(step.results, results, strict=True):
        if isinstance(item, Symbol):
            call.sizes[item.name] = int(result)
        elif item is not None:
            array = result.array if isinstance(result, Tensor) else np.asarray(result)
            _receive(call, item, array)


def _receive(call: _Call, buffer: Buffer, array: Array) -> None:
    """Makes a result of an extern call the storage of ``buffer``."""
    find_sizes(call.sizes, buffer, array.shape)
    if array.ndim != len(buffer.shape):  # a buffer that has become one-dimensional: the memory as it lies
        steps = [s // array.itemsize for s in array.strides]
        storage = pack(array, steps)
    else:
        storage = pack(array, _ints(call, buffer.strides))
    if buffer.name in dict(call.module.placed):
        _storage(call, buffer)[...] = storage
    else:
        call.storages[buffer.name] = storage
