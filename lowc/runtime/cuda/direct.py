"""The driver's calls that an artifact makes by itself, from Python: memory in the order of streams, copies, launches.

(What is compiled in this process has native code for that, ``artifact.Record``; an artifact's host may be of any kind.)
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from lowc.runtime.cuda.driver import Driver, DriverError

MAP_BYTES = 128
LEGACY = 1
"""The handle of the default stream that waits for all others, and they for it."""
_SWIZZLE, _PROMOTION = "CU_TENSOR_MAP_SWIZZLE_128B", "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"  # as backends.nvptx.walker


class Direct(Driver):
    """Streams, pools, functions and addresses are numbers, sizes are bytes.  All but ``count`` and ``current`` need a
    current context."""

    def count(self) -> int:
        """How many GPUs this process may use."""
        return int(self._do("cuDeviceGetCount"))

    def holder(self, address: int) -> int | None:
        """The device whose memory ``address`` is in; None if it is in no device's."""
        attribute = self._cu.CUpointer_attribute
        try:
            kind = self._do("cuPointerGetAttribute", attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
            if int(kind) != int(self._cu.CUmemorytype.CU_MEMORYTYPE_DEVICE):
                return None
            return int(self._do("cuPointerGetAttribute", attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address))
        except DriverError as error:
            if error.name == "CUDA_ERROR_INVALID_VALUE":  # memory that the driver does not know
                return None
            raise

    def current(self) -> int:
        """The context of this thread, 0 for none."""
        return int(self._do("cuCtxGetCurrent"))

    # ------------------------------------------------------------ memory

    def pool(self, index: int) -> int:
        """A pool of memory of device ``index`` that keeps what is freed, for the next call."""
        if not self.attribute(index, "MEMORY_POOLS_SUPPORTED"):
            raise DriverError(f"GPU {index} has no memory pools, which artifacts need")
        properties = self._cu.CUmemPoolProps()
        properties.allocType = self._cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = self._cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = self._cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = index
        pool = self._do("cuMemPoolCreate", properties)
        threshold = self._cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._do("cuMemPoolSetAttribute", pool, threshold, self._cu.cuuint64_t((1 << 64) - 1))
        return int(pool)

    def allocate(self, size: int, pool: int, stream: int) -> int:
        """Memory for what ``stream`` does from now on, at a multiple of 256 bytes.  Raises MemoryError if there is none."""
        try:
            return int(self._do("cuMemAllocFromPoolAsync", size, self._cu.CUmemoryPool(pool), self._cu.CUstream(stream)))
        except DriverError as error:
            if error.name == "CUDA_ERROR_OUT_OF_MEMORY":
                raise MemoryError(f"the GPU has no {size} bytes of memory") from error
            raise

    def free(self, address: int, stream: int) -> None:
        """Others may have it after what ``stream`` has been given until now."""
        self._do("cuMemFreeAsync", address, self._cu.CUstream(stream))

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        """From the host's memory, which may be used again once it is pageable or ``stream`` is there."""
        self._do("cuMemcpyHtoDAsync", target, source, size, self._cu.CUstream(stream))

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        self._do("cuMemcpyDtoHAsync", target, source, size, self._cu.CUstream(stream))

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self._do("cuMemcpyDtoDAsync", target, source, size, self._cu.CUstream(stream))

    def free_pinned(self, host: int) -> None:
        """What ``pinned`` gave."""
        self._do("cuMemFreeHost", host)

    # ------------------------------------------------------------ work

    def wait_for(self, stream: int) -> None:
        """Until ``stream`` has done what it was given."""
        self._do("cuStreamSynchronize", self._cu.CUstream(stream))

    def tensor_map(
        self, dtype: int, base: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int], target: int
    ) -> None:
        """Writes the map of ``artifact.TensorMap`` to the 128 bytes at ``target``."""
        cu = self._cu
        wide, narrow = cu.cuuint64_t, cu.cuuint32_t
        made = self._do(
            "cuTensorMapEncodeTiled",
            cu.CUtensorMapDataType(dtype), len(sizes), base, [wide(n) for n in sizes], [wide(n) for n in strides],
            [narrow(n) for n in box], [narrow(1)] * len(box),
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, getattr(cu.CUtensorMapSwizzle, _SWIZZLE),
            getattr(cu.CUtensorMapL2promotion, _PROMOTION), cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        ctypes.memmove(target, int(made.getPtr()), MAP_BYTES)

    def places_map(
        self, dtype: int, base: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int],
        corners: tuple[Sequence[int], Sequence[int]], steps: Sequence[int], target: int,
    ) -> None:  # fmt: skip
        """The same for a map of places; ``corners``: ``lower`` and ``upper``."""
        cu = self._cu
        wide, narrow = cu.cuuint64_t, cu.cuuint32_t
        made = self._do(
            "cuTensorMapEncodeIm2col",
            cu.CUtensorMapDataType(dtype), len(sizes), base, [wide(n) for n in sizes], [wide(n) for n in strides],
            *map(list, corners), *box, [narrow(n) for n in (1, *steps, 1)],
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, getattr(cu.CUtensorMapSwizzle, _SWIZZLE),
            getattr(cu.CUtensorMapL2promotion, _PROMOTION), cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        ctypes.memmove(target, int(made.getPtr()), MAP_BYTES)

    def launch(self, function: int, blocks: int, threads: tuple[int, int], shared: int, stream: int, params: Any) -> None:
        """``params``: a ctypes array of addresses of the values."""
        x, y = threads
        where = ctypes.addressof(params)
        self._do(
            "cuLaunchKernel", self._cu.CUfunction(function), blocks, 1, 1, x, y, 1, shared, self._cu.CUstream(stream), where, 0
        )
