"""Regressions that random graphs (``python -m tests.property.graphs``) found."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lowc.dynamo import lowc_backend

STRICT = {"strict_errors": True}


def compiled(f: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend=lowc_backend, options=STRICT, dynamic=dynamic)


def gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    given = x.clone().requires_grad_()
    out = f(given)
    return torch.autograd.grad(out, given, torch.ones_like(out))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("reduce", ["amin", "amax", "sum"])
def test_a_sum_beside_a_scatter(dtype: torch.dtype, reduce: str) -> None:
    """A sum of all elements was shared among the cores with the scatter in its loop, whose elements then met."""

    def f(x: Tensor, index: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        return x.scatter_reduce(0, index, source, reduce), source.sum()

    n = 1 << 18
    index = torch.arange(n).flip(0) % 7
    x, source = torch.zeros(7, dtype=dtype), torch.ones(n, dtype=dtype)
    if reduce != "sum":
        source = ((torch.arange(n) * 37) % 211 - 100).to(dtype)
    ours = compiled(f)
    for _ in range(5):
        a, b = ours(x, index, source), f(x, index, source)
        exact = x.double().scatter_reduce(0, index, source.double(), reduce).to(dtype)
        assert torch.equal(a[0], exact) and torch.equal(a[1], b[1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_of_a_permuted_tensor_that_was_written_to(dynamic: bool) -> None:
    """AOTAutograd replays the view of what ``index_add`` gave, whose strides do not allow it."""

    def f(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
        places = torch.max(x, -2).indices
        seen = places.view([-1, 1, 1])
        places.permute([2, 0, 1]).index_add_(0, index, source)
        return seen

    ours = compiled(f, dynamic)
    for rows, columns in ((9, 17), (5, 13)):
        x = torch.randn(rows, 1, 9, columns)
        index, source = torch.randint(0, columns, (3,)), torch.arange(3 * rows).view(3, rows, 1)
        assert torch.equal(ours(x, index, source), f(x, index, source))


@pytest.mark.parametrize("f", [F.elu, F.selu, lambda x: F.celu(x, 0.5)])
def test_the_gradient_of_elu_at_nan_is_nan(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-3, 3, 64)
    x[::5] = float("nan")
    torch.testing.assert_close(gradient(compiled(f), x), gradient(f, x), equal_nan=True)


def test_the_gradient_of_elu_in_place() -> None:
    """Made of the result, not of the input."""
    x = torch.linspace(-3, 3, 64)

    def f(x: Tensor) -> Tensor:
        return F.elu(x * 2, 1.5, inplace=True)

    torch.testing.assert_close(gradient(compiled(f), x), gradient(f, x))


def _quotient(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    z = x / y
    y.mul_(2)
    return z * w


def _quotient_of_a_view(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    z = x / y.t()
    y.mul_(2)
    return z * w


def _both_written(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    z = torch.softmax(x * y.flatten(), 1)
    y.add_(1)
    x.zero_()
    return z * w


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("f", [_quotient, _quotient_of_a_view, _both_written])
def test_the_backward_pass_sees_inputs_as_they_were(f: Callable[..., Tensor], step: int, dynamic: bool) -> None:
    """The small factors, which are inputs, are kept instead of what is made of them, and written to afterwards.  (Backends
    ``aot_eager`` and ``inductor`` see them as they are then.)"""
    ours = compiled(f, dynamic)
    for n in (16, 24):
        results = []
        for call in (ours, f):
            torch.manual_seed(n)
            x, y = torch.rand(n, step)[:, :1] + 1, torch.rand(1, n * step)[:, ::step] + 1
            y = y.t().contiguous() if f is _quotient_of_a_view else y
            w = torch.ones(n, n, requires_grad=True)
            results.append((*torch.autograd.grad(call(x, y, w).sum(), w), x, y))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("size", "step"), [(1, 1), (2, 2), (2, 3), (1, 4)])
def test_writes_through_unfold_keep_signs_of_zeros(size: int, step: int, dynamic: bool) -> None:
    """As ``aot_eager`` has it: what lies between the windows is lost."""

    def f(x: Tensor) -> Tensor:
        x.unfold(1, size, step).mul_(-1)
        return x * 1

    ours = compiled(f, dynamic)
    plain = torch.compile(f, backend="aot_eager", dynamic=dynamic)
    for n in (7, 8, 11):
        x = torch.arange(3.0 * n * 2).reshape(3, n, 2) % 2
        expected, given = x.clone(), x.clone()
        plain(expected), ours(given)
        assert torch.equal(given, expected) and torch.equal(given.signbit(), expected.signbit())


SCATTERS = {
    "select": lambda x, y: torch.select_scatter(x, y[0], 0, 1),
    "slice": lambda x, y: torch.slice_scatter(x, y[:1], 0, 1, 2),
    "diagonal": lambda x, y: torch.diagonal_scatter(x, y[0]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 1)])
@pytest.mark.parametrize("name", list(SCATTERS))
def test_a_part_of_an_expanded_tensor_is_replaced(name: str, shape: tuple[int, ...], dynamic: bool) -> None:
    """Also where the backward pass is given the result, whose strides fake tensors of torch 2.11 have wrong."""
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randn(2, 3)

    def f(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        z = SCATTERS[name](x.expand(5, 3), y)
        return torch.cumsum(z, 0) * w, z

    ours = compiled(f, dynamic)
    w = torch.randn(5, 3, requires_grad=True)
    a, b = ours(x, y, w), f(x, y, w)
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q)
        assert p.stride() == q.stride()
    torch.testing.assert_close(*(torch.autograd.grad(r[0].square().sum(), w)[0] for r in (a, b)))


@pytest.mark.parametrize("name", list(SCATTERS))
def test_the_copy_of_an_expanded_tensor_keeps_the_order_of_its_dimensions(name: str) -> None:
    x, y = torch.randn(4, 3).t()[:, :, None], torch.randn(3, 4, 2)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return SCATTERS[name](x.expand(3, 4, 2), y if name != "diagonal" else y[:, :3].transpose(1, 2))

    a, b = compiled(f)(x, y), f(x, y)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert a.stride() == b.stride() != (8, 2, 1)


EMPTY_SCATTERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "select": ((1, 0), (4, 0), lambda x: torch.select_scatter(x, x.new_ones(0), 0, 1)),
    "select of a dimension of size 1": ((1, 0), (1, 4, 0), lambda x: torch.select_scatter(x, x.new_ones(1, 0), 1, -1)),
    "slice": ((0, 1), (0, 5), lambda x: torch.slice_scatter(x, x.new_ones(0, 2), 1, 1, 3)),
    "an empty slice": ((3, 1), (3, 5), lambda x: torch.slice_scatter(x, x.new_ones(3, 0), 1, 2, 2)),
    "diagonal": ((1, 0), (3, 0), lambda x: torch.diagonal_scatter(x, x.new_ones(0))),
    "diagonal of three dimensions": ((0, 1, 1), (0, 3, 4), lambda x: torch.diagonal_scatter(x, x.new_ones(0, 3), 0, 1, 2)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", list(EMPTY_SCATTERS))
def test_a_part_of_an_expanded_tensor_without_elements_is_replaced(name: str, dynamic: bool) -> None:
    """A plain copy of one keeps its strides, and was taken for one to be copied, for ever."""
    shape, size, scatter = EMPTY_SCATTERS[name]

    def f(x: Tensor) -> Tensor:
        return scatter(x.expand(size)) * 2

    x = torch.ones(shape)
    a, b = compiled(f, dynamic)(x), f(x)
    assert a.shape == b.shape == size and torch.equal(a, b)


QUOTIENTS: dict[str, Callable[[Tensor, Tensor | float], Tensor]] = {
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "//": lambda x, y: x // y,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(QUOTIENTS))
def test_whole_quotients_by_one_element(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    """ATen divides by a tensor with one element as by a number, whose quotients are not rounded before they are cut."""
    divide = QUOTIENTS[name]
    x = torch.linspace(-300, 300, 1201).to(dtype).reshape(1, 1201)
    cut = 0
    for number in (0.7, -2.9, 3.0, 0.0123):
        whole = torch.full(x.shape, number, dtype=dtype)
        one = whole[0, :1]
        for y in (one, one.reshape(1, 1), one.reshape(()), one.item(), whole):
            a, b = compiled(lambda x, y: divide(x, y), dynamic)(x, y), divide(x, y)
            assert a.dtype == b.dtype and torch.equal(a, b), (number, getattr(y, "shape", "a number"))
        cut += int((divide(x, one) != divide(x, whole)).sum())
    assert cut or name != "trunc"  # the values tell the two apart


def test_gelu_with_tanh_does_not_cancel() -> None:
    """Of (1 + tanh(u)) / 2 as it stands no digit is left at x = -6, nor of its derivative."""
    x = torch.cat([torch.linspace(-9, 9, 3001), torch.tensor([-1e15, 1e15, -0.0, 0.0])])

    def f(x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def wide(x: Tensor) -> Tensor:
        return x * torch.sigmoid(u(x) * 2)

    def u(x: Tensor) -> Tensor:
        return (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)

    y = x.double()
    apart = 2.0**-23 * (3 + 3 * u(y).abs().clamp(max=100))  # exp makes a relative error of an absolute one
    ours, exact = compiled(f)(x), wide(y)
    assert ((ours - exact).abs() <= apart * exact.abs()).all() and (ours.signbit() == f(x).signbit()).all()
    ours, exact = gradient(compiled(f), x), gradient(wide, y)
    share = exact.abs().maximum(torch.sigmoid(2 * u(y)))  # the derivative is 0 at -0.75, its terms are not
    assert ((ours - exact).abs() <= 4 * apart * share).all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("shifts", "dims"), [((1,), (1,)), ((-2, 7), (2, 3)), ((5,), ()), ((0,), (0,))])
def test_what_is_rolled_and_kept_for_the_backward_pass(shifts: tuple[int, ...], dims: tuple[int, ...], dynamic: bool) -> None:
    """Its strides are channels_last on a CPU, those of the fake tensor of the whole op are not."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        z = torch.roll(x, shifts, dims)
        return (torch.cumsum(z, 1) * z) * w

    ours = compiled(f, dynamic)
    for n in (4, 5):
        x = torch.randn(2, n, 3, 6).to(memory_format=torch.channels_last)
        w = torch.randn(2, n, 3, 6, requires_grad=True)
        a, b = ours(x, w), f(x, w)
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
        torch.testing.assert_close(*(torch.autograd.grad(r.square().sum(), w)[0] for r in (a, b)))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("order", [2, 1, 3, float("inf")])
