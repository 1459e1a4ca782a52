"""``torch.nn.attention.flex_attention`` on a CPU: a kernel of lowc's, as close to torch's own formula in float64 as that in the
dtype at hand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
    or_masks,
)
from torch.utils._pytree import tree_leaves

import lowc
from lowc.ir.nodes import Extern
from tests.e2e.test_attention import OWN, ROUNDING, error

OPTIONS = {name: value for name, value in OWN.items() if name != "attention"}
ROWS = 33
Function = Callable[..., Tensor] | None


@dataclass(frozen=True)
class Captured:
    slopes: Tensor
    documents: Tensor
    bias: Tensor
    table: Tensor
    sizes: Tensor


def captured(heads: int = 4, length: int = 300) -> Captured:
    torch.manual_seed(1)
    return Captured(
        torch.rand(heads), torch.randint(0, 4, (2, length)).sort().values, torch.randn(heads, length, length),
        torch.randn(2 * length), torch.tensor([9, 20]),
    )  # fmt: skip


C = captured()
SCORES: dict[str, Function] = {
    "plain": None,
    "alibi": lambda s, b, h, i, j: s + C.slopes[h] * (j - i),
    "capped": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
    "biased": lambda s, b, h, i, j: s + C.bias[h, i, j],
    "relative": lambda s, b, h, i, j: s + C.table[i - j + 40],
    "from the end": lambda s, b, h, i, j: s + C.table[i - j],
    "chosen": lambda s, b, h, i, j: torch.where(i >= j, s * 2, torch.sigmoid(s)) - h + b * 0.5,
    "gathered": lambda s, b, h, i, j: s + C.table[C.documents[b, i] * 2 + C.documents[b, j]],
    "one or another": lambda s, b, h, i, j: s + C.table.index_select(0, torch.where(i % 2 == 0, i, j).view(1)).view(()),
    "clamped": lambda s, b, h, i, j: s * C.table[(i - j).clamp(-5, 5) + 5] + (i // 4 == j // 4) + i % 3,
}
MASKS: dict[str, Function] = {
    "causal": lambda b, h, i, j: i >= j,
    "earlier": lambda b, h, i, j: i - 100 >= j,
    "later": lambda b, h, i, j: i + 3 >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 70),
    "both sides": lambda b, h, i, j: (i - j < 20) & (j - i < 15) & (j >= 3),
    "documents": lambda b, h, i, j: (i >= j) & (C.documents[b, i] == C.documents[b, j]),
    "prefix": lambda b, h, i, j: (j < C.sizes[b]) | (i >= j),
    "padded": lambda b, h, i, j: (j < C.sizes[b]) & (i < 25),
    "crossing": lambda b, h, i, j: i + j < 150,
    "of a head": lambda b, h, i, j: torch.logical_or(h == 1, i != j),
}


@pytest.fixture(autouse=True)
def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls are torch's formula, which ``flex_attention`` else has Dynamo trace."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch._dynamo.reset()


def qkv(rows: int, keys: int, deep: int = 16, shared: int = 1, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = (4, rows), (4 // shared, keys), (4 // shared, keys)
    return [torch.randn(2, h, n, deep, dtype=torch.float64).to(dtype) for h, n in sizes]


def blocks(mask: Function, rows: int, keys: int) -> BlockMask | None:
    return None if mask is None else create_block_mask(mask, 2, 4, rows, keys, device="cpu", BLOCK_SIZE=16)


def attend(score: Function, mask: BlockMask | None, **others: Any) -> Callable[..., Any]:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score, block_mask=mask, **others)

    return function


def check(function: Callable[..., Any], args: list[Tensor], compiled: Callable[..., Any] | None = None) -> None:
    compiled = compiled or torch.compile(function, backend="lowc", fullgraph=True, options=OPTIONS)
    ours, eager, exact = compiled(*args), function(*args), function(*(a.double() for a in args))
    for mine, theirs, wide in zip(*[tensors(r) for r in (ours, eager, exact)], strict=True):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        assert torch.equal(mine.isinf(), wide.isinf())
        mine, theirs, wide = (torch.nan_to_num(x, 0, 0, 0) for x in (mine, theirs, wide))
        assert error(mine, wide) <= max(2 * error(theirs, wide), ROUNDING[args[0].dtype])


def tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def calls_of(function: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[list[str], Any]:
    """(what is left to torch, with the reason; what compiled code returns); asserts that something was compiled at all."""
    found: list[str] = []
    steps = 0

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from lowc.frontend.aot import compile_module
        from lowc.options import parse

        def compile_graph(graph: Any, constants: Any) -> Any:
            nonlocal steps
            call = lowc.compile_graph(graph, constants, parse(None, {**OPTIONS, **options}))
            steps += len(call.program.artifact.module.steps)
            found.extend(f"{s.target}: {s.because}" for s in call.program.artifact.module.steps if isinstance(s, Extern))
            return call

        return compile_module(gm, inputs, compile_graph, strict=True)

    result = torch.compile(function, backend=backend, fullgraph=True)(*args)
    assert steps, "flex_attention is torch's, as a call in a graph without steps"
    return found, result


@pytest.mark.parametrize(("score", "mask"), zip(SCORES, MASKS, strict=True))
def test_scores_and_masks(score: str, mask: str) -> None:
    """Of several blocks of rows and of keys, not all of which are looked at."""
    check(attend(SCORES[score], blocks(MASKS[mask], 140, 170)), qkv(140, 170))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    check(attend(SCORES["alibi"], blocks(MASKS["window"], ROWS, ROWS), scale=0.4), qkv(ROWS, ROWS, dtype=dtype))


@pytest.mark.parametrize(("rows", "keys", "deep"), [(1, 300, 64), (70, 3, 20), (130, 200, 32)])
def test_sizes(rows: int, keys: int, deep: int) -> None:
    mask = blocks(lambda b, h, i, j: (i + keys - rows >= j) & (C.documents[b, j] < 3), rows, keys)
    check(attend(SCORES["alibi"], mask, return_lse=True), qkv(rows, keys, deep))


def test_a_cache_that_is_filled_in_part() -> None:
    check(attend(None, blocks(lambda b, h, i, j: j <= C.sizes[b] * 20 + i, 1, 600)), qkv(1, 600, 32))


def test_heads_that_share_keys() -> None:
    check(attend(SCORES["alibi"], blocks(MASKS["of a head"], ROWS, 41), enable_gqa=True), qkv(ROWS, 41, shared=2))


def test_one_batch_of_keys_for_all() -> None:
    q, k, v = qkv(ROWS, 41)
    check(attend(SCORES["alibi"], blocks(MASKS["documents"], ROWS, 41)), [q, k[:1], v[:1]])


def test_logarithms_of_rows_that_see_nothing() -> None:
    check(attend(SCORES["capped"], blocks(MASKS["padded"], ROWS, 41), return_aux=AuxRequest(lse=True)), qkv(ROWS, 41))


@pytest.mark.parametrize("layout", ["heads inside", "a part of turned"])
def test_layouts(layout: str) -> None:
    made = qkv(ROWS, ROWS)
    args = {
        "heads inside": [x.transpose(1, 2).contiguous().transpose(1, 2) for x in made],
        "a part of turned": [torch.cat([x, x], -1).mT.contiguous().mT[..., 5:21] for x in made],
    }[layout]
    check(attend(SCORES["alibi"], blocks(MASKS["causal"], ROWS, ROWS)), args)


def test_what_is_not_finite() -> None:
    q, k, v = qkv(ROWS, ROWS)
    q[0, 0, 5, 3], k[0, 1, 7, 2] = float("nan"), float("inf")
    function = attend(None, blocks(MASKS["causal"], ROWS, ROWS))
    ours = torch.compile(function, backend="lowc", fullgraph=True, options=OPTIONS)(q, k, v)
    assert torch.equal(ours.isnan(), function(q, k, v).isnan()) and ours[0, 0, 5].isnan().all()


def test_a_mask_made_in_the_function() -> None:
    """What made the blocks is gone from the graph, for nothing reads them."""

    def function(q: Tensor, k: Tensor, v: Tensor, documents: Tensor) -> Any:
        mask = or_masks(lambda b, h, i, j: documents[i] == documents[j], lambda b, h, i, j: i == 0)
        block_mask = create_block_mask(mask, None, None, ROWS, ROWS, device="cpu")
        return flex_attention(q * 2, k, v, block_mask=block_mask) + 1

    args = [*qkv(ROWS, ROWS), C.documents[0]]
    calls, result = calls_of(function, *args)
    torch.testing.assert_close(result, function(*args))
    assert calls == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_made_in_the_function(dtype: torch.dtype) -> None:
    """It is a tensor that the function's graph holds; where the op is torch's formula it has its dtype, too."""
    inside = attend(lambda s, b, h, i, j: s * torch.tensor(0.3, dtype=torch.float64) + torch.tensor(2, dtype=torch.int32), None)
    summed = attend(lambda s, b, h, i, j: s * (C.slopes.double() * torch.tensor(0.3, dtype=torch.float64)).sum(), None)
    args = qkv(20, 20, dtype=dtype)
    assert calls_of(inside, *args)[0] == []
    for function in (inside, summed):
        check(function, args)


@pytest.mark.parametrize("rows", [1, 40])
def test_a_place_that_a_tensor_tells(rows: int) -> None:
    """As a cache is filled: tracing makes a number of the function's graph, and detaches it, of what indexes the tensor."""
    place = torch.tensor([70, 9])
    mask = blocks(lambda b, h, i, j: j <= i + place[0], rows, 200)
    function = attend(lambda s, b, h, i, j: s - 0.01 * (j - place[-1]), mask)
    args = qkv(rows, 200)
    assert calls_of(function, *args)[0] == []
    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=OPTIONS)
    check(function, args, compiled)
    place += 5
    check(function, args, compiled)


