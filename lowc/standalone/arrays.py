"""Arguments and results in the host's memory: numpy's arrays, torch's tensors on the CPU, and numbers of Python's."""

import secrets
from operator import index
from typing import Any

import numpy as np

from lowc.errors import LowcError
from lowc.standalone.dtypes import numpy_dtype, shown
from lowc.standalone.manifest import Size, Tensor


def host_array(given: Any, tensor: Tensor, torch: Any) -> np.ndarray:
    """``given`` for the input ``tensor`` as an array in the host's memory.  ``torch``: the module, if there is one.  Raises
    LowcError for what is no such array."""
    if tensor.value is not None:
        return _integer(given, tensor)
    if tensor.drawn and getattr(given, "shape", ()) == ():
        return _integer(given, tensor).reshape(1)
    if isinstance(given, np.ndarray):
        if isinstance(given, np.ma.MaskedArray):
            raise LowcError(f"input {tensor.name} has a mask, which artifacts do not know", hint=".filled() makes an array")
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
    if isinstance(given, int | float) and not tensor.shape:
        return _scalar(given, tensor)
    if hasattr(given, "__cuda_array_interface__"):
        what = f"input {tensor.name} is a {type(given).__name__} in a GPU's memory, and the model is on the CPU"
        raise LowcError(what, hint='copy it to the host, or load the artifact with device="cuda:0"')
    raise LowcError(f"input {tensor.name} is a {type(given).__name__}, no array", hint="numpy.asarray makes one")


def random_seed() -> int:
    """A seed from the system's source of random numbers."""
    return secrets.randbits(64) - (1 << 63)


def _scalar(given: float, tensor: Tensor) -> np.ndarray:
    """A number of Python's for an input without dimensions."""
    dtype = numpy_dtype(tensor.dtype)
    kinds = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}[dtype.kind]
    if tensor.dtype == "bf16" or not isinstance(given, kinds) or (isinstance(given, bool) and dtype.kind != "b"):
        what = f"input {tensor.name} is a {type(given).__name__}, and takes {shown(tensor.dtype)} of no dimensions"
        raise LowcError(what, hint="numpy.asarray makes one")
    try:
        return np.asarray(given, dtype)
    except OverflowError as error:
        raise LowcError(f"input {tensor.name} is {given}, no {shown(tensor.dtype)}") from error


def _integer(given: Any, tensor: Tensor) -> np.ndarray:
    """Whatever Python takes for an index, 0-d arrays included, as a 0-d array of i64."""
    try:
        number = index(given)
    except TypeError:
        hint = "int makes one of a whole number"
        raise LowcError(f"input {tensor.name} is a {type(given).__name__}, no integer", hint=hint) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise LowcError(f"input {tensor.name} is {number}, no integer of 64 bits with a sign")
    return np.asarray(number, np.int64)


def host_tensor(result: Any, tensor: Tensor | Size, torch: Any) -> Any:
    """A result as a tensor of torch's on the CPU; a size as it is."""
    if isinstance(tensor, Size):
        return result
    made = torch.from_numpy(result)
    return made.view(torch.bfloat16) if tensor.dtype == "bf16" else made
