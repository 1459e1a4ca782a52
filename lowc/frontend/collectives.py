"""Collectives in an FX graph: each start gets a wait, and waits go to where the data is needed.

    r = all_reduce(x); w = wait_tensor(r); v = w.view(6); y = sin(z); return v + y
    r = all_reduce(x); y = sin(z); w = wait_tensor(r); v = w.view(6); return v + y      after ``arrange``

Starts stay where they are, in their order; what torch does in between overlaps with them.  A wait stays before whatever uses
the memory it waits for, and before any op that writes to memory, which may be an operand of the collective.
"""

import operator
from typing import Any

import torch
from torch import fx

from lowc.errors import Unsupported
from lowc.ir import collective


def is_collective(node: fx.Node) -> bool:
    """Whether ``node`` calls an op in which ranks meet, in a higher-order op as well."""
    return any(op.namespace in collective.SPACES for op in _ops(node))


def arrange(graph: fx.Graph) -> None:
    """Adds the waits that are missing and moves all to their places.  The memory of an operand belongs to the call that started
    the collective, and is used again after it: so no collective is still running when a graph returns.

    Raises Unsupported for collectives that change a tensor in place, and for those of a pair of ranks, which receive into an
    argument.
    """
    if not any(map(is_collective, graph.nodes)):
        return
    for node in list(graph.nodes):
        if is_collective(node):
            _check(node)
            if _starts(node):
                _add_waits(graph, node)
    order = {node: number for number, node in enumerate(graph.nodes)}
    delayed = _waited(graph)
    for node in reversed(list(graph.nodes)):
        if node in delayed:
            _delay(node, order)


_BETWEEN_TWO = frozenset({"isend", "irecv", "batch_p2p_ops"})


def _check(node: fx.Node) -> None:
    for op in _ops(node):
        if op._schema.is_mutable:
            raise Unsupported(f"{op} changes a tensor in place", hint="use the functional form, and wait for its result")
        if op._schema.name.split("::")[1] in _BETWEEN_TWO:
            raise Unsupported(f"{op} is between two ranks")


def _ops(node: fx.Node) -> list[torch._ops.OpOverload]:
    if node.op != "call_function":
        return []
    return [op for op in (node.target, *node.args) if isinstance(op, torch._ops.OpOverload)]


def _starts(node: fx.Node) -> bool:
    return collective.starts(str(node.target))


def _is_wait(node: fx.Node) -> bool:
    return str(node.target) == collective.WAIT


def _add_waits(graph: fx.Graph, start: fx.Node) -> None:
    """A wait for each result of ``start`` that has none, of which all uses are uses of the wait then."""
    value = start.meta.get("val")
    results = [start]
    if isinstance(value, tuple | list):
        picked = {user.args[1]: user for user in start.users if user.target is operator.getitem}
        results = [picked.get(number) or _pick(graph, start, number) for number in range(len(value))]
    for result in results:
        if any(_is_wait(user) for user in result.users):
            continue
        with graph.inserting_after(result):
            wait = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (result,))
        wait.meta = dict(result.meta)
        result.replace_all_uses_with(wait, delete_user_cb=lambda user, wait=wait: user is not wait)


def _pick(graph: fx.Graph, start: fx.Node, number: int) -> fx.Node:
    with graph.inserting_after(start):
        node = graph.call_function(operator.getitem, (start, number))
    node.meta = {**start.meta, "val": start.meta["val"][number]}
    return node


def _waited(graph: fx.Graph) -> set[fx.Node]:
    """The waits, and the views of what they give, which cost nothing wherever they are."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_wait(node) or (_is_view(node) and any(each in found for each in node.all_input_nodes)):
            found.add(node)
    return found


def _is_view(node: fx.Node) -> bool:
    return node.target is operator.getitem or bool(getattr(node.target, "is_view", False))


def _delay(node: fx.Node, order: dict[fx.Node, int]) -> None:
    """Moves ``node`` to just before what needs it.  ``order`` tells which of other nodes come after it; all that comes later
    has its final place already."""
    users: set[fx.Node] = set(node.users)
    if _is_wait(node):
        source: Any = node.args[0]
        users |= {user for user in source.users if order[user] > order[node]}
    place = node.next
    while place not in users and place.op != "output" and not _writes(place):
        place = place.next
    if place is not node.next:
        place.prepend(node)


def _writes(node: fx.Node) -> bool:
    return any(op._schema.is_mutable for op in _ops(node))
