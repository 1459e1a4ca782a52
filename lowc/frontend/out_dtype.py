"""``out_dtype``, the function with which quantised models say of which dtype a product is, as the ops that it stands for.

    out_dtype(aten.mm, int32, x, w)   of int8            →  aten._int_mm(x, w)
    out_dtype(op, dtype, x, w, …)     of anything else   →  to dtype (op (what all are promoted to, x, w, …))

which is what torch's own implementation does (``torch/_higher_order_ops/out_dtype.py``).
"""

from typing import Any

import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

aten = torch.ops.aten


def replace_out_dtype(gm: fx.GraphModule) -> None:
    """Replaces each ``out_dtype`` of ``gm`` in place."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.out_dtype):
        op, dtype, *args = node.args
        values: list[Any] = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        with gm.graph.inserting_before(node):
            if op is aten.mm.default and dtype is torch.int32 and all(t.dtype is torch.int8 for t in tensors):
                new = _made(gm.graph, node, aten._int_mm.default, (*args,), {})
            else:
                like = torch.ones(1, dtype=dtype)
                common, _ = elementwise_dtypes(*tensors, like, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
                wide = [
                    _made(gm.graph, node, aten._to_copy.default, (a,), {"dtype": common})
                    if isinstance(v, torch.Tensor) and v.dtype is not common
                    else a
                    for a, v in zip(args, values, strict=True)
                ]
                new = _made(gm.graph, node, op, tuple(wide), dict(node.kwargs))
                if new.meta["val"].dtype is not dtype:
                    new = _made(gm.graph, node, aten._to_copy.default, (new,), {"dtype": dtype})
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)


def _made(graph: fx.Graph, old: fx.Node, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    """A call of ``op`` at the user's line of ``old``."""
    node = graph.call_function(op, args, kwargs)
    node.meta.update({k: v for k, v in old.meta.items() if k != "val"})
    node.meta["val"] = op(*[a.meta["val"] if isinstance(a, fx.Node) else a for a in args], **kwargs)
    return node
