"""Float8: products with scales beside float64, conversions beside torch's, bit for bit, and what stays ATen's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lowc.cli.compilation import compile_all
from lowc.ir.nodes import Extern
from lowc.options import Options
from tests.e2e.test_matmul import ISAS, SETTINGS, able, own

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
TYPES = st.sampled_from([(E4, E4), (E4, E5), (E5, E4)])
SIXTEENS = st.integers(1, 6).map(lambda n: 16 * n)
WHOLE, BY_ROW = F.ScalingType.TensorWise, F.ScalingType.RowWise


def factors(seed: int, m: int, n: int, k: int, types: tuple[torch.dtype, ...], by_row: bool, gap: int = 0) -> list[Tensor]:
    """x, y and their scales; rows begin ``gap`` elements further on than they are long."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x, y = random(m, k + gap).to(types[0])[:, :k], random(n, k + gap).to(types[1])[:, :k].t()
    return [x, y, *(random(*s).abs() + 0.5 for s in (((m, 1), (1, n)) if by_row else ((), ())))]


def exact(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x.double() @ y.double() * a.double() * b.double()


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


def externs(function: Callable[..., Any], *args: Any) -> list[str]:
    """Why what of ``function`` is ATen's with option ``matmul="own"`` is that."""
    (graph,) = compile_all(function, args, Options(matmul="own")).graphs
    return [s.because for s in graph.lowered.steps if isinstance(s, Extern)]


@pytest.mark.parametrize("isa", ISAS)
def test_products(isa: str) -> None:
    if not able(isa):
        pytest.skip(f"no {isa} here")

    @settings(SETTINGS, max_examples=5)
    @given(st.integers(1, 40), SIXTEENS, SIXTEENS, TYPES, st.booleans(), st.sampled_from([0, 3, 16]), st.integers(0, 1 << 30))
    def check(m: int, n: int, k: int, types: Any, by_row: bool, gap: int, seed: int) -> None:
        args = factors(seed, m, n, k, types, by_row, gap)
        bias = torch.randn(n).bfloat16()

        def function(x: Tensor, y: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Any:
            made = torch._scaled_mm(x, y, a, b, bias=bias, out_dtype=torch.bfloat16)
            return torch._scaled_mm(x, y, a, b, out_dtype=torch.float32), F.silu(made)

        whole, narrow = own(function, isa)(*args, bias)
        wanted = exact(*args)
        assert whole.dtype == torch.float32 and whole.stride() == torch._scaled_mm(*args, out_dtype=torch.float32).stride()
        assert off(whole, wanted) < 1e-6
        assert off(narrow, F.silu(wanted + bias)) < 2.0**-7

    check()


@pytest.mark.parametrize("by_row", [False, True])
def test_the_form_with_recipes(by_row: bool) -> None:
    args = factors(1, 20, 48, 64, (E4, E4), by_row)
    recipe = BY_ROW if by_row else WHOLE

    def function(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.scaled_mm(x, y, a, recipe, b, recipe, output_dtype=torch.float16)

    assert externs(function, *args) == []
    assert off(own(function)(*args), exact(*args)) < 2.0**-10


def test_what_stays_aten_s() -> None:
    """Results of float8, a factor that lies the other way, sizes that 16 does not divide, a bias where eager takes none."""
    x, y, a, b = factors(2, 20, 48, 64, (E4, E4), False)
    for function, why in (
        (lambda x, y, a, b: torch._scaled_mm(x, y, a, b), "results of f8e4m3"),
        (lambda x, y, a, b: torch._scaled_mm(x, y, a, b, bias=torch.ones(48), out_dtype=torch.float32), "a bias"),
    ):
        assert [e for e in externs(function, x, y, a, b) if why in e]
        assert torch.equal(own(function)(x, y, a, b).float(), function(x, y, a, b).float())


# ---------------------------------------------------------------- conversions


def every_float8(dtype: torch.dtype) -> Tensor:
    return torch.arange(256).to(torch.uint8).view(dtype)


def ties(dtype: torch.dtype) -> Tensor:
    """Half way between neighbours, a little less and a little more, and what is special."""
    finite = every_float8(dtype)[:128].double()
    finite = finite[finite.isfinite()]
    half = ((finite[1:] + finite[:-1]) / 2).float()
    near = [half, half.nextafter(torch.tensor(0.0)), half.nextafter(torch.tensor(1e9))]
    more = torch.tensor([448.0, 464.0, 465.0, 480.0, 57344.0, 61439.0, 61440.0, 65536.0, 1e9, torch.inf, torch.nan, 0.0, 1e-40])
    both = torch.cat([*near, finite.float(), more])
    return torch.cat([both, -both])


def same(found: Tensor, wanted: Tensor) -> bool:
    """Bit for bit, but for NaN."""
    assert found.dtype == wanted.dtype
    nan = found.float().isnan() & wanted.float().isnan()
    bits = torch.uint8 if found.dtype.itemsize == 1 else {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.dtype.itemsize]
    return bool(((found.view(bits) == wanted.view(bits)) | nan).all())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [E4, E5], ids=str)
def test_conversions(dtype: torch.dtype, isa: str) -> None:
    if not able(isa):
        pytest.skip(f"no {isa} here")
    eighths = every_float8(dtype)
    wide = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    found = own(lambda x: tuple(x.to(t) for t in wide), isa)(eighths)
    assert all(same(a, eighths.to(t)) for a, t in zip(found, wide, strict=True))
    for type_ in wide:
        x = torch.cat([ties(dtype), torch.randn(500) * 100, torch.randn(500) * 0.01]).to(type_)
        if not torch.tensor(1000.0).to(E4).float().isfinite():  # torch before 2.12 does not saturate
            x = x.clamp(-448.0, 448.0)
        assert same(own(lambda x: x.to(dtype), isa)(x), x.to(dtype))


def test_conversions_are_lowc_s_own_and_are_fused() -> None:
    x = torch.randn(33, 70)

    def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(1, keepdim=True) / 448.0
        return (x / scale).clamp(-448.0, 448.0).to(E4), scale

    def padded(x: Tensor) -> Tensor:
        return F.pad(x.to(E4).to(torch.bfloat16) + 1, (1, 2)).t().contiguous()

    for function in (quantised, padded):
        assert externs(function, x) == []
    assert all(map(same, own(quantised)(x), quantised(x)))
    assert same(own(padded)(x), padded(x))


def test_a_quantised_layer() -> None:
    """Factors that are made where they are used, with scales of their rows."""
    x, w = torch.randn(20, 64), torch.randn(48, 64)

    def layer(x: Tensor, w: Tensor) -> Tensor:
        a, b = x.abs().amax(1, keepdim=True) / 448.0, w.abs().amax(1, keepdim=True) / 448.0
        q, r = (x / a).to(E4), (w / b).to(E4)
        return torch._scaled_mm(q, r.t(), a, b.t(), out_dtype=torch.bfloat16)

    assert externs(layer, x, w) == []
    assert off(own(layer)(x, w), layer(x, w).double()) < 2.0**-8
