"""A graph that was captured on the CPU, as if it had been captured on a GPU.

Every tensor of it moves to "cuda:0", and so do the arguments that say where tensors are to be made.  A real capture differs in
ops that torch itself chooses by device (attention, batch norm of cuDNN): here they keep the name that they have on the CPU.
"""

from dataclasses import replace

from lowc.ir.graph import Graph, GraphArg, Meta, TensorMeta

GPU = "cuda:0"


def on_gpu(graph: Graph) -> Graph:
    """``graph`` with everything on "cuda:0"; the graph itself if it is on a GPU already."""
    metas = [i.meta for i in graph.inputs] + [m for node in graph.nodes for m in node.outputs]
    if any(isinstance(m, TensorMeta) and m.device.startswith("cuda") for m in metas):
        return graph
    inputs = tuple(replace(i, meta=_meta(i.meta)) for i in graph.inputs)
    nodes = tuple(
        replace(
            node,
            args=tuple(map(_arg, node.args)),
            kwargs=tuple((name, _arg(value)) for name, value in node.kwargs),
            outputs=tuple(map(_meta, node.outputs)),
        )
        for node in graph.nodes
    )
    return replace(graph, inputs=inputs, nodes=nodes)


def _meta(meta: Meta) -> Meta:
    return replace(meta, device=GPU) if isinstance(meta, TensorMeta) else meta


def _arg(arg: GraphArg) -> GraphArg:
    if isinstance(arg, tuple):
        return tuple(map(_arg, arg))
    return f"device:{GPU}" if isinstance(arg, str) and arg.startswith("device:cpu") else arg
