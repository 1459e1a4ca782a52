"""Common subexpressions of an FX graph of ATen ops, merged.

torch has such a pass, but it pulls in torch's own code generator on first use.  Needed before the forward and backward graphs are
parted: the backward formula repeats much of the forward.
"""

from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from lowc.frontend.collectives import is_collective

_FRESH_MEMORY = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
)


def merge_equal_nodes(graph: fx.Graph) -> int:
    """Replaces each node by an earlier one that computes the same; returns how many went.

    Kept apart: random ops, collectives, memory that is not yet written, reads of data as numbers, everything that shares storage
    with an output (two results that eager keeps apart must not become one), and reads on both sides of an op that writes.
    """
    outputs = _output_storages(graph)
    seen: dict[Any, fx.Node] = {}
    merged = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            seen.clear()
            continue
        if not _repeatable(node):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs), node.meta.get("partitioner_tag"))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        if _shares(first, outputs):
            seen[key] = node
        elif not _shares(node, outputs):
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            merged += 1
    return merged


def _repeatable(node: fx.Node) -> bool:
    """Whether the op of ``node`` gives the same wherever it is called with the same."""
    target = node.target
    if is_collective(node):  # the other ranks count them
        return False
    if isinstance(target, torch._ops.OpOverload):
        if (
            torch.Tag.nondeterministic_seeded in target.tags
            or target._schema.name.split("::")[1] in _FRESH_MEMORY
        ):
            return False
        if not target._schema.returns or target is torch.ops.aten._local_scalar_dense.default:
            return False
    elif isinstance(target, torch._ops.HigherOrderOperator) or node.meta.get("unbacked_bindings"):
        return False
    return not node.meta.get("unbacked_bindings")


def _shares(node: fx.Node, outputs: set[StorageWeakRef]) -> bool:
    """Whether a result of ``node`` lies in the memory of an output."""
    values = node.meta.get("val")
    return any(_storage(v) in outputs for v in (values if isinstance(values, tuple | list) else (values,)))


def _output_storages(graph: fx.Graph) -> set[StorageWeakRef]:
    refs = {_storage(node.meta.get("val")) for node in graph.find_nodes(op="output")[0].all_input_nodes}
    return {r for r in refs if r is not None}


def _storage(value: Any) -> StorageWeakRef | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    try:
        return StorageWeakRef(value.untyped_storage())
    except NotImplementedError:
        return None


def _key(value: Any) -> Any:
    """Something hashable that tells 1, 1.0 and True, and 0.0 and -0.0 apart."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, tuple | list):
        return tuple(_key(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    if isinstance(value, float | complex):
        return (type(value), repr(value))
    return (type(value), value)
