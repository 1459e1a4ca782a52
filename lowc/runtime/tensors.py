"""What the host program needs of tensors: making them, giving them planned strides, looking at them as
another dtype.
"""

from collections.abc import Sequence
from typing import Any

import torch

from lowc.errors import LowcError

try:  # half the time of torch.empty_strided; private, hence the way out
    from torch._C._dynamo.guards import _empty_strided_cpu as empty  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:

    def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An undefined tensor on the CPU."""
        return torch.empty_strided(shape, strides, dtype=dtype)


def restride(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """``tensor``, or a copy with ``strides`` if its elements lie otherwise (strides of dimensions of size 0
    and 1 say nothing).
    """
    if tensor.numel() and any(
        n > 1 and a != b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True)
    ):
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(
            tensor
        )
    return torch.as_strided(tensor, tensor.shape, strides, tensor.storage_offset())


def cast_view(
    tensor: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int
) -> torch.Tensor:
    """The memory of ``tensor`` as ``dtype``; strides and offset count elements of that."""
    start = int(tensor.storage_offset()) * tensor.dtype.itemsize // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(
        tensor.untyped_storage(), start + offset, shape, strides
    )


def finished(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, after the collective that fills it, if there is one."""
    return torch.ops._c10d_functional.wait_tensor(tensor)


def bumped(*tensors: torch.Tensor) -> None:
    """Tells autograd that ``tensors`` have been changed, as an in-place op of ATen would."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def count(args: Sequence[Any], expected: int) -> None:
    """Raises LowcError unless there are ``expected`` inputs."""
    if len(args) != expected:
        raise LowcError(f"the compiled function takes {expected} inputs, not {len(args)}")


def expect(tensor: Any, name: str, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raises LowcError unless ``tensor`` is on the CPU and has this type (strides of dimensions of size 0 and
    1 do not count).
    """
    if (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype is dtype
        and tensor.is_cpu
        and tensor.layout is torch.strided
    ):
        steps = zip(shape, tensor.stride(), strides, strict=False)
        if (
            tensor.shape == shape
            and (not tensor.numel() or all(n == 1 or a == b for n, a, b in steps))
            and not tensor.is_neg()
        ):
            return
    found = type(tensor).__name__
    if isinstance(tensor, torch.Tensor):
        found = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        found += (
            f" with strides {list(tensor.stride())}"
            if tensor.layout is torch.strided
            else f" of layout {tensor.layout}"
        )
    raise LowcError(
        f"input {name} is {found}; this function was compiled for {dtype} {list(shape)} on cpu with strides {list(strides)}",
        hint="compile again for this input, or mark the sizes that change as dynamic",
    )


def from_name(mark: str) -> Any:
    """The device, memory format or layout that a marked string of ``ir/graph.py`` names."""
    kind, _, name = mark.partition(":")
    return torch.device(name) if kind == "device" else getattr(torch, name)


def torch_version() -> str:
    """Which torch this is: version and commit."""
    return f"{torch.__version__} {torch.version.git_version}"
