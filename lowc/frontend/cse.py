"""Common subexpressions of an FX graph of ATen ops, merged.

torch has such a pass, but it pulls in torch's own code generator on first use.  Needed before the forward and backward graphs are
parted: the backward formula repeats much of the forward.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

_FRESH_MEMORY = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
)


def merge_equal_nodes(graph: fx.Graph) -> int:
    """Replaces each node by an earlier one that computes the same; returns how many went.

    Kept apart: random ops, ops that are not torch's own, memory that is not yet written, reads of data as numbers, everything
    that shares storage with an output (two results that eager keeps apart must not become one), and reads on both sides of an
    op that writes.
    """
    outputs = _output_storages(graph)
    seen: dict[Any, fx.Node] = {}
    merged = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        target, meta = node.target, node.meta
        repeats = _repeats(target)
        if repeats is None:
            seen.clear()
        if not repeats or meta.get("unbacked_bindings"):
            continue
        kwargs = node.kwargs
        key = (target, _key(node.args), _key(kwargs) if kwargs else (), meta.get("partitioner_tag"))
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


@lru_cache(1 << 10)
def _repeats(target: Any) -> bool | None:
    """Whether ``target`` gives the same wherever it is called with the same; None if it writes to what it takes."""
    if not isinstance(target, torch._ops.OpOverload):
        return not isinstance(target, torch._ops.HigherOrderOperator)
    if target._schema.is_mutable:
        return None
    if target.namespace not in ("aten", "prims"):  # other ranks count collectives; a user's op may draw or count
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or target._schema.name.split("::")[1] in _FRESH_MEMORY:
        return False
    return bool(target._schema.returns) and target is not torch.ops.aten._local_scalar_dense.default


def _shares(node: fx.Node, outputs: set[StorageWeakRef]) -> bool:
    """Whether a result of ``node`` lies in the memory of an output."""
    values = node.meta.get("val")
    return any(storage_of(v) in outputs for v in (values if isinstance(values, tuple | list) else (values,)))


def _output_storages(graph: fx.Graph) -> set[StorageWeakRef]:
    refs = {storage_of(node.meta.get("val")) for node in graph.find_nodes(op="output")[0].all_input_nodes}
    return {r for r in refs if r is not None}


def storage_of(value: Any) -> StorageWeakRef | None:
    """The memory of a tensor; None if it has none that is known."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    try:
        return StorageWeakRef(value.untyped_storage())
    except NotImplementedError:
        return None


def _key(value: Any) -> Any:
    """Something hashable that tells 1, 1.0 and True, and 0.0 and -0.0 apart."""
    kind = type(value)
    if kind is fx.Node or kind is int:  # most are
        return value
    if isinstance(value, tuple | list):
        return tuple([_key(v) for v in value])
    if isinstance(value, dict):
        return tuple([(k, _key(v)) for k, v in sorted(value.items())])
    if isinstance(value, slice):
        return ("slice", _key(value.start), _key(value.stop), _key(value.step))
    if kind is float or kind is complex:
        return (kind, repr(value))
    return (kind, value)
