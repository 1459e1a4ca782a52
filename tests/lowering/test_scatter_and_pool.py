"""Sums into indexed places and pooling windows against eager."""

from typing import Any

import pytest
import torch

from lowc.lowering import lower
from tests.lowering.harness import check, data, run, trace

aten = torch.ops.aten
F = torch.float32
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int16)


def test_embedding_gradient() -> None:
    i = torch.tensor([[0, 3, 3], [5, 1, 3]])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        g = data((2, 3, 4), dtype, special=False)
        check(lambda g, i: aten.embedding_dense_backward.default(g, i, 6, -1, False), g, i)
        check(lambda g, i: aten.embedding_dense_backward.default(g, i, 6, 3, False), g, i)
    check(
        lambda g, i: aten.embedding_dense_backward.default(g, i, 4, -1, False),
        data((2, 3, 4), F, special=False),
        i,
    )
    check(
        lambda g, i: aten.embedding_dense_backward.default(g, i, 6, -1, True),
        data((2, 3, 4), F),
        i,
        extern=("aten.embedding_dense_backward.default",),
    )


def test_index_add() -> None:
    i = torch.tensor([2, 0, 2])
    for dtype in DTYPES:
        x, s = data((4, 5), dtype, special=False), data((3, 5), dtype, 1, special=False)
        check(lambda x, i, s: aten.index_add.default(x, 0, i, s), x, i, s)
        check(
            lambda x, i, s: aten.index_add.default(x, -1, i.to(torch.int32), s.t()),
            x[:, :].new_zeros(5, 4),
            i,
            s,
        )
        check(lambda x, i, s: aten.index_add.default(x, 0, i, s, alpha=2), x, i, s)


def test_scatter_add_and_reduce() -> None:
    i = torch.tensor([[2, 0, 2], [1, 1, 0]])
    for dtype in DTYPES:
        x, s = data((4, 5), dtype, special=False), data((2, 4), dtype, 1, special=False)
        check(lambda x, i, s: aten.scatter_add.default(x, 0, i, s), x, i, s)
        check(lambda x, i, s: aten.scatter_add.default(x, 1, i, s), x, i, s)
        for how in ("sum", "prod", "mean", "amax", "amin"):
            for own in (True, False):
                check(
                    lambda x, i, s: aten.scatter_reduce.two(x, 1, i, s, how, include_self=own),  # noqa: B023
                    x,
                    i,
                    s,
                    ulps=2,
                    reference=dtype.is_floating_point and dtype.itemsize > 2,
                )
        for how in ("prod", "mean", "amax", "amin"):
            for own in (True, False):
                check(
                    lambda x, i, s: aten.index_reduce.default(x, 0, i, s, how, include_self=own),  # noqa: B023
                    x,
                    torch.tensor([1, 3, 1]),
                    data((3, 5), dtype, 2, special=False),
                    ulps=2,
                    reference=dtype.is_floating_point and dtype.itemsize > 2,
                )
        check(lambda x, i, s: aten.scatter.reduce(x, 0, i, s, reduce="multiply"), x, i, s, ulps=2)
        check(lambda x, i: aten.scatter.value_reduce(x, 0, i, 3, reduce="add"), x, i, ulps=2)


def test_the_last_of_several_writes_stays() -> None:
    i = torch.tensor([[2, 0, 2], [2, 1, 2]])
    for dtype in (*DTYPES, torch.bool):
        x, s = data((4, 5), dtype), data((2, 4), dtype, 1)
        check(lambda x, i, s: aten.scatter.src(x, 0, i, s), x, i, s)
        check(lambda x, i, s: aten.scatter.src(x.t(), 1, i, s), x, i, s)
        check(lambda x, i: aten.scatter.value(x, 1, i, 1), x, i)
        check(lambda x, i, s: aten.index_put.default(x, [None, i], s[0, 0]), x, i, s)
        check(lambda x, i, s: aten.index_put.default(x, [i[0]], s[0, :1]), x, i, s)


def test_a_value_put_where_a_mask_is_true() -> None:
    x = data((4, 5, 3), F)
    for mask, places in ((x[..., 0] > 0, lambda m: [m]), (x[0] > 0, lambda m: [None, m]), (x > 0, lambda m: [m])):
        for accumulate in (False, True):
            check(
                lambda x, m, v, p=places, a=accumulate: aten.index_put.default(x, p(m), v, a),
                x,
                mask,
                torch.tensor(2.5),
            )
    several = x[..., 0, 0] > 0
    check(
        lambda x, m, v: aten.index_put.default(x, [m], v),
        x,
        several,
        x[: int(several.sum())],
        extern=("aten.index_put.default",),
    )


