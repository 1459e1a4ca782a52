"""Sums of many floats are as accurate as eager's, whichever axis they run along and whatever they are part of.

Errors are against float64, as the root of the mean square over the results, in units of an f32's last place.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowc

FEW = 4.0  # ulp that are no matter
COLUMNS = (1, 2, 3, 4, 5, 16, 17, 33, 64, 1000)
ROWS = (1000, 10_000, 100_000, 1_000_000, 10_000_000)
MOST = 40_000_000  # elements of a tensor
FILLS: dict[str, Callable[..., Tensor]] = {
    "rand": torch.rand,
    "randn": torch.randn,
    "ones": lambda *shape, generator: torch.ones(*shape),
}


def reductions(x: Tensor, axis: int) -> tuple[Tensor, ...]:
    return x.sum(axis), x.mean(axis), x.var(axis), x.std(axis), x.norm(dim=axis), (x * x + x).sum(axis)


def ulps(got: Tensor, wanted: Tensor) -> float:
    """Error of ``got`` relative to the size of the results."""
    size = wanted.square().mean().sqrt().item() or 1.0
    return (got.double() - wanted).square().mean().sqrt().item() / size / torch.finfo(torch.float32).eps


def check(f: Callable[..., tuple[Tensor, ...]], *args: Tensor, dynamic: bool | None = None) -> None:
    check_all(f, [args], dynamic)


def check_all(f: Callable[..., tuple[Tensor, ...]], calls: list[tuple[Tensor, ...]], dynamic: bool | None) -> None:
    """Errors over all ``calls`` together: of one or two results they are a matter of luck, eager's as well."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend=lowc.lowc_backend, dynamic=dynamic)
    sides = [[run(*args) for args in calls] for run in (compiled, f)]
    sides.append([f(*(a.double() for a in args)) for args in calls])
    joined = [[torch.cat([r.detach().flatten() for r in each]) for each in zip(*side, strict=True)] for side in sides]
    for number, (got, eager, wanted) in enumerate(zip(*joined, strict=True)):
        error, allowed = ulps(got, wanted), 2 * ulps(eager, wanted) + FEW
        assert error <= allowed, f"result {number}: {error:.3g} ulp; eager: {ulps(eager, wanted):.3g}"


