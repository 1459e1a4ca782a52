"""Sizes that come from data: the op that finds them is ATen's, what follows is compiled, in one graph and one artifact."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lowc.ir.nodes import Extern, Launch, Module


@pytest.fixture(autouse=True)
def capturing() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield
    torch._dynamo.reset()


def nonzero(x: Tensor) -> Tensor:
    found = (x > 0.5).nonzero()
    return (found * 2 + 1).sum(1) + found.shape[0]


def masked_select(x: Tensor) -> Tensor:
    kept = x.masked_select(x > 0)
    return (kept * 2).exp().cumsum(0)


def boolean_index(x: Tensor) -> Tensor:
    rows = x[x[:, 0] > 0]
    return F.layer_norm(rows, (rows.shape[1],)) * 3


def repeat_interleave(x: Tensor) -> Tensor:
    counts = (x[:, 0] > 0).long() + 1
    return x.repeat_interleave(counts, 0).softmax(1) + 1


def unique(x: Tensor) -> Tensor:
    values, inverse = torch.unique((x * 2).round(), return_inverse=True)
    return (values * 3).sin() + inverse.sum()


def unique_last_columns(x: Tensor) -> Tensor:
    """torch's fake tensor of this has three dimensions."""
    values = torch.unique((x[:, :2] * 2).round(), dim=-1)
    return values.sum(0) * 2 + torch.unique_consecutive((x > 0)[:, 0], dim=-1).sum() + values.shape[0]


def item_as_size(x: Tensor) -> Tensor:
    n = (x[:, 0] > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return torch.zeros(n, x.shape[1], device=x.device) + x[0] * 2


def item_as_start(x: Tensor) -> Tensor:
    n = (x[:, 0] > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x.narrow(0, 0, n).mul(2).sum(0)


def item_as_number(x: Tensor) -> Tensor:
    return x * x.sum().round().long().item() + x.max().item()


def two_of_them(x: Tensor) -> Tensor:
    a, b = x[x > 0], x[x <= 0]
    return torch.cat([a * 2, b - 1]).abs().sum() + a.shape[0] * b.shape[0]


def repeated(x: Tensor) -> Tensor:
    """Divides coordinates by a size that may be 0."""
    rows = x[x[:, 0] > 0]
    return rows.repeat(2, 3) * 2


FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    nonzero,
    masked_select,
    boolean_index,
    repeat_interleave,
    unique,
    unique_last_columns,
    item_as_size,
    item_as_start,
    item_as_number,
    two_of_them,
    repeated,
)


def inputs(device: str) -> Iterator[Tensor]:
    """Many found, none found, all found, one row, other sizes."""
    for rows, columns in ((9, 7), (16, 33), (2, 5), (130, 3)):
        x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(device)
        yield from (x, -x.abs() - 1, x.abs() + 1)


def check(fn: Callable[[Tensor], Tensor], backend: Any, device: str = "cpu") -> None:
    compiled = torch.compile(fn, backend=backend, fullgraph=True, dynamic=True)
    for x in inputs(device):
        expected, got = fn(x), compiled(x)
        assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_follows_is_compiled(compiler_auto: Any, fn: Callable[[Tensor], Tensor]) -> None:
    check(fn, compiler_auto)
    (program,) = compiler_auto.programs
    module: Module = program.artifact.module
    steps = [type(step) for step in module.steps]
    assert Launch in steps[steps.index(Extern) :]
    assert any(s.name.startswith(("u", "zuf")) for s in module.symbols) or fn is item_as_number


@pytest.mark.gpu
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_on_gpu(fn: Callable[[Tensor], Tensor]) -> None:
    check(fn, "lowc", "cuda")


def test_a_check_that_fails_raises(compiler_auto: Any) -> None:
    def limited(x: Tensor, n: Tensor) -> Tensor:
        size = n.item()
        torch._check(size >= 2)
        torch._check(size <= 4)
        return x.new_ones(size) * x.sum()

    compiled = compiler_auto.compile(limited)
    x = torch.randn(3)
    assert compiled(x, torch.tensor(3)).shape == (3,)
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor(9))


def test_facts_of_check_reach_the_ranges(compiler_auto: Any) -> None:
    def limited(x: Tensor, n: Tensor) -> Tensor:
        size = n.item()
        torch._check(size >= 2)
        torch._check(size <= 4)
        return x.new_ones(size) * x.sum()

    compiler_auto.compile(limited)(torch.randn(3), torch.tensor(3))
    symbols = compiler_auto.programs[0].artifact.module.symbols
    assert [(s.lo, s.hi) for s in symbols if s.name.startswith("u")] == [(2, 4)]


def test_windows_of_an_input_at_places_that_data_tells(compiler_auto: Any) -> None:
    """Torch makes such a result again from the input, by the offset of what is returned: a copy has another one."""

    def parts(x: Tensor, where: Tensor) -> tuple[Tensor, ...]:
        return torch.tensor_split(x, where)

    x, where = torch.randn(7, 5), torch.tensor([2, 3])
    for got, expected in zip(torch.compile(parts, backend="lowc")(x, where), parts(x, where), strict=True):
        assert torch.equal(got, expected) and got.stride() == expected.stride()
    with pytest.raises(Exception, match=r"place that only the call tells"):
        compiler_auto.compile(parts)(x, where)


def test_results_that_were_not_asked_for_may_have_any_shape(compiler_auto: Any) -> None:
    x = torch.tensor([1.0, 1.0, 2.0, 3.0, 3.0])
    got = compiler_auto.compile(lambda x: torch.unique_consecutive(x, dim=0) * 2)(x)
    assert torch.equal(got, torch.tensor([2.0, 4.0, 6.0]))
