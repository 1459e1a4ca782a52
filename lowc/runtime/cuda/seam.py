"""What lowc asks torch for about one GPU.  Tests put another object with these attributes in its place."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

# (stream id, device index, device type): torch's own name of a stream.
StreamName = tuple[int, int, int]


class Seam:
    """torch's current streams, devices and memory, by the fastest ways that it has (all private, and stable since 2.1)."""

    def __init__(self, index: int) -> None:
        torch.cuda.init()
        core: Any = torch._C
        self.index = index
        self.raw_stream = partial(core._cuda_getCurrentRawStream, index)
        self.stream_name = partial(core._cuda_getCurrentStream, index)
        self.set_stream = core._cuda_setStream
        self.capturing = core._cuda_isCurrentStreamCapturing
        self.device = core._cuda_getDevice
        self.exchange_device = core._cuda_exchangeDevice
        self.empty = _empty(index)
        self.push_range = torch.cuda.nvtx.range_push
        self.pop_range = torch.cuda.nvtx.range_pop

    def external(self, stream: int) -> StreamName:
        """torch's name of a stream that lowc has made."""
        made = torch.cuda.ExternalStream(stream, device=self.index)
        return made.stream_id, made.device_index, made.device_type

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and tensor.get_device() == self.index

    def keep(self, tensor: torch.Tensor) -> None:
        """The memory of ``tensor`` is not given away before what the current stream has been given until its end is done."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self.index))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)


def _empty(index: int) -> Any:
    """An undefined tensor on the current device, of which callers make sure that it is ``index``."""
    try:  # half the time of torch.empty_strided; private, hence the way out
        from torch._C._dynamo.guards import _empty_strided_cuda  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        device = torch.device("cuda", index)

        def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty_strided(shape, strides, dtype=dtype, device=device)

        return empty
    return _empty_strided_cuda
