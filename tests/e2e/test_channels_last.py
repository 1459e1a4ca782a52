"""Models with convolutions, whose operands get another layout on the way: values, gradients, strides of results as eager's."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowc.frontend import channels_last


class Dense(nn.Module):
    """Concatenation, pooling, an average over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + 5 * n, 5, 3, padding=1) for n in range(3))
        self.norm, self.head = nn.BatchNorm2d(18), nn.Linear(18 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], 1)
        x = F.adaptive_avg_pool2d(F.max_pool2d(self.norm(x), 2), 3)
        return self.head(x.flatten(1))


class Mobile(nn.Module):
    """Depthwise and pointwise convolutions, strides, a gate over channels, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, stride=2, padding=1, groups=12, bias=False)
        self.norm, self.gate, self.out = nn.BatchNorm2d(12), nn.Conv2d(12, 12, 1), nn.Conv2d(12, 12, 3, padding=2, dilation=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.hardswish(self.norm(self.deep(F.silu(self.wide(x)))))
        x = x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))
        return x + self.out(x), x


class Attends(nn.Module):
    """Group norm, attention over places, views of what a convolution gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.qkv = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Conv2d(16, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        q, k, v = self.qkv(self.norm(x)).view(x.shape[0], 3, 16, -1).transpose(2, 3).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return x + y.reshape(x.shape)


class Upward(nn.Module):
    """Pixel shuffle, interpolation, a transposed convolution, memory as it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.back = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(2, 4, 2, stride=2)
        self.last = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.first(x)
        lies = torch.as_strided(y.contiguous(), (4, 5), (7, 1)) * 2
        y = self.back(F.pixel_shuffle(y, 2))
        return F.interpolate(self.last(y), scale_factor=2.0, mode="bilinear"), lies, y[:, :, ::2].permute(2, 3, 0, 1)


MODELS: dict[str, Callable[[], nn.Module]] = {m.__name__: m for m in (Dense, Mobile, Attends, Upward)}


def ran(model: nn.Module, x: Tensor, compiled: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and gradients of the input and the parameters."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out: Any = torch.compile(model, backend="lowc", dynamic=False, options={"strict_errors": True})(x) if compiled else model(x)
    out = [out] if isinstance(out, Tensor) else list(out)
    weights = [torch.linspace(0.5, 1.5, o.numel(), dtype=torch.float64, device=o.device).view(o.shape) for o in out]
    loss = sum((o.to(torch.float64) * weight).sum() for o, weight in zip(out, weights, strict=True))
    return out, list(torch.autograd.grad(loss, (x, *model.parameters())))  # type: ignore[arg-type]


def error(found: list[Tensor], wide: list[Tensor]) -> float:
    with torch.no_grad():
        return max(float((a.double() - b).norm() / (b.norm() + 1e-9)) for a, b in zip(found, wide, strict=True))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_values_gradients_and_strides(name: str, form: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().train()
    x = torch.randn(2, 3, 14, 10).contiguous(memory_format=form)
    wide = ran(copy.deepcopy(model).double(), x.double(), False)
    eager = ran(copy.deepcopy(model), x, False)
    ours = ran(copy.deepcopy(model), x, True)
    for mine, theirs, exact in zip(ours, eager, wide, strict=True):
        assert error(mine, exact) <= 2 * error(theirs, exact) + 1e-6
    assert [o.stride() for o in ours[0]] == [o.stride() for o in eager[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_and_training_change_layouts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    real = channels_last.to_channels_last
    monkeypatch.setattr("lowc.frontend.channels_last.to_channels_last", lambda *given: seen.append(real(*given)))
    torch.manual_seed(0)
    model = Mobile().eval().to(dtype)
    x = torch.randn(2, 3, 14, 10, dtype=dtype)
    with torch.no_grad():
        wide = copy.deepcopy(model).double()(x.double())
        ours, eager = torch.compile(model, backend="lowc", dynamic=False, options={"convolution": "library"})(x), model(x)
    assert error(list(ours), list(wide)) <= 2 * error(list(eager), list(wide)) + 1e-6
    assert [o.stride() for o in ours] == [o.stride() for o in eager]
    ran(model, x, True)
    assert seen == [True, True]


@pytest.mark.parametrize("options", [{"layout": "kept"}, {"numerics": "strict"}], ids=str)
def test_layouts_can_be_kept(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any) -> None:
        raise AssertionError("changed nevertheless")

    monkeypatch.setattr("lowc.frontend.channels_last.to_channels_last", never)
    model = nn.Conv2d(3, 8, 3)
    x = torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="lowc", options=options)(x), model(x))


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 1, 8, 8), (2, 3, 1, 1), (2, 3, 3, 3)], ids=str)
def test_sizes_of_zero_and_one(shape: tuple[int, ...]) -> None:
    model = nn.Conv2d(shape[1], 5, min(shape[2], 3))
    x = torch.randn(shape)
    with torch.no_grad():
        ours, eager = torch.compile(model, backend="lowc", dynamic=False)(x), model(x)
    torch.testing.assert_close(ours, eager)
    assert ours.stride() == eager.stride()


CONV = nn.Conv2d(3, 8, 3, padding=1)
AWKWARD: dict[str, Callable[[Tensor], Any]] = {
    "expanded": lambda x: CONV(x)[:, :1].expand(-1, 4, -1, -1),
    "expanded beside": lambda x: (CONV(x)[:, :1].relu().expand(-1, 4, -1, -1), CONV(x)),
    "windows": lambda x: CONV(x).relu().unfold(3, 3, 1),
    "around a slice": lambda x: CONV(x)[:, 1:].as_strided((4, 5), (5, 1), 0) + 0,
    "random": lambda x: torch.rand_like(CONV(x)),
    "dropped": lambda x: F.dropout(CONV(x), 0.5),
    "places": lambda x: (CONV(x) > 0.5).nonzero(),
    "chosen": lambda x: CONV(x)[x[:, 0, 0, 0] > -9],
    "a number": lambda x: CONV(x)[:1, :1, :1, :1].item() + x,
}


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def eager_and_compiled(case: str, x: Tensor) -> list[list[Tensor]]:
    """What both make of ``x``, with the same random numbers."""
    options = {"convolution": "library", "fallback_random": True, "strict_errors": True}
    results = []
    for function in (AWKWARD[case], torch.compile(AWKWARD[case], backend="lowc", dynamic=False, options=options)):
        torch.manual_seed(0)
        with torch.no_grad():
            found = function(x)
        results.append(list(found) if isinstance(found, tuple) else [found])
    return results


@pytest.mark.parametrize("case", AWKWARD)
def test_what_depends_on_how_memory_lies(case: str) -> None:
    eager, ours = eager_and_compiled(case, torch.randn(2, 3, 10, 12))
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert [r.stride() for r in ours] == [r.stride() for r in eager]


@pytest.mark.parametrize("grad", [False, True])
def test_equal_results_stay_apart(grad: bool) -> None:
    """Values whose strides do not change are still known to be in one memory with views of them."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = CONV(x)
        return y.relu().sum((2, 3)).view(-1), y.relu().sum((2, 3)).view(-1)

    with torch.set_grad_enabled(grad):
        one, other = torch.compile(function, backend="lowc", options={"convolution": "library"})(torch.randn(2, 3, 10, 12))
    assert one.data_ptr() != other.data_ptr()


def test_results_in_one_memory_stay_so() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = CONV(x)
        return y, y.view(2, -1), y[:, 2:5]

    with torch.no_grad():
        found = torch.compile(function, backend="lowc", options={"convolution": "library"})(torch.randn(2, 3, 10, 12))
    assert len({r.untyped_storage().data_ptr() for r in found}) == 1
