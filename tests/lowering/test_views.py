"""Views emit nothing and alias; reads through chains of views agree with eager, also for symbolic sizes."""

from typing import Any

import pytest
import torch

from lowc.ir.nodes import Launch, View
from lowc.lowering import lower
from tests.lowering.harness import check, check_module, data, run, trace

aten = torch.ops.aten
F = torch.float32

VIEWS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "permute": (lambda x: aten.permute.default(x, [2, 0, -2]), (3, 4, 5)),
    "transpose": (lambda x: aten.transpose.int(x, -1, 0), (3, 4, 5)),
    "t": (aten.t.default, (3, 4)),
    "expand": (lambda x: aten.expand.default(x, [6, -1, 4, -1]), (3, 1, 5)),
    "slice": (lambda x: aten.slice.Tensor(x, 1, 1, -1, 2), (3, 7, 2)),
    "slice_negative": (lambda x: aten.slice.Tensor(x, -1, -3, 9223372036854775807), (3, 7)),
    "slice_empty": (lambda x: aten.slice.Tensor(x, 0, 5, 2), (6, 2)),
    "select": (lambda x: aten.select.int(x, 1, -2), (3, 4, 5)),
    "unsqueeze": (lambda x: aten.unsqueeze.default(aten.unsqueeze.default(x, -1), 0), (3, 4)),
    "squeeze": (aten.squeeze.default, (1, 3, 1, 4)),
    "squeeze_dim": (lambda x: aten.squeeze.dim(aten.squeeze.dim(x, -1), 0), (1, 3, 4)),
    "squeeze_dims": (lambda x: aten.squeeze.dims(x, [0, 2]), (1, 3, 1, 4)),
    "view_merge": (lambda x: aten.view.default(x, [12, 5]), (3, 4, 5)),
    "view_split": (lambda x: aten.view.default(x, [2, 3, 2, -1]), (6, 10)),
    "view_shift": (lambda x: aten.view.default(x, [4, 15]), (6, 10)),
    "view_ones": (lambda x: aten.view.default(x, [1, 6, 1, 10, 1]), (6, 10)),
    "view_flat": (lambda x: aten.view.default(x, [-1]), (3, 4, 5)),
    "unsafe_view": (lambda x: aten._unsafe_view.default(x, [60]), (3, 4, 5)),
    "reshape_alias": (lambda x: aten._reshape_alias.default(x, [12, 5], [5, 1]), (3, 4, 5)),
    "split": (lambda x: aten.split.Tensor(x, 3, 1), (2, 7)),
    "split_sizes": (lambda x: aten.split_with_sizes.default(x, [2, 0, 5], -1), (2, 7)),
    "chunk": (lambda x: x.chunk(3, 0), (7, 2)),
    "unbind": (lambda x: aten.unbind.int(x, 1), (2, 3, 4)),
    "diagonal": (aten.diagonal.default, (3, 5)),
    "diagonal_offset": (lambda x: aten.diagonal.default(x, -1, 2, 0), (3, 4, 5)),
    "diagonal_none": (lambda x: aten.diagonal.default(x, 9), (3, 4)),
    "unfold": (lambda x: aten.unfold.default(x, 1, 3, 2), (2, 8, 3)),
    "alias": (lambda x: aten.alias.default(x), (3, 4)),
    "detach": (lambda x: aten.detach.default(x), (3, 4)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (3, 4)),
    "as_strided_here": (lambda x: aten.as_strided.default(x, [2, 2], [3, 2]), (3, 5)),
    "bits": (lambda x: aten.view.dtype(x, torch.int32), (3, 5)),
    "scalar": (lambda x: aten.view.default(x, []), (1, 1)),
    "from_scalar": (lambda x: aten.expand.default(aten.view.default(x, [1, 1]), [2, 3]), ()),
    "empty": (lambda x: aten.view.default(x, [4, 0, 7]), (0, 7)),
    "chain": (
        lambda x: (
            x.permute(2, 0, 1)[1:, ::2].unsqueeze(1).expand(-1, 3, -1, -1).select(0, 2).diagonal(0, 0, 2)
        ),
        (3, 4, 5),
    ),
    "chain_view": (lambda x: x.view(2, 3, 4, 5).transpose(0, 1)[..., 1].unsqueeze(-1)[:, :, 1:], (6, 20)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_alias(name: str) -> None:
    """The view as an output is a window of the input; read by a kernel it gives eager's values."""
    function, shape = VIEWS[name]
    module = check(function, data(shape, F))
    assert not module.steps and not module.temps
    assert all(isinstance(o, View) and o.buffer is module.inputs[0] for o in module.outputs)
    check(lambda x: [y * 2 for y in listed(function(x))], data(shape, F))


@pytest.mark.parametrize(
    "name", ["permute", "slice", "select", "expand", "view_ones", "unfold", "diagonal", "split", "unsqueeze"]
)
def test_views_of_strided_inputs(name: str) -> None:
    function, shape = VIEWS[name]
    larger = data(tuple(2 * n + 1 for n in reversed(shape)), F)
    window = larger.permute(*reversed(range(len(shape))))[tuple(slice(1, n + 1) for n in shape)]
    assert window.shape == shape
    check(lambda x: [y + 1 for y in listed(function(x))], window)


@pytest.mark.parametrize(
    "name",
    ["permute", "transpose", "view_merge", "view_split", "view_flat", "slice", "expand", "unbind", "chain"],
)
def test_views_of_symbolic_sizes(name: str) -> None:
    function, shape = VIEWS[name]
    check(lambda x: [y * 2 for y in listed(function(x))], data(shape, F), dynamic=True)


def listed(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def test_symbolic_sizes_serve_others() -> None:
    """One module for every size."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x + 1).transpose(0, 1).reshape(-1, x.shape[0] * 2)
        return torch.cat([y, y[:, ::2]], 1).sum(0)

    module = lower(trace(function, (data((6, 8), F),), dynamic=True))
    for shape in ((6, 8), (3, 4), (10, 2), (5, 64)):
        check_module(module, function, (data(shape, F, special=False),), 4)


def test_identity_axes_survive_reshapes() -> None:
    """A split and a merge of the same sizes leave plain coordinates, without division."""
    module = lower(
        trace(lambda x: x.view(2, 3, 20).permute(1, 0, 2).reshape(3, 40).sum(1), (data((6, 20), F),))
    )
    kernels = [s.kernel for s in module.steps if isinstance(s, Launch)]
    assert (
        len(kernels) == 2
        and "//" not in repr(kernels[0].body[0])
        and "FloorDiv" not in repr(kernels[0].body[0])
    )


def test_reshape_that_copies() -> None:
    check(lambda x: x.t().reshape(20) + 1, data((4, 5), F))
    check(lambda x: x.transpose(1, 2).flatten(1), data((2, 4, 5), F))
    check(lambda x: x.t().contiguous(), data((4, 5), F))


def test_complex_memory_is_passed_on() -> None:
    z = torch.complex(data((3, 4), F, special=False), data((3, 4), F, 1, special=False))
    module = check(lambda z: aten.view_as_real.default(z), z)
    assert not module.steps
    check(lambda z: aten.view_as_real.default(z) * 2, z, extern=("aten.mul.Tensor",))
    check(lambda x: aten.view_as_complex.default(x), data((3, 2), F, special=False))
    check(lambda z: (z * 2).abs(), z, extern=("aten.mul.Tensor", "aten.abs.default"), ulps=2)


def test_wider_bits() -> None:
    check(lambda x: aten.view.dtype(x, torch.int64), data((3, 4), torch.int32))
    check(lambda x: aten.view.dtype(x, torch.uint8), data((3, 4), torch.int32))
    check(lambda x: aten.view.dtype(x, torch.bfloat16) * 2, data((3, 4), torch.int16), ulps=0)


def test_a_fixed_place_in_the_storage_of_an_input() -> None:
    """Where an input starts in its storage is known to the call alone."""
    called = ("aten.as_strided_copy.default",)
    module = check(
        lambda x: aten.as_strided.default(x, [2, 3], [1, 4], 2).contiguous(), data((3, 5), F), extern=called
    )
    base = data((4, 5), F)
    (ours,) = run(module, [base[1:]])
    assert torch.equal(ours, base.as_strided([2, 3], [1, 4], 2))


def test_unknown_views_are_called_as_copies() -> None:
    """No extern result may share memory with an argument."""
    module = check(lambda x: aten.as_strided.default(x + 1, [2, 2], [3, 1], 1), data((4, 5), F))
    assert isinstance(module.outputs[0], View)
    check(lambda x: torch.flip(x, [0]), data((4, 5), F))
