"""Arrays in a GPU's memory: those that a caller has, read by the protocols that they speak, and those that a call returns.

    torch.Tensor                    as torch says
    __cuda_array_interface__        CuPy, Numba, ``DeviceArray``: version 2 or 3
    __dlpack__, __dlpack_device__   JAX and others: ``dlpack``
"""

import math
import operator
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.runtime.cuda.direct import LEGACY, Direct
from lowc.runtime.cuda.driver import DriverError
from lowc.standalone import dlpack
from lowc.standalone.dtypes import dense, numpy_dtype, shown
from lowc.standalone.manifest import Tensor


@dataclass(frozen=True, slots=True)
class View:
    """Memory of a GPU.  ``strides`` in bytes.  ``stream``: where it was made, None if nobody has to wait.  ``lent``: it is the
    caller's only until the call returns.  ``kept`` keeps it alive."""

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    stream: int | None
    kept: object
    lent: bool = False

    def __int__(self) -> int:
        raise TypeError("an array in a GPU's memory is no integer")

    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        return self.dtype.itemsize + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


def on_gpu(given: Any, torch: Any) -> bool:
    """Whether ``given`` is in a GPU's memory."""
    if torch is not None and isinstance(given, torch.Tensor):
        return given.device.type == "cuda"
    if isinstance(given, np.ndarray | np.generic):
        return False
    return _interface(given) is not None or dlpack.on_gpu(given)


def stream_of(given: Any) -> int | None:
    """The stream that ``given``, no tensor of torch's, says it was made on."""
    found = _interface(given)
    return None if found is None else _stream(found)


def _stream(found: Mapping[str, Any]) -> int | None:
    """Raises LowcError for what no stream can be."""
    try:
        stream = None if (given := found.get("stream")) is None else operator.index(given)
    except TypeError:
        stream = 0
    if stream is not None and not 0 < stream < 1 << 64:
        what = f"the __cuda_array_interface__ of an argument says that it was made on stream {given!r}"
        raise LowcError(what, hint="streams are numbers above 0, or None")
    return stream


def _interface(given: Any) -> Mapping[str, Any] | None:
    found = getattr(given, "__cuda_array_interface__", None)
    if found is not None and not isinstance(found, Mapping):
        raise LowcError(f"the __cuda_array_interface__ of an argument is a {type(found).__name__}, no dictionary")
    return found


def view(given: Any, tensor: Tensor, index: int, driver: Direct, stream: int, torch: Any) -> View:
    """``given``, which is ``on_gpu``, for the input ``tensor`` of a call on GPU ``index`` and ``stream``.

    Raises LowcError for memory of another GPU, and what cannot be read."""
    if torch is not None and isinstance(given, torch.Tensor):
        return _of_torch(given, tensor, index, torch)
    found = _interface(given)
    made = dlpack_view(given, tensor, stream) if found is None else _of_interface(given, found, tensor)
    if 0 not in made.shape:
        there = driver.holder(made.address)
        if there is not None and there != index:
            raise _elsewhere(tensor, f"cuda:{there}", index)
        if made.address % made.dtype.itemsize:
            raise LowcError(f"input {tensor.name} is not aligned in memory", hint="copy it")
    return made


def _elsewhere(tensor: Tensor, there: str, index: int) -> LowcError:
    hint = f'move it, or load the artifact with device="{there}" as well'
    return LowcError(f"input {tensor.name} is on {there}, and the model on cuda:{index}", hint=hint)


def _of_torch(given: Any, tensor: Tensor, index: int, torch: Any) -> View:
    if given.device.index != index:
        raise _elsewhere(tensor, str(given.device), index)
    if given.layout != torch.strided:
        raise LowcError(f"input {tensor.name} is {given.layout}: not a dense tensor", hint=".to_dense() makes one")
    if given.is_conj() or given.is_neg():
        given = given.detach().resolve_conj().resolve_neg()
    dtype = numpy_dtype(tensor.dtype)
    if given.dtype is not getattr(torch, "bfloat16" if tensor.dtype == "bf16" else dtype.name):
        raise LowcError(f"input {tensor.name} has dtype {given.dtype}, not {shown(tensor.dtype)}", hint=".to converts it")
    size = dtype.itemsize
    return View(dtype, tuple(given.shape), tuple([n * size for n in given.stride()]), given.data_ptr(), None, given)


