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