def test_the_norm_over_a_last_dimension_of_one(order: float, keepdim: bool) -> None:
    """Fake tensors of torch 2.11 have a dimension too many."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.vector_norm(x, order, [-1], keepdim) * 2, torch.linalg.vector_norm(x, order, (-1, 0), keepdim)

    x = torch.randn(3, 1)
    for a, b in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_part_of_what_overlaps_itself_is_replaced(dynamic: bool) -> None:
    """Windows of ``unfold``: the copy that eager makes of them overlaps itself as they do."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        windows = x.unfold(0, 4, 1)
        part = torch.slice_scatter(windows, y[None], 0, 1, 2)
        return torch.diagonal_scatter(windows, y), torch.select_scatter(windows, y, 0, 1), part

    ours = compiled(f, dynamic)
    for n in (7, 9):
        x, y = torch.randn(n), torch.randn(4)
        for a, b in zip(ours(x, y), f(x, y), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
            assert a.stride() == b.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_isin_finds_infinities_beside_nan(dynamic: bool) -> None:
    def f(x: Tensor, among: Tensor) -> tuple[Tensor, ...]:
        numbers = [torch.isin(number, among) for number in (inf, nan, 7)]
        return torch.isin(x, among), torch.isin(x, among, invert=True), *numbers

    ours = compiled(f, dynamic)
    inf, nan = torch.inf, torch.nan
    for count in (20, 23):
        among = torch.randn(count)
        among[::2] = torch.tensor([nan, inf, -inf, 0.0]).repeat(count)[: (count + 1) // 2]
        x = torch.tensor([nan, inf, -inf, -0.0, 1.0, float(among[1])])
        for a, b in zip(ours(x, among), f(x, among), strict=True):
            assert a.tolist() == b.tolist()


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1.5, float("inf")])
def test_the_norm_of_one_element_is_its_magnitude(order: float) -> None:
    """Where its power has no finite value, or none but 0."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        norm = torch.linalg.vector_norm
        return norm(x, order, [1]), norm(x, order), norm(x[0, 0, 0], order)

    x = torch.tensor([1e30, -1e-30, -0.0, float("-inf"), float("nan")]).reshape(5, 1, 1)
    for each in x.split(1):
        for a, b in zip(compiled(f)(each), f(each), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logaddexp2_rounds_once(dtype: torch.dtype) -> None:
    """As eager's kernel: of -1 and -1 it is a small negative number, by which others are divided."""
    x = torch.tensor([-1.0, -2.0, 0.5, -1.0], dtype=dtype)
    y = torch.tensor([-1.0, -2.0, 0.5, -1.5], dtype=dtype)
    ours, eager = compiled(torch.logaddexp2)(x, y), torch.logaddexp2(x, y)
    assert ((ours == 0) == (eager == 0)).all() and ours[0].sign() == eager[0].sign()
    torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 2, 1, 2), (2, 3, 4, 5, 6)])
