"""Regressions that programs in the manner of bug reports of torch.compile found."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lowc.dynamo import lowc_backend


def compiled(f: Callable[..., Any], dynamic: bool | None = None, strict: bool = True) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend=lowc_backend, options={"strict_errors": strict}, dynamic=dynamic)


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y.as_strided((3,), (5,), 1).copy_(x[:3, 0] * 10)
    return y


def _beside_others(x: Tensor) -> tuple[Tensor, ...]:
    y, total = x.t() * 2, x.sum(1)
    z = y.flip(0)  # its strides are those of y, and lowc does not make it
    z.as_strided((2, 3), (1, 5), 2).add_(100)
    return y, z, z.as_strided((2, 2), (3, 1), 1) * 2, y.view(torch.int32).as_strided((3,), (2,), 5) + 1, total


def _complex(x: Tensor) -> Tensor:
    y = torch.complex(x, x + 1)
    y.as_strided((3,), (2,), 5).mul_(3)
    return y


def _expanded(x: Tensor) -> Tensor:
    return torch.as_strided_scatter((x[:1] * 2).expand(3, 6), x[0, :2], (2,), (1,), 1)


def _of_a_slice(x: Tensor) -> Tensor:
    y = (x + 1)[1:]
    return torch.as_strided_scatter(y, x[0, :3] * 2, (3,), (2,), 8) + y.as_strided((1, 6), (1, 1), 3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", [_written, _beside_others, _complex, _expanded, _of_a_slice])
def test_a_window_of_the_storage_of_a_temp(f: Callable[[Tensor], Any], dynamic: bool) -> None:
    """ATen counted the window from the beginning of the workspace, in which the temp lies somewhere: the write was lost."""
    ours = compiled(f, dynamic, strict=f is not _complex)  # which torch runs
    for rows in (4, 5):
        x = torch.randn(rows, 6)
        found, wanted = ours(x), f(x)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        assert all(a.stride() == b.stride() for a, b in pairs)


KEPT: list[Tensor] = []


@torch.library.custom_op("lowc_report_findings::keep", mutates_args=())
def keep(x: Tensor) -> Tensor:
    KEPT.append(x)
    return x.clone()


@keep.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_op_of_the_users_keeps_what_it_is_given(dynamic: bool) -> None:
    """It was given a place in the workspace, which later steps and calls wrote to."""

    def f(x: Tensor) -> Tensor:
        first = keep(x.sin() + 1)
        second = keep(((first * 2).cos() * 3)[1:])
        return (second + 1).exp().sum()

    given = [torch.randn(rows, 40) for rows in (50, 50, 30)]
    found = []
    for call in (compiled(f, dynamic), f):
        KEPT.clear()
        for x in given:
            call(x)
        found.append(list(KEPT))
    KEPT.clear()
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_integers_become_floats_of_the_default_dtype(default: torch.dtype) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        maths = x.exp(), x**0.5, x.atan2(x + 1), x.ldexp(x % 5)
        return x / 3, x * 0.1, x > 16777216.5, torch.where(x > 1, x, 0.3), x.clamp(0.1, 1.7), x % 0.7, *maths

    x = torch.tensor([8, 0, 16777217])
    torch.set_default_dtype(default)
    try:
        for ours, eager in zip(compiled(f)(x), f(x), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-14 if default == torch.float64 else 0, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)


COUNTED: list[int] = []


@torch.library.custom_op("lowc_report_findings::count", mutates_args=())
def count(x: Tensor) -> Tensor:
    COUNTED.append(0)
    return x + len(COUNTED)


@count.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


count.register_autograd(lambda ctx, grad: grad)


@pytest.mark.parametrize("training", [False, True])
def test_an_op_of_the_users_is_called_as_often_as_it_is_written(training: bool) -> None:
    """Two calls with the same argument were taken for one: an op that draws random numbers gave the same ones twice."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return count(x) * 2, count(x + 1).sum(), count(x) * 2

    found = []
    for call in (compiled(f), f):
        COUNTED.clear()
        x = torch.zeros(3, requires_grad=training)
        outs = call(x)
        if training:
            torch.stack([out.sum() for out in outs]).sum().backward()
        found.append([*outs, len(COUNTED), x.grad])
    assert found[0][3] == found[1][3] == 3
    torch.testing.assert_close(found[0], found[1])
