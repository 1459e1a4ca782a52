"""One call of an artifact: arguments checked, sizes found, memory made, native code run."""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.runtime.failures import failure
from lowc.standalone.dtypes import fits, numpy_dtype, shown
from lowc.standalone.files import aligned
from lowc.standalone.manifest import ITSELF, Code, Manifest, Size, Tensor, value, values

_KEEP = 1 << 27  # bytes: larger workspaces are given back to the system after a call
_SPARE = 8


class Model:
    """A loaded artifact.  ``level``: which of its codes runs.  ``inputs`` and ``outputs`` say what a call takes and returns.

    Calls may be made from several threads at once; native code runs without the interpreter's lock.  A pickle of it, for another
    process, is the path of its file and a checksum; unpickling loads the file, and raises LowcError if it is gone or another.
    """

    def __init__(
        self,
        manifest: Manifest,
        code: Code,
        constants: Sequence[np.ndarray],
        run: Callable[[Any], int],
        kept: Sequence[object],
        again: "tuple[Callable[..., Model], tuple[Any, ...]] | None" = None,
    ) -> None:
        """``code``: that of ``run``, the native function.  ``constants``: the weights in order.  ``kept``: what has to live as
        long as that.  ``again``: a function and its arguments that give this model in another process, if there is one."""
        self.manifest, self.code, self.level = manifest, code, code.level
        self.name = manifest.name
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self._run, self._kept, self._again = run, (*kept, *constants), again
        self._slots = ctypes.c_int64 * max(len(code.slots), 1)
        # what is in the slots of every call, and which are left to fill
        self._fixed = self._slots(*(constants[n].ctypes.data if kind == "weight" else 0 for kind, n in code.slots))
        self._open = [(slot, kind, n) for slot, (kind, n) in enumerate(code.slots) if kind != "weight"]
        self._spare: list[np.ndarray] = []

    def __repr__(self) -> str:
        inputs = ", ".join(f"{t.name}: {t.dtype}{list(t.shape)}" if t.value is None else f"{t.name}: int" for t in self.inputs)
        return f"<lowc model {self.name}({inputs}), {self.level}>"

    def __reduce__(self) -> "tuple[Callable[..., Model], tuple[Any, ...]]":
        """Raises TypeError for a model that is in no file."""
        if self._again is None:
            raise TypeError(
                f"the model {self.name} is in no file, by whose path it could be pickled: save the package, and pickle what "
                "lowc.load gives for that file"
            )
        return self._again

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The results for ``args`` (numpy arrays, or torch tensors, and integers, in order or by name) as the model returned
        them: arrays, or tensors if an argument was one.  Results are contiguous.

        Raises LowcError for an argument of the wrong number, name, dtype, rank, size, stride or device; MemoryError if there is
        none for the results or the workspace; IndexError and RuntimeError where the model's own checks fail, as in eager.
        """
        return spread(self._results(self._ordered(args, named)), self.manifest.returns)

    def named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name for inputs by name.  Raises as a call does."""
        results = self._results(self._ordered((), arrays))
        return {output.name: result for output, result in zip(self.outputs, results, strict=True)}

    def _results(self, given: Sequence[Any]) -> list[Any]:
        torch = sys.modules.get("torch")
        tensors = torch is not None and any(isinstance(a, torch.Tensor) for a in given)
        arrays = [_array(a, t, torch) for a, t in zip(given, self.inputs, strict=True)]
        results = self.run(arrays)
        if tensors:
            results = [_tensor(r, t, torch) for r, t in zip(results, self.outputs, strict=True)]
        return results

    def run(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """The outputs in order, without the structure that the model returned them in."""
        manifest = self.manifest
        sizes = self._sizes(arrays)
        results: list[Any] = []
        for output in manifest.outputs:
            if isinstance(output, Size):
                results.append(value(output.value, sizes))
            else:
                results.append(self._empty(output, values(output.shape, sizes)))
        workspace = self._take(max(value(self.code.workspace, sizes), 0))
        slots = self._slots.from_buffer_copy(self._fixed)
        memory = {"input": arrays, "output": results, "workspace": (workspace,)}
        for slot, kind, number in self._open:
            slots[slot] = sizes[manifest.symbols[number].name] if kind == "symbol" else memory[kind][number].ctypes.data
        code = self._run(slots)
        self._give(workspace)
        if code:
            origin = self.code.checks.get(str(code // 16), "")
            raise failure(code % 16, origin) or LowcError(f"native code failed with code {code}", where=origin)
        return results

    def _empty(self, output: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        try:
            return np.empty(shape, numpy_dtype(output.dtype))
        except (ValueError, OverflowError) as error:  # more bytes than a process can address
            raise LowcError(f"{self.name}: output {output.name} cannot have shape {shape}: {error}") from error

    def _ordered(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        names = [t.name for t in self.inputs]
        unknown = [name for name in named if name not in names]
        twice = [name for name in names[: len(args)] if name in named]
        missing = [name for name in names[len(args) :] if name not in named]
        if unknown or twice or missing or len(args) > len(names):
            wrong = [f"no {', '.join(missing)}"] if missing else []
            wrong += [f"{', '.join(unknown)} is unknown"] if unknown else []
            wrong += [f"{', '.join(twice)} is given twice"] if twice else []
            wrong += [f"{len(args)} arguments are too many"] if len(args) > len(names) else []
            raise LowcError(f"{self.name} takes {', '.join(names) or 'no arguments'}: " + "; ".join(wrong))
        return [*args, *(named[name] for name in names[len(args) :])]

    def _sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """The sizes that ``arrays`` tell, after a check of all that they must be."""
        for array, tensor in zip(arrays, self.inputs, strict=True):
            if not fits(array.dtype, tensor.dtype):
                self._refuse(tensor, f"has dtype {array.dtype}, not {shown(tensor.dtype)}", "convert it with .astype")
            if array.ndim != len(tensor.shape):
                self._refuse(tensor, f"has {array.ndim} dimensions, not {len(tensor.shape)}", "")
            if not array.flags.aligned:
                self._refuse(tensor, "is not aligned in memory", "copy it")
        sizes: dict[str, int] = {}
        for symbol in self.manifest.symbols:
            number, dim, factor, added = symbol.source
            extent = int(arrays[number]) if dim == ITSELF else arrays[number].shape[dim]
            size, rest = divmod(extent - added, factor)
            if rest or size < symbol.low or (symbol.high is not None and size > symbol.high):
                allowed = f"{factor * symbol.low + added} to "
                allowed += "any" if symbol.high is None else str(factor * symbol.high + added)
                allowed += f" in steps of {factor}" if factor != 1 else ""
                what = f"is {extent}" if dim == ITSELF else f"has size {extent} in dimension {dim}"
                self._refuse(self.inputs[number], f"{what}; it takes {allowed}", "")
            sizes[symbol.name] = size
        for array, tensor in zip(arrays, self.inputs, strict=True):
            if tensor.value is not None and int(array) != value(tensor.value, sizes):
                self._refuse(tensor, f"is {int(array)}, not {value(tensor.value, sizes)}", "")
            wanted = values(tensor.shape, sizes)
            if array.shape != wanted:
                self._refuse(tensor, f"has shape {array.shape}, not {wanted}", "")
            strides = values(tensor.strides, sizes)
            actual = [n // array.itemsize for n in array.strides]
            if array.size and any(n > 1 and s != a for n, s, a in zip(wanted, strides, actual)):
                self._refuse(tensor, f"has strides {tuple(actual)}, not {strides}", "copy it, with numpy.ascontiguousarray say")
        for tree, shown_ in self.manifest.conditions:
            if not value(tree, sizes):
                pairs = zip(self.inputs, arrays, strict=True)
                found = ", ".join(f"{t.name}{list(a.shape)}" if t.value is None else f"{t.name} {int(a)}" for t, a in pairs)
                raise LowcError(
                    f"{self.name} is for inputs with {shown_} only, not for {found}", hint="export it for such sizes"
                )
        return sizes

    def _refuse(self, tensor: Tensor, what: str, hint: str) -> None:
        raise LowcError(f"{self.name}: input {tensor.name} {what}", hint=hint)

    def _take(self, size: int) -> np.ndarray:
        """Memory that no other call has; ``list.pop`` and ``append`` are atomic."""
        try:
            memory = self._spare.pop()
        except IndexError:
            return aligned(size)
        return memory if memory.nbytes >= size else aligned(size)

    def _give(self, memory: np.ndarray) -> None:
        if memory.nbytes <= _KEEP and len(self._spare) < _SPARE:
            self._spare.append(memory)


def _array(given: Any, tensor: Tensor, torch: Any) -> np.ndarray:
    if tensor.value is not None:
        return _integer(given, tensor)
    if isinstance(given, np.ndarray):
        return given
    if isinstance(given, np.generic):
        return np.asarray(given)
    if torch is not None and isinstance(given, torch.Tensor):
        if given.device.type != "cpu" or given.layout != torch.strided:
            what = f"input {tensor.name} is on {given.device}, {given.layout}: not a dense tensor on the CPU"
            raise LowcError(what, hint=".cpu() moves it")
        given = given.detach()
        if given.is_conj() or given.is_neg():
            given = given.resolve_conj().resolve_neg()
        if given.dtype == torch.bfloat16 and tensor.dtype == "bf16":
            given = given.view(torch.uint16)
        try:
            return given.numpy()
        except (TypeError, RuntimeError) as error:  # dtypes that numpy does not have
            raise LowcError(f"input {tensor.name} has dtype {given.dtype}, not {shown(tensor.dtype)}") from error
    raise LowcError(f"input {tensor.name} is a {type(given).__name__}, no array", hint="numpy.asarray makes one")


def _integer(given: Any, tensor: Tensor) -> np.ndarray:
    """Whatever Python takes for an index, 0-d arrays included, as a 0-d array of i64."""
    try:
        number = index(given)
    except TypeError:
        hint = "int makes one of a whole number"
        raise LowcError(f"input {tensor.name} is a {type(given).__name__}, no integer", hint=hint) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise LowcError(f"input {tensor.name} is {number}, no integer of 64 bits")
    return np.asarray(number, np.int64)


def _tensor(result: Any, tensor: Tensor | Size, torch: Any) -> Any:
    if isinstance(tensor, Size):
        return result
    made = torch.from_numpy(result)
    return made.view(torch.bfloat16) if tensor.dtype == "bf16" else made


def spread(results: Sequence[Any], structure: Any) -> Any:
    """``results`` in the structure ``Manifest.returns``."""
    if structure is None or isinstance(structure, int):
        return None if structure is None else results[structure]
    kind, inner = structure
    if kind == "dict":
        return {name: spread(results, part) for name, part in inner.items()}
    made = [spread(results, part) for part in inner]
    return tuple(made) if kind == "tuple" else made