def test_lengths_that_calls_tell() -> None:
    """One compilation for all of them."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ahead = k.shape[2] - q.shape[2]
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + C.slopes[h] * (j - i - ahead))

    compiled = torch.compile(function, backend="lowc", fullgraph=True, dynamic=True, options=OPTIONS)
    for rows, keys in ((33, 41), (70, 130), (9, 17)):
        with torch._dynamo.config.patch(error_on_recompile=rows != 33):
            check(function, qkv(rows, keys), compiled)


def test_gradients_of_what_a_function_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only ones that torch has on a CPU; that call is torch's."""
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)  # which has none
    args = qkv(ROWS, ROWS)
    found = []
    for compiled in (True, False):
        slopes = C.slopes.clone().requires_grad_()

        def function(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
            return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i)) * 2

        run: Any = torch.compile(function, backend="lowc", fullgraph=True, options=OPTIONS) if compiled else function
        run(*args, slopes).square().sum().backward()
        found.append(slopes.grad)
    torch.testing.assert_close(*found)


def test_what_is_left_to_torch() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + C.table[:4].cumsum(0)[h])

    args = qkv(ROWS, ROWS)
    calls, result = calls_of(function, *args)
    assert calls == ["lowc.flex_attention.default: a function with aten.cumsum.default"]
    torch.testing.assert_close(result, function(*args))
    plain = attend(SCORES["alibi"], None)
    assert calls_of(plain, *args, attention="library")[0] == ["lowc.flex_attention.default: option attention='library'"]


