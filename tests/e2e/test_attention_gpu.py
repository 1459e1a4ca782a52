"""Attention by lowc's own kernel on an NVIDIA GPU, beside float64.

    python -m pytest -m gpu tests/e2e/test_attention_gpu.py
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lowc.scheduler import choose_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs compute capability 9.0"
    ),
]
OWN = {"attention": "own", "strict_errors": True, "check": True, "cache": False}


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The ways that are chosen for attention."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield first_of(monkeypatch, "choices")
    torch._dynamo.reset()


def first_of(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """What the function of that name in ``choose_attention`` gives first, each time from now on."""
    found: list[Any] = []
    function = getattr(choose_attention, name)

    def noted(*args: Any) -> Any:
        ways = function(*args)
        found.extend(ways[:1])
        return ways

    monkeypatch.setattr(choose_attention, name, noted)
    return found


def tensors(
    batch: int, heads: int, rows: int, deep: int, keys: int = 0, shared: int = 0, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, ...]:
    shapes = ((batch, heads, rows, deep), *[(batch, shared or heads, keys or rows, deep)] * 2)
    return tuple(torch.randn(s, device="cuda").to(dtype) for s in shapes)


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def check(function: Callable[..., Tensor], *args: Tensor, options: dict[str, Any] = OWN) -> None:
    exact = function(*(a.double() for a in args))
    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=options)
    allowed = max(1.5 * off(function(*args), exact), 2 * torch.finfo(args[0].dtype).eps)
    for _ in range(3):
        assert off(compiled(*args), exact) <= allowed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("deep", [32, 64, 96, 128, 256])
def test_widths_of_heads(deep: int, causal: bool, chosen: list[Any]) -> None:
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), *tensors(2, 3, 1000, deep))
    assert chosen


@pytest.mark.parametrize("deep", [64, 128])
def test_tiles_in_turns(deep: int, chosen: list[Any]) -> None:
    """More tiles than multiprocessors."""
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *tensors(4, 16, 1100, deep, keys=700))
    assert chosen[0].blocks


def test_by_default(chosen: list[Any]) -> None:
    args = tensors(1, 13, 4096, 128, dtype=torch.float16)
    for function in (F.scaled_dot_product_attention, partial(F.scaled_dot_product_attention, is_causal=True)):
        check(lambda q, k, v, function=function: function(q, k, v), *args, options={"cache": False})
    assert len(chosen) >= 2


def test_masks_shared_heads_and_layouts() -> None:
    q, k, v = tensors(2, 4, 300, 64, shared=2)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), q, k, v)
    x = torch.randn(2, 500, 3, 4, 64, device="cuda").bfloat16()
    check(lambda x: F.scaled_dot_product_attention(*(x[:, :, n].transpose(1, 2) for n in range(3)), is_causal=True), x)


def test_lengths_of_the_call(chosen: list[Any]) -> None:
    """Queries and keys are parts of one tensor: of several that are marked, each would have a length of its own."""

    def function(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*x.unbind(), is_causal=True)

    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=OWN)
    for rows in (300, 2, 129, 700, 1024):
        x = torch.stack(tensors(2, 2, rows, 64))
        torch._dynamo.mark_dynamic(x, 3)
        assert off(compiled(x), function(x.double())) < 1e-2
    assert chosen


def differentiated(function: Callable[..., Tensor], options: dict[str, Any], *args: Tensor) -> None:
    """Errors of gradients are not more than twice those of ATen's."""
    args = tuple(a.detach().requires_grad_() for a in args)
    weight = torch.randn_like(function(*args))
    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=options)
    wide = [a.detach().double().requires_grad_() for a in args]
    exact = torch.autograd.grad(function(*wide), wide, weight.double())
    eager = torch.autograd.grad(function(*args), args, weight)
    for _ in range(3):
        ours = torch.autograd.grad(compiled(*args), args, weight)
        for a, b, c in zip(ours, eager, exact, strict=True):
            assert off(a, c) <= 2 * off(b, c)


def test_gradients_by_atens_backward_pass(chosen: list[Any]) -> None:
    """The sums that lowc's own kernel stores are what ATen's backward pass wants: wide heads are ATen's there."""
    attend = partial(F.scaled_dot_product_attention, is_causal=True)
    differentiated(lambda q, k, v: attend(q, k, v), OWN, *tensors(2, 4, 640, 256))
    assert chosen


def test_gradients_of_heads_that_share_keys() -> None:
    attend = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    differentiated(lambda q, k, v: attend(q, k, v), OWN, *tensors(2, 4, 640, 64, shared=2))


def test_gradients_by_deterministic_algorithms() -> None:
    """The same bits each time."""
    args = [t.requires_grad_() for t in tensors(2, 3, 640, 64)]
    weight = torch.randn_like(args[0])
    torch.use_deterministic_algorithms(True)
    try:
        compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), backend="lowc", options=OWN)
        found = [torch.autograd.grad(compiled(*args), args, weight) for _ in range(4)]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.fixture
def backward(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ways that are chosen for gradients."""
    return first_of(monkeypatch, "gradients")


@pytest.mark.parametrize(("deep", "causal", "rows"), [(64, True, 640), (64, False, 700), (128, True, 777), (128, False, 256)])
def test_gradients(deep: int, causal: bool, rows: int, backward: list[Any]) -> None:
    attend = partial(F.scaled_dot_product_attention, is_causal=causal)
    differentiated(lambda q, k, v: attend(q, k, v), OWN, *tensors(2, 3, rows, deep))
    assert backward


@pytest.mark.parametrize(
    ("library", "rows", "deep", "both"),
    [
        (SDPBackend.FLASH_ATTENTION, 1024, 64, True), (SDPBackend.CUDNN_ATTENTION, 2048, 128, True),
        (SDPBackend.CUDNN_ATTENTION, 1024, 64, False),
    ],
    ids=str,
)  # fmt: skip
def test_gradients_by_default(
    library: SDPBackend, rows: int, deep: int, both: bool, chosen: list[Any], backward: list[Any]
) -> None:
    """Of either library's op; the last one's forward pass is cuDNN's, whose sums lowc's backward pass takes."""
    args = tuple(a.requires_grad_() for a in tensors(4, 16, rows, deep))
    weight = torch.randn_like(args[0])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    compiled = torch.compile(attend, backend="lowc", fullgraph=True, options={"cache": False})
    with sdpa_kernel(library):
        ours, eager = (torch.autograd.grad(f(*args), args, weight) for f in (compiled, attend))
    last = [a.detach()[-1:, -1:].double().requires_grad_() for a in args]
    exact = torch.autograd.grad(attend(*last), last, weight[-1:, -1:].double())
    for a, b, c in zip(ours, eager, exact, strict=True):
        assert off(a[-1:, -1:], c) <= 2 * off(b[-1:, -1:], c)
    assert backward and bool(chosen) == both
