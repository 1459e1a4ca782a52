"""Whose attention is on a CPU."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lowc.ir.index import Index, Symbol, ix
from lowc.ir.types import DType, bf16, f16, f32, f64
from lowc.options import Options
from lowc.scheduler.choose_attention import library
from lowc.target import Target
from tests.e2e.test_matmul import able

AVX512 = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 32 << 20, 2, frozenset({"fma"}))
AUTO = Options()
S = ix(Symbol("s0", 1, None))


def why(
    rows: Index | int, keys: Index | int, deep: int = 64, dtype: DType = f32, causal: bool = False, target: Target = AVX512,
    options: Options = AUTO, wanted: str = "sums",
) -> str:  # fmt: skip
    q, kv = ((ix(1), ix(8), ix(n), ix(deep)) for n in (rows, keys))
    return library(target, options)(dtype, q, kv, kv, False, causal, True, wanted, "cpu")


@pytest.mark.parametrize(
    "given",
    [
        {"rows": 512, "keys": 512}, {"rows": 24, "keys": 2048}, {"rows": 16, "keys": 128}, {"rows": 1, "keys": 4096},
        {"rows": 4, "keys": S}, {"rows": S, "keys": S}, {"rows": 100, "keys": 100, "dtype": bf16},
        {"rows": 256, "keys": 256, "deep": 256, "causal": True},
        {"rows": 64, "keys": 64, "wanted": "gradients"}, {"rows": S, "keys": S, "deep": 16, "dtype": bf16, "wanted": "gradients"},
        {"rows": 8, "keys": 512, "deep": 256, "wanted": "gradients"},
    ],
    ids=str,
)  # fmt: skip
def test_what_was_measured_to_be_faster_is_own(given: dict[str, object]) -> None:
    assert why(**given) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"rows": 8, "keys": 512}, "8 queries of more than 128 keys"),
        ({"rows": 16, "keys": S}, "16 queries"),
        ({"rows": 256, "keys": 256, "deep": 256}, "heads of 256"),
        ({"rows": 64, "keys": 64, "deep": 8}, "heads of 8"),
        ({"rows": 64, "keys": 64, "deep": 40}, "heads of 40"),
        ({"rows": 64, "keys": 64, "dtype": f64}, "f32 and bf16"),
        ({"rows": 64, "keys": 64, "dtype": f16}, "f32 and bf16"),
        ({"rows": 64, "keys": 64, "target": replace(AVX512, vector_bits=256)}, "AVX-512"),
        ({"rows": 64, "keys": 64, "options": Options(numerics="strict")}, "strict"),
        ({"rows": 64, "keys": 64, "options": Options(attention="library")}, "option attention"),
        ({"rows": 1, "keys": 64, "wanted": "gradients"}, "gradients for 1 queries"),
        ({"rows": 64, "keys": 64, "deep": 8, "wanted": "gradients"}, "gradients for heads of 8"),
        ({"rows": 64, "keys": 64, "dtype": f16, "wanted": "gradients"}, "own gradients were measured for f32 and bf16"),
        ({"rows": 64, "keys": 64, "target": replace(AVX512, vector_bits=256), "wanted": "gradients"}, "AVX-512"),
    ],
    ids=str,
)
def test_the_rest_is_a_librarys(given: dict[str, object], reason: str) -> None:
    assert reason in why(**given)  # type: ignore[arg-type]
    chosen = given.get("options", AUTO)
    assert isinstance(chosen, Options)
    if chosen.attention == "auto":
        assert why(**{**given, "options": chosen._replace(attention="own")}) == ""  # type: ignore[arg-type]


@pytest.mark.skipif(not able("avx512"), reason="auto leaves attention to ATen without AVX-512")
@pytest.mark.parametrize(("rows", "wide"), [(70, 32), (8, 32), (70, 16), (2, 32)], ids=["both", "back", "back, narrow", "there"])
def test_gradients_take_what_the_kernel_gives(rows: int, wide: int) -> None:
    """Whosever the passes are: one gets the other's result and logarithms of sums."""
    torch._dynamo.reset()
    args = [torch.randn(1, 2, n, wide, requires_grad=True) for n in (rows, 90, 90)]
    own = torch.compile(F.scaled_dot_product_attention, backend="lowc", options={"cache": False, "strict_errors": True})
    found, wanted = (torch.autograd.grad(f(*args).square().sum(), args) for f in (own, F.scaled_dot_product_attention))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
