"""grid_sampler in two and three dimensions: every mode and padding, far and broken coordinates, odd sizes, narrow floats."""

from typing import Any

import pytest
import torch

from tests.lowering.harness import check, data

aten: Any = torch.ops.aten
F = torch.float32
NAN, INF = float("nan"), float("inf")
FAR = (NAN, INF, -INF, 1e30, -1e30, 3e9, 5.0, -5.0, 2.25, 1.0, -1.0, 0.0)
MODES = [(m, p, a) for m in (0, 1, 2) for p in (0, 1, 2) for a in (False, True)]


def grids(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 3) -> torch.Tensor:
    """Coordinates in and around the input."""
    rng = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=rng, dtype=torch.float64) * 3 - 1.5).to(dtype)


@pytest.mark.parametrize(("mode", "padding", "align"), MODES)
def test_samples_of_images(mode: int, padding: int, align: bool) -> None:
    for dtype in (torch.float32, torch.float64):
        for size in ((2, 3, 5, 4), (1, 1, 1, 1), (2, 1, 1, 6)):
            x, g = data(size, dtype, special=False), grids((size[0], 3, 5, 2), dtype)
            check(lambda x, g: aten.grid_sampler_2d.default(x, g, mode, padding, align), x, g, ulps=32, floor=4.0)
    x, g = data((2, 3, 5, 4), F), grids((2, 3, 5, 2), F)  # NaN, infinities and both zeros in the input
    check(lambda x, g: aten.grid_sampler_2d.default(x, g, mode, padding, align), x, g, ulps=64, floor=4.0, reference=False)


@pytest.mark.parametrize(("mode", "padding", "align"), [m for m in MODES if m[0] < 2])
def test_samples_of_volumes(mode: int, padding: int, align: bool) -> None:
    for dtype in (torch.float32, torch.float64):
        for size in ((2, 3, 3, 5, 4), (1, 1, 1, 1, 1), (2, 1, 1, 2, 6)):
            x, g = data(size, dtype, special=False), grids((size[0], 2, 3, 5, 3), dtype)
            check(lambda x, g: aten.grid_sampler_3d.default(x, g, mode, padding, align), x, g, ulps=32, floor=4.0)
    x, g = data((2, 3, 3, 5, 4), F), grids((2, 2, 3, 5, 3), F)
    check(lambda x, g: aten.grid_sampler_3d.default(x, g, mode, padding, align), x, g, ulps=64, floor=4.0, reference=False)


@pytest.mark.parametrize(("mode", "padding", "align"), MODES)
def test_far_and_broken_coordinates(mode: int, padding: int, align: bool) -> None:
    for rank in (2, 3) if mode < 2 else (2,):
        for dim in range(rank):
            g = torch.zeros(1, *[1] * (rank - 1), len(FAR), rank)
            g[..., dim] = torch.tensor(FAR)
            for size in ((3, 4, 5)[:rank], (1, 1, 1)[:rank]):
                x = data((1, 2, *size), F, special=False)
                op = getattr(aten, f"grid_sampler_{rank}d").default
                check(lambda x, g, op=op: op(x, g, mode, padding, align), x, g, ulps=16, floor=4.0, reference=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_samples_in_narrow_floats(dtype: torch.dtype) -> None:
    for mode, padding, align in MODES:
        x, g = data((2, 3, 5, 4), dtype, special=False), grids((2, 3, 5, 2), dtype)
        check(lambda x, g, m=mode, p=padding, a=align: aten.grid_sampler_2d.default(x, g, m, p, a), x, g, ulps=4, floor=4.0)


def test_layouts_and_sizes_of_samples() -> None:
    x, g = data((2, 3, 5, 4), F, special=False), grids((2, 3, 7, 2), F)
    for mode in (0, 1, 2):
        op = lambda x, g, m=mode: aten.grid_sampler_2d.default(x, g, m, 0, False)  # noqa: E731
        check(op, x.contiguous(memory_format=torch.channels_last), g, ulps=32, floor=4.0)
        check(op, x, grids((2, 2, 3, 7), F).permute(0, 2, 3, 1), ulps=32, floor=4.0)
        check(op, x, g[:, :0], ulps=32)
        check(op, x[:, :0], g, ulps=32)
        check(op, x[:0], g[:0], ulps=32)
        check(op, x, g, ulps=32, floor=4.0, dynamic=True)


def gradients(mode: int, padding: int, align: bool, rank: int, mask: list[bool]) -> Any:
    op = getattr(aten, f"grid_sampler_{rank}d_backward").default
    both = mask[0]
    return lambda d, x, g: op(d, x, g, mode, padding, align, mask) if both else op(d, x, g, mode, padding, align, mask)[1]


@pytest.mark.parametrize(("mode", "padding", "align"), MODES)
def test_gradients_of_samples(mode: int, padding: int, align: bool) -> None:
    for rank in (2, 3) if mode < 2 else (2,):
        for dtype in (torch.float32, torch.float64):
            for size in ((3, 5, 4)[:rank], (1, 1, 1)[:rank]):
                x, g = data((2, 3, *size), dtype, special=False), grids((2, *(2, 3, 4)[:rank], rank), dtype)
                d = data((2, 3, *g.shape[1:-1]), dtype, 1, special=False)
                for mask in ([True, True], [False, True]):
                    check(gradients(mode, padding, align, rank, mask), d, x, g, ulps=128, floor=8.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_samples_in_narrow_floats(dtype: torch.dtype) -> None:
    for mode, padding, align in MODES:
        x, g = data((1, 3, 5, 4), dtype, special=False), grids((1, 2, 3, 2), dtype)
        d = data((1, 3, 2, 3), dtype, 1, special=False)
        check(gradients(mode, padding, align, 2, [True, True]), d, x, g, ulps=32, floor=8.0, reference=False)


@pytest.mark.parametrize(("mode", "align"), [(m, a) for m in (0, 1, 2) for a in (False, True)])
def test_gradients_at_far_and_broken_coordinates(mode: int, align: bool) -> None:
    """With other padding ATen's vector code reads anywhere for a NaN."""
    for rank in (2, 3) if mode < 2 else (2,):
        for dim in range(rank):
            g = torch.zeros(1, *[1] * (rank - 1), len(FAR), rank)
            g[..., dim] = torch.tensor(FAR)
            x, d = data((1, 2, *(3, 4, 5)[:rank]), F, special=False), data((1, 2, *g.shape[1:-1]), F, 1, special=False)
            check(gradients(mode, 0, align, rank, [True, True]), d, x, g, ulps=64, floor=8.0, reference=False)
            if mode < 2:
                g = g.nan_to_num(0, 1e9, -1e9)
                for padding in (1, 2):
                    check(gradients(mode, padding, align, rank, [True, True]), d, x, g, ulps=64, floor=8.0, reference=False)


def test_layouts_and_sizes_of_gradients() -> None:
    x, g, d = data((2, 3, 5, 4), F, special=False), grids((2, 3, 7, 2), F), data((2, 3, 3, 7), F, 1, special=False)
    for mode in (0, 1, 2):
        f = gradients(mode, 0, False, 2, [True, True])
        check(f, d, x.contiguous(memory_format=torch.channels_last), g, ulps=64, floor=8.0)
        check(f, d[:1].expand(2, 3, 3, 7), x, g, ulps=64, floor=8.0)
        check(f, d[:, :, :0], x, g[:, :0], ulps=64)
        check(f, d[:, :0], x[:, :0], g, ulps=64)
        check(f, d, x, g, ulps=64, floor=8.0, dynamic=True)
