"""Rules for how results lie, against ATen's results."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from lowc.frontend.strides import POINTWISE, REDUCTIONS, of_convolution, of_result, stay

ATEN = torch.ops.aten
LAST = torch.channels_last
OVERLOADS = {
    "clamp": "default", "clamp_max": "default", "clamp_min": "default", "pow": "Tensor_Scalar", "where": "self",
    **dict.fromkeys("add div eq ge gt le lt mul ne sub".split(), "Tensor"), "var": "correction", "var_mean": "correction",
    "amax": "default", "amin": "default", "prod": "dim_int", "any": "dim", "mean": "dim", "sum": "dim_IntList",
}  # fmt: skip
NUMBERS: dict[str, tuple[Any, ...]] = {
    "clamp": (0, 1), "clamp_max": (1,), "clamp_min": (0,), "pow": (2,), "leaky_relu": (0.1,), "threshold_backward": (0,)
}  # fmt: skip
TENSORS = {"where": 3, "threshold_backward": 2, "maximum": 2, "minimum": 2, "logical_and": 2} | dict.fromkeys(
    "add div eq ge gt le lt mul ne sub".split(), 2
)


def node_of(op: Any, *args: Any, **kwargs: Any) -> tuple[fx.Node, Any]:
    """A node that calls ``op``, its operands' types in ``meta``, and what eager gives for them."""
    graph = fx.Graph()
    nodes: list[Any] = []
    for number, arg in enumerate(args):
        nodes.append(graph.placeholder(f"x{number}") if isinstance(arg, Tensor) else arg)
        if isinstance(arg, Tensor):
            nodes[-1].meta["val"] = arg
    return graph.call_function(op, tuple(nodes), kwargs), op(*args, **kwargs)


def given(node: fx.Node) -> list[Any]:
    return [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args]


def results(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def op_of(name: str) -> Any:
    return getattr(getattr(ATEN, name), OVERLOADS.get(name, "default"))


@pytest.mark.parametrize("name", sorted(POINTWISE))
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 6, 2, 3), (3, 2, 5, 2)], ids=str)
def test_pointwise_ops_lie_as_their_operands(name: str, shape: tuple[int, ...]) -> None:
    n, c, h, w = shape
    count = TENSORS.get(name, 1)
    smaller = [(), (1,), (1, c, 1, 1), (c, 1, 1), (n, 1, 1, 1), (w,), (1, 1, h, 1)]
    plain, last = torch.rand(shape), torch.rand(shape).contiguous(memory_format=LAST)
    choices = [plain, last, *map(torch.rand, smaller if name != "threshold_backward" else ())]
    for args in itertools.product(choices, repeat=count):
        if all(a.shape != shape for a in args):
            continue
        operands = [args[0] > 0.5, *args[1:]] if name == "where" else args
        node, found = node_of(op_of(name), *operands, *NUMBERS.get(name, ()))
        assert of_result(node, torch.empty(shape)) == found.stride()
        assert not stay(node, torch.empty(shape))


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("keep", [True, False])
def test_results_of_reductions_are_contiguous(name: str, keep: bool) -> None:
    x = torch.rand(2, 3, 4, 5).contiguous(memory_format=LAST)
    for dims in ([1], [2, 3], [0, 2, 3], [0], [2]):
        dim = dims[0] if name in ("prod", "any") else dims
        node, found = node_of(op_of(name), x, dim, keepdim=keep) if name.startswith("var") else node_of(op_of(name), x, dim, keep)
        old = node_of(op_of(name), x.contiguous(), *node.args[1:], **node.kwargs)[1]
        assert stay(node, old)
        for mine, theirs in zip(results(old), results(found), strict=True):
            assert mine.stride() == theirs.stride()


@pytest.mark.parametrize("shape", [(2, 6, 8, 8), (1, 6, 5, 7), (3, 4, 1, 1), (2, 1, 6, 6)], ids=str)
@pytest.mark.parametrize("kernel, groups", [(3, 1), (1, 1), (3, 0)])
@pytest.mark.parametrize("layouts", [(LAST, LAST), (LAST, torch.contiguous_format), (torch.contiguous_format,) * 2], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_lie_as_their_backend_says(shape: Any, kernel: int, groups: int, layouts: Any, bias: bool) -> None:
    """As fake tensors and ATen have it."""
    groups, outputs = (groups, 8) if groups else (shape[1], 2 * shape[1])
    x = torch.rand(shape).contiguous(memory_format=layouts[0])
    w = torch.rand(outputs, shape[1] // groups, kernel, kernel).contiguous(memory_format=layouts[1])
    numbers = [1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], groups
    forward, found = node_of(ATEN.convolution.default, x, w, torch.rand(outputs) if bias else None, *numbers)
    sizes, mask = [outputs] if bias else None, [True, True, bias]
    backward, gradients = node_of(ATEN.convolution_backward.default, found, x, w, sizes, *numbers, mask)
    for node, eager in (forward, found), (backward, gradients):
        with FakeTensorMode() as mode:
            fake: Any = node.target(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in given(node)))  # type: ignore
        lying = of_convolution(node, eager)
        assert lying == tuple(f if f is None else f.stride() for f in results(fake))
        for theirs, mine in zip(results(eager), lying, strict=True):
            assert theirs is None or all(a == b for n, a, b in zip(theirs.shape, theirs.stride(), mine, strict=True) if n > 1)


def test_a_conversion_keeps_strides() -> None:
    x = torch.rand(2, 3, 4, 5).contiguous(memory_format=LAST)
    node, found = node_of(ATEN._to_copy.default, x, dtype=torch.bfloat16)
    assert of_result(node, found.contiguous()) == found.stride()
    node, _ = node_of(ATEN._to_copy.default, x, memory_format=torch.contiguous_format)
    assert of_result(node, found.contiguous()) is None


def test_torch_is_asked_where_no_rule_tells() -> None:
    x = torch.rand(2, 3, 4, 5)
    last = x.contiguous(memory_format=LAST)
    for op, *args in (
        (ATEN.add.Tensor, torch.rand(3, 4, 1), last),  # of two dimensions: it may decide
        (ATEN.mul.Tensor, x.transpose(2, 3).contiguous().transpose(2, 3), last),
        (ATEN.cumsum.default, last, 1),
        (ATEN.detach.default, last),
    ):
        node, found = node_of(op, *args)
        assert of_result(node, found) is None and not stay(node, found)
    node, found = node_of(ATEN.relu.default, torch.rand(2, 3, 1, 5).contiguous(memory_format=LAST))
    assert of_result(node, found) is None  # of two dimensions, one of size 1, either may be the inner one
