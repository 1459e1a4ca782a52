"""What a backward pass needs of inputs that the forward pass overwrites.

The partitioner may keep an input instead of what is made of it, to be made again in the backward pass.  If the forward pass ends
by writing to that input,

    forward(x, y, w):  z = x / y;  copy_(y, y * 2);  return z * w, x, y        # x, y: kept
    backward(x, y, g): return g * (x / y)

the backward pass would see the new ``y``.  Then a copy, taken before the write, is kept; views of the input are made of the copy.
The same holds where AOTAutograd writes the input after the forward pass, because that write has a gradient: autograd would say
that what was kept "has been modified by an inplace operation" (eager's in-place ops keep a copy, too).
"""

from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

_ATEN = torch.ops.aten


def keep_copies(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> None:
    """Makes ``forward``, whose results from number ``outputs`` on are kept for ``backward``, keep no memory that it writes to."""
    written = {n.args[0] for n in forward.graph.find_nodes(op="call_function", target=_ATEN.copy_.default)}
    (output,) = forward.graph.find_nodes(op="output")
    later = {d.mutated_input for d in output.meta.get("desc", ()) if isinstance(d, InputMutationAOTOutput)}
    if later:
        written |= {n for n in forward.graph.find_nodes(op="placeholder") if n.meta.get("desc") in later}
    if not written:
        return
    results = list(output.args[0])
    copies: dict[fx.Node, fx.Node] = {}
    for number in range(outputs, len(results)):
        node = results[number]
        chain = _views(node)
        if chain is None or chain[0] not in written:
            continue
        results[number] = _copied(forward.graph, chain, copies)
        for placeholder in backward.graph.find_nodes(op="placeholder"):
            if placeholder.target == node.name:
                placeholder.meta.update(results[number].meta)
    if copies:
        output.args = (tuple(results),)
        forward.recompile()


def _views(node: Any) -> list[fx.Node] | None:
    """``node`` and what it is a view of, the input first; None if it has memory of its own, or none."""
    chain: list[fx.Node] = []
    while isinstance(node, fx.Node):
        chain.append(node)
        if node.op == "placeholder":
            return chain[::-1]
        schema = getattr(node.target, "_schema", None)
        alias = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        if alias is None or alias.is_write:
            return None
        node = node.args[0]
    return None


def _copied(graph: fx.Graph, chain: list[fx.Node], copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """The last of ``chain``, made of a copy of its first, which is taken before anything is computed."""
    if chain[0] not in copies:
        start = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(start):
            copies[chain[0]] = _typed(graph.call_function(_ATEN.clone.default, (chain[0],)))
    for before, node in pairwise(chain):
        if node not in copies:
            with graph.inserting_after(node):
                args = (copies[before], *node.args[1:])
                copies[node] = _typed(graph.create_node("call_function", node.target, args, node.kwargs))
    return copies[chain[-1]]


def _typed(node: fx.Node) -> fx.Node:
    """``node`` with the type of its result."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    op: Any = node.target
    with node.all_input_nodes[0].meta["val"].fake_mode:
        node.meta["val"] = op(*args, **kwargs)
    return node
