"""Products of integers by lowc's own kernels: the very bits that exact arithmetic has, whatever lies how, wraps or is empty."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._higher_order_ops.out_dtype import out_dtype

from lowc.ir.parser import parse_module
from lowc.options import Options
from lowc.scheduler import attach, inline
from tests.e2e.test_matmul import ISAS, LAYOUTS, able, own
from tests.scheduler.contractions import AVX512

SIZES = st.one_of(st.sampled_from([0, 1, 2, 3, 7, 8, 16, 17, 33, 64]), st.integers(0, 90))
DEPTHS = st.one_of(st.sampled_from([0, 1, 32, 64, 128]), st.integers(0, 150))
SETTINGS = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def integers(seed: int, shape: tuple[int, int], layout: str, dtype: torch.dtype = torch.int8, extreme: bool = False) -> Tensor:
    """Random values, or those at both ends alone, that lie in memory as ``layout`` says."""
    generator = torch.Generator().manual_seed(seed)
    info = torch.iinfo(dtype)
    wide = torch.randint(info.min, info.max, [2 * n + 1 for n in shape], generator=generator, dtype=torch.int64)
    if extreme:
        wide = torch.where(wide % 4 < 3, info.min, info.max)
    wide = wide.to(dtype)
    whole = wide[: shape[0], : shape[1]]
    if layout == "rows":
        return whole.contiguous()
    if layout == "columns":
        return whole.T.contiguous().T
    return wide[1 : 2 * shape[0] + 1 : 2, : 2 * shape[1] : 2] if layout == "strided" else whole


def exact(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The product in Python's numbers, modulo the width of ``dtype``."""
    total = x.numpy().astype(object) @ y.numpy().astype(object) if x.shape[1] else np.zeros((x.shape[0], y.shape[1]), object)
    bits = torch.iinfo(dtype).bits
    low = torch.iinfo(dtype).min
    wrapped = [(int(v) - low) % (1 << bits) + low for v in total.ravel()]
    return torch.tensor(wrapped, dtype=dtype).reshape(total.shape)


@pytest.mark.parametrize("isa", ISAS)
def test_bytes_into_32_bits(isa: str) -> None:
    if not able(isa):
        pytest.skip(f"no {isa} here")

    @SETTINGS
    @given(SIZES, SIZES, DEPTHS, LAYOUTS, LAYOUTS, st.booleans(), st.integers(0, 1 << 30))
    def check(m: int, n: int, k: int, left: str, right: str, extreme: bool, seed: int) -> None:
        x, y = integers(seed, (m, k), left, extreme=extreme), integers(seed + 1, (k, n), right, extreme=extreme)
        found = own(torch._int_mm, isa)(x, y)
        assert found.dtype == torch.int32 and found.stride() == torch._int_mm(x, y).stride()
        assert torch.equal(found, exact(x, y, torch.int32))

    check()


@pytest.mark.parametrize(("m", "n"), [(32, 0), (9, 0), (0, 32), (0, 0)])
def test_of_no_results_nothing_is_read(m: int, n: int) -> None:
    """A factor without elements has no memory to be summed from in front."""
    x, y = integers(1, (m, 64), "rows"), integers(2, (64, n), "rows")
    for product in (torch._int_mm, torch.mm):
        assert own(product)(x, y).shape == (m, n)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_products_of_one_type_wrap(dtype: torch.dtype) -> None:
    @settings(SETTINGS, max_examples=6)
    @given(SIZES, SIZES, DEPTHS, LAYOUTS, LAYOUTS, st.integers(0, 1 << 30))
    def check(m: int, n: int, k: int, left: str, right: str, seed: int) -> None:
        x, y = integers(seed, (m, k), left, dtype), integers(seed + 1, (k, n), right, dtype)
        assert torch.equal(own(torch.mm)(x, y), exact(x, y, dtype))

    check()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [2, 40])
def test_sums_that_leave_32_bits_wrap(isa: str, rows: int) -> None:
    if not able(isa):
        pytest.skip(f"no {isa} here")
    depth = 1 << 18
    x, y = (torch.full(s, -128, dtype=torch.int8) for s in ((rows, depth), (17, depth)))
    found = own(lambda x, y: torch._int_mm(x, y.T), isa)(x, y)
    wanted = (depth * 128 * 128 + (1 << 31)) % (1 << 32) - (1 << 31)
    assert (found == wanted).all()


