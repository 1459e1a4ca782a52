"""Inputs made for a graph, of the types that it has, and how long calls take on them: for ``autotune``."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from lowc.frontend.dtypes import TORCH_OF
from lowc.ir.graph import Graph, TensorMeta
from lowc.ir.index import constant

BLOCK = 2e-3  # seconds of one side's calls between two looks at the clock
ROUNDS = 7

Call = Callable[[list[Any]], Any]


def inputs_for(graph: Graph, count: int) -> list[Tensor] | None:
    """The first ``count`` inputs: floats in [0, 1), integers and bools 0, which are places in any table; None if a size is not
    known.  torch's generators are left as they are."""
    with _disable_current_modes():
        return _made(graph, count)


def _made(graph: Graph, count: int) -> list[Tensor] | None:
    draw = torch.Generator("cpu").manual_seed(0)
    made: list[Tensor] = []
    for each in graph.inputs[:count]:
        if not isinstance(each.meta, TensorMeta):
            return None
        sizes = [constant(n) for n in (*each.meta.shape, *each.meta.strides, each.meta.offset)]
        if None in sizes:
            return None
        *sizes, offset = [n or 0 for n in sizes]
        shape, strides = sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]
        room = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        dtype = TORCH_OF[each.meta.dtype]
        if dtype.is_floating_point:
            storage = torch.rand(max(room, 1), generator=draw, device="cpu").to(dtype)
        else:
            storage = torch.zeros(max(room, 1), dtype=dtype, device="cpu")
        made.append(storage.to(each.meta.device).as_strided(shape, strides, offset))
    return made


def ratio(first: Call, second: Call, inputs: Sequence[Tensor]) -> float:
    """How many times as long as ``first`` ``second`` takes: the median over rounds in which both have their turn.

    Calls may write to ``inputs``.  What they draw of torch's generators is put back.
    """
    devices = sorted({x.device.index for x in inputs if x.is_cuda})
    with torch.random.fork_rng(devices), torch.no_grad(), _disable_current_modes():  # graphs arrive while AOTAutograd traces
        times = [_times(call, inputs) for call in (first, second)]
        rounds = [[_seconds(call, inputs, n) for call, n in zip((first, second), times, strict=True)] for _ in range(ROUNDS)]
    return median(b / a for a, b in rounds)


def _times(call: Call, inputs: Sequence[Tensor]) -> int:
    """Calls that fill a block, after two that fill caches and allocators."""
    _seconds(call, inputs, 2)
    return max(1, round(BLOCK / _seconds(call, inputs, 1)))


def _seconds(call: Call, inputs: Sequence[Tensor], times: int) -> float:
    """Of one call, with what it leaves to do on a GPU."""
    on_gpu = any(x.is_cuda for x in inputs)
    start = time.perf_counter()
    for _ in range(times):
        call(list(inputs))
    if on_gpu:
        torch.cuda.synchronize()
    return max(time.perf_counter() - start, 1e-9) / times
