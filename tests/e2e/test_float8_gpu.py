"""Products and conversions of float8 on an NVIDIA GPU of capability 9.0, beside float64 and eager.

    python -m pytest -m gpu tests/e2e/test_float8_gpu.py
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lowc.scheduler import choose_tensor_cores

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs compute capability 9.0"
    ),
]
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BOUNDS = {BF16: 2.0**-8, F16: 2.0**-10, F32: 2.0**-11}  # sums of 128 products have about 14 bits
OWN = {"matmul": "own", "strict_errors": True, "cache": False}


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The ways that are chosen."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    found: list[Any] = []
    choices = choose_tensor_cores.choices

    def noted(*args: Any) -> Any:
        ways = choices(*args)
        found.extend(w for w in ways[:1] if "copy" not in w.copies)
        return ways

    monkeypatch.setattr(choose_tensor_cores, "choices", noted)
    yield found
    torch._dynamo.reset()


def own(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="lowc", fullgraph=True, options=OWN, **{"dynamic": False, **given})


def factors(m: int, n: int, k: int, by_row: bool, x: torch.dtype = E4, y: torch.dtype = E4, gap: int = 0) -> tuple[Tensor, ...]:
    """x, y and their scales; rows begin ``gap`` elements further on than they are long."""
    shapes = ((m, 1), (1, n)) if by_row else ((), ())
    wide = [torch.randn(size, k + gap, device="cuda").to(t)[:, :k] for size, t in ((m, x), (n, y))]
    return wide[0], wide[1].t(), *(torch.rand(s, device="cuda") + 0.5 for s in shapes)


def exact(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x.double() @ y.double() * a.double() * b.double()


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def product(out: torch.dtype = BF16, fast: bool = False) -> Callable[..., Tensor]:
    return lambda x, y, a, b: torch._scaled_mm(x, y, a, b, out_dtype=out, use_fast_accum=fast)


@pytest.mark.parametrize("fast", [False, True])
def test_random_sizes(fast: bool, chosen: list[Any]) -> None:
    draw = random.Random(int(fast))
    for number in range(8):
        m, n, k = draw.randint(1, 700), 16 * draw.randint(1, 40), 16 * draw.randint(1, 90)
        args = factors(m, n, k, bool(number % 2), gap=draw.choice((0, 16, 48)))
        assert off(own(product(fast=fast))(*args), exact(*args)) < BOUNDS[BF16], (m, n, k)
    assert len(chosen) == 8
    assert {step.key for step in chosen} == {"wgmma" if fast else "wgmma_apart"}


@pytest.mark.parametrize("fast", [False, True])
def test_every_way(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_tensor_cores, "slices", lambda found, target: 1)
    for way in choose_tensor_cores.WAYS if fast else choose_tensor_cores.APART:
        monkeypatch.setattr(choose_tensor_cores, "ways_of", lambda size, way=way: (way,))
        args = factors(64 if way.tile[1] < 64 else 2600, 1104 if fast else 1088, 2320, True)
        assert off(own(product(fast=fast))(*args), exact(*args)) < BOUNDS[BF16], way.name


@pytest.mark.parametrize("fast", [False, True])
def test_types_results_and_slices(fast: bool) -> None:
    for x, y in ((E4, E5), (E5, E4)):
        args = factors(200, 144, 272, False, x, y)
        assert off(own(product(fast=fast))(*args), exact(*args)) < BOUNDS[BF16]
    for out in (F16, F32):
        args = factors(300, 272, 512, False)
        assert off(own(product(out, fast))(*args), exact(*args)) < BOUNDS[out]
    args = factors(256, 256, 16384, True)
    assert off(own(product(fast=fast))(*args), exact(*args)) < BOUNDS[BF16]


def test_what_follows_and_sizes_of_the_call() -> None:
    bias = torch.randn(272, device="cuda", dtype=BF16)

    def layer(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.silu(torch._scaled_mm(x, y, a, b, bias=bias, out_dtype=BF16))

    compiled = own(layer, dynamic=True)
    for m in (40, 2, 333):
        args = factors(m, 272, 512, False)
        assert off(compiled(*args), F.silu(exact(*args) + bias.double())) < BOUNDS[BF16]


@pytest.mark.parametrize("depth", [512, 16384])
def test_sums_are_no_further_off_than_twice_the_library_s(depth: int) -> None:
    args = factors(256, 256, depth, False)
    for fast in (False, True):
        wanted, function = exact(*args), product(F32, fast)
        assert off(own(function)(*args), wanted) <= 2 * off(function(*args), wanted) + 2.0**-22


def test_bad_input_raises() -> None:
    x, y, a, b = factors(32, 48, 64, False)
    for args in ((x, y.contiguous(), a, b), (x[:, :40], y[:40], a, b), (x, y, a.double(), b)):
        for function in (product(), own(product())):
            with pytest.raises(RuntimeError):
                function(*args)


def test_a_layer_that_quantises() -> None:
    """Factors are made by kernels of their own, with scales of rows; the library has them from ATen."""

    def layer(x: Tensor, w: Tensor) -> Tensor:
        a, b = x.abs().amax(1, keepdim=True).float() / 448.0, w.abs().amax(1, keepdim=True).float() / 448.0
        q, r = (x / a).clamp(-448.0, 448.0).to(E4), (w / b).clamp(-448.0, 448.0).to(E4)
        return F.silu(torch._scaled_mm(q, r.t(), a, b.t(), out_dtype=BF16, use_fast_accum=True))

    x, w = torch.randn(300, 512, device="cuda", dtype=BF16), torch.randn(272, 512, device="cuda", dtype=BF16)
    assert off(own(layer)(x, w), layer(x, w).double()) < 2.0**-7


@pytest.mark.parametrize("dtype", [E4, E5], ids=str)
def test_conversions(dtype: torch.dtype) -> None:
    eighths = torch.arange(256, device="cuda").to(torch.uint8).view(dtype)
    wide = (F32, F16, BF16)
    for found, type_ in zip(own(lambda x: tuple(x.to(t) for t in wide))(eighths), wide, strict=True):
        assert torch.equal(found.nan_to_num(-1.0), eighths.to(type_).nan_to_num(-1.0))
    for type_ in wide:
        x = torch.cat([torch.randn(5000, device="cuda") * s for s in (100, 1, 0.01)]).to(type_).clamp(-448.0, 448.0)
        assert torch.equal(own(lambda x: x.to(dtype))(x).view(torch.uint8), x.to(dtype).view(torch.uint8))