def matrix(fill: str, *shape: int, seed: int = 0) -> Tensor:
    return FILLS[fill](*shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def check_reductions(fill: str, rows: int, columns: int, axis: str) -> None:
    """Over the axis of ``rows`` elements of a tensor: the first, a middle or the last one; some eight results at least."""
    shape = {"first": (rows, columns), "middle": (2, rows, columns), "last": (columns, rows)}[axis]
    number = {"first": 0, "middle": 1, "last": 1}[axis]
    seeds = 1 if fill == "ones" else -(-8 // columns)
    check_all(lambda x: reductions(x, number), [(matrix(fill, *shape, seed=s),) for s in range(seeds)], False)


@pytest.mark.parametrize("axis", ["first", "middle", "last"])
@pytest.mark.parametrize("columns", [1, 3, 4, 17, 64])
def test_reductions(columns: int, axis: str) -> None:
    for fill in FILLS:
        check_reductions(fill, 30_000, columns, axis)


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["first", "middle", "last"])
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
def test_reductions_of_all_sizes(rows: int, columns: int, axis: str) -> None:
    if rows * columns * (1 + (axis == "middle")) > MOST:
        pytest.skip("too large")
    for fill in FILLS:
        check_reductions(fill, rows, columns, axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_sizes_that_only_the_call_tells(axis: int) -> None:
    check(lambda x: (x.sum(axis), x.var(axis)), matrix("rand", *((300_000, 3) if axis == 0 else (3, 300_000))), dynamic=True)


@pytest.mark.parametrize("dims", [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_several_axes(dims: tuple[int, ...]) -> None:
    for shape in ((1000, 40, 3), (2000, 3, 33), (3, 2000, 7)):
        check(lambda x: (x.sum(dims), x.permute(2, 0, 1).sin().sum(dims)), matrix("rand", *shape), dynamic=False)


@pytest.mark.parametrize("dynamic", [False, True])
def test_moments_of_batches(dynamic: bool) -> None:
    for shape in ((16, 5, 24, 24), (100, 3, 8, 9), (7, 2, 1, 65)):
        x = matrix("rand", *shape) + 100
        check(lambda x: torch.var_mean(x, (0, 2, 3)), x, dynamic=dynamic)


@pytest.mark.parametrize("dims", [(0, 2), (2,), (0,), (0, 1, 2)])
def test_moments_of_what_hardly_differs(dims: tuple[int, ...]) -> None:
    """Deviations of a unit or so of the values' own last place: a mean that is rounded is as far off."""
    steps = torch.randint(-1, 2, (7, 3, 100), generator=torch.Generator().manual_seed(0)) / 1024
    check(lambda x: (x.var(dims), x.std(dims, correction=0)), steps + 12345.678, dynamic=False)
    equal, huge = torch.full((7, 3, 100), 0.1), matrix("randn", 7, 3, 100) * 1e30
    moments = torch.compile(lambda x: (x.var(dims), x.std(dims)), backend=lowc.lowc_backend, dynamic=False)
    assert all(bool((each == 0).all()) for each in moments(equal))
    variance, deviation = moments(huge)
    assert bool(variance.isinf().all())
    torch.testing.assert_close(deviation, huge.std(dims), rtol=1e-6, atol=0)


def test_ones_beyond_what_one_accumulator_can_count() -> None:
    check(lambda x: (x.mean(0), x.sum(0)), torch.ones(1 << 25, 2), dynamic=False)


def test_sums_beside_scans() -> None:
    x = matrix("rand", 4, 200_000)
    check(lambda x: ((x * 1e-3).cumsum(1, dtype=x.dtype).sum(1),), x)
    check(lambda x: (torch.exp(x - x.cumsum(1) * 1e-3).sum(1), x.cummax(1).values.sum(1)), x)


def test_gradients_of_what_is_broadcast() -> None:
    def gradients(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(torch.tanh(x * w), (w,), g)

    for columns in (1, 3, 17):
        x, g = matrix("rand", 100_000, columns), matrix("rand", 100_000, columns)
        check(gradients, x, torch.ones(columns).requires_grad_(), g)


@pytest.mark.parametrize("dims", [(1,), (0, 2), (2,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_of_equal_elements_is_that_element(dims: tuple[int, ...], dtype: torch.dtype) -> None:
    """A rounded mean would leave a rest, which layer norm multiplies by 1 / sqrt(eps)."""
    kept = [1 if d in dims else n for d, n in enumerate((3, 10, 77))]
    x = (torch.rand(kept, generator=torch.Generator().manual_seed(3), dtype=dtype) * 100).expand(3, 10, 77).contiguous()

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return (*torch.var_mean(x, dims, keepdim=True), torch.nn.functional.layer_norm(x, (77,)))

    torch._dynamo.reset()
    variance, mean, normal = torch.compile(f, backend="lowc")(x)
    assert torch.equal(variance, torch.zeros_like(variance)) and torch.equal(mean.expand_as(x), x)
    if 2 in dims:
        assert torch.equal(normal, torch.zeros_like(x))


@pytest.mark.parametrize("dims", [(0, 1, 2), (0, 2)])
def test_the_mean_of_whole_quarters_is_exact(dims: tuple[int, ...]) -> None:
    """Their sum is, in any order; the sum of their distances from a rounded mean is not."""
    draw = torch.Generator().manual_seed(622713)
    for _ in range(8):
        x = (torch.randn(27, 10, 10, generator=draw) * 8).round() / 4
        torch._dynamo.reset()
        means = torch.compile(lambda x: (torch.var_mean(x, dims)[1], torch.std_mean(x, dims)[1]), backend="lowc")(x)
        for mean in means:
            assert torch.equal(mean, x.double().mean(dims).float())
