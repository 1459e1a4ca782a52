"""What a graph becomes whose convolutions get ``channels_last`` operands."""

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lowc.frontend.aot import CHANNELS_LAST
from lowc.frontend.channels_last import to_channels_last

A = torch.ops.aten
W = torch.randn(6, 6, 3, 3)


def graph_of(function: object, *shapes: tuple[int, ...]) -> fx.GraphModule:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args = [mode.from_tensor(torch.randn(shape)) for shape in shapes]
        return make_fx(function, tracing_mode="fake")(*args)  # type: ignore[arg-type]


def conv(x: Tensor) -> Tensor:
    return nn.functional.conv2d(x, W, padding=1)


def copies(gm: fx.GraphModule) -> int:
    return len(gm.graph.find_nodes(op="call_function", target=A.clone.default))


def same(gm: fx.GraphModule, function: object, *shapes: tuple[int, ...]) -> None:
    gm.recompile()
    args = [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(gm(*args), function(*args))  # type: ignore[operator]


def test_one_copy_in_and_one_out() -> None:
    def function(x: Tensor) -> Tensor:
        return conv(torch.relu(conv(torch.relu(conv(x)))))

    gm = graph_of(function, (2, 6, 8, 8))
    assert to_channels_last(gm.graph, CHANNELS_LAST)
    assert copies(gm) == 2
    (output,) = gm.graph.find_nodes(op="output")
    assert output.args[0].meta["val"].is_contiguous()
    for node in gm.graph.find_nodes(op="call_function", target=A.relu.default):
        assert node.meta["val"].is_contiguous(memory_format=torch.channels_last)
    same(gm, function, (2, 6, 8, 8))


@pytest.mark.parametrize(
    ("dtype", "groups", "made"),
    [(torch.bfloat16, 1, 1), (torch.float16, 1, 1), (torch.float32, 1, 0), (torch.bfloat16, 2, 0), (torch.bfloat16, 6, 0)],
)
def test_of_16_bits_on_a_gpu(dtype: torch.dtype, groups: int, made: int) -> None:
    """But groups of channels, which take what is in rows or get what lies otherwise anyway."""
    with FakeTensorMode():
        args = [torch.empty(shape, device="cuda", dtype=dtype) for shape in ((2, 6, 8, 8), (6, 6 // groups, 3, 3))]
        gm = make_fx(lambda x, w: nn.functional.conv2d(x, w, groups=groups), tracing_mode="fake")(*args)
    assert to_channels_last(gm.graph, CHANNELS_LAST) == bool(made)
    assert copies(gm) == made


def test_what_a_residual_is_added_to_lies_as_that_does() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(conv(x) + x) * x, x * 2

    gm = graph_of(function, (2, 6, 8, 8))
    assert to_channels_last(gm.graph, CHANNELS_LAST)
    copied, _ = gm.graph.find_nodes(op="call_function", target=A.clone.default)
    assert {user.target for user in copied.users} == {A.convolution.default, A.add.Tensor, A.mul.Tensor}
    same(gm, function, (2, 6, 8, 8))


def test_memory_is_read_as_it_lay() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = conv(x)
        return A.as_strided.default(y, [3, 5], [7, 1], 2), y.view(2, 6 * 8, 8) * 2

    gm = graph_of(function, (2, 6, 8, 8))
    assert to_channels_last(gm.graph, CHANNELS_LAST)
    same(gm, function, (2, 6, 8, 8))


def test_results_that_were_permuted_are_so_again() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.relu(conv(x).permute(3, 2, 1, 0))

    gm = graph_of(function, (2, 6, 8, 8))
    before = gm.graph.output_node().args[0].meta["val"].stride()  # type: ignore[union-attr]
    assert to_channels_last(gm.graph, CHANNELS_LAST)
    assert gm.graph.output_node().args[0].meta["val"].stride() == before  # type: ignore[union-attr]
    same(gm, function, (2, 6, 8, 8))


def test_a_loss_and_what_is_detached_of_it_are_no_reason() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        loss = conv(conv(x)).square().mean()  # a sum of either sign has no digits that two orders of it share
        return loss, loss.detach()

    gm = graph_of(function, (2, 6, 8, 8))
    assert to_channels_last(gm.graph, CHANNELS_LAST)
    same(gm, function, (2, 6, 8, 8))


@pytest.mark.parametrize("case", ["double", "one place", "one dimension", "transposed"])
def test_others_stay(case: str) -> None:
    def function(x: Tensor) -> Tensor:
        if case == "double":
            return nn.functional.conv2d(x.double(), W.double())
        if case == "one dimension":
            return nn.functional.conv1d(x.flatten(2), W[:, :, 0])
        return nn.functional.conv_transpose2d(x, W) if case == "transposed" else nn.functional.conv2d(x, W[:, :, :1, :1])

    gm = graph_of(function, (2, 6, 1, 1) if case == "one place" else (2, 6, 8, 8))
    assert not to_channels_last(gm.graph, CHANNELS_LAST)
