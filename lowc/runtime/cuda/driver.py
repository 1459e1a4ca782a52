"""The CUDA driver through ``cuda.bindings``: the calls that lowc makes, handles as plain numbers, each return code checked.

Nothing is loaded before ``driver()`` is called.  The calls of each launch (``artifact.DRIVER_FUNCTIONS``) are not here: native
code makes them, at the ``addresses``.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from lowc.errors import LowcError

LOG_BYTES = 1 << 14


class DriverError(LowcError):
    """A call of the driver failed; ``name`` is its error's, e.g. CUDA_ERROR_INVALID_PTX."""

    def __init__(self, message: str, name: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name


class Driver:
    """The driver of this process.  Contexts, streams, events, modules and functions are their handles' numbers."""

    def __init__(self) -> None:
        try:
            bindings = import_module("cuda.bindings.driver")
        except ImportError as error:
            raise DriverError(
                f"cuda.bindings cannot be imported: {error}", hint="pip install cuda-python"
            ) from error
        self._cu: Any = bindings
        self._do("cuInit", 0)

    def _do(self, name: str, *args: Any) -> Any:
        """The result of a call, or a tuple of them."""
        try:
            code, *values = getattr(self._cu, name)(*args)
        except RuntimeError as error:  # what cuda.bindings raises where there is no driver
            raise DriverError(f"{name}: {error}", hint="is the NVIDIA driver installed?") from error
        if int(code):
            raise self.error(int(code), name)
        return values[0] if len(values) == 1 else tuple(values)

    def error(self, code: int, doing: str) -> DriverError:
        """The exception for a driver's error code."""
        name, text = self.describe(code)
        return DriverError(f"{doing} failed: {name} ({text})", name)

    def describe(self, code: int) -> tuple[str, str]:
        """Name and message of an error code."""
        try:
            result = self._cu.CUresult(code)
        except ValueError:
            return f"CUresult {code}", "unknown to these bindings"
        found = [self._cu.cuGetErrorName(result)[1], self._cu.cuGetErrorString(result)[1]]
        name, text = [f.decode() if isinstance(f, bytes) else "" for f in found]
        return name, text

    # ------------------------------------------------------------ devices and contexts

    def version(self) -> int:
        """E.g. 13000 for CUDA 13.0."""
        return int(self._do("cuDriverGetVersion"))

    def retain(self, index: int) -> int:
        """The primary context of a device, which stays alive from now on."""
        return int(self._do("cuDevicePrimaryCtxRetain", self._do("cuDeviceGet", index)))

    def attribute(self, index: int, name: str) -> int:
        """E.g. attribute(0, "MULTIPROCESSOR_COUNT")."""
        which = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._do("cuDeviceGetAttribute", which, self._do("cuDeviceGet", index)))

    def device_name(self, index: int) -> str:
        return self._do("cuDeviceGetName", 128, self._do("cuDeviceGet", index)).split(b"\0")[0].decode()

    @contextmanager
    def inside(self, context: int) -> Iterator[None]:
        """``context`` is the current one, and calls are allowed that may not be made while another thread captures in
        global mode (none of ours touches what is captured)."""
        self._do("cuCtxPushCurrent", self._cu.CUcontext(context))
        try:
            relaxed = self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            before = self._do("cuThreadExchangeStreamCaptureMode", relaxed)
            try:
                yield
            finally:
                self._do("cuThreadExchangeStreamCaptureMode", before)
        finally:
            self._do("cuCtxPopCurrent")

    # ------------------------------------------------------------ streams and events

    def stream(self) -> int:
        """A new stream that does not wait for the default stream."""
        flags = self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        return int(self._do("cuStreamCreate", flags))

    def destroy_stream(self, stream: int) -> None:
        self._do("cuStreamDestroy", self._cu.CUstream(stream))

    def capturing(self, stream: int) -> bool:
        status = self._do("cuStreamIsCapturing", self._cu.CUstream(stream))
        return int(status) != int(self._cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def event(self) -> int:
        """A new event without a time."""
        return int(self._do("cuEventCreate", self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING.value))

    def destroy_event(self, event: int) -> None:
        self._do("cuEventDestroy", self._cu.CUevent(event))

    def record(self, event: int, stream: int) -> None:
        self._do("cuEventRecord", self._cu.CUevent(event), self._cu.CUstream(stream))

    def wait(self, stream: int, event: int) -> None:
        self._do("cuStreamWaitEvent", self._cu.CUstream(stream), self._cu.CUevent(event), 0)

    def synchronize(self) -> None:
        """Waits for all work of the current context."""
        self._do("cuCtxSynchronize")

    # ------------------------------------------------------------ memory, modules

    def pinned(self, size: int) -> tuple[int, int]:
        """Addresses of ``size`` zeroed bytes of pinned memory, for the host and for the device."""
        portable_and_mapped = 1 | 2
        host = int(self._do("cuMemHostAlloc", size, portable_and_mapped))
        ctypes.memset(host, 0, size)
        return host, int(self._do("cuMemHostGetDevicePointer", host, 0))

    def load(self, image: bytes) -> tuple[int, str, str]:
        """(module or 0, error's text, log) of PTX text."""
        log, errors = bytearray(LOG_BYTES), bytearray(LOG_BYTES)
        option = self._cu.CUjit_option
        options = [
            option.CU_JIT_INFO_LOG_BUFFER,
            option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            option.CU_JIT_ERROR_LOG_BUFFER,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ]
        values: Sequence[Any] = [log, LOG_BYTES, errors, LOG_BYTES]
        code, module = self._cu.cuModuleLoadDataEx(image + b"\0", len(options), options, values)
        said = "\n".join(t for t in (_text(errors), _text(log)) if t)
        if int(code):
            return 0, self.error(int(code), "cuModuleLoadDataEx").message, said
        return int(module), "", said

    def unload(self, module: int) -> None:
        self._do("cuModuleUnload", self._cu.CUmodule(module))

    def function(self, module: int, name: str) -> int:
        return int(self._do("cuModuleGetFunction", self._cu.CUmodule(module), name.encode()))

    def allow_shared(self, function: int, size: int) -> None:
        """Lets a kernel have ``size`` bytes of dynamic shared memory."""
        which = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._do("cuFuncSetAttribute", self._cu.CUfunction(function), which, size)

    def function_attribute(self, function: int, name: str) -> int:
        """E.g. function_attribute(f, "NUM_REGS")."""
        which = getattr(self._cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(self._do("cuFuncGetAttribute", which, self._cu.CUfunction(function)))

    def addresses(self, names: Sequence[str]) -> list[int]:
        """Addresses of functions of the driver's library, for native code to call; 0 for one that it is too old to have, which
        is then one that no code for what it can drive calls."""
        library = ctypes.CDLL("libcuda.so.1")
        return [ctypes.cast(getattr(library, name, 0), ctypes.c_void_p).value or 0 for name in names]


def _text(buffer: bytearray) -> str:
    return bytes(buffer).split(b"\0")[0].decode(errors="replace").strip()


@cache
def driver() -> Driver:
    """The one driver of this process; raises LowcError where there is none."""
    return Driver()
