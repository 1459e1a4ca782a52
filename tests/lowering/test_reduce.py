"""Reductions and scans against eager (floats in float64)."""

import math
from typing import Any

import pytest
import torch

from tests.lowering.harness import BOOL, FLOATS, INTS, check, data

aten = torch.ops.aten
ALL = FLOATS + INTS + BOOL
SHAPE = (3, 5, 7)
DIMS: tuple[Any, ...] = ([0], [1], [-1], [0, 2], [0, 1, 2], [])


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_sums(dim: list[int], keepdim: bool) -> None:
    for seed, dtype in enumerate(ALL):
        x = data(SHAPE, dtype, seed, special=False)
        check(lambda a: aten.sum.dim_IntList(a, dim, keepdim), x, ulps=8, floor=4.0)
        if dtype.is_floating_point:
            check(lambda a: aten.mean.dim(a, dim, keepdim), x, ulps=2, floor=1.0)


def test_sums_of_everything() -> None:
    for dtype in ALL:
        x = data(SHAPE, dtype, special=False)
        check(lambda a: aten.sum.default(a), x, ulps=8, floor=4.0)
        check(lambda a: aten.sum.default(a[:, :, 0].t()), x, ulps=8, floor=4.0)
    x = data(SHAPE, torch.float32, special=False)
    check(lambda a: aten.mean.default(a), x, ulps=4, floor=1.0)
    check(lambda a: aten.sum.dim_IntList(a, [1], dtype=torch.float64), x, ulps=8)
    check(lambda a: aten.sum.dim_IntList(a, [1], dtype=torch.int32), x)
    check(lambda a: aten.mean.dim(a, [1], dtype=torch.float64), data(SHAPE, torch.int32), ulps=8)


def test_products() -> None:
    for dtype in (torch.float32, torch.float64, *INTS):
        x = data(SHAPE, dtype, special=False)
        check(lambda a: (aten.prod.dim_int(a, 1), aten.prod.dim_int(a, -1, True)), x, ulps=8)
    check(lambda a: aten.prod.default(a), data((3, 4), torch.int64))


@pytest.mark.parametrize("keepdim", [False, True])
def test_extrema(keepdim: bool) -> None:
    for seed, dtype in enumerate(ALL):
        x = data(SHAPE, dtype, seed)
        for dim in ([0], [-1], [0, 2], []):
            check(
                lambda a, d=dim: (aten.amax.default(a, d, keepdim), aten.amin.default(a, d, keepdim)),
                x,
                ulps=0,
            )
        check(lambda a: (aten.max.default(a), aten.min.default(a)), x, ulps=0)


@pytest.mark.parametrize("keepdim", [False, True])
def test_extrema_with_indices(keepdim: bool) -> None:
    for seed, dtype in enumerate(ALL):
        x = data((4, 9), dtype, seed)  # ties, and rows with several NaN
        for dim in (0, 1):
            check(lambda a, d=dim: (*aten.max.dim(a, d, keepdim), *aten.min.dim(a, d, keepdim)), x, ulps=0)
            if dtype != torch.bool:
                check(
                    lambda a, d=dim: (aten.argmax.default(a, d, keepdim), aten.argmin.default(a, d, keepdim)),
                    x,
                )
        if dtype != torch.bool:
            check(lambda a: (aten.argmax.default(a), aten.argmin.default(a)), x)
            check(lambda a: aten.argmax.default(a.t()), x)


def test_extrema_pair() -> None:
    check(lambda a: aten.aminmax.default(a, dim=1), data((4, 9), torch.float32), ulps=0)
    check(lambda a: aten.aminmax.default(a), data((4, 9), torch.int32))


def test_any_and_all() -> None:
    for seed, dtype in enumerate(ALL):
        x = data((4, 5), dtype, seed)
        for dim in (0, 1):
            check(lambda a, d=dim: (aten.any.dim(a, d), aten.all.dim(a, d, True)), x)
        check(lambda a: (aten.any.default(a), aten.all.default(a)), x)
        check(lambda a: (aten.any.dims(a, [0, 1]), aten.all.dims(a, [0, 1])), x)
        check(lambda a: (aten.count_nonzero.default(a), aten.count_nonzero.dim_IntList(a, [1])), x)