def test_log_softmax_is_contiguous(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    for dim in (1, -1):
        ours, eager = compiled(F.log_softmax)(x, dim), F.log_softmax(x, dim)
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


def test_lerp_of_scalars_by_a_wider_weight() -> None:
    """Of tensors without dimensions the widest dtype is that of the result, and all is computed in it."""
    start, end, weight = torch.tensor(0.75), torch.tensor(-1.25), torch.tensor(0.3, dtype=torch.float64)
    for x, y in ((start, end), (start.bfloat16(), end.bfloat16())):
        assert torch.equal(compiled(torch.lerp)(x, y, weight), torch.lerp(x, y, weight))
        assert torch.equal(compiled(torch.lerp)(x, y, weight.float()), torch.lerp(x, y, weight.float()))


@pytest.mark.parametrize("scale", [1e-25, 1e-40, 1e25])
@pytest.mark.parametrize("shape, dims", [((16, 33), [1]), ((16, 33), [0]), ((3, 4, 70), [0, 2])])
def test_deviations_whose_squares_are_no_floats(scale: float, shape: tuple[int, ...], dims: list[int]) -> None:
    x = torch.randn(shape, dtype=torch.float64).mul(scale).float()
    ours = compiled(torch.std)(x, dims, correction=1)
    torch.testing.assert_close(ours.double() / scale, x.double().std(dims) / scale, rtol=1e-4 if scale == 1e-40 else 1e-6, atol=0)


def test_strides_of_one_element_decide_what_is_channels_last() -> None:
    """An image whose stride from one to the next is not that of channels_last, though there is no next one."""

    def f(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.index_fill(x, 0, places, 0)
        return y, F.interpolate(y, scale_factor=2, mode="bilinear")

    for strides in ((51, 1, 51, 3), (459, 1, 51, 3), (459, 153, 17, 1)):
        x = torch.randn(459).as_strided((1, 3, 9, 17), strides)
        for places in (torch.tensor([0]), torch.tensor([], dtype=torch.int64)):
            for a, b in zip(compiled(f)(x, places), f(x, places), strict=True):
                torch.testing.assert_close(a, b)
                assert [s for n, s in zip(a.shape, a.stride(), strict=True) if n > 1] == [
                    s for n, s in zip(b.shape, b.stride(), strict=True) if n > 1
                ]


@pytest.mark.parametrize("shape", [(), (3,), (4, 5)])
@pytest.mark.parametrize("view", [False, True])
def test_an_input_that_gets_a_gradient_by_what_is_written_to_it(shape: tuple[int, ...], view: bool) -> None:
    """AOTAutograd keeps the input and writes to it afterwards: autograd refused the backward pass."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        (x.view(-1) if view else x).mul_(w.view(-1) if view else w)
        return torch.fmax(x + 1, x) * w

    start, weight = torch.randn(shape), torch.randn(shape)
    found = []
    for call in (compiled(f), f):
        x, w = start.clone(), weight.clone().requires_grad_()
        out = call(x, w)
        (out.sum() + x.square().sum()).backward()
        found.append((out.detach(), x.detach(), w.grad))
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager)
