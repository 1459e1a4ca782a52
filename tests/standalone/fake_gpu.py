"""A GPU that is not there: the driver's calls that artifacts make, written down; kernels are run by the interpreter of the IR.

Its memory is the host's.  An address that is in no allocation, or in one that was freed, is an error of the test.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lowc.backends.nvptx import symbol
from lowc.frontend.exported import export
from lowc.ir.index import evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Kernel, Launch
from lowc.ir.numeric import storage_dtype
from lowc.ir.parser import parse_module
from lowc.ir.walk import storage_size
from lowc.package import Package, compile_program
from lowc.runtime.cuda.direct import LEGACY
from lowc.runtime.cuda.driver import DriverError
from lowc.standalone.container import Container
from lowc.standalone.gpu import GpuModel
from lowc.standalone.gpu_device import GpuDevice
from lowc.standalone.loader import load_content

GUARD, FILL = 256, 0xA5


class FakeDriver:
    """Stands in for ``direct.Direct``.  ``log``: ("launch", kernel, blocks, threads, shared, stream), ("map", dtype, base, sizes,
    strides, box), ("in" | "out" | "copy", bytes, stream), ("record", event, stream), ("wait", stream, event), ("sync", stream).
    ``images``: what was loaded.  ``rejects``: images that are refused.  ``fail``: the name of a kernel whose launch fails,
    ``missing``: of one that no image has.  ``live``, ``pins``, ``events``, ``modules``: what has not been freed."""

    def __init__(self, capability: tuple[int, int] = (9, 0), version: int = 13000, holder: int = 0) -> None:
        self.capability, self._version, self._holder = capability, version, holder
        self.kernels: dict[str, Kernel] = {}
        self.log: list[tuple[Any, ...]] = []
        self.images: list[bytes] = []
        self.rejects: set[bytes] = set()
        self.fail = ""
        self.missing = ""
        self.pins: dict[int, Any] = {}
        self.events: set[int] = set()
        self.in_capture: set[int] = set()
        self.modules: set[int] = set()
        self._thread = threading.local()
        self._shared: dict[int, int] = {}
        self.live: dict[int, tuple[np.ndarray, int]] = {}
        self._names: dict[int, str] = {}
        self._next = 0x100

    def _handle(self) -> int:
        self._next += 1
        return self._next

    @property
    def context(self) -> int:
        """That of this thread."""
        return getattr(self._thread, "context", 0)

    @context.setter
    def context(self, context: int) -> None:
        self._thread.context = context

    # ------------------------------------------------------------ driver.Driver

    def count(self) -> int:
        return 2

    def version(self) -> int:
        return self._version

    def device_name(self, index: int) -> str:
        return "Fake"

    def attribute(self, index: int, name: str) -> int:
        return {"COMPUTE_CAPABILITY_MAJOR": self.capability[0], "COMPUTE_CAPABILITY_MINOR": self.capability[1]}[name]

    def retain(self, index: int) -> int:
        return 0x7000 + index

    @contextmanager
    def inside(self, context: int) -> Iterator[None]:
        before, self.context = self.context, context
        try:
            yield
        finally:
            self.context = before

    def current(self) -> int:
        return self.context

    def stream(self) -> int:
        return self._handle()

    def capturing(self, stream: int) -> bool:
        assert stream not in (0, LEGACY), "asked about a default stream"
        return stream in self.in_capture

    def event(self) -> int:
        self.events.add(handle := self._handle())
        return handle

    def destroy_event(self, event: int) -> None:
        self.events.remove(event)

    def record(self, event: int, stream: int) -> None:
        self.log.append(("record", event, stream))

    def wait(self, stream: int, event: int) -> None:
        self.log.append(("wait", stream, event))

    def synchronize(self) -> None:
        self.log.append(("sync", None))

    def pinned(self, size: int) -> tuple[int, int]:
        memory = (ctypes.c_char * size)()
        self.pins[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory), ctypes.addressof(memory)

    def load(self, image: bytes) -> tuple[int, str, str]:
        self.images.append(image)
        if image in self.rejects:
            return 0, "CUDA_ERROR_INVALID_PTX", "line 3"
        self.modules.add(handle := self._handle())
        return handle, "", ""

    def unload(self, module: int) -> None:
        self.modules.remove(module)

    def function(self, module: int, name: str) -> int:
        if name == self.missing:
            raise DriverError("cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND (no)", "CUDA_ERROR_NOT_FOUND")
        self._names[handle := self._handle()] = name
        return handle

    def allow_shared(self, function: int, size: int) -> None:
        self._shared[function] = size

    # ------------------------------------------------------------ direct.Direct

    def holder(self, address: int) -> int | None:
        return self._holder

    def pool(self, index: int) -> int:
        return 0x500

    def free_pinned(self, host: int) -> None:
        del self.pins[host]

    def allocate(self, size: int, pool: int = 0, stream: int = 0) -> int:
        assert size > 0
        block = np.full(size + 2 * GUARD + 256, FILL, np.uint8)
        start = GUARD + -(block.ctypes.data + GUARD) % 256
        self.live[block.ctypes.data + start] = block, size
        return block.ctypes.data + start

    def free(self, address: int, stream: int) -> None:
        block, size = self.live.pop(address)
        start = address - block.ctypes.data
        assert (block[:start] == FILL).all() and (block[start + size :] == FILL).all(), "memory was overrun"

    def at(self, address: int, size: int) -> np.ndarray:
        """``size`` bytes there."""
        for base, (block, length) in list(self.live.items()):
            if base <= address and address + size <= base + length:
                start = address - block.ctypes.data
                return block[start : start + size]
        raise AssertionError(f"nothing of {size} bytes is at {address:#x}")

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        self.log.append(("in", size, stream))
        ctypes.memmove(self.at(target, size).ctypes.data, source, size)

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        self.log.append(("out", size, stream))
        ctypes.memmove(target, self.at(source, size).ctypes.data, size)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self.log.append(("copy", size, stream))
        self.at(target, size)[:] = self.at(source, size)

    def wait_for(self, stream: int) -> None:
        self.log.append(("sync", stream))

    def tensor_map(self, dtype: int, base: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int], to: int):
        assert to % 64 == 0 and base % 16 == 0 and all(s % 16 == 0 for s in strides) and all(0 < n <= 1 << 32 for n in sizes)
        self.log.append(("map", dtype, base, tuple(sizes), tuple(strides), tuple(box)))

    def places_map(self, dtype: int, base: int, sizes: Any, strides: Any, box: Any, corners: Any, steps: Any, to: int) -> None:
        assert to % 64 == 0 and base % 16 == 0 and all(s % 16 == 0 for s in strides) and all(0 < n <= 1 << 32 for n in sizes)
        assert len(corners[0]) == len(corners[1]) == len(steps) == len(sizes) - 2 and len(box) == 2
        self.log.append(("places", dtype, base, tuple(sizes), tuple(strides), tuple(box), *map(tuple, corners), tuple(steps)))

    def launch(self, function: int, blocks: int, threads: tuple[int, int], shared: int, stream: int, params: Any) -> None:
        assert self.context == 0x7000, "no context"
        assert shared <= self._shared.get(function, 48 << 10), "more shared memory than was allowed"
        name = self._names[function]
        self.log.append(("launch", name, blocks, threads, shared, stream))
        if name == self.fail:
            raise DriverError("cuLaunchKernel failed: CUDA_ERROR_LAUNCH (no)", "CUDA_ERROR_LAUNCH")
        kernel = self.kernels[name]
        values = [ctypes.c_int64.from_address(place).value for place in params[: len(kernel.params) + len(kernel.sizes) + 2]]
        *values, word, step = values
        sizes = {s.name: n for s, n in zip(kernel.sizes, values[len(kernel.params) :], strict=True)}
        buffers: dict[str, np.ndarray] = {}
        for param, address in zip(kernel.params, values, strict=False):
            dtype = np.dtype(storage_dtype(param.dtype))
            size = int(evaluate(storage_size(param), sizes)) * dtype.itemsize
            buffers[param.name] = (self.at(address, size) if size else np.empty(0, np.uint8)).view(dtype)
        with np.errstate(all="ignore"):
            try:
                run_kernel(kernel, buffers, sizes)
            except IndexError:
                ctypes.c_int64.from_address(word).value = 1 + 16 * step
            except ZeroDivisionError:
                ctypes.c_int64.from_address(word).value = 2 + 16 * step


def gpu(made: Package, driver: FakeDriver, level: str) -> GpuDevice:
    """The GPU whose driver is ``driver``, which knows the kernels of ``made``'s code for ``level``."""
    for step in parse_module(str(made.texts[level]["ir"])).steps:
        if isinstance(step, Launch):
            driver.kernels[symbol(step.kernel.name)] = step.kernel
    return GpuDevice(0, driver)  # type: ignore[arg-type]


