"""Distances, norms of any order, running extrema, searches, gradients of padding, and pieces of activations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowering.harness import check, data

aten: Any = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
F = torch.float32
INF = float("inf")


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_distances(p: float) -> None:
    for dtype in (torch.float32, torch.float64):
        x, y = data((2, 4, 3), dtype, special=False), data((2, 5, 3), dtype, 1, special=False)
        y[:, 0] = x[:, 0]
        check(lambda x, y: aten._cdist_forward.default(x, y, p, 2), x, y, ulps=8, floor=1.0)
        far = aten._cdist_forward.default(x, y, p, 2)
        g = data((2, 4, 5), dtype, 2, special=False)
        check(lambda g, x, y, d: aten._cdist_backward.default(g, x, y, p, d), g, x, y, far, ulps=16, floor=1.0)
    check(lambda x, y: aten._cdist_forward.default(x, y, p, 2), data((4, 0), F), data((5, 0), F))
    if p < INF:  # eager drops or keeps a NaN as its vectors fall
        x, y = data((4, 3), F), data((5, 3), F, 1)
        check(lambda x, y: aten._cdist_forward.default(x, y, p, 2), x, y, ulps=8, floor=1.0)


def test_distances_of_broadcast_batches() -> None:
    for left, right in (((2, 1, 4, 3), (3, 5, 3)), ((4, 3), (0, 5, 3)), ((1, 4, 3), (2, 5, 3))):
        x, y = data(left, F, special=False), data(right, F, 1, special=False)
        check(lambda x, y: aten._cdist_forward.default(x, y, 1.5, 2), x, y, ulps=8, floor=1.0)


def test_many_euclidean_distances_are_a_matrix_product() -> None:
    x = data((26, 3), F, special=False)
    check(
        lambda x: aten._cdist_forward.default(x, x, 2.0, None),
        x,
        extern=("aten._cdist_forward.default",),
        ulps=8,
        floor=1.0,
        reference=False,
    )


@pytest.mark.parametrize("order", [0.5, 3.0, -1.0, -2.5])
def test_norms_of_any_order(order: float) -> None:
    for dtype in FLOATS:
        x = data((4, 5), dtype, special=False)
        check(lambda x: aten.linalg_vector_norm.default(x, order, [1]), x, ulps=16)
        check(lambda x: aten.linalg_vector_norm.default(x, order, None, True), x, ulps=16)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extrema(name: str) -> None:
    op = getattr(aten, name).default
    for dtype in (*FLOATS, torch.int64, torch.uint8):
        x = data((4, 7), dtype)
        x = torch.where(x == 0, x.new_tensor(3), x)  # the sign of a running zero is left open
        for dim in (0, 1):
            check(lambda x, dim=dim: op(x, dim), x)
            check(lambda x, dim=dim: op(x.t(), dim), x)
        check(lambda x: op(x, 0)[1], x)
    check(lambda x: op(x, 0), data((), F))
    check(lambda x: op(x, 1), data((3, 0), F))


def test_running_sums_of_exponentials() -> None:
    op = aten.logcumsumexp.default
    for dtype in (*FLOATS, torch.float16):
        for x in (data((4, 7), dtype, special=False) * 20, data((4, 7), dtype), data((4, 7), dtype, 5)):
            check(lambda x: op(x, 0), x, ulps=2)
        x = data((2, 3, 5), dtype, special=False)
        check(lambda x: op(x, 1), x, ulps=2)
        check(lambda x: op(x.permute(1, 2, 0), 0), x, ulps=2)
    nan = float("nan")
    x = torch.tensor([[-INF, -INF, 1.0], [-0.0, -INF, -INF], [INF, 1.0, INF], [-INF, INF, -INF], [1.0, nan, 2.0]])
    check(lambda x: op(x, 0), x.t().contiguous())
    check(lambda x: op(x, 0), torch.tensor(-0.0))
    check(lambda x: op(x, 0), data((0, 3), F))
    check(lambda x: op(x, 0), data((3, 0), F))
    check(lambda x: op(x, 0), torch.tensor([[-1000.0, 1.0], [0.0, 2.0], [1000.0, 3.0], [-2000.0, 4.0]]), ulps=1)
    check(lambda x: op(x, 0), data((5, 3), F, special=False), ulps=2, dynamic=True)
    check(lambda x: op(x, 1), data((3, 5), F, special=False), ulps=2, extern=("aten.logcumsumexp.default",))


def test_searches() -> None:
    for dtype in (torch.float32, torch.int64):
        edges = torch.tensor([-2, 0, 0, 3], dtype=dtype)
        x = data((3, 4), dtype)
        for right in (False, True):
            check(lambda x, e, r=right: aten.bucketize.Tensor(x, e, right=r), x, edges)
            check(lambda x, e, r=right: aten.searchsorted.Tensor(e, x, out_int32=True, right=r), x, edges)
        rows = data((3, 5), dtype, 2, special=False).sort(1).values
        check(lambda x, e: aten.searchsorted.Tensor(e, x, side="right"), x, rows)
    for length in (0, 1, 2, 64, 65, 100):
        edges = torch.arange(float(length))
        check(lambda x, e: aten.bucketize.Tensor(x, e), torch.cat((data((3,), F), edges - 0.5, edges)), edges)
    order = torch.tensor([3, 0, 2, 1])
    check(lambda e, x, s: aten.searchsorted.Tensor(e, x, sorter=s), torch.tensor([1.0, 9.0, 2.0, 0.5]), data((5,), F), order)


def test_searches_in_what_is_not_sorted_or_has_nan() -> None:
    for length in (3, 8, 37):
        rows = data((4, length), F)
        rows[1:] = rows[1:].sort(-1).values
        rows[2, -2:] = torch.nan
        for right in (False, True):
            check(lambda e, x, r=right: aten.searchsorted.Tensor(e, x, right=r), rows, data((4, 9), F))
            check(lambda e, x, r=right: aten.searchsorted.Tensor(e, x, right=r), rows[2].clone(), data((3, 9), F))


PADS: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[int]]] = {
    "reflection_pad1d": (aten.reflection_pad1d_backward.default, (3, 6), [2, 4]),
    "reflection_pad2d": (aten.reflection_pad2d_backward.default, (2, 4, 6), [2, 1, 3, 0]),
    "reflection_pad3d": (aten.reflection_pad3d_backward.default, (2, 3, 4, 5), [2, 1, 3, 0, 1, 1]),
    "replication_pad1d": (aten.replication_pad1d_backward.default, (3, 6), [2, 8]),
    "replication_pad2d": (aten.replication_pad2d_backward.default, (2, 4, 6), [2, 1, 7, 0]),
    "replication_pad3d": (aten.replication_pad3d_backward.default, (2, 3, 4, 5), [2, 1, 3, 0, 4, 1]),
}


@pytest.mark.parametrize("name", PADS)
def test_gradients_of_padding(name: str) -> None:
    backward, shape, padding = PADS[name]
    for dtype in (torch.float32, torch.float64):
        x = data(shape, dtype, special=False)
        g = getattr(aten, name).default(x, padding)
        check(lambda g, x: backward(g, x, padding), g, x, ulps=8, floor=1.0)


def test_a_diagonal_put_in_place() -> None:
    for dtype in (torch.float32, torch.int64, torch.bool):
        x = data((4, 5, 3), dtype)
        for offset, first, second in ((0, 0, 1), (2, 0, 1), (-1, 1, 2), (1, 2, 0)):
            s = x.diagonal(offset, first, second).clone()
            s = ~s if dtype == torch.bool else s + 1
            check(
                lambda x, s, o=offset, a=first, c=second: aten.diagonal_scatter.default(x, s, o, a, c),
                x,
                s.contiguous(),
            )


def test_pieces_of_activations() -> None:
    for dtype in FLOATS:
        x, g = data((5, 6), dtype), data((5, 6), dtype, 1, special=False)
        check(lambda x: aten.log_sigmoid_forward.default(x), x, ulps=4)
        check(lambda g, x: aten.hardswish_backward.default(g, x), g, x.nan_to_num(0, 4, -4), ulps=4)
        check(lambda x: aten.angle.default(x), x)
        for decimals in (0, 2, -1):
            check(lambda x, d=decimals: aten.round.decimals(x, decimals=d), x)
