"""``flex_attention`` for NVIDIA GPUs: captured here for one that need not be there and interpreted, and, marked, on one.

    python -m pytest -m gpu tests/e2e/test_flex_attention_gpu.py
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import lowc
from lowc.backends import nvptx
from lowc.cli.compilation import on_gpu
from lowc.compiler import interpreted, lowered
from lowc.frontend.aot import compile_module
from lowc.ir.nodes import Extern, Launch
from lowc.ir.relays import block_body, has_relay, relay
from lowc.options import Options, parse
from lowc.scheduler import pipeline
from tests.e2e.test_attention_gpu import off

HERE = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs compute capability 9.0"
)
OWN: dict[str, Any] = {"strict_errors": True, "check": True, "cache": False}
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch._dynamo.reset()
    torch.manual_seed(0)


def functions(device: str) -> tuple[dict[str, Function | None], dict[str, Function]]:
    slopes, table = torch.rand(4, device=device), torch.randn(64, device=device)
    documents = torch.randint(0, 4, (2, 700), device=device).sort().values
    filled = torch.tensor([90, 200], device=device)
    pages = torch.tensor([[300, 0, 128, 500, 9, 200], [-90, 2**63 - 60, 90, 10, 5, 2**63 - 1]], device=device)  # two wrap around
    scores: dict[str, Function | None] = {
        "plain": None,
        "alibi": lambda s, b, h, i, j: s + slopes[h] * (j - i),
        "capped": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
        "switched": lambda s, b, h, i, j: torch.where(i > j + 3, 1.0, s * 2),
        "near none": lambda s, b, h, i, j: s / torch.tanh(s / 1e3) * 1e-3,
        "gathered": lambda s, b, h, i, j: s + table[documents[b, i] * 8 + documents[b, j]],
    }
    masks: dict[str, Function] = {
        "window": lambda b, h, i, j: (i >= j) & (i - j < 70),
        "late": lambda b, h, i, j: i - 100 >= j,
        "documents": lambda b, h, i, j: (i >= j) & (documents[b, i] == documents[b, j]),
        "filled": lambda b, h, i, j: (j < filled[b]) & (h != 1),
        "prefix": lambda b, h, i, j: (j < filled[b]) | (i >= j),
    }
    masks["sloped"] = lambda b, h, i, j: (j * 2 - i < filled[b]) | (documents[b, i] > documents[1 - b, j])
    masks["of blocks"] = lambda b, h, i, j: (i // 128 >= j // 128) & (documents[b, i] + h != documents[b, j])
    masks["by pages"] = lambda b, h, i, j: (pages[b, j // 128] + j % 128 <= i) | (j + 4 < 2 * pages[1 - b, i // 128] - i)
    return scores, masks


PAIRS = [("alibi", "window"), ("capped", "late"), ("plain", "documents"), ("near none", "filled"), ("gathered", "prefix")]
PAIRS.append(("alibi", "by pages"))


def attend(device: str, score: str, mask: str, rows: int, keys: int, **others: Any) -> Function:
    scores, masks = functions(device)
    seen = create_block_mask(masks[mask], 2, None, rows, keys, device=device)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=scores[score], block_mask=seen, **others)

    return function


def qkv(
    rows: int, keys: int, deep: int, dtype: torch.dtype = torch.bfloat16, shared: int = 4, device: str = "cpu"
) -> list[Tensor]:
    sizes = (2, 4, rows, deep), (2, shared, keys, deep), (2, shared, keys, deep)
    return [torch.randn(s, device=device).to(dtype) for s in sizes]


def for_gpu(function: Function, args: list[Tensor], dynamic: bool = False) -> tuple[list[Any], Any]:
    """(steps for compute capability 9.0, what the interpreter makes of them)."""
    found: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def compile_graph(graph: Any, constants: Any) -> Any:
            there = on_gpu(graph)
            made = pipeline.run(lowered(there, Options(), nvptx.default()), nvptx.default(), Options(check=True))
            found.extend(made.steps)
            usual, ours = lowc.compile_graph(graph, constants, parse(None, {"isa": "interp"})), interpreted(made)
            return lambda given: usual(given) if any(isinstance(s, Extern) for s in made.steps) else ours([*given])

        return compile_module(gm, inputs, compile_graph, strict=True)

    result = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
    return found, result


@pytest.mark.parametrize(("score", "mask"), PAIRS)
def test_one_kernel_on_tensor_cores(score: str, mask: str) -> None:
    function, args = attend("cpu", score, mask, 140, 260), qkv(140, 260, 32, shared=2 if mask == "window" else 4)
    given = {"enable_gqa": True} if mask == "window" else {}
    function = attend("cpu", score, mask, 140, 260, **given)
    steps, result = for_gpu(function, args)
    kernels = [s.kernel for s in steps if isinstance(s, Launch)]
    assert len(kernels) == len(steps) and [has_relay(k.body) for k in kernels].count(True) == 1
    exact = function(*(a.double() for a in args))
    assert off(result, exact) <= max(1.5 * off(function(*args), exact), 8e-3)


@pytest.mark.parametrize(
    ("mask", "kernels", "several"),
    [
        ("documents", 3, True), ("filled", 1, True), ("prefix", 1, True), ("sloped", 3, True), ("of blocks", 1, True),
        ("window", 1, False), ("by pages", 1, True),
    ],
)  # fmt: skip
def test_tiles_that_are_masked_whole(mask: str, kernels: int, several: bool) -> None:
    """They are not computed; results are the same."""
    function, args = attend("cpu", "plain", mask, 300, 400), qkv(300, 400, 32)
    steps, result = for_gpu(function, args)
    launches = [s.kernel for s in steps if isinstance(s, Launch)]
    found = relay(block_body(launches[-1].body))
    assert found is not None and len(launches) == kernels
    assert [t.seen is not None for t in found.turns] == [False] + [several] * (len(found.turns) - 1)
    exact = function(*(a.double() for a in args))
    assert off(result, exact) <= max(1.5 * off(function(*args), exact), 8e-3)


def test_lengths_that_calls_tell() -> None:
    """Places in tables are checked, so that nothing is known of tiles."""
    slopes, documents = torch.rand(4), torch.randint(0, 4, (400,)).sort().values

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask, sizes = (lambda b, h, i, j: documents[i] == documents[j]), (q.shape[2], k.shape[2])
        seen = create_block_mask(mask, None, None, *sizes, device="cpu")
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), block_mask=seen)

    args = qkv(140, 260, 32)
    steps, result = for_gpu(function, args, dynamic=True)
    assert [has_relay(s.kernel.body) for s in steps if isinstance(s, Launch)] == [True]
    exact = function(*(a.double() for a in args))
    assert off(result, exact) <= max(1.5 * off(function(*args), exact), 8e-3)


def test_one_query() -> None:
    """Of heads that share keys, one of which sees none; the logarithms of sums as well."""
    function = attend("cpu", "alibi", "filled", 1, 300, return_lse=True, enable_gqa=True)
    args = qkv(1, 300, 32, shared=2)
    steps, (result, sums) = for_gpu(function, args)
    assert [has_relay(s.kernel.body) for s in steps].count(True) == 1
    exact, logarithms = function(*(a.double() for a in args))
    assert off(result, exact) <= max(1.5 * off(function(*args)[0], exact), 8e-3)
    torch.testing.assert_close(sums.double(), logarithms, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "deep", "why"),
    [
        (torch.float32, 32, "lowc's own is of f16 and bf16, not f32"),
        (torch.bfloat16, 20, "heads of 20 and 20; lowc's own has multiples of 8"),
    ],
)
def test_what_is_left_to_torch(dtype: torch.dtype, deep: int, why: str) -> None:
    steps, _ = for_gpu(attend("cpu", "alibi", "window", 40, 40), qkv(40, 40, deep, dtype))
    assert [why in s.because for s in steps if isinstance(s, Extern) and "flex_attention" in s.target] == [True]


# ---------------------------------------------------------------- with a GPU


def check(function: Function, args: list[Tensor], compiled: Function | None = None) -> None:
    compiled = compiled or torch.compile(function, backend="lowc", fullgraph=True, options=OWN)
    exact, eager = function(*(a.double() for a in args)), function(*args)
    for _ in range(2):
        ours = compiled(*args)
        many = [x if isinstance(x, tuple) else (x,) for x in (ours, eager, exact)]
        for mine, theirs, wide in zip(*many, strict=True):
            assert torch.equal(mine.isinf(), wide.isinf())
            mine, theirs, wide = (torch.nan_to_num(x, 0, 0, 0) for x in (mine, theirs, wide))
            assert off(mine, wide) <= max(1.5 * off(theirs, wide), 2 * torch.finfo(args[0].dtype).eps)


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("deep", [64, 128])
@pytest.mark.parametrize(("score", "mask"), PAIRS)
def test_scores_and_masks(score: str, mask: str, deep: int) -> None:
    check(attend("cuda", score, mask, 333, 333), qkv(333, 333, deep, device="cuda"))


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize(("rows", "mask"), [(300, "late"), (1, "filled")])
def test_logarithms_and_heads_that_share_keys(rows: int, mask: str) -> None:
    function = attend("cuda", "alibi", mask, rows, 430, return_lse=True, enable_gqa=True)
    check(function, qkv(rows, 430, 128, torch.float16, shared=2, device="cuda"))


@pytest.mark.gpu
@HERE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_that_a_function_makes(dtype: torch.dtype) -> None:
    """Of f32 the op is torch's formula, whose tensors are on the GPU."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i > j, 1.0, s))

    given = qkv(100, 100, 64, device="cuda")
    exact, args = function(*(a.double() for a in given)), [a.to(dtype) for a in given]
    assert off(torch.compile(function, backend="lowc", fullgraph=True, options=OWN)(*args), exact) < 1e-2
