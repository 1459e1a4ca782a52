"""Products of matrices by ``mma.sync`` on an NVIDIA GPU, beside float64.

    python -m pytest -m gpu tests/e2e/test_mma_gpu.py
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lowc.scheduler import choose_mma, choose_tensor_cores

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0), reason="needs compute capability 8.0"
    ),
]
OWN = {"matmul": "own", "strict_errors": True, "cache": False}
BF16, F16 = torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The ways that are chosen, by warps alone."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    found: list[Any] = []
    choices = choose_mma.choices

    def noted(*args: Any) -> Any:
        ways = list(choices(*args))
        found.extend(ways[:1])
        return ways

    monkeypatch.setattr(choose_tensor_cores, "choices", lambda *_: ())
    monkeypatch.setattr(choose_mma, "choices", noted)
    precision = torch.get_float32_matmul_precision()
    yield found
    torch.set_float32_matmul_precision(precision)
    torch._dynamo.reset()


def made(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def laid(shape: tuple[int, int], form: str, dtype: torch.dtype = BF16) -> Tensor:
    return made(*shape, dtype=dtype) if form == "n" else made(*reversed(shape), dtype=dtype).t()


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def assert_right(function: Callable[..., Tensor], *args: Tensor, bound: float = 2.0**-8) -> None:
    """Beside float64, in the norm: not further off than rounding the result to its type is."""
    exact = function(*(a.double() for a in args))
    found = torch.compile(function, backend="lowc", fullgraph=True, dynamic=False, options=OWN)(*args)
    assert off(found, exact) < bound


FORMS = ("nn", "nt", "tn", "tt")
SIZES = [
    *[((256, 264, 512), form) for form in FORMS], *[((333, 77, 129), form) for form in FORMS],
    ((100, 198, 66), "nt"), ((100, 198, 66), "tn"), ((1000, 1003, 1001), "nn"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "form"), SIZES, ids=str)
def test_layouts_and_odd_sizes(shape: tuple[int, int, int], form: str, chosen: list[Any]) -> None:
    m, n, k = shape
    assert_right(lambda x, y: x @ y, laid((m, k), form[0]), laid((k, n), form[1]))
    assert chosen


@pytest.mark.parametrize("way", choose_mma.WAYS, ids=lambda w: w.name)
def test_every_way(way: choose_mma.Way, chosen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_mma, "WAYS", (way,))
    monkeypatch.setattr(choose_mma, "slices", lambda *_: 1)
    assert_right(lambda x, w, b: F.gelu(F.linear(x, w, b)), made(500, 1000), made(392, 1000) / 30, made(392))
    assert chosen[0].tile == way.tile


def test_batches_slices_and_other_types() -> None:
    assert_right(torch.bmm, made(5, 31, 33), made(5, 33, 35))
    assert_right(lambda x, y: x @ y, made(64, 9001), made(9001, 72) / 90)
    assert_right(lambda x, y: x @ y, made(200, 130, dtype=F16), made(130, 200, dtype=F16), bound=2.0**-11)
    torch.set_float32_matmul_precision("high")
    assert_right(lambda x, w: x @ w.t(), made(333, 132, dtype=torch.float32), made(77, 132, dtype=torch.float32), bound=2.0**-11)


def test_integers_are_exact(chosen: list[Any]) -> None:
    for m, n, k in ((128, 128, 64), (333, 72, 208), (1000, 1000, 1008)):
        x, w = (torch.randint(-128, 128, s, dtype=torch.int8, device="cuda") for s in ((m, k), (n, k)))
        torch._dynamo.reset()
        doubled = torch.compile(lambda x, w: torch._int_mm(x, w.t()) * 2, backend="lowc", fullgraph=True, options=OWN)
        assert torch.equal(doubled(x, w).double(), x.double() @ w.double().t() * 2)
    assert len(chosen) == 3


def test_memory_that_begins_anywhere() -> None:
    base, w = made(300 * 256 + 8), made(520, 256)
    for shift in (1, 2, 4):
        torch._dynamo.reset()
        assert_right(lambda x, w: x @ w.t(), base[shift : shift + 300 * 256].view(300, 256), w)
