"""Memory on a GPU for one call: what it has for itself, which is let go at its end, and its results."""

import math
from typing import Any, Protocol

import numpy as np

from lowc.standalone.device_arrays import DeviceArray
from lowc.standalone.gpu_device import GpuDevice


class Memory(Protocol):
    """Addresses are multiples of 256.  The driver's context is current."""

    def take(self, size: int) -> int:
        """The address of ``size`` bytes until ``end``; 0 for none.  Raises MemoryError."""
        ...

    def result(self, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        """An array that stays.  Raises MemoryError."""
        ...

    def address(self, result: Any) -> int: ...

    def end(self) -> None:
        """What was taken is somebody else's after what the call has given its stream."""
        ...


class PoolMemory:
    """Of the pool of lowc's own, in the order of ``stream``."""

    def __init__(self, on: GpuDevice, stream: int) -> None:
        self._on, self._stream = on, stream
        self._taken: list[int] = []

    def take(self, size: int) -> int:
        if size <= 0:
            return 0
        made = self._on.driver.allocate(size, self._on.pool, self._stream)
        self._taken.append(made)
        return made

    def result(self, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> DeviceArray:
        size = math.prod(shape, start=dtype.itemsize)
        address = self._on.driver.allocate(size, self._on.pool, self._stream) if size else 0
        return DeviceArray(self._on.driver, self._on.context, self._on.index, dtype, shape, address, self._stream)

    def address(self, result: Any) -> int:
        return result.address

    def end(self) -> None:
        for address in self._taken:
            self._on.driver.free(address, self._stream)
        self._taken.clear()


class TorchMemory:
    """Of torch's allocator, in the order of its current stream.  (``torch`` is the module, which is not imported here.)"""

    def __init__(self, torch: Any, index: int) -> None:
        self._torch, self._device = torch, torch.device("cuda", index)
        self._taken: list[Any] = []

    def take(self, size: int) -> int:
        if size <= 0:
            return 0
        self._taken.append(self._empty((size,), "uint8"))
        return self._taken[-1].data_ptr()

    def result(self, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        return self._empty(shape, dtype.name)

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        try:
            return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=self._device)
        except self._torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error).splitlines()[0]) from error

    def address(self, result: Any) -> int:
        return result.data_ptr()

    def end(self) -> None:
        self._taken.clear()