def test_moments() -> None:
    for seed, dtype in enumerate(FLOATS):
        x = data((4, 31), dtype, seed, special=False) + 10
        for correction in (0, 1, 2):
            for dim in ([1], [0], [0, 1]):
                check(lambda a, c=correction, d=dim: aten.var.correction(a, d, correction=c), x, ulps=16)
        check(lambda a: aten.std.correction(a, [1], keepdim=True), x, ulps=16)
        check(lambda a: aten.var_mean.correction(a, [1], correction=0, keepdim=True), x, ulps=16)
        check(lambda a: aten.var_mean.correction(a), x, ulps=16)
    check(lambda a: aten.var.correction(a, [1]), data((3, 1), torch.float32), ulps=4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_moments_over_parts_that_lie_apart(dynamic: bool) -> None:
    for seed, dtype in enumerate(FLOATS):
        x = data((3, 4, 5, 17), dtype, seed, special=False) + 10
        for correction in (0, 1, 255):
            check(lambda a, c=correction: aten.var.correction(a, [0, 2, 3], correction=c), x, ulps=16, dynamic=dynamic)
        check(lambda a: aten.std.correction(a, [0, 2, 3], keepdim=True), x, ulps=16, dynamic=dynamic)
        check(lambda a: aten.var_mean.correction(a, [1, 3], keepdim=True), x.permute(1, 2, 0, 3), ulps=16, dynamic=dynamic)
        check(lambda a: aten.var_mean.correction(a, [0, 2]), x[:, :, 1, 1:].permute(2, 1, 0), ulps=16, dynamic=False)
    special = data((3, 4, 5, 17), torch.float32, special=False)
    special[0, 0, 0, 0], special[2, 1, 4, 16] = math.inf, math.nan
    check(lambda a: aten.var.correction(a, [0, 2, 3]), special, ulps=16, dynamic=dynamic)
    empty = special[:0] if not dynamic else special[:1]
    check(lambda a: aten.var.correction(a, [0, 2, 3]), empty, ulps=16, dynamic=dynamic)


def test_logsumexp_and_norms() -> None:
    for seed, dtype in enumerate(FLOATS):
        x = data((4, 31), dtype, seed, special=False)
        check(lambda a: aten.logsumexp.default(a, [1]), x, ulps=8)
        for order in (0, 1, 2, float("inf"), float("-inf")):
            check(lambda a, p=order: aten.linalg_vector_norm.default(a, p, [1]), x, ulps=8)
    x = torch.tensor([[float("-inf")] * 3, [float("inf"), 1, 2], [float("nan"), 1, 2], [-1e30, 5, 5]])
    check(lambda a: aten.logsumexp.default(a, [1]), x, ulps=2)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scans(dim: int) -> None:
    for seed, dtype in enumerate(ALL):
        x = data((4, 9), dtype, seed, special=False)
        check(lambda a: aten.cumsum.default(a, dim), x, ulps=4, floor=8.0)
        if dtype.itemsize > 2:
            check(lambda a: aten.cumprod.default(a, dim), x, ulps=16)
    check(
        lambda a: aten.cumsum.default(a, dim, dtype=torch.float64),
        data((4, 9), torch.float32, special=False),
        ulps=8,
    )
    check(lambda a: aten.cumsum.default(a, 0), data((), torch.float32))


@pytest.mark.parametrize("op", [aten._softmax.default, aten._log_softmax.default])
def test_softmax(op: Any) -> None:
    for seed, dtype in enumerate(FLOATS):
        for dim in (0, 1, -1):
            check(
                lambda a, d=dim: op(a, d, False),
                data((3, 5, 8), dtype, seed, special=False),
                ulps=16,
                floor=1.0,
            )
    x = torch.tensor(
        [[float("-inf")] * 4, [float("-inf"), 1, 2, 3], [float("nan"), 1, 2, 3], [float("inf"), 0, 1, 2]]
    )
    check(lambda a: op(a, 1, False), x, ulps=8)
    for dtype in FLOATS:
        for value in (2.0, -0.0, float("nan"), float("inf"), float("-inf")):
            for dim in (0, -1):
                check(lambda a, d=dim: op(a, d, False), torch.tensor(value, dtype=dtype))


def test_strided_and_broadcast_sources() -> None:
    x = data((5, 6, 7), torch.float32, special=False)
    check(lambda a: a.permute(2, 0, 1)[:, ::2].sum(1), x, ulps=8, floor=4.0)
    check(lambda a: a.transpose(0, 2).amax([0, 1]), x)
    check(lambda a: a[:, :1].expand(5, 9, 7).sum(1), x, ulps=8, floor=4.0)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (1, 1, 1)])
def test_sizes_zero_and_one(shape: tuple[int, ...]) -> None:
    x = data(shape, torch.float32, special=False)
    check(lambda a: (a.sum(), a.sum(-1), a.mean(), a.any(), a.all(), a.prod()), x, ulps=4)
    check(lambda a: (a.cumsum(-1), a.sum(-1, keepdim=True)), x, ulps=4)
    if x.numel():
        check(lambda a: (a.amax(), a.argmax(), *a.max(-1)), x)


def test_symbolic_sizes() -> None:
    x = data((5, 6), torch.float32, special=False)
    check(lambda a: (a.sum(1), a.mean(0), a.var(1), a.cumsum(1)), x, ulps=16, floor=1.0, dynamic=True)
    check(lambda a: (torch.softmax(a, 1), torch.softmax(a, 0)), x, ulps=16, dynamic=True)
    check(lambda a: (a.amax(1), a.argmax(0)), x, dynamic=True)
