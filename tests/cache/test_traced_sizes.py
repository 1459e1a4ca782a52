"""What was traced with symbols for sizes: guards, ranges and hints hold in the process that finds it, too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.cache import test_traced
from tests.cache.test_traced import G, X, run, text_of

tracings = test_traced.tracings


def compiled(fn: Callable[..., Any], path: Path, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(fn, backend="lowc", options={"cache": True, "cache_dir": str(path)}, **options)


def rows(n: int) -> Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(n))


def branches(x: Tensor) -> Tensor:
    return x.sin() * x.shape[0] if x.shape[0] % 2 == 0 and x.shape[0] < 20 else x.cos().cumsum(0)


def reshaped(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[0] // 2, 5).softmax(1).flatten(0, 1) + x[: x.shape[0] // 2 * 2]


def paired(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.t() + torch.arange(y.shape[0])


@pytest.mark.parametrize("fn", [branches, lambda x: torch.cat((x, x.flip(0))).mean(0), reshaped])
def test_other_sizes_are_right_and_compiled_as_often(fn: Callable[..., Any], tmp_path: Path, tracings: list[str]) -> None:
    seen = []
    for _ in range(2):
        tracings.clear()
        call = compiled(fn, tmp_path, dynamic=True)
        counters.clear()
        for n in (8, 12, 6, 30, 10, 4):
            torch.testing.assert_close(call(rows(n)), fn(rows(n)), rtol=1e-5, atol=1e-5)
        seen.append((counters["stats"]["unique_graphs"], bool(tracings)))
    assert seen == [(seen[0][0], True), (seen[0][0], False)]


def test_sizes_that_become_symbols_on_the_way(tmp_path: Path, tracings: list[str]) -> None:
    """``dynamic=None``: the second size makes the first a symbol."""
    for turn in range(2):
        tracings.clear()
        call = compiled(paired, tmp_path)
        for n, m in ((3, 4), (5, 4), (7, 9), (2, 2), (6, 6)):
            torch.testing.assert_close(call(rows(n), rows(m)), paired(rows(n), rows(m)))
        assert bool(tracings) == (turn == 0)


def test_training_with_symbols(tmp_path: Path, tracings: list[str]) -> None:
    for turn in range(2):
        tracings.clear()
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        call = compiled(model, tmp_path, dynamic=True)
        for n in (8, 12, 7):
            x, y = rows(n).requires_grad_(), rows(n).requires_grad_()
            (call(x) ** 2).sum().backward()
            own = [p.grad for p in model.parameters()]
            model.zero_grad()
            (model(y) ** 2).sum().backward()
            torch.testing.assert_close([x.grad, *own], [y.grad, *(p.grad for p in model.parameters())], rtol=1e-4, atol=1e-5)
            model.zero_grad()
        assert bool(tracings) == (turn == 0)


def test_several_that_differ_in_guards_are_kept(tmp_path: Path, tracings: list[str]) -> None:
    for turn in range(2):
        for n in (8, 9, 40, 8):
            tracings.clear()
            torch.testing.assert_close(compiled(branches, tmp_path, dynamic=True)(rows(n)), branches(rows(n)))
            assert not (turn and tracings)


def ranged(low: int, high: int) -> Tensor:
    x = rows(8)
    torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
    return x


def test_ranges_and_hints_are_in_the_key() -> None:
    texts = [text_of(torch.sin, (x,), dynamic=None) for x in (rows(8), ranged(2, 64), ranged(2, 65), ranged(4, 64))]  # type: ignore[arg-type]
    texts += [text_of(torch.sin, (rows(n),), dynamic=True) for n in (8, 9)]
    assert "untold" not in "".join(texts) and len(set(texts)) == len(texts)


def test_numbers_that_are_no_sizes(tmp_path: Path, tracings: list[str]) -> None:
    """Integers are symbols; floats that are symbols have no key."""
    for turn in range(2):
        tracings.clear()
        call = compiled(lambda x, n: x * n + n, tmp_path, dynamic=True)
        for n in (3, 5, 8):
            torch.testing.assert_close(call(X, n), X * n + n)
        assert bool(tracings) == (turn == 0)
    for _ in range(2):
        tracings.clear()
        call = compiled(lambda x, n: x * n, tmp_path, dynamic=True)
        for n in (3.5, 2.25, float("inf")):
            torch.testing.assert_close(call(G.detach(), n), G.detach() * n, equal_nan=True)
        assert tracings


def test_both_sizes_of_one_graph(tmp_path: Path, tracings: list[str]) -> None:
    first = run(lambda: paired, (rows(3), rows(3)), tmp_path, True)
    tracings.clear()
    second = run(lambda: paired, (rows(3), rows(4)), tmp_path, True)
    assert tracings and first[0].shape == (3, 3) and second[0].shape == (3, 4)
