"""Whether what a graph gives is right: types as the graph says, values as near to float64 as eager's, give or take a little.

A value may be a few units in the last place from eager's, or four times as far from float64 as eager's or as what rounding each
value on the way makes of it (``reference.wide`` with noise).  Integers and truth values are eager's, or those of float64, unless
rounding decides.  NaN, infinities are eager's or those of one of the runs in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lowc.faults import reference
from lowc.frontend.dtypes import TORCH_DTYPES
from lowc.ir.graph import Graph, GraphArg, Ref, TensorMeta
from lowc.ir.index import evaluate

NOISY = 3
"""Runs in float64 with noise."""


@dataclass(frozen=True)
class Expected:
    """Of one result of a graph, or of an input that it writes to: ``name``, eager's value, that in float64, those with noise;
    ``strides`` as the graph has them, None if any will do."""

    name: str
    eager: Any
    exact: Any
    noisy: tuple[Any, ...]
    strides: tuple[int, ...] | None


def expected(graph: Graph, inputs: Sequence[Any]) -> list[Expected]:
    """What ``graph`` shall return for ``inputs``, then what inputs that it writes to shall hold.  Raises what torch raises."""
    values, sizes = reference.eager(graph, inputs)
    generator = torch.Generator().manual_seed(0)
    runs: list[reference.Values] = []
    if not any(i.meta.device.startswith("cuda") for i in graph.inputs if isinstance(i.meta, TensorMeta)):
        runs = [reference.wide(graph, inputs), *(reference.wide(graph, inputs, generator) for _ in range(NOISY))]
    else:
        runs = [reference.wide(graph, inputs)]
    found: list[Expected] = []
    metas = {(i.name, 0): i.meta for i in graph.inputs} | {(n.name, k): m for n in graph.nodes for k, m in enumerate(n.outputs)}
    for number, out in enumerate(graph.outputs):
        meta = metas.get((out.name, out.number)) if isinstance(out, Ref) else None
        known = isinstance(meta, TensorMeta)
        strides = tuple(int(evaluate(s, sizes)) for s in meta.strides) if known else None
        each = [_value(out, run, sizes) for run in (values, *runs)]
        found.append(Expected(f"result {number}", each[0], each[1], tuple(each[2:]), strides))
    for given in graph.inputs:
        if given.mutated:
            each = [run[given.name][0] for run in (values, *runs)]
            found.append(Expected(f"input {given.name}", each[0], each[1], tuple(each[2:]), None))
    return found


def _value(out: GraphArg, values: reference.Values, sizes: dict[str, int]) -> Any:
    return values[out.name][out.number] if isinstance(out, Ref) else reference.literal(out, sizes)


def wrong(wanted: Sequence[Expected], found: Sequence[Any]) -> str:
    """What is wrong with ``found``, which has as many values as ``wanted``; "" if it is right."""
    for each, value in zip(wanted, found, strict=True):
        if said := _wrong(each, value):
            return f"{each.name}: {said}"
    return ""


def _wrong(wanted: Expected, value: Any) -> str:
    right = wanted.eager
    if not isinstance(right, Tensor):
        return "" if right is None or value == right else f"{value!r}, not {right!r}"
    if not isinstance(value, Tensor):
        return f"{value!r}, not a tensor"
    if value.dtype != right.dtype or value.shape != right.shape:
        return f"{value.dtype}{list(value.shape)}, not {right.dtype}{list(right.shape)}"
    if wanted.strides is not None and value.numel() and _steps(value, value.stride()) != _steps(value, wanted.strides):
        return f"strides {value.stride()}, not {wanted.strides}"
    mask = differing(value, right, wanted.exact, wanted.noisy)
    if not mask.any():
        return ""
    places = mask.nonzero()[:1].tolist()[0]
    rows = [t[mask][:3].tolist() for t in (value, right)]
    return f"{int(mask.sum())} of {mask.numel()} values, the first at {places}: {rows[0]}, in eager {rows[1]}"


def _steps(value: Tensor, strides: Sequence[int]) -> list[int]:
    return [s for n, s in zip(value.shape, strides, strict=True) if n > 1]


def differing(value: Tensor, right: Tensor, exact: Any, noisy: Sequence[Any] = ()) -> Tensor:
    """Where ``value`` is further from eager's ``right`` than it may be; ``exact``: in float64, or what stands for it."""
    value, right = value.detach(), right.detach()
    if right.is_complex():
        near_to = torch.view_as_real(exact.resolve_conj()) if isinstance(exact, Tensor) and exact.is_complex() else None
        real, other = (torch.view_as_real(t.resolve_conj()) for t in (value, right))
        return differing(real, other, near_to).any(-1)
    if right.dtype not in reference.ROUNDED and right.dtype != torch.float64:
        return _otherwise(value, right, exact, noisy)
    x, y = value.double(), right.double()
    e = exact.double() if isinstance(exact, Tensor) and exact.shape == right.shape else y
    unit = torch.finfo(right.dtype).eps
    least = 4 * torch.finfo(right.dtype).tiny
    distance = (y - e).abs().nan_to_num(0.0, 0.0, 0.0)
    for run in noisy:
        distance = torch.maximum(distance, (run.double() - e).abs().nan_to_num(0.0, 0.0, 0.0))
    if distance.numel():  # that one element of many is near by luck says nothing
        distance = torch.maximum(distance, 2 * distance.square().mean().sqrt())
    near = (x - y).abs() <= 8 * unit * y.abs() + least
    near |= (x - e).abs() <= 4 * distance + 8 * unit * e.abs() + least
    near &= x.isfinite()
    for run in (right, exact, *noisy):
        if isinstance(run, Tensor) and run.shape == right.shape:
            narrow = run.to(right.dtype).double()
            near |= (x == narrow) | (x.isnan() & narrow.isnan())
    return ~near


def _otherwise(value: Tensor, right: Tensor, exact: Any, noisy: Sequence[Any]) -> Tensor:
    if right.dtype not in TORCH_DTYPES or right.element_size() == 1 and right.is_floating_point():
        return value.view(torch.uint8) != right.view(torch.uint8)
    mask = value != right
    if isinstance(exact, Tensor) and exact.shape == right.shape:
        mask &= value != exact
        for run in noisy:
            mask &= run == exact
    return mask

