"""Workspaces, misaligned inputs, and constants that somebody's CUDA graph reads."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowc.runtime.tensors import cast_view

_LEAST = 64


def workspace_maker(empty: Callable[..., torch.Tensor]) -> Callable[[int], torch.Tensor]:
    """A function from a number of bytes to a workspace.  torch's allocator is the pool: a workspace that was kept would be
    shared by calls on different streams, or by a captured graph and later calls."""

    def workspace(size: int) -> torch.Tensor:
        return empty((-(-max(size, _LEAST) // _LEAST) * _LEAST,), (1,), torch.uint8)

    return workspace


def placed(
    workspace: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], start: int
) -> torch.Tensor:
    """A tensor in ``workspace``, ``start`` bytes from its beginning (a multiple of the dtype's size)."""
    return torch.as_strided(workspace.view(dtype), shape, strides, start // dtype.itemsize)


def realigner(
    call: Callable[[list[Any]], list[Any]], wanted: Sequence[int], written: Sequence[int], alignment: int
) -> Callable[[list[Any]], list[Any]]:
    """``call`` for arguments of which those at ``wanted`` may be misaligned: it gets copies of them.

    Those at ``written`` are written back.  Outputs that are views of a copy become views of the original.
    """

    def realigned(args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        inside = list(given)
        moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for place in wanted:
            tensor = given[place]
            if tensor.data_ptr() % alignment:
                inside[place] = copied(tensor)
                moved[inside[place].untyped_storage().data_ptr()] = (tensor, inside[place])
        copies = [(given[place], inside[place]) for place in written if given[place] is not inside[place]]
        with torch.no_grad():
            outputs = call(inside)
            for original, copy in copies:
                original.copy_(copy)
            return [_back(out, moved) for out in outputs]

    return realigned


def kept(
    call: Callable[[list[Any]], list[Any]], constants: Sequence[torch.Tensor], seam: Any, hold: list[Any]
) -> Callable[[list[Any]], list[Any]]:
    """``call``, which puts its ``constants`` into ``hold`` once it becomes a part of its caller's capture: the CUDA graph, which
    knows addresses alone, may be replayed after the program is gone.  ``seam``: what torch says (``seam.Seam``)."""
    held = False

    def keeping(args: list[Any]) -> list[Any]:
        nonlocal held
        # The default stream is never in a capture, and to ask about it while others capture is an error.
        if not held and seam.raw_stream() and seam.capturing():
            held = True
            hold.extend(constants)
        return call(args)

    return keeping


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of ``tensor`` with its strides, on new memory (so that it is aligned)."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.as_strided(tensor.detach(), (span,), (1,), tensor.storage_offset())
    return torch.as_strided(flat.clone(), tensor.shape, tensor.stride(), 0)


def _back(out: Any, moved: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """``out`` as a view of the original, if it is one of a copy."""
    if not isinstance(out, torch.Tensor) or not out.numel():
        return out
    found = moved.get(out.untyped_storage().data_ptr())
    if found is None:
        return out
    original, copy = found
    if out is copy:
        return original
    start = original.storage_offset() * original.dtype.itemsize
    if start % out.dtype.itemsize:
        return out
    # strides and offset of the copy's view count from the copy's first element
    base = torch.as_strided(original.detach(), (), (), original.storage_offset())
    return cast_view(base, out.dtype, out.shape, out.stride(), int(out.storage_offset()))
