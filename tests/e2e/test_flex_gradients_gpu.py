"""Gradients of ``flex_attention`` for NVIDIA GPUs: captured here for one that need not be there and interpreted, and, marked, on
one.

    python -m pytest -m gpu tests/e2e/test_flex_gradients_gpu.py
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lowc.ir.nodes import Extern, Launch
from lowc.ir.relays import block_body, has_relay, relay
from tests.e2e.test_attention_gpu import first_of, off
from tests.e2e.test_flex_attention_gpu import HERE, OWN, attend, for_gpu, qkv

Function = Callable[..., Any]
PAIRS = [
    ("alibi", "window"), ("capped", "late"), ("plain", "documents"), ("switched", "filled"), ("gathered", "prefix"),
    ("plain", "sloped"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's op has gradients on a CPU, its function refuses them there."""
    monkeypatch.setattr(torchs, "_validate_device", lambda *_: None)


def gradients(function: Function, given: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum of what ``function`` gives, with weights, by each of ``given``."""
    args = [a.detach().requires_grad_() for a in given]
    found = function(*args)
    found = found if isinstance(found, tuple) else (found,)
    total = sum((torch.where(x.isinf(), 0, x) * weights(x)).sum() for x in found)
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, args)


def weights(like: Tensor) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(1)
    return torch.randn(like.shape, generator=generator, device=like.device).bfloat16().to(like.dtype)


def close(ours: tuple[Tensor, ...], function: Function, given: list[Tensor]) -> None:
    """Whether errors are not much more than those of torch's formula."""
    eager, exact = gradients(function, given), gradients(function, [a.double() for a in given])
    for mine, theirs, wide in zip(ours, eager, exact, strict=True):
        assert off(mine, wide) <= max(1.5 * off(theirs, wide), 2 * torch.finfo(given[0].dtype).eps)


def steps_of(function: Function, given: list[Tensor], **others: Any) -> tuple[list[Any], tuple[Tensor, ...]]:
    """(steps of the backward pass, gradients by the interpreter)."""
    found: list[Any] = []

    def compiled(*args: Tensor) -> Any:
        steps, result = for_gpu(function, [*args], **others)
        found.append(steps)
        return result

    ours = gradients(compiled, given)
    first = next(n for n, s in enumerate(found[0]) if "backward" in name_of(s))
    return found[0][first:], ours


def name_of(step: Any) -> str:
    return step.kernel.name if isinstance(step, Launch) else getattr(step, "target", "")


@pytest.mark.parametrize(("score", "mask"), [PAIRS[0], PAIRS[1], PAIRS[4]])
def test_one_kernel_on_tensor_cores(score: str, mask: str, on_cpu: None) -> None:
    shared = 2 if mask == "window" else 4
    function = attend("cpu", score, mask, 140, 90, enable_gqa=shared < 4, return_lse=mask == "late")
    given = qkv(140, 90, 16, shared=shared)
    steps, ours = steps_of(function, given)
    kernels = [s.kernel for s in steps if isinstance(s, Launch)]
    found = [relay(block_body(k.body)) for k in kernels if has_relay(k.body)]
    assert len(kernels) == len(steps) and len(found) == 1
    assert found[0] is not None
    assert {t.seen is not None for t in found[0].turns} == {mask == "prefix"}
    close(ours, function, given)


def test_lengths_that_calls_tell(on_cpu: None) -> None:
    slopes = torch.rand(4)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = create_block_mask(lambda b, h, i, j: i - j < 50, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), block_mask=seen)

    given = qkv(60, 140, 16)
    steps, ours = steps_of(function, given, dynamic=True)
    assert [has_relay(s.kernel.body) for s in steps if isinstance(s, Launch)].count(True) == 1
    close(ours, function, given)


@pytest.mark.parametrize(
    ("deep", "why", "deterministic"),
    [(64, "all three, added up in memory", True), (136, "all three, added up in memory, of heads of up to 128", False)],
)
def test_what_is_left_to_torch(deep: int, why: str, deterministic: bool, on_cpu: None) -> None:
    function, given = attend("cpu", "capped", "window", 40, 40), qkv(40, 40, deep)
    torch.use_deterministic_algorithms(deterministic)
    try:
        steps, ours = steps_of(function, given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [why in s.because for s in steps if isinstance(s, Extern)] == [True]
    close(ours, function, given)


# ---------------------------------------------------------------- with a GPU


def check(function: Function, given: list[Tensor]) -> None:
    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=OWN)
    for _ in range(2):
        close(gradients(compiled, given), function, given)


@pytest.fixture
def backward(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ways that are chosen for gradients."""
    return first_of(monkeypatch, "gradients")


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("deep", [64, 128])
@pytest.mark.parametrize(("score", "mask"), PAIRS)
def test_scores_and_masks(score: str, mask: str, deep: int, backward: list[Any]) -> None:
    check(attend("cuda", score, mask, 333, 333), qkv(333, 333, deep, device="cuda"))
    assert backward


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("deep", [32, 96])
def test_logarithms_and_heads_that_share_keys(deep: int, backward: list[Any]) -> None:
    function = attend("cuda", "capped", "late", 300, 430, return_lse=True, enable_gqa=True)
    check(function, qkv(300, 430, deep, torch.float16, shared=2, device="cuda"))
    assert backward


@pytest.mark.gpu
@HERE
def test_tiles_that_data_masks(backward: list[Any]) -> None:
    """Of many blocks, most of whose turns do nothing; the same each time but for the order of additions."""
    torch.manual_seed(1)
    documents = torch.randint(0, 40, (2500,), device="cuda").sort().values
    seen = create_block_mask(lambda b, h, i, j: documents[i] == documents[j], None, None, 2500, 2500, device="cuda")
    given = [torch.randn(2, 8, 2500, 64, device="cuda").bfloat16() for _ in range(3)]
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=seen), given)
    assert backward


@pytest.mark.gpu
@HERE
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_learned_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of what a function captures are torch's, all of them."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)  # which has none
    bias = torch.randn(4, device="cuda").requires_grad_()

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h] * (i - j))

    args = [a.requires_grad_() for a in qkv(64, 64, 64, device="cuda")]
    compiled = torch.compile(function, backend="lowc", fullgraph=True, options={"cache": False})
    found = [torch.autograd.grad(f(*args).square().sum(), [*args, bias]) for f in (compiled, function)]
    for mine, theirs in zip(*found, strict=True):
        assert off(mine, theirs.double()) < 2e-2