def test_rows_of_scalars() -> None:
    zero, x = torch.tensor(0), torch.tensor(2.5)
    for index in (zero, zero[None]):
        check(lambda x, i: aten.gather.default(x, 0, i), x, index)
        check(lambda x, i: aten.scatter.value(x, 0, i, 3.5), x, index)
        check(lambda x, i: aten.index_select.default(x, 0, i), x, index)
        check(lambda x, i: aten.scatter_add.default(x, 0, i, i.float()), x, index)
        check(lambda x, i: aten.index_add.default(x, 0, i, i.float().reshape(())), x, index)
    module = lower(trace(lambda x, i: aten.gather.default(x, 0, i), (x, zero)))
    with pytest.raises(IndexError):
        run(module, [x, zero + 1])


def test_scatter_of_one_place() -> None:
    i = torch.tensor([[2], [0], [3]])
    for dtype in (*DTYPES, torch.bool):
        x, s = data((3, 5), dtype), data((3, 2), dtype, 1)
        check(lambda x, i: aten.scatter.value(x, 1, i, 1), x, i)
        check(lambda x, i: aten.scatter.value(x, -1, i[:2], 1), x, i)
        check(lambda x, i, s: aten.scatter.src(x, 1, i, s), x, i, s)
        check(lambda x, i, s: aten.scatter.src(x.t(), 0, i.t(), s.t()), x, i, s)
    check(lambda i: torch.nn.functional.one_hot(i, 5), i[:, 0])
    module = lower(trace(lambda x, i: aten.scatter.value(x, 1, i, 1), (data((3, 3), F), i)))
    with pytest.raises(IndexError):
        run(module, [data((3, 3), F), i])


PUTS: dict[str, Any] = {
    "one": lambda x, i, j, v: aten.index_put.default(x, [i], v[..., None, None], True),
    "two": lambda x, i, j, v: aten.index_put.default(x, [i, j], v[..., None], True),
    "apart": lambda x, i, j, v: aten.index_put.default(x, [i, None, i], v[..., None], True),
    "middle": lambda x, i, j, v: aten._unsafe_index_put.default(x, [None, j], v[0, 0], True),
}


@pytest.mark.parametrize("name", PUTS)
def test_index_put(name: str) -> None:
    i, j = torch.tensor([[0, -1], [2, -1]]), torch.tensor([[-6, 5], [0, 5]])
    for dtype in DTYPES:
        check(
            PUTS[name],
            data((4, 6, 5), dtype, special=False),
            i,
            j,
            data((2, 2), dtype, 1, special=False),
            ulps=2,
            floor=1.0,
        )


def test_places_out_of_range_raise() -> None:
    x, i, s = data((4, 5), F), torch.tensor([1, 4, 0]), data((3, 5), F)
    for function in (
        lambda x, i, s: aten.index_add.default(x, 0, i, s),
        lambda x, i, s: aten.index_put.default(x, [i], s, True),
        lambda x, i, s: aten.scatter_add.default(x, 0, i[:, None], s),
    ):
        module = lower(trace(function, (x, i, s)))
        with pytest.raises(IndexError):
            run(module, [x, i, s])


POOLS: tuple[tuple[Any, ...], ...] = (
    ([3, 2], [2, 1], [1, 0], False, True, None),
    ([3, 2], [2, 1], [1, 1], False, False, None),
    ([2], [2], [0], True, True, None),
    ([3, 3], [2, 2], [1, 1], True, True, None),
    ([3, 3], [2, 2], [1, 1], True, False, None),
    ([3, 3], [1, 1], [0, 0], False, True, 5),
    ([2, 3], [3, 4], [0, 1], False, True, None),
)


