"""Buffers may be called anything: names that the host program uses itself are set apart."""

import pytest
import torch

from lowc.compiler import compile_graph
from lowc.ir.graph import Graph, Input, Node, Ref, TensorMeta
from lowc.ir.index import ZERO, ix
from lowc.ir.types import f32
from lowc.options import Options


@pytest.mark.parametrize("name", ["run_and_save", "literal_1", "aten_add", "args", "lambda", "3d"])
def test_a_node_of_any_name(name: str) -> None:
    meta = TensorMeta(f32, (ix(3),), (ix(1),), ZERO, "cpu")
    # an op that stays a call, so that its result has a variable of its own
    node = Node(name, "aten.erfinv.default", (Ref("x"),), (), (meta,))
    graph = Graph("g", (), (Input("x", meta),), (node,), (Ref(name),))
    x = torch.tensor([0.0, 0.5, -0.25])
    (out,) = compile_graph(graph, (), Options(isa="interp"))([x])
    assert torch.equal(out, x.erfinv())
