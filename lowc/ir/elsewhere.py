"""A graph that was captured on the CPU, as if it had been captured on a GPU, and the other way round.

Every tensor of it moves, and so do the arguments that say where tensors are to be made.  A real capture differs in ops that torch
itself chooses by device (attention, batch norm of cuDNN): here they keep the name that they have where they were captured.
"""

from dataclasses import replace

from lowc.ir.graph import Graph, GraphArg, Meta, TensorMeta

GPU = "cuda:0"


def on_gpu(graph: Graph) -> Graph:
    """``graph`` with everything on "cuda:0"; the graph itself if it is on a GPU already."""
    metas = [i.meta for i in graph.inputs] + [m for node in graph.nodes for m in node.outputs]
    if any(isinstance(m, TensorMeta) and m.device.startswith("cuda") for m in metas):
        return graph
    return _moved(graph, "cpu", GPU)


def on_cpu(graph: Graph) -> Graph:
    """``graph`` with everything that is on a GPU on the CPU."""
    return _moved(graph, "cuda", "cpu")


def _moved(graph: Graph, source: str, target: str) -> Graph:
    """``graph`` with ``target`` for each device of the kind ``source``."""

    def meta(given: Meta) -> Meta:
        there = isinstance(given, TensorMeta) and given.device.partition(":")[0] == source
        return replace(given, device=target) if there else given  # type: ignore[call-overload]

    def arg(given: GraphArg) -> GraphArg:
        if isinstance(given, tuple):
            return tuple(map(arg, given))
        return f"device:{target}" if isinstance(given, str) and given.startswith(f"device:{source}") else given

    inputs = tuple(replace(i, meta=meta(i.meta)) for i in graph.inputs)
    nodes = tuple(
        replace(
            node,
            args=tuple(map(arg, node.args)),
            kwargs=tuple((name, arg(value)) for name, value in node.kwargs),
            outputs=tuple(map(meta, node.outputs)),
        )
        for node in graph.nodes
    )
    return replace(graph, inputs=inputs, nodes=nodes)
