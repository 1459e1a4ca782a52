"""Collectives in FX graphs: where waits go, and what is never merged or dropped."""

import logging
import time

import pytest
import torch
from torch import fx

from lowc.errors import Unsupported
from lowc.frontend import ranks
from lowc.frontend.collectives import arrange
from lowc.frontend.cse import merge_equal_nodes
from lowc.frontend.unused import drop_unused

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

import torch.distributed._functional_collectives  # noqa: E402  registers the ops

C, A = torch.ops._c10d_functional, torch.ops.aten


class Made:
    """An FX graph in the making; every value is f32[4, 4]."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.x = self._typed(self.graph.placeholder("x"))

    def _typed(self, node: fx.Node) -> fx.Node:
        node.meta["val"] = torch.empty(4, 4, device="meta")
        return node

    def __call__(self, op: object, *args: object) -> fx.Node:
        return self._typed(self.graph.call_function(op, args))  # type: ignore[arg-type]

    def names(self) -> list[str]:
        """The ops, in order."""
        return [str(node.target).split(".")[1] for node in self.graph.nodes if node.op == "call_function"]


def test_a_wait_goes_to_its_first_use_and_takes_views_along() -> None:
    g = Made()
    start = g(C.all_reduce.default, g.x, "sum", "0")
    view = g(A.view.default, g(C.wait_tensor.default, start), [16])
    sin = g(A.sin.default, g.x)
    g.graph.output((g(A.add.Tensor, sin, view),))
    arrange(g.graph)
    assert g.names() == ["all_reduce", "sin", "wait_tensor", "view", "add"]


def test_a_wait_stays_before_a_write_and_before_a_use_of_its_memory() -> None:
    g = Made()
    start = g(C.all_gather_into_tensor.default, g.x, 2, "0")
    wait = g(C.wait_tensor.default, start)
    early = g(A.sin.default, start)
    g(A.cos.default, early)
    other = g(C.all_reduce.default, early, "sum", "0")
    done = g(C.wait_tensor.default, other)
    g(A.exp.default, early)
    g(A.copy_.default, g.x, early)
    g.graph.output((wait, done))
    arrange(g.graph)
    begin = ["all_gather_into_tensor", "wait_tensor", "sin", "cos", "all_reduce"]
    assert g.names() == [*begin, "exp", "wait_tensor", "copy_"]


def test_what_nobody_waits_for_is_waited_for() -> None:
    g = Made()
    start = g(C.all_reduce.default, g.x, "sum", "0")
    both = g(C.all_reduce_coalesced.default, [g.x, g.x], "sum", "0")
    both.meta["val"] = [start.meta["val"]] * 2
    g(A.sin.default, g.x)
    g.graph.output((start,))
    arrange(g.graph)
    (result,) = g.graph.output_node().args[0]  # type: ignore[misc]
    assert result.target is C.wait_tensor.default and result.args == (start,)
    called = [node.target for node in g.graph.nodes if node.op == "call_function"]
    assert called[-3:] == [C.wait_tensor.default] * 3 and called.index(A.sin.default) == len(called) - 4


def test_equal_collectives_are_kept_apart_and_unused_ones_are_kept() -> None:
    g = Made()
    twice = [g(A.sin.default, g.x) for _ in range(2)]
    done = [g(C.wait_tensor.default, g(C.all_reduce.default, each, "sum", "0")) for each in twice]
    g(C.broadcast.default, g.x, 0, "0")
    g.graph.output((g(A.add.Tensor, done[0], done[1]),))
    assert merge_equal_nodes(g.graph) == 1
    drop_unused(g.graph)
    assert g.names() == ["sin", "all_reduce", "wait_tensor", "all_reduce", "wait_tensor", "broadcast", "add"]


@pytest.mark.parametrize("op", [C.all_reduce_.default, C.broadcast_.default])
def test_in_place_forms_are_refused(op: torch._ops.OpOverload) -> None:
    g = Made()
    last = (0, "0") if op is C.broadcast_.default else ("sum", "0")
    g.graph.output((g(op, g.x, *last),))
    with pytest.raises(Unsupported, match="changes a tensor in place"):
        arrange(g.graph)


def test_a_rank_that_compiles_for_long_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ranks, "_rank", lambda: 3)
    with caplog.at_level(logging.WARNING, "lowc"):
        with ranks.noted("forward", patience=100):
            pass
        assert not caplog.records
        with ranks.noted("forward", patience=0.01):
            until = time.monotonic() + 20
            while not caplog.records and time.monotonic() < until:
                time.sleep(0.01)
    assert "rank 3 has been compiling a graph (forward)" in caplog.text


def test_a_process_that_is_alone_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lowc"), ranks.noted("forward", patience=0.0):
        time.sleep(0.05)
    assert not caplog.records
