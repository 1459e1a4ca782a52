"""Ops that lowc computes itself only in artifacts: convolutions and attention."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowc import package
from lowc.errors import LowcError
from lowc.frontend import exported
from lowc.frontend.exported import export

LEVEL = ("x86-64",)


def check(fn: Any, *inputs: torch.Tensor, tolerance: float = 2e-5) -> None:
    """``fn`` as an artifact is as close to f64 as single precision allows."""
    module = fn.eval() if isinstance(fn, nn.Module) else fn
    made = package.compile_program(export(module, inputs), levels=LEVEL).load()
    with torch.no_grad():
        found, wanted = made(*inputs), module(*inputs)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


CONVOLUTIONS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("conv1d", {"kernel_size": 3}, (2, 6, 17)),
    ("conv1d", {"kernel_size": 4, "stride": 3, "padding": 2, "dilation": 2, "groups": 2, "bias": False}, (2, 6, 23)),
    ("conv2d", {"kernel_size": 1}, (2, 6, 7, 5)),
    ("conv2d", {"kernel_size": 3, "padding": 1}, (2, 6, 9, 11)),
    ("conv2d", {"kernel_size": (3, 2), "stride": (2, 3), "padding": (0, 1), "dilation": (1, 2)}, (2, 6, 12, 13)),
    ("conv2d", {"kernel_size": 3, "groups": 6, "padding": "same"}, (2, 6, 8, 8)),
    ("conv2d", {"kernel_size": 7, "stride": 2, "padding": 3}, (1, 6, 19, 18)),
    ("conv3d", {"kernel_size": (2, 3, 1), "stride": (1, 2, 1), "padding": 1}, (1, 6, 5, 6, 4)),
    ("conv_transpose1d", {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}, (2, 6, 9)),
    ("conv_transpose2d", {"kernel_size": 2, "stride": 2}, (2, 6, 5, 4)),
    ("conv_transpose2d", {"kernel_size": (3, 4), "stride": (2, 1), "padding": (2, 1), "dilation": (2, 1), "groups": 3},
     (2, 6, 5, 7)),
    ("conv_transpose3d", {"kernel_size": 3, "stride": 2, "bias": False}, (1, 6, 3, 2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("name,arguments,shape", CONVOLUTIONS)
def test_convolution(name: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    kind = {"conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d, "conv_transpose1d": nn.ConvTranspose1d,
            "conv_transpose2d": nn.ConvTranspose2d, "conv_transpose3d": nn.ConvTranspose3d}[name]  # fmt: skip
    check(kind(6, 12, **arguments), torch.randn(shape))


def test_convolution_of_channels_last_and_of_one_image() -> None:
    torch.manual_seed(0)
    check(nn.Conv2d(4, 5, 3).to(memory_format=torch.channels_last), torch.randn(2, 4, 7, 6).to(memory_format=torch.channels_last))
    check(nn.Conv2d(4, 5, 3), torch.randn(4, 7, 6))


def test_convolution_in_f64_and_bf16() -> None:
    torch.manual_seed(0)
    check(nn.Conv2d(4, 5, 3).double(), torch.randn(2, 4, 7, 6).double(), tolerance=1e-12)
    check(nn.Conv2d(4, 5, 3).bfloat16(), torch.randn(2, 4, 7, 6).bfloat16(), tolerance=2e-2)


def qkv(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape, dtype=dtype) for _ in range(3))


def test_attention() -> None:
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *qkv(2, 3, 9, 8))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *qkv(2, 3, 9, 8))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), *qkv(2, 3, 9, 8, dtype=torch.float64))
    q, k, v = qkv(1, 2, 6, 4)
    k, v = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
    bf16 = qkv(2, 3, 9, 8, dtype=torch.bfloat16)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *bf16, tolerance=2e-2)


def test_attention_with_fewer_heads_of_keys() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    keep = torch.rand(5, 7) > 0.3
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True), q, k, v, keep)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), q, k, v)


def test_attention_with_masks() -> None:
    q, k, v = qkv(2, 3, 5, 8)
    keep = torch.tensor([[1, 1, 0, 1, 0]] * 4 + [[0] * 5], dtype=torch.bool)  # the last row sees nothing
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, keep)
    added = torch.randn(5, 5).masked_fill(~keep, float("-inf"))
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, added)


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_any_length(level: str, causal: bool) -> None:
    """One kernel for all lengths, on every level; without keys the result is 0."""
    torch.manual_seed(0)
    rows, keys = torch.export.Dim("rows", max=300), torch.export.Dim("keys", max=300)
    shapes = ({2: rows}, {2: keys}, {2: keys})

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    inputs = torch.randn(2, 4, 9, 32), torch.randn(2, 4, 11, 32), torch.randn(2, 4, 11, 32)
    made = package.compile_program(export(attend, inputs, dynamic=shapes), levels=(level,))
    try:
        model = made.load()
    except LowcError as error:
        pytest.skip(str(error))
    for n, s in ((9, 11), (1, 1), (0, 5), (3, 0), (70, 129), (200, 64)):
        q, k, v = torch.randn(2, 4, n, 32), torch.randn(2, 4, s, 32), torch.randn(2, 4, s, 32)
        torch.testing.assert_close(model(q, k, v), attend(q, k, v), rtol=2e-5, atol=2e-5)


def test_multihead_attention_and_pooling() -> None:
    torch.manual_seed(0)
    check(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 7, 16))
    check(nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)), torch.randn(2, 3, 17, 16))


def sorted_rows(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1).values


def test_what_torch_cannot_take_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("no such\nshape")

    monkeypatch.setattr(exported, "_table", lambda keep: {torch.ops.aten.sort.default: broken})
    with pytest.raises(LowcError, match="cannot take the program apart: RuntimeError: no such\n") as caught:
        package.compile_program(export(sorted_rows, (torch.randn(3, 4),)), levels=LEVEL)
    assert "test_ops.py" in caught.value.where and caught.value.where.endswith(" in forward")


def test_an_op_without_a_kernel_is_refused() -> None:
    with pytest.raises(LowcError, match="aten.sort.default exists only in ATen") as caught:
        package.compile_program(export(sorted_rows, (torch.randn(3, 40),)), levels=LEVEL)
    assert "test_ops.py" in caught.value.where and "x.sort(-1)" in caught.value.where


def test_calls_of_functions_are_refused() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with pytest.raises(LowcError, match="cond calls functions") as caught:
        package.compile_program(export(Branches(), (torch.ones(3),)), levels=LEVEL)
    assert "test_ops.py" in str(caught.value)