def test_another_instruction_set() -> None:
    function = attend(SCORES["gathered"], blocks(MASKS["window"], ROWS, ROWS))
    check(function, qkv(ROWS, ROWS), torch.compile(function, backend="lowc", fullgraph=True, options={**OPTIONS, "isa": "avx2"}))


def test_an_index_that_is_out_of_range_raises() -> None:
    function = attend(lambda s, b, h, i, j: s + C.table[C.documents[b, i] + 700], None)
    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=OPTIONS)
    with pytest.raises(IndexError):
        compiled(*qkv(ROWS, ROWS))


@pytest.fixture
def with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's op has gradients on a CPU, its function refuses them there."""
    monkeypatch.setattr(torchs, "_validate_device", lambda *_: None)


GRADIENTS = [("alibi", "documents", torch.float32), ("gathered", "causal", torch.float32), ("capped", "padded", torch.bfloat16)]


@pytest.mark.parametrize(("score", "mask", "dtype"), GRADIENTS, ids=str)
def test_gradients(with_gradients: None, score: str, mask: str, dtype: torch.dtype) -> None:
    """Of the result and of the logarithms, of heads that share keys, of rows that see nothing."""
    function = attend(SCORES[score], blocks(MASKS[mask], 80, 90), return_lse=True, enable_gqa=True)
    given, found = qkv(80, 90, shared=2, dtype=dtype), []
    for kind in ("lowc", "eager", "exact"):
        args = [x.to(torch.float64 if kind == "exact" else dtype).requires_grad_() for x in given]
        run: Any = torch.compile(function, backend="lowc", fullgraph=True, options=OPTIONS) if kind == "lowc" else function
        result, sums = run(*args)
        total = result.square().sum() + torch.where(sums.isinf(), 0, sums).sin().sum()
        found.append(torch.autograd.grad(total, args))
    for mine, theirs, wide in zip(*found, strict=True):
        assert mine.stride() == theirs.stride()
        assert error(mine, wide) <= max(2 * error(theirs, wide), ROUNDING[dtype])


def test_gradients_are_all_ours_and_right(with_gradients: None) -> None:
    mask = blocks(MASKS["later"], 5, 7)
    args = [x.requires_grad_() for x in qkv(5, 7, 4, dtype=torch.float64)]
    compiled = torch.compile(attend(SCORES["clamped"], mask), backend="lowc", fullgraph=True, options=OPTIONS)
    assert torch.autograd.gradcheck(compiled, args, fast_mode=True)
    torch._dynamo.reset()
    calls, result = calls_of(attend(SCORES["alibi"], None), *[x.requires_grad_() for x in qkv(33, 41)])
    result.sum().backward()  # compiled by now at the latest
    assert calls == []
