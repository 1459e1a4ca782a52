"""The graphs that torch makes of a function, each with the inputs of its first call.

The function runs as its graphs say, op by op in torch, so that what a later graph gets is right whatever lowc would have done.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from lowc.faults import reference
from lowc.faults.cut import Case
from lowc.faults.judge import differing
from lowc.frontend.capture import capture
from lowc.ir.graph import Graph, Ref
from lowc.lowering.table import TABLE

RANDOM = ("lowc.random", "aten.rand", "aten.bernoulli", "aten.native_dropout", "aten.normal", "aten.uniform", "lowc.call")


@dataclass(frozen=True)
class Captured:
    """``cases`` in the order of their first calls.  ``unsupported``: why graphs are left to torch.  ``astray``: where results of
    the graphs, run op by op in torch, are far from the function's own; "" if they are not, or draw random numbers."""

    cases: tuple[Case, ...]
    unsupported: tuple[str, ...]
    astray: str


def captured(
    fn: Callable[..., Any], args: Sequence[Any], *, dynamic: bool | None = None, backward: bool = True
) -> Captured:
    """Calls ``fn`` on copies of ``args`` through Dynamo and AOTAutograd.  Raises what ``fn`` raises."""
    cases: list[Case] = []

    def compile_graph(graph: Graph, constants: list[torch.Tensor]) -> Callable[[list[Any]], list[Any]]:
        seen: list[bool] = []

        def call(inputs: list[Any]) -> list[Any]:
            given = (*inputs, *constants)
            inputs.clear()
            if not seen:
                seen.append(True)
                cases.append(Case(graph, tuple(map(reference.copied, given))))
            return _carried_out(graph, given)

        return call

    seen = capture(fn, _copies(args), compile_graph, dynamic=dynamic, backward=backward, keep=TABLE.keys())
    astray = ""
    if not any(n.target.startswith(RANDOM) for case in cases for n in case.graph.nodes):
        with torch.set_grad_enabled(backward):
            astray = _apart(fn(*_copies(args)), seen.result)
    return Captured(tuple(cases), seen.unsupported, astray)


def _copies(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_copy(a) for a in args)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return reference.copied(value).requires_grad_(value.requires_grad)
    return deepcopy(value)


def _carried_out(graph: Graph, given: Sequence[Any]) -> list[Any]:
    values, sizes = reference.eager(graph, given)
    for item, tensor in zip(graph.inputs, given, strict=True):
        if item.mutated:
            tensor.detach().copy_(values[item.name][0])
    return [values[o.name][o.number] if isinstance(o, Ref) else reference.literal(o, sizes) for o in graph.outputs]


def _apart(eager: Any, ours: Any) -> str:
    """Where results are further apart than other ways of computing the same would leave them."""
    for number, (right, value) in enumerate(zip(tree_leaves(eager), tree_leaves(ours), strict=False)):
        if not isinstance(right, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        if (right.dtype, right.shape) != (value.dtype, value.shape):
            return f"result {number} is {value.dtype}{list(value.shape)}, in eager {right.dtype}{list(right.shape)}"
        if not right.is_floating_point():
            count = int((right != value).sum()) if right.dtype == torch.bool or not right.is_complex() else 0
            if count:
                return f"result {number}: {count} of {right.numel()} values differ"
            continue
        x, y = value.detach().double(), right.detach().double()
        rough = torch.finfo(right.dtype).eps ** 0.5
        scale = float(y.abs().nan_to_num(0.0, 0.0, 0.0).max()) if y.numel() else 0.0
        mask = ~torch.isclose(x, y, rtol=rough, atol=rough * scale, equal_nan=True) & differing(value, right, right)
        if mask.any():
            shown = f"{x[mask][:3].tolist()}, in eager {y[mask][:3].tolist()}"
            return f"result {number}: {int(mask.sum())} of {mask.numel()} values, {shown}"
    return ""
