"""A smaller graph that fails in the same way: one kernel's ops, fewer of them, fewer results, smaller and plainer inputs."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lowc.faults import reference
from lowc.faults.cut import Case, Source
from lowc.faults.kernels import smallest_kernel
from lowc.faults.trial import How, Verdict, tried
from lowc.ir.graph import Graph, Meta, Ref, TensorMeta
from lowc.ir.index import Index, constant, ix
from lowc.target import Target

LITTLE = 12
"""Sizes up to which one is taken off at a time."""
SEED = "torch.Generator().manual_seed({})"


@dataclass
class Reduction:
    """``case`` fails as the first one did; ``recipes``: Python for those of its inputs that need no numbers written out, by name;
    ``trials``: how many graphs were tried."""

    case: Case
    recipes: dict[str, str] = field(default_factory=dict[str, str])
    trials: int = 0


def reduced(case: Case, verdict: Verdict, target: Target, how: How, seconds: float) -> Reduction:
    """The smallest that is found in ``seconds`` or a little more; ``verdict`` is that of ``case``."""
    until = time.monotonic() + seconds
    found = Reduction(smallest_kernel(case, verdict, target, how)[0])

    def fails(candidate: Case | None) -> bool:
        if candidate is None or time.monotonic() > until:
            return False
        found.trials += 1
        return tried(candidate, how).like(verdict)

    _one_result(found, fails)
    _fewer_nodes(found, fails)
    _one_result(found, fails)
    _smaller_sizes(found, fails)
    _fewer_nodes(found, fails)
    _plainer_inputs(found, fails)
    return found


def fewer_nodes(case: Case, verdict: Verdict, how: How, seconds: float) -> Case:
    """``case`` with as few ops as fail in the same way and are found in ``seconds``."""
    until = time.monotonic() + seconds
    found = Reduction(case)
    _fewer_nodes(found, lambda c: c is not None and time.monotonic() < until and tried(c, how).like(verdict))
    return found.case


Fails = Callable[[Case | None], bool]


def _one_result(found: Reduction, fails: Fails) -> None:
    """Only one of the results, or what is written to inputs alone."""
    graph = found.case.graph
    if len(graph.outputs) + sum(i.mutated for i in graph.inputs) < 2:
        return
    source, names = Source(found.case), {n.name for n in graph.nodes}
    for out in graph.outputs:
        if isinstance(out, Ref) and fails(part := source.cut(names, only={(out.name, out.number)})):
            assert part is not None
            found.case = part
            return


def _fewer_nodes(found: Reduction, fails: Fails) -> None:
    """Leaves out runs of nodes, of ever fewer, whose values become inputs."""
    size = max(len(found.case.graph.nodes) // 2, 1)
    while True:
        nodes = [n.name for n in found.case.graph.nodes]
        source = Source(found.case)
        for first in range(0, len(nodes), size):
            left = set(nodes[:first] + nodes[first + size :])
            for part in _parts(source, left, found.case.graph):
                if fails(part):
                    assert part is not None
                    found.case = part
                    break
            else:
                continue
            break
        else:
            if size == 1:
                return
            size //= 2
            continue
        size = min(size, max(len(found.case.graph.nodes) // 2, 1))


def _parts(source: Source, names: set[str], graph: Graph) -> Iterator[Case | None]:
    """What is left with ``names``: with the results that the graph had, or if it loses them, with what these were made of."""
    if not names:
        return
    old = {(o.name, o.number) for o in graph.outputs if isinstance(o, Ref)}
    kept = {o for o in old if o[0] in names}
    if kept:
        yield source.cut(names, only=kept)
    if kept != old or any(i.mutated for i in graph.inputs):
        yield source.cut(names)


def _smaller_sizes(found: Reduction, fails: Fails) -> None:
    """Takes a part off each size that occurs in the inputs, as long as that still fails."""
    while True:
        sizes = sorted({n for v in found.case.inputs if isinstance(v, torch.Tensor) for n in v.shape if n > 1}, reverse=True)
        for old in sizes:
            for new in dict.fromkeys((1, old // 8, old // 2, old * 3 // 4, old - 1 if old <= LITTLE else old * 7 // 8)):
                if 1 <= new < old and fails(part := resized(found.case, old, new)):
                    assert part is not None
                    found.case = part
                    break
            else:
                continue
            break
        else:
            return


def resized(case: Case, old: int, new: int) -> Case | None:
    """``case`` with each size ``old`` of an input, and each number ``old`` among the arguments of its ops, being ``new``; None
    where torch does not run that, or sizes are symbols."""
    graph = case.graph
    if graph.symbols:
        return None
    inputs = tuple(_resized_value(v, old, new) for v in case.inputs)

    def change(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(change, arg))
        if isinstance(arg, Index):
            return ix(new) if constant(arg) == old else arg
        return new if type(arg) is int and arg == old else arg

    nodes = tuple(replace(n, args=change(n.args), kwargs=change(n.kwargs)) for n in graph.nodes)
    changed = replace(graph, nodes=nodes)
    try:
        values = reference.eager(changed, inputs)[0]
    except Exception:
        return None
    metas = [tuple(map(_meta, n.outputs, values[n.name])) for n in nodes]
    return Case(
        replace(
            changed,
            inputs=tuple(replace(i, meta=_meta(i.meta, v)) for i, v in zip(graph.inputs, inputs, strict=True)),
            nodes=tuple(replace(n, outputs=m) for n, m in zip(nodes, metas, strict=True)),
        ),
        inputs,
    )


def _meta(meta: Meta, value: Any) -> Meta:
    if not isinstance(meta, TensorMeta) or not isinstance(value, torch.Tensor):
        return meta
    shape, strides = (tuple(ix(int(n)) for n in numbers) for numbers in (value.shape, value.stride()))
    return replace(meta, shape=shape, strides=strides, offset=ix(int(value.storage_offset())))


def _resized_value(value: Any, old: int, new: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    part = value
    for dim, size in enumerate(value.shape):
        if size == old:
            part = part.narrow(dim, 0, new)
    if not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool and value.numel():
        if old > int(value.max()) >= new and int(value.min()) >= 0:  # places along a dimension
            part = part.remainder(new)
    return part if part is value else _packed(part)


def _packed(value: torch.Tensor) -> torch.Tensor:
    """``value`` without gaps, its dimensions in the order in which they lie."""
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))
    back = [order.index(d) for d in range(value.dim())]
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _plainer_inputs(found: Reduction, fails: Fails) -> None:
    """Contiguous inputs, of numbers that a line of Python makes."""
    for number, given in enumerate(found.case.graph.inputs):
        value = found.case.inputs[number]
        if not isinstance(value, torch.Tensor):
            continue
        if not value.is_contiguous() or value.storage_offset():
            packed = value.clone(memory_format=torch.contiguous_format)
            if fails(case := _with_input(found.case, number, packed)):
                found.case, value = case, packed
        if not value.is_contiguous():
            continue
        for recipe in _recipes(value, number):
            made = eval(recipe, {"torch": torch})
            if fails(case := _with_input(found.case, number, made)):
                found.case = case
                found.recipes[given.name] = recipe
                break


def _recipes(value: torch.Tensor, number: int) -> Sequence[str]:
    shape, dtype = list(value.shape), value.dtype
    if value.numel() <= 4 or value.device.type != "cpu":
        return ()
    seed = SEED.format(number)
    if value.is_floating_point():
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        last = "" if wide == dtype else f".to({dtype})"
        return tuple(f"torch.{how}({shape}, dtype={wide}, generator={seed}){last}" for how in ("randn", "rand"))
    if value.is_complex():
        return ()
    if dtype == torch.bool:
        return (f"torch.randint(0, 2, {shape}, generator={seed}).bool()",)
    return (f"torch.randint({int(value.min())}, {int(value.max()) + 1}, {shape}, dtype={dtype}, generator={seed})",)


def _with_input(case: Case, number: int, value: torch.Tensor) -> Case:
    inputs = tuple(value if k == number else v for k, v in enumerate(case.inputs))
    given = case.graph.inputs[number]
    changed = replace(given, meta=_meta(given.meta, value)) if not case.graph.symbols else given
    graph = replace(case.graph, inputs=tuple(changed if k == number else i for k, i in enumerate(case.graph.inputs)))
    return Case(_retyped(graph, inputs), inputs)


def _retyped(graph: Graph, inputs: Sequence[Any]) -> Graph:
    """``graph`` with the strides that its values have for these inputs."""
    if graph.symbols:
        return graph
    try:
        values = reference.eager(graph, inputs)[0]
    except Exception:
        return graph
    return replace(graph, nodes=tuple(replace(n, outputs=tuple(map(_meta, n.outputs, values[n.name]))) for n in graph.nodes))