@pytest.mark.parametrize("how", POOLS)
def test_average_pool(how: tuple[Any, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = data((2, 3, 7, 9), dtype, special=False)
        check(lambda a: aten.avg_pool2d.default(a, *how), x, ulps=4, floor=1.0)
        check(
            lambda a: aten.avg_pool2d.default(a, *how),
            x.to(memory_format=torch.channels_last),
            ulps=4,
            floor=1.0,
        )
        g = aten.avg_pool2d.default(x, *how)
        check(lambda g, a: aten.avg_pool2d_backward.default(g, a, *how), g, x, ulps=4, floor=1.0)
    check(lambda a: aten.avg_pool2d.default(a, *how), data((3, 7, 9), F, special=False), ulps=4, floor=1.0)


def pooled_ties(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Few different values, so that windows have equal ones, and NaNs and infinities among them."""
    x = data(shape, dtype)
    return torch.where(torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5, x, x.new_tensor(2.0))


MAX_POOLS: tuple[tuple[Any, ...], ...] = (
    ([3, 2], [2, 1], [1, 0], [1, 1], False),
    ([2], [], [0], [1], True),
    ([3, 3], [2, 2], [1, 1], [2, 1], True),
)


@pytest.mark.parametrize("how", MAX_POOLS)
def test_maximum_pool(how: tuple[Any, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = pooled_ties((2, 3, 7, 9), dtype)
        check(lambda a: aten.max_pool2d_with_indices.default(a, *how), x)
        check(lambda a: aten.max_pool2d_with_indices.default(a, *how)[0], x.to(memory_format=torch.channels_last))


@pytest.mark.parametrize("how", [*MAX_POOLS, ([3, 3], [2, 2], [1, 1], [1, 1], False), ([3, 3], [1, 1], [1, 1], [1, 1], False)])
def test_gradients_of_maximum_pool(how: tuple[Any, ...]) -> None:
    name = "aten.max_pool2d_with_indices_backward.default"
    apart = (name,) if (how[1] or how[0])[-1] > 1 else ()  # windows apart along lanes

    def backward(g: torch.Tensor, a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return aten.max_pool2d_with_indices_backward.default(g, a, *how, i)

    for dtype in (torch.float32, torch.float64):
        x = pooled_ties((2, 3, 7, 9), dtype)
        values, places = aten.max_pool2d_with_indices.default(x, *how)
        for g in (data(tuple(values.shape), dtype, 3), data(tuple(values.shape), dtype, 4, special=False)):
            last = [t.to(memory_format=torch.channels_last) for t in (g, x, places)]
            check(backward, *last)
            check(backward, *last, dynamic=True)
            check(backward, g, x, places, extern=apart)
            check(backward, g[0], x[0], places[0], extern=apart)
    for dtype in (torch.bfloat16, torch.float16):
        x = pooled_ties((2, 3, 7, 9), dtype).to(memory_format=torch.channels_last)
        values, places = aten.max_pool2d_with_indices.default(x, *how)
        g = data(tuple(values.shape), dtype, 3, special=False).to(memory_format=torch.channels_last)
        check(backward, g, x, places, ulps=4, floor=2.0)


def test_gradients_of_maximum_pool_with_many_windows_over_an_element() -> None:
    how = ([5, 5], [1, 1], [2, 2], [1, 1], False)
    x = data((1, 2, 7, 9), F, special=False)
    values, places = aten.max_pool2d_with_indices.default(x, *how)
    name = "aten.max_pool2d_with_indices_backward.default"
    check(lambda g, a, i: aten.max_pool2d_with_indices_backward.default(g, a, *how, i), values, x, places, extern=(name,))


def test_maximum_pool_in_three_dimensions() -> None:
    how = ([2, 3, 2], [2, 1, 2], [1, 1, 0], [1, 1, 1], False)
    x = pooled_ties((1, 2, 4, 5, 6), F)
    check(lambda a: aten.max_pool3d_with_indices.default(a, *how), x)
    values, places = aten.max_pool3d_with_indices.default(x, *how)
    g = values.nan_to_num(0, 1, 2)
    last = [t.to(memory_format=torch.channels_last_3d) for t in (g, x, places)]
    check(lambda g, a, i: aten.max_pool3d_with_indices_backward.default(g, a, *how, i), *last)


def test_average_pool_in_three_dimensions() -> None:
    x = data((2, 3, 5, 6, 7), F, special=False)
    for how in (([2, 3, 2], [2, 1, 2], [1, 1, 0], True, False, None), ([2], [], [0], False, True, 3)):
        check(lambda a, how=how: aten.avg_pool3d.default(a, *how), x, ulps=4, floor=1.0)
        g = aten.avg_pool3d.default(x, *how)
        check(lambda g, a, how=how: aten.avg_pool3d_backward.default(g, a, *how), g, x, ulps=4, floor=1.0)


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (2, 5), (9, 12)])
def test_adaptive_pools(size: tuple[int, int]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = data((2, 3, 7, 9), dtype, special=False)
        check(lambda a: aten._adaptive_avg_pool2d.default(a, size), x, ulps=4, floor=1.0)
        g = aten._adaptive_avg_pool2d.default(x, size)
        check(lambda g, a: aten._adaptive_avg_pool2d_backward.default(g, a), g, x, ulps=4, floor=1.0)
        check(lambda a: aten.adaptive_max_pool2d.default(a, size), pooled_ties((2, 3, 7, 9), dtype))
        _, places = aten.adaptive_max_pool2d.default(x, size)
        check(lambda g, a, i: aten.adaptive_max_pool2d_backward.default(g, a, i), g, x, places, ulps=4, floor=1.0)


def test_conditions_of_sizes_vanish() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        aten._assert_scalar.default(1, "holds")
        return x + 1

    check(function, data((3,), F))
