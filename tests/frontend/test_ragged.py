"""Nested tensors: a graph has the values, and a ragged size that is no number passes through it."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lowc.dynamo import lowc_backend


def nested(*rows: int) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(n, 3) for n in rows], layout=torch.jagged, requires_grad=True)


def f(x: Tensor) -> Tensor:
    return (x * 2).sin() + x


def test_values_are_compiled_and_the_size_passes_through(tmp_path: Path) -> None:
    """Forward and backward, compiled and out of the cache."""
    counted = torch._dynamo.utils.counters["lowc"]
    for _ in range(2):
        torch._dynamo.reset()
        counted.clear()
        options = {"cache": True, "cache_dir": str(tmp_path), "strict_errors": True}
        compiled = torch.compile(f, backend=partial(lowc_backend, options=options))
        for x in (nested(2, 4), nested(3, 5, 1)):
            y = compiled(x)
            assert y.shape == x.shape
            torch.testing.assert_close(y.values(), f(x.values()))
            y.values().sum().backward()
            wide = x.values().detach().double()
            torch.testing.assert_close(x.grad.values().double(), 2 * (wide * 2).cos() + 1, rtol=1e-5, atol=1e-5)  # type: ignore[union-attr]
        assert counted["graphs"] >= 2
        assert not [name for name in counted if name.startswith("unsupported")]
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) >= 2


def test_a_sum_over_a_ragged_size_is_right_whoever_does_it() -> None:
    torch._dynamo.reset()
    x = nested(2, 4).detach()
    compiled = torch.compile(lambda t: f(t).sum(1), backend="lowc")
    torch.testing.assert_close(compiled(x), torch.stack([f(t).sum(0) for t in x.unbind()]))
