"""Attention as one kernel: every op of ATen's, beside float64, and the form that schedules look for."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lowc.frontend.dtypes import TORCH_DTYPES
from lowc.ir.graph import Graph, Input, Node, Ref, TensorMeta
from lowc.ir.index import ix
from lowc.ir.nodes import Buffer, Extern, Launch, Module
from lowc.ir.types import bf16
from lowc.ir.verify import verify_module
from lowc.lowering.attention import lines_of
from lowc.lowering.lower import lower
from lowc.lowering.values import Value
from lowc.options import Options
from lowc.scheduler import attention
from tests.lowering.harness import run, trace

OWN = Options(attention="own")
EPSILON = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
ops = torch.ops.aten


def qkv(
    heads: int = 2, shared: int = 2, rows: int = 5, keys: int = 7, deep: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shapes = ((2, heads, rows, deep), (2, shared, keys, deep), (2, shared, keys, deep))
    return tuple(torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, bias: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(result, logsumexp) in float64 by the formula; a row that sees nothing is 0."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if bias is not None:
        scores = scores.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else scores + bias.double()
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    sums = scores.logsumexp(-1)
    return torch.nan_to_num((scores - sums[..., None]).exp(), 0.0) @ v, sums


def close(ours: torch.Tensor, wide: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(ours.double(), wide, rtol=EPSILON[dtype], atol=EPSILON[dtype])


def lowered(function: Any, *args: torch.Tensor) -> Module:
    module = lower(trace(function, args), OWN)
    verify_module(module, "LOOPS")
    assert not [s.target for s in module.steps if isinstance(s, Extern)]
    return module


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_op_of_the_cpu(dtype: torch.dtype, causal: bool) -> None:
    q, k, v = qkv(dtype=dtype)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)

    module = lowered(function, q, k, v)
    assert sum(isinstance(s, Launch) for s in module.steps) == 1
    out, sums = run(module, [q, k, v])
    eager = function(q, k, v)
    for ours, theirs in zip((out, sums), eager, strict=True):
        assert ours.stride() == theirs.stride()
    wide, wide_sums = reference(q, k, v, causal)
    close(out, wide, dtype)
    close(sums, wide_sums, torch.float32)


@pytest.mark.parametrize("shared", [1, 2])
def test_several_heads_share_keys(shared: int) -> None:
    q, k, v = qkv(heads=4, shared=shared)
    module = lowered(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True), q, k, v)
    close(run(module, [q, k, v])[0], reference(q, k, v, True, scale=0.3)[0], q.dtype)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (1, 2, 1, 7), (2, 2, 5, 7)], ids=str)
@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.bfloat16], ids=str)
def test_masks(shape: tuple[int, ...], kind: torch.dtype) -> None:
    q, k, v = qkv(dtype=torch.bfloat16 if kind == torch.bfloat16 else torch.float32)
    keep = torch.rand(shape) > 0.4
    keep[..., 0, :] = False  # a row (or all of them) that sees nothing
    bias = keep if kind == torch.bool else torch.randn(shape).masked_fill(~keep, -math.inf).to(kind)
    module = lowered(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, bias)
    (out,) = run(module, [q, k, v, bias])
    assert not out.isnan().any()
    close(out, reference(q, k, v, bias=bias)[0], q.dtype)


def test_a_row_that_sees_nothing_is_as_atens() -> None:
    q, k, v = qkv()
    bias = torch.zeros(5, 7)
    bias[2] = -math.inf

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> Any:
        return ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)

    out, sums = run(lowered(function, q, k, v, bias), [q, k, v, bias])
    eager, eager_sums = function(q, k, v, bias)
    torch.testing.assert_close(out, eager)
    torch.testing.assert_close(sums, eager_sums, equal_nan=True)


def test_other_layouts() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv())

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return ops._scaled_dot_product_flash_attention_for_cpu(q, k, v)

    out, _ = run(lowered(function, q, k, v), [q, k, v])
    assert out.stride() == function(q, k, v)[0].stride()
    close(out, reference(q, k, v)[0], q.dtype)


def test_what_is_left_to_aten() -> None:
    def reasons(function: Any, *args: torch.Tensor, options: Options = OWN) -> list[str]:
        return [s.because for s in lower(trace(function, args), options).steps if isinstance(s, Extern)]

    q, k, v = qkv()
    plain = ops._scaled_dot_product_flash_attention_for_cpu
    assert reasons(lambda q, k, v: plain(q, k, v), q, k, v) == []
    (why,) = reasons(lambda q, k, v: plain(q, k, v), q, k, v, options=Options())
    assert why == "a library's (lowc's own with option attention='own')"
    assert reasons(lambda q, k, v: plain(q, k, v, 0.5), q, k, v) == ["dropout"]
    assert "another result" in reasons_of("flash", q, k, v, uses=(0, 8))[0]
    q, k, v = qkv(rows=5, keys=5)
    assert reasons_of("flash", q, k, v, causal=True) == []
    q, k, v = qkv()
    assert "begins at the last key" in reasons_of("flash", q, k, v, causal=True)[0]


# ---------------------------------------------------------------- the ops of GPUs, in graphs made by hand


def meta(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> TensorMeta:
    strides = strides or torch.empty(shape, device="meta").stride()
    return TensorMeta(TORCH_DTYPES[dtype], tuple(map(ix, shape)), tuple(map(ix, strides)), ix(0), "cpu")


def graph_of(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, causal: bool, uses: tuple[int, ...]
) -> Graph:
    """A graph of one call of ``_scaled_dot_product_NAME_attention`` that returns its results ``uses``."""
    b, h, rows, _ = q.shape
    given = {"q": q, "k": k, "v": v} | ({} if bias is None else {"bias": bias})
    args: tuple[Any, ...] = (Ref("q"), Ref("k"), Ref("v"))
    out = meta((b, h, rows, v.shape[-1]), q.dtype)
    number = meta((), torch.int64)
    if name == "flash":
        args += (0.0, causal, False)
        sums, mask = meta((b, h, rows), torch.float32), meta((0,), q.dtype)
        outs: tuple[Any, ...] = (out, sums, None, None, ix(rows), ix(k.shape[2]), number, number, mask)
    elif name == "efficient":
        args += (None if bias is None else Ref("bias"), True, 0.0, causal)
        outs = (out, meta((b, h, -(-rows // 32) * 32), torch.float32), number, number)
    else:
        args += (None if bias is None else Ref("bias"), True, 0.0, causal, False)
        outs = (out, meta((b, h, rows, 1), torch.float32), None, None, ix(rows), ix(k.shape[2]), number, number, None)
    node = Node("n", f"aten._scaled_dot_product_{name}_attention.default", args, (), outs)
    inputs = tuple(Input(n, meta(tuple(x.shape), x.dtype, x.stride())) for n, x in given.items())
    return Graph("g", (), inputs, (node,), tuple(Ref("n", u) for u in uses))


def reasons_of(name: str, *tensors: torch.Tensor, causal: bool = False, uses: tuple[int, ...] = (0, 1)) -> list[str]:
    module = lower(graph_of(name, *tensors, None, causal, uses), OWN)  # type: ignore[call-arg]
    return [s.because for s in module.steps if isinstance(s, Extern)]


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_ops_of_gpus(name: str, causal: bool, biased: bool) -> None:
    if name == "flash" and biased:
        pytest.skip("it takes no bias")
    q, k, v = qkv(heads=4, rows=7, keys=7, dtype=torch.float16)
    bias = torch.randn(2, 4, 7, 7).half() if biased else None
    for uses in ((0, 1), (0,)):
        module = lower(graph_of(name, q, k, v, bias, causal, uses), OWN)
        verify_module(module, "LOOPS")
        assert not [s for s in module.steps if isinstance(s, Extern)]
        results = run(module, [q, k, v] if bias is None else [q, k, v, bias])
        wide, sums = reference(q, k, v, causal, bias)
        close(results[0], wide, q.dtype)
        if len(uses) > 1:
            close(results[1].reshape(2, 4, -1)[..., :7], sums, q.dtype)
            if name == "efficient":
                assert results[1].shape[-1] == 32
                assert bool((results[1][..., 7:] == math.inf).all())


def test_the_state_of_random_numbers_is_0() -> None:
    q, k, v = qkv()
    module = lower(graph_of("cudnn", q, k, v, None, False, (0, 1, 6, 7)), OWN)
    verify_module(module, "LOOPS")
    _, _, seed, offset = run(module, [q, k, v])
    assert (int(seed), int(offset)) == (0, 0)


def test_what_the_engine_that_copies_takes() -> None:
    def lines(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> bool:
        buffer = Buffer("x", bf16, (ix(1 << 20),), (ix(1),))
        return lines_of(Value(buffer, bf16, tuple(map(ix, shape)), lambda c: c, tuple(map(ix, strides)), ix(offset)))

    assert lines((2, 4, 300, 64), (76800, 64, 256, 1))
    assert lines((2, 4, 300, 64), (76800, 0, 256, 1))  # heads that are one
    assert not lines((2, 4, 300, 64), (76800, 64, 0, 1))
    assert not lines((2, 4, 300, 64), (76800, 64, 256, 2))
    assert not lines((2, 4, 300, 64), (76804, 64, 252, 1))
    assert not lines((2, 4, 300, 64), (76800, 64, 256, 1), 4)


# ---------------------------------------------------------------- the form


def test_what_schedules_find() -> None:
    q, k, v = qkv(heads=4, dtype=torch.bfloat16)
    module = lowered(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), q, k, v)
    (launch,) = (s for s in module.steps if isinstance(s, Launch))
    found = attention.find(launch.kernel.body[0])
    assert found is not None
    assert found.rows is found.outer[-1]
    assert [len(found.outer), *(str(a.extent) for a in (found.keys, found.depth, found.columns))] == [3, "7", "8", "8"]
    assert found.weight.name == "bf16"
    limit, _ = attention.seen(found)
    assert limit == ix(found.rows.axis) + 1
