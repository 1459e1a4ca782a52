"""One call of an artifact on a GPU: arguments checked and put there, kernels launched, results handed over."""

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.runtime.cuda.direct import LEGACY
from lowc.runtime.cuda.driver import DriverError
from lowc.runtime.failures import LATE, failure
from lowc.standalone.arrays import host_array, host_tensor
from lowc.standalone.device_arrays import View, on_gpu, stream_of, view
from lowc.standalone.dtypes import numpy_dtype
from lowc.standalone.function import Function
from lowc.standalone.gpu_choice import gpu_of
from lowc.standalone.gpu_device import GpuDevice, Word
from lowc.standalone.gpu_memory import Memory, PoolMemory, TorchMemory
from lowc.standalone.launcher import Launcher
from lowc.standalone.launches import ALIGNMENT
from lowc.standalone.manifest import Code, Manifest, Size, Tensor
from lowc.standalone.trees import value, values

_ADDRESSABLE = (1 << 63) - 1  # bytes


class GpuModel(Function):
    """A ``Function`` on a GPU, ``device`` ("cuda:0").

    Arguments in the host's memory alone (numpy arrays, torch tensors on the CPU, integers): they are copied there, results back,
    and the call returns when they are there; failed checks of the model are raised as in eager.

    If an argument is in the GPU's memory (``device_arrays``), so are the results, as torch tensors if one was, else as
    ``DeviceArray``.  All work then goes to the caller's stream: torch's current one, else the one that an argument's
    ``__cuda_array_interface__`` names, else the legacy default stream; the call does not wait for it.  A failed check is raised
    by a later call or by ``synchronize``.  A model that was called while that stream was captured lives as long as the process,
    since the CUDA graph reads its weights.

    A call raises LowcError for an argument of the wrong number, name, dtype, rank, size, stride or device, and what the driver
    reports; MemoryError if the GPU or the host has none.
    """

    def __init__(
        self,
        manifest: Manifest,
        code: Code,
        constants: Sequence[np.ndarray],
        functions: dict[str, int],
        on: GpuDevice,
        again: "tuple[Callable[..., Function], tuple[Any, ...]] | None" = None,
    ) -> None:
        """``code``: that of ``functions``, by kernel.  ``constants``: the weights in order.  ``again``: see ``Function``."""
        super().__init__(manifest, code, again)
        self.device = f"cuda:{on.index}"
        self._held = False
        self._on = on
        gpu = gpu_of(code)
        wanted = [launch.params[n] for launch in gpu.launches for n in launch.aligned]
        wanted += [launch.params[m.param] for launch in gpu.launches for m in launch.maps]
        self._aligned = {number for kind, number, _ in wanted if kind == "input"}
        with on.driver.inside(on.context):
            self._late = Word(on.driver)
            weakref.finalize(self, _unpinned, on, self._late).atexit = False
            weights = self._uploaded(constants)
        self._launcher = Launcher(gpu, [s.name for s in manifest.symbols], functions, weights, on.driver)

    def _uploaded(self, constants: Sequence[np.ndarray]) -> list[int]:
        """The addresses of the weights."""
        driver, lane = self._on.driver, self._on.take()
        places = _places([each.nbytes for each in constants])
        try:
            base = driver.allocate(max(places[-1], 1), self._on.pool, lane.stream)
            weakref.finalize(self, _freed, self._on, base).atexit = False
            for array, place in zip(constants, places, strict=False):
                if array.nbytes:
                    driver.copy_in(base + place, array.ctypes.data, array.nbytes, lane.stream)
            driver.wait_for(lane.stream)
        finally:
            self._on.give(lane)
        return [base + place for place in places[:-1]]

    def synchronize(self) -> None:
        """Waits for all work of the GPU, and raises a check that failed in a call that did not wait."""
        with self._on.driver.inside(self._on.context):
            self._on.driver.synchronize()
        self._raise(self._late.take(), LATE)

    def _raise(self, code: int, note: str = "") -> None:
        if code:
            origin = self.code.checks.get(str(code // 16), "")
            raise failure(code % 16, origin, note) or LowcError(f"a kernel reported code {code}", where=origin)

    def _results(self, given: Sequence[Any]) -> list[Any]:
        torch = sys.modules.get("torch")
        there = [t.value is None and on_gpu(a, torch) for a, t in zip(given, self.inputs, strict=True)]
        if any(there) and self._on.driver.current() == self._on.context:  # as it is where torch is at work
            return self._on_device(given, there, torch)
        with self._on.driver.inside(self._on.context):
            if any(there):
                return self._on_device(given, there, torch)
            arrays = [host_array(a, t, torch) for a, t in zip(given, self.inputs, strict=True)]
            results = self.run(arrays)
        if torch is not None and any(isinstance(a, torch.Tensor) for a in given):
            return [host_tensor(r, t, torch) for r, t in zip(results, self.outputs, strict=True)]
        return results

    def run(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """The outputs in order, in the host's memory.  The context is current."""
        sizes = self._sizes(arrays)
        results = [self._result(output, lambda *a: np.empty(a[1], a[0]), sizes) for output in self.outputs]
        lane, driver = self._on.take(), self._on.driver
        memory = PoolMemory(self._on, lane.stream)
        try:
            inputs = [self._placed(array, memory, lane.stream) for array in arrays]
            outputs = [memory.take(r.nbytes) if isinstance(r, np.ndarray) else 0 for r in results]
            self._launch(sizes, inputs, outputs, memory, lane.stream, lane.word)
            for result, address in zip(results, outputs, strict=True):
                if address:
                    driver.copy_out(result.ctypes.data, address, result.nbytes, lane.stream)
            driver.wait_for(lane.stream)
        except BaseException:
            with suppress(DriverError):  # what was begun still reads the arguments
                driver.wait_for(lane.stream)
                lane.word.take()
                self._on.give(lane)
            raise
        finally:
            memory.end()
        code = lane.word.take()
        self._on.give(lane)
        self._raise(code)
        return results

    def _on_device(self, given: Sequence[Any], there: Sequence[bool], torch: Any) -> list[Any]:
        self._raise(self._late.take(), LATE)
        on, driver = self._on, self._on.driver
        far = [a for a, is_there in zip(given, there, strict=True) if is_there]
        own = torch if torch is not None and any(isinstance(a, torch.Tensor) for a in far) else None
        if own is not None:
            stream = int(own._C._cuda_getCurrentRawStream(on.index))  # torch.cuda.current_stream, without an object
        else:
            stream = next((s for s in map(stream_of, far) if s is not None), LEGACY)
        # a default stream is in no capture, and to ask about it while others capture is an error
        if not self._held and stream not in (0, LEGACY) and driver.capturing(stream):
            self._held = True
            on.held.append(self)
        arrays: list[Any] = [
            view(a, t, on.index, driver, stream or LEGACY, torch) if is_there else host_array(a, t, torch)
            for a, t, is_there in zip(given, self.inputs, there, strict=True)
        ]
        sizes = self._sizes(arrays)
        views = [a for a in arrays if isinstance(a, View)]
        others = {v.stream for v in views if v.stream is not None} - {stream}
        for other in others:
            self._order(other, stream)
        memory: Memory = TorchMemory(own, on.index) if own is not None else PoolMemory(on, stream)
        try:
            inputs = [self._placed(array, memory, stream, n in self._aligned) for n, array in enumerate(arrays)]
            results = [self._result(output, memory.result, sizes) for output in self.outputs]
            outputs = [memory.address(r) if isinstance(o, Tensor) else 0 for r, o in zip(results, self.outputs, strict=True)]
            self._launch(sizes, inputs, outputs, memory, stream, self._late)
        except BaseException:
            with suppress(DriverError):  # what was begun still reads the arguments
                driver.wait_for(stream)
            raise
        finally:
            memory.end()
        for other in others:  # what it is given from now on may overwrite the arguments
            self._order(stream, other)
        copied = any(isinstance(a, np.ndarray) and t.value is None for a, t in zip(arrays, self.inputs, strict=True))
        if copied or any(v.lent for v in views):
            driver.wait_for(stream)
        if own is not None:
            return [r.view(own.bfloat16) if _is_bf16(o) else r for r, o in zip(results, self.outputs, strict=True)]
        return results

    def _order(self, first: int, second: int) -> None:
        """What ``second`` is given from now on runs after what ``first`` has been given."""
        event = self._on.driver.event()
        self._on.driver.record(event, first)
        self._on.driver.wait(second, event)
        self._on.driver.destroy_event(event)

    def _placed(self, array: Any, memory: Memory, stream: int, aligned: bool = False) -> int:
        """The address on the GPU of an argument, which may have to be copied to be there, or to be aligned; 0 for a number."""
        if isinstance(array, View):
            if not aligned or array.address % ALIGNMENT == 0:
                return array.address
            place = memory.take(array.span())
            self._on.driver.copy(place, array.address, array.span(), stream)
            return place
        span = array.itemsize + sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) if array.size else 0
        place = memory.take(span)
        if place:
            self._on.driver.copy_in(place, array.ctypes.data, span, stream)
        return place

    def _result(self, output: Tensor | Size, make: Callable[..., Any], sizes: dict[str, int]) -> Any:
        if isinstance(output, Size):
            return value(output.value, sizes)
        shape, dtype = values(output.shape, sizes), numpy_dtype(output.dtype)
        try:
            if min(shape, default=0) < 0 or math.prod(shape, start=dtype.itemsize) > _ADDRESSABLE:
                raise ValueError("no memory is as large")
            return make(dtype, shape)
        except (ValueError, OverflowError) as error:
            raise LowcError(f"{self.name}: output {output.name} cannot have shape {shape}: {error}") from error

    def _launch(
        self, sizes: dict[str, int], inputs: Sequence[int], outputs: Sequence[int], memory: Memory, stream: int, word: Word
    ) -> None:
        size = value(self.code.workspace, sizes)
        if size > _ADDRESSABLE:
            raise MemoryError(f"there is no room for {size} bytes")
        workspace = memory.take(size)
        self._launcher.run(stream, sizes, inputs, outputs, workspace, word.device)


def _places(sizes: Sequence[int]) -> list[int]:
    """Where parts of these sizes begin that lie one behind the other, and where the last one ends."""
    places, end = list[int](), 0
    for size in sizes:
        places.append(end)
        end += -(-size // 256) * 256
    return [*places, end]


def _is_bf16(output: Tensor | Size) -> bool:
    return isinstance(output, Tensor) and output.dtype == "bf16"


def _freed(on: GpuDevice, address: int) -> None:
    """The weights of a model that is no more, once all that the GPU was given is done."""
    with on.driver.inside(on.context):
        on.driver.synchronize()
        on.driver.free(address, LEGACY)


def _unpinned(on: GpuDevice, word: Word) -> None:
    with on.driver.inside(on.context):
        on.driver.synchronize()
        on.driver.free_pinned(word.host)