def dynamic(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """A linear layer as torchao has it: inputs quantised by row, weights by column."""
    own_scale = x.abs().amax(-1, keepdim=True) / 127
    q = torch.clamp(torch.round(x / own_scale), -128, 127).to(torch.int8)
    return F.gelu(torch._int_mm(q, w.T).float() * own_scale * scale + bias).to(torch.bfloat16)


def test_a_dynamically_quantised_layer() -> None:
    x, w = torch.randn(33, 96), integers(1, (70, 96), "rows")
    args = (x, w, torch.rand(70) / 99, torch.randn(70))
    torch.testing.assert_close(own(dynamic)(*args), dynamic(*args))


def test_out_dtype_is_what_it_stands_for() -> None:
    x, w, scale = integers(1, (20, 64), "rows"), integers(2, (64, 33), "columns"), torch.rand(33)
    mm: Any = torch.ops.aten.mm.default

    def integer(x: Tensor, w: Tensor) -> Tensor:
        return out_dtype(mm, torch.int32, x, w) * scale

    def of_floats(x: Tensor, w: Tensor) -> Tensor:
        return out_dtype(mm, torch.int32, x.float(), w.float()) * scale

    def other(x: Tensor, w: Tensor) -> Tensor:
        mul: Any = torch.ops.aten.mul.Tensor
        return out_dtype(mul, torch.int32, x, w.T[:20]) * 2

    functions: list[Callable[..., Tensor]] = [integer, of_floats, other]
    for function in functions:
        assert torch.equal(own(function)(x, w), function(x, w))


def test_floats_made_of_bytes_are_summed_exactly() -> None:
    """2**24 and more does not fit in the mantissa of a sum of floats: the sum of integers is rounded once."""
    x, w = integers(1, (20, 4096), "rows", extreme=True), integers(2, (33, 4096), "rows", extreme=True)
    found = own(lambda x, w: x.float() @ w.float().T)(x, w)
    assert torch.equal(found, (x.double() @ w.double().T).float())


def test_sizes_of_the_call() -> None:
    compiled = own(lambda x, w: torch._int_mm(x, w.T) + 1)
    for rows, depth in ((5, 64), (9, 96), (30, 97), (1, 33)):
        x, w = integers(rows, (rows, depth), "rows"), integers(7, (40, depth), "rows")
        for t in (x, w):
            torch._dynamo.mark_dynamic(t, 0)
            torch._dynamo.mark_dynamic(t, 1)
        assert torch.equal(compiled(x, w), exact(x, w.T, torch.int32) + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_weights_of_8_bits(rows: int, dtype: torch.dtype) -> None:
    """Scaled once they are summed, rounded once: as close to float64 as that is."""
    x, w, scale = torch.randn(rows, 260).to(dtype), integers(1, (90, 260), "rows"), (torch.rand(90) / 99).to(dtype)
    found = own(torch.ops.aten._weight_int8pack_mm)(x, w, scale)
    exact = x.double() @ w.double().T * scale.double()
    torch.testing.assert_close(found, exact.to(dtype), rtol=1.6e-2 if dtype == torch.bfloat16 else 2e-5, atol=1e-4)


def test_a_quantised_input_is_stored_as_bytes_before_a_product_reads_it() -> None:
    text = """module @LOOPS() {
      input x: f32[40, 96]
      input w: i8[70, 96]
      temp q: i8[40, 96]
      temp out: i32[40, 70]
      launch quantise(x, q)
      launch f(q, w, out)
      return out
    }
    kernel quantise(x: f32[40, 96], q: i8[40, 96]) { for i in 40 { for k in 96 { q[i, k] = i8(x[i, k]) } } }
    kernel f(q: i8[40, 96], w: i8[70, 96], out: i32[40, 70]) {
      for i in 40 { for j in 70 {
        acc s: i32 = add
        for k in 96 { s add= product(i32(q[i, k]), i32(w[j, k])) }
        out[i, j] = s
      } }
    }"""
    module = inline.run(attach.run(parse_module(text), AVX512, Options()), AVX512, Options())
    assert len(module.steps) == 2