def compiled(fn: Any, inputs: tuple[Any, ...], dynamic: Any = None, levels: tuple[str, ...] = ("sm_90",)) -> Package:
    """The package of ``fn`` with what ``load`` needs."""
    return compile_program(export(fn, inputs, dynamic=dynamic), name="m", levels=levels, emit=("ir",))


def launches(driver: FakeDriver) -> list[tuple[Any, ...]]:
    """(kernel, blocks, threads, shared, stream) of all launches."""
    return [entry[1:] for entry in driver.log if entry[0] == "launch"]


def load(made: Package, driver: FakeDriver | None = None, level: str = "sm_90") -> tuple[GpuModel, FakeDriver]:
    """``made``, compiled with ``emit=("ir",)``, on such a GPU."""
    driver = driver or FakeDriver((int(level[3:-1]), int(level[-1])))
    content = memoryview(b"".join(made.content()))
    model = load_content(content, "model.lowc", level=level, on=gpu(made, driver, level))
    assert isinstance(model, GpuModel)
    return model, driver


def sections(made: Package) -> Container:
    """The container that ``made`` is written as."""
    return Container(memoryview(b"".join(made.content())), "model.lowc")


class OnFake:
    """An array in the memory of ``driver``, by ``__cuda_array_interface__``."""

    def __init__(self, driver: FakeDriver, array: np.ndarray, stream: int | None = None, shift: int = 0) -> None:
        array = np.ascontiguousarray(array)
        self.address = driver.allocate(array.nbytes + shift) + shift
        driver.at(self.address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (self.address, False), "version": 3, "stream": stream,
        }  # fmt: skip


def fetched(driver: FakeDriver, result: Any) -> np.ndarray:
    """What is in a result in the GPU's memory."""
    size = result.nbytes
    if not size:
        return np.empty(result.shape, result.dtype)
    return driver.at(result.address, size).copy().view(result.dtype).reshape(result.shape)
