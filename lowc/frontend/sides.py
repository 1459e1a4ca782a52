"""One function run by several compilers in turn, and timed: for ``lowc bench``.

Every side has inputs and parameters of its own, equal to the others'.  Sides take turns, a block of calls each, so that
all see the same state of the machine; what is compared are medians over the rounds.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

BLOCK = 0.02
"""Seconds: calls are timed in blocks of at least this."""


@dataclass(slots=True)
class Side:
    """``name``: "eager" or a backend of torch.compile.  ``first``: seconds of the first call, compilation included.  ``times``:
    seconds of a call, one for each round.  ``difference``: the largest from eager's results, relative to the largest value there;
    None if there is nothing to compare.  ``error``: why it could not run, "" if it could."""

    name: str
    first: float = 0.0
    times: list[float] = field(default_factory=list)
    difference: float | None = None
    error: str = ""


def run_sides(
    fn: Callable[..., Any],
    args: Sequence[Any],
    names: Sequence[str],
    options: Mapping[str, Any],
    *,
    backends: Mapping[str, Callable[..., Any]],
    rounds: int,
    dynamic: bool | None = None,
    backward: bool = True,
) -> list[Side]:
    """``fn`` (a module as well) on ``args``, by each side of ``names``.

    A call is the forward pass and, with ``backward`` and where an output needs gradients, the backward pass of the sum of all
    outputs; without, it is made under ``no_grad``.  ``options`` are for those of ``backends``, which are the caller's own; other
    names are torch's.  A side whose first call raises is
    left out and has an ``error``; so is each whose name torch does not know.  What ``fn`` raises in eager is raised.
    """
    torch._dynamo.reset()
    # A deep copy of a tensor has its strides and gaps, but is made of leaves only.
    given = tree_map_only(torch.Tensor, lambda t: t if t.is_leaf else t.detach(), tuple(args))
    reference = _results(_call(*copy.deepcopy((fn, given)), backward)())
    sides: list[Side] = []
    calls: dict[str, Callable[[], Any]] = {}
    for name in names:
        side = Side(name)
        sides.append(side)
        own, inputs = copy.deepcopy((fn, given))
        start = time.perf_counter()
        try:
            call = _call(_compiled(own, name, backends, options, dynamic), inputs, backward)
            results = _results(call())
        except Exception as error:
            side.error = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            continue
        side.first = time.perf_counter() - start
        side.difference = _difference(results, reference)
        calls[name] = call
    blocks = {name: _calls_in_a_block(call) for name, call in calls.items()}
    for turn in range(rounds):
        first = turn % len(sides)
        for side in sides[first:] + sides[:first]:
            if not side.error:
                side.times.append(_seconds(calls[side.name], blocks[side.name]))
    return sides


def _compiled(
    fn: Callable[..., Any],
    name: str,
    backends: Mapping[str, Callable[..., Any]],
    options: Mapping[str, Any],
    dynamic: bool | None,
) -> Callable[..., Any]:
    if name == "eager":
        return fn
    if name in backends:
        return torch.compile(fn, backend=backends[name], dynamic=dynamic, options=dict(options))
    return torch.compile(fn, backend=name, dynamic=dynamic)


def _call(fn: Callable[..., Any], args: Any, backward: bool) -> Callable[[], Any]:
    """A call of ``fn`` without arguments, which returns its results once all work is done."""
    owner = getattr(fn, "_orig_mod", fn)
    leaves = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves += list(owner.parameters()) if isinstance(owner, torch.nn.Module) else []
    on_gpu = any(isinstance(t, torch.Tensor) and t.is_cuda for t in tree_leaves(args))

    def call() -> Any:
        for leaf in leaves:
            leaf.grad = None
        with torch.set_grad_enabled(backward):
            out = fn(*args)
        if backward:
            outs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
            if outs:
                torch.autograd.backward(outs, [torch.ones_like(t) for t in outs])
        if on_gpu:
            torch.cuda.synchronize()
        return out

    return call


def _results(out: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]


def _difference(ours: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float | None:
    """The largest difference of float results, relative to the largest value of the result; None if there is none."""
    worst: float | None = None
    for a, b in zip(ours, wanted, strict=True):
        if b.is_floating_point() and b.numel() and a.shape == b.shape:
            a, b = a.double().nan_to_num(0, 0, 0), b.double().nan_to_num(0, 0, 0)
            found = float((a - b).abs().max()) / (float(b.abs().max()) or 1.0)
            worst = found if worst is None else max(worst, found)
    return worst


def _calls_in_a_block(call: Callable[[], Any]) -> int:
    call()
    once = _seconds(call, 1)
    return max(1, int(BLOCK / max(once, 1e-7)))


def _seconds(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times
