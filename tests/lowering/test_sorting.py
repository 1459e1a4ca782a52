"""Sorts, topk, medians and modes of short rows: places of equal elements, NaN and zeros of both signs included."""

from typing import Any

import pytest
import torch

from tests.lowering.harness import BOOL, FLOATS, INTS, check, data

aten: Any = torch.ops.aten
F = torch.float32


def equals(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Few different values, so that most have equals; floats with NaN and -0.0 among them."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 3, shape, generator=rng)
    if not dtype.is_floating_point:
        return x.to(dtype)
    picks = torch.tensor([1.0, 0.0, -0.0, float("nan"), float("inf")])
    special = picks[torch.randint(0, 5, shape, generator=rng)]
    return torch.where(torch.rand(shape, generator=rng) < 0.5, special, x.float()).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, *BOOL])
def test_sorts_of_short_rows(dtype: torch.dtype) -> None:
    for n in (1, 2, 5, 16):
        for x in (equals((9, n), dtype), data((9, n), dtype)):
            for descending in (False, True):
                check(lambda x, d=descending: aten.sort.default(x, 1, d), x)
                check(lambda x, d=descending: aten.sort.stable(x, stable=True, dim=0, descending=d), x.t().contiguous())


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_medians_and_modes_of_short_rows(dtype: torch.dtype) -> None:
    for n in (1, 2, 3, 8, 15):
        for x in (equals((12, n), dtype), data((12, n), dtype, special=False)):
            for keep in (False, True):
                check(lambda x, k=keep: aten.median.dim(x, 1, k), x)
                if not dtype.is_floating_point:
                    check(lambda x, k=keep: aten.mode.default(x, 0, k), x.t().contiguous())


def test_the_largest_of_long_rows() -> None:
    for dtype in (*FLOATS, torch.int64):
        for n in (64, 100):
            check(lambda x: aten.topk.default(x, 1, 1), equals((7, n), dtype))
            check(lambda x: aten.topk.default(x, 1, 0), equals((n, 7), dtype, 1))
    for n, k in ((1, 1), (2, 1), (3, 2), (3, 3)):
        for largest in (False, True):
            check(lambda x, k=k, largest=largest: aten.topk.default(x, k, -1, largest), equals((40, n), F))


def test_what_eager_orders_in_a_way_of_its_own() -> None:
    x = equals((5, 17), F)
    check(lambda x: aten.sort.default(x, 1), x, extern=("aten.sort.default",))
    check(lambda x: aten.topk.default(x, 2, 1), x, extern=("aten.topk.default",))
    check(lambda x: aten.topk.default(x, 1, 1), x, extern=("aten.topk.default",))
    check(lambda x: aten.topk.default(x, 1, 1, False), equals((5, 70), F), extern=("aten.topk.default",))
    check(lambda x: aten.median.dim(x, 1), x, extern=("aten.median.dim",))
    check(lambda x: aten.mode.default(x, 1), equals((5, 4), F), extern=("aten.mode.default",))
    check(lambda x: aten.sort.default(x, 1), x[:, :0], extern=("aten.sort.default",))


def test_layouts_and_sizes_of_sorts() -> None:
    x = equals((4, 6, 5), F)
    for dim in (0, 1, 2, -1):
        check(lambda x, d=dim: aten.sort.default(x, d), x)
        check(lambda x, d=dim: aten.sort.default(x.permute(2, 0, 1), d), x)
        check(lambda x, d=dim: aten.sort.default(x, d)[1], x[1:2].expand(4, 6, 5))
        check(lambda x, d=dim: aten.median.dim(x.transpose(0, 2), d), x)
    check(lambda x: aten.sort.default(x, 0), torch.tensor(2.0))
    check(lambda x: aten.sort.default(x, 1), x[:0])
    check(lambda x: aten.sort.default(x, 1, True)[0], x[:, :, 0].contiguous())


def test_sorts_of_any_number_of_rows() -> None:
    """The rows are a symbol of the graph, their length is not."""
    x = equals((7, 6), F)
    check(lambda x: aten.sort.default(x.view(-1, 6).narrow(1, 0, 5), 1), x, dynamic=True)
