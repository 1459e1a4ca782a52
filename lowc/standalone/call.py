"""One call of an artifact: arguments checked, sizes found, memory made, native code run."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.runtime.failures import failure
from lowc.standalone.arrays import host_array, host_tensor
from lowc.standalone.dtypes import numpy_dtype
from lowc.standalone.files import aligned
from lowc.standalone.function import Function
from lowc.standalone.manifest import Code, Manifest, Size, Tensor
from lowc.standalone.trees import value, values

_KEEP = 1 << 27  # bytes: larger workspaces are given back to the system after a call
_SPARE = 8


class Model(Function):
    """A ``Function`` on the CPU.  Native code runs without the interpreter's lock.

    Arguments are numpy arrays, or torch tensors on the CPU, and integers.  Results are arrays, or tensors if an argument was one;
    they are contiguous.  A call raises LowcError for an argument of the wrong number, name, dtype, rank, size, stride or device;
    MemoryError if there is none for the results or the workspace; IndexError and RuntimeError where the model's own checks
    fail, as in eager.
    """

    def __init__(
        self,
        manifest: Manifest,
        code: Code,
        constants: Sequence[np.ndarray],
        run: Callable[[Any], int],
        kept: Sequence[object],
        again: "tuple[Callable[..., Function], tuple[Any, ...]] | None" = None,
        once: Callable[[Any], int] | None = None,
    ) -> None:
        """``code``: that of ``run``, the native function.  ``constants``: the weights in order.  ``kept``: what has to live as
        long as that.  ``again``: see ``Function``.  ``once``: the function that makes what ``run`` finds made of the weights; it
        is called here.  Raises MemoryError if there is no memory for that."""
        super().__init__(manifest, code, again)
        made = [aligned(size) for size in code.once.sizes] if code.once else []
        self._run, self._kept = run, (*kept, *constants, *made)
        self._slots = ctypes.c_int64 * max(len(code.slots), 1)
        # what is in the slots of every call, and which are left to fill
        fixed = {"weight": constants, "made": made}
        self._fixed = self._slots(*(fixed[kind][n].ctypes.data if kind in fixed else 0 for kind, n in code.slots))
        self._open = [(slot, kind, n) for slot, (kind, n) in enumerate(code.slots) if kind not in fixed]
        if once is not None:
            once(self._fixed)  # reads and writes nothing else, and checks nothing
        self._spare: list[np.ndarray] = []

    def _results(self, given: Sequence[Any]) -> list[Any]:
        torch = sys.modules.get("torch")
        tensors = torch is not None and any(isinstance(a, torch.Tensor) for a in given)
        arrays = [host_array(a, t, torch) for a, t in zip(given, self.inputs, strict=True)]
        results = self.run(arrays)
        if tensors:
            results = [host_tensor(r, t, torch) for r, t in zip(results, self.outputs, strict=True)]
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