def _of_interface(given: Any, found: Mapping[str, Any], tensor: Tensor) -> View:
    try:
        dtype, shape = np.dtype(found["typestr"]), tuple(map(int, found["shape"]))
        strides = found.get("strides")
        strides = dense(shape, dtype.itemsize) if strides is None else tuple(map(int, strides))
        address, stream = int(found["data"][0]), _stream(found)
        if len(strides) != len(shape) or not dtype.itemsize:
            raise ValueError(f"typestr {dtype.str}, shape {shape}, strides {strides}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LowcError(f"input {tensor.name}: its __cuda_array_interface__ cannot be read: {error}") from error
    if found.get("mask") is not None:
        raise LowcError(f"input {tensor.name} has a mask, which artifacts do not know")
    return View(dtype, shape, strides, address, stream, given)


def dlpack_view(given: Any, tensor: Tensor, stream: int) -> View:
    """``given`` by DLPack; what made it is done before what ``stream`` is given next."""
    try:
        found = dlpack.read(given, stream)
    except (AttributeError, TypeError, ValueError, BufferError, RuntimeError) as error:
        raise LowcError(f"input {tensor.name} cannot be read by DLPack: {error}") from error
    return View(found.dtype, found.shape, found.strides, found.address, None, found.capsule, lent=True)


class DeviceArray:
    """A result in a GPU's memory, contiguous, complete once ``stream`` has done what it was given.

    ``torch.as_tensor``, CuPy and Numba take it by ``__cuda_array_interface__``, others by DLPack (``jax.dlpack.from_dlpack``);
    ``numpy()`` copies it.  bf16 is ``uint16`` bits.  The memory is freed with the last reference.
    """

    def __init__(
        self, driver: Direct, context: int, index: int, dtype: "np.dtype[Any]", shape: tuple[int, ...], address: int, stream: int
    ) -> None:
        """``address``: of memory that was allocated on ``stream``; 0 where there are no elements."""
        self.dtype, self.shape, self.stream, self.address = dtype, shape, stream, address
        self.device = f"cuda:{index}"
        self._index, self._driver, self._context = index, driver, context
        self.nbytes = math.prod(shape, start=dtype.itemsize)
        if address:
            weakref.finalize(self, _freed, driver, context, address, stream).atexit = False

    def __repr__(self) -> str:
        return f"<lowc array {self.dtype}{list(self.shape)} on {self.device}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3, "strides": None,
            "stream": self.stream or LEGACY,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._index

    def __dlpack__(self, *, stream: int | None = None, dl_device: Any = None, copy: bool | None = None, **_: Any) -> Any:
        """A capsule for whoever works on ``stream``: what made the array is done by then.  Raises BufferError for one that is
        to be elsewhere, or a copy."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"an array on {self.device} is handed over where it is: numpy() copies it to the host")
        with self._driver.inside(self._context):
            if stream != -1 and (stream or LEGACY) != (self.stream or LEGACY):
                self._driver.wait_for(self.stream)
        return dlpack.capsule(self, self.address, self.dtype, self.shape, self._index)

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Raises TypeError: numpy would make an array of one object of it, and a copy from a GPU is to be asked for."""
        raise TypeError(f"an array on {self.device} is no numpy array: its numpy() copies it to the host")

    def numpy(self) -> "np.ndarray":
        """A copy in the host's memory; waits for it."""
        made = np.empty(self.shape, self.dtype)
        if self.nbytes:
            with self._driver.inside(self._context):
                self._driver.copy_out(made.ctypes.data, self.address, self.nbytes, self.stream)
                self._driver.wait_for(self.stream)
        return made


def _freed(driver: Direct, context: int, address: int, stream: int) -> None:
    with driver.inside(context):
        try:
            driver.free(address, stream)
        except DriverError:  # the stream is no more, and so all that it was given is done
            driver.free(address, LEGACY)
