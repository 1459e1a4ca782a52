"""Matrix products by lowc's own kernels: values against float64 over random shapes, strides, batches and instruction sets."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lowc.errors import CodegenError
from lowc.options import Options

ISAS = ("avx512", "avx2", "sse2")
SIZES = st.one_of(st.sampled_from([0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 48, 64, 100]), st.integers(0, 130))


def able(isa: str) -> bool:
    from lowc.backends import x86

    try:
        x86.detect(Options(isa=isa))
    except CodegenError:
        return False
    return True


def own(function: Callable[..., Any], isa: str = "auto", **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    chosen = {"matmul": "own", "isa": isa, "check": True, "strict_errors": True, **options}
    return torch.compile(function, backend="lowc", options=chosen)


def tensor(generator: torch.Generator, shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> Tensor:
    """Random values that lie in memory as ``layout`` says, the last two dimensions of which are what matters."""
    wide = torch.randn([*shape[:-2], *(2 * n + 1 for n in shape[-2:])], generator=generator, dtype=torch.float64).to(dtype)
    whole = wide[..., : shape[-2], : shape[-1]]
    if layout == "rows":
        return whole.contiguous()
    if layout == "columns":
        return whole.mT.contiguous().mT
    if layout == "strided":
        return wide[..., 1 : 2 * shape[-2] + 1 : 2, : 2 * shape[-1] : 2]
    return whole  # with a gap behind each row


def close(found: Tensor, eager: Tensor, exact: Tensor, magnitude: Tensor) -> None:
    """``found`` is off by at most twice what eager is, or by the last bits of results.  Of few results eager may have been lucky:
    then by the last bits of the sums of ``magnitude``, which are those of the absolute values."""
    assert found.shape == eager.shape
    assert found.dtype == eager.dtype
    assert found.stride() == eager.stride()
    if not exact.numel():
        return
    scale = (magnitude if exact.numel() < 64 else exact.abs()).mean().item()
    error, theirs = ((t.double() - exact).abs().mean().item() for t in (found, eager))
    assert error <= max(2 * theirs, torch.finfo(found.dtype).eps * scale), (error, theirs, scale)


LAYOUTS = st.sampled_from(["rows", "columns", "gap", "strided"])
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_products(isa: str, dtype: torch.dtype) -> None:
    if not able(isa):
        pytest.skip(f"no {isa} here")

    @SETTINGS
    @given(SIZES, SIZES, SIZES, st.sampled_from([(), (1,), (3,)]), LAYOUTS, LAYOUTS, st.integers(0, 1 << 30))
    def check(m: int, n: int, k: int, batch: tuple[int, ...], left: str, right: str, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = tensor(generator, (*batch, m, k), left, dtype)
        y = tensor(generator, (*batch, k, n), right, dtype)
        found = own(torch.matmul, isa)(x, y)
        exact, magnitude = torch.matmul(x.double(), y.double()), torch.matmul(x.double().abs(), y.double().abs())
        close(found, torch.matmul(x, y), exact, magnitude)

    check()


@pytest.mark.parametrize("isa", ISAS)
def test_products_that_share_copies(isa: str) -> None:
    """So many multiply-adds that factors are copied ahead of the blocks, whichever is."""
    if not able(isa):
        pytest.skip(f"no {isa} here")

    @settings(SETTINGS, max_examples=12)
    @given(st.integers(100, 400), st.integers(16, 400), st.integers(40, 700), LAYOUTS, LAYOUTS, st.booleans(), st.integers(0, 99))
    def check(m: int, n: int, k: int, left: str, right: str, batched: bool, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        batch = (2,) if batched else ()
        x = tensor(generator, (*batch, m, k), left, torch.float32)
        y = tensor(generator, (*batch, k, n), right, torch.float32)
        exact, magnitude = torch.matmul(x.double(), y.double()), torch.matmul(x.double().abs(), y.double().abs())
        close(own(torch.matmul, isa)(x, y), torch.matmul(x, y), exact, magnitude)

    check()


def gelu_of_addmm(b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.gelu(torch.addmm(b, x, y, beta=0.5, alpha=2))


def silu_and_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return r + torch.nn.functional.silu(torch.nn.functional.linear(x, w, b))


def relu_in_bf16(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.linear(x, w)).to(torch.bfloat16)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


EPILOGUES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "gelu of addmm": (gelu_of_addmm, (normal(70), normal(50, 90), normal(90, 70))),
    "bias as a column": (torch.addmm, (normal(50, 1), normal(50, 90), normal(90, 70))),
    "baddbmm": (lambda a, x, y: torch.baddbmm(a, x, y, beta=3), (normal(4, 9, 70), normal(4, 9, 90), normal(4, 90, 70))),
    "silu and residual": (silu_and_residual, (normal(2, 30, 40), normal(64, 40), normal(64), normal(2, 30, 64))),
    "relu in bf16": (relu_in_bf16, (normal(33, 20), normal(48, 20))),
    "thin and gelu": (gelu_of_addmm, (normal(300), normal(2, 90), normal(90, 300))),
    "dots and silu": (silu_and_residual, (normal(4, 128), normal(96, 128), normal(96), normal(4, 96))),
    "mv": (torch.mv, (normal(100, 64), normal(64))),
    "addmv": (lambda a, x, y: torch.addmv(a, x, y, beta=2), (normal(64), normal(100, 64).t(), normal(100))),
    "dot": (torch.dot, (normal(1000), normal(1000, seed=1))),
    "result transposed": (lambda x, y: (x @ y).t().contiguous(), (normal(40, 50), normal(50, 60))),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    function, args = EPILOGUES[name]
    found, eager = own(function)(*args), function(*args)
    exact = function(*(a.double() for a in args)).double()
    assert found.dtype == eager.dtype and found.shape == eager.shape and found.stride() == eager.stride()
    unit = torch.finfo(found.dtype).eps
    bound = 2 * (eager.double() - exact).abs().max() + 4 * unit * exact.abs().max()
    assert (found.double() - exact).abs().max() <= bound


def kernels(function: Callable[..., Any], *args: Any, matmul: str = "own") -> list[tuple[str, int]]:
    """(name, number of params) of the kernels that a call of ``function`` makes, which calls nothing of ATen."""
    from lowc import compiler
    from lowc.ir.nodes import Extern, Launch

    made: list[tuple[str, int]] = []
    original = compiler.compile_artifact

    def keep(*a: Any, **k: Any) -> Any:
        artifact, bind = original(*a, **k)
        for step in artifact.module.steps:
            assert not isinstance(step, Extern), step.target
            assert isinstance(step, Launch)
            made.append((step.kernel.name, len(step.kernel.params)))
        return artifact, bind

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_artifact", keep)
        own(function, matmul=matmul)(*args)
    return made


def test_bias_activation_and_residual_are_one_kernel() -> None:
    x, w, b, r = normal(2, 30, 40), normal(64, 40), normal(64), normal(2, 30, 64)
    assert kernels(silu_and_residual, x, w, b, r) == [("addmm_0__add_0", 5)]


def test_what_is_no_epilogue_stays_apart() -> None:
    def softmax_of_scores(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x @ y, -1) @ y.t()

    names = [name for name, _ in kernels(softmax_of_scores, normal(64, 32), normal(32, 64))]
    assert len(names) == 3


def test_products_that_share_a_factor_stay_apart() -> None:
    assert len(kernels(lambda x, a, b: (x @ a, x @ b), normal(32, 48), normal(48, 32), normal(48, 32))) == 2


@pytest.mark.parametrize("shape", [(40, 33, 20), (5, 64, 24), (1, 80, 16)], ids=str)
def test_gradients(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    x = normal(m, k).double().requires_grad_()
    w, b = normal(n, k, seed=1).double().requires_grad_(), normal(n, seed=2).double().requires_grad_()
    function = own(lambda x, w, b: torch.tanh(torch.nn.functional.linear(x, w, b)))
    assert torch.autograd.gradcheck(function, (x, w, b), fast_mode=True)


def test_gradients_of_batches() -> None:
    x, y = normal(3, 9, 17).double().requires_grad_(), normal(3, 17, 20, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(own(torch.bmm), (x, y), fast_mode=True)


@pytest.mark.parametrize("isa", ISAS)
def test_one_code_serves_all_sizes(isa: str) -> None:
    if not able(isa):
        pytest.skip(f"no {isa} here")
    torch._dynamo.reset()
    count = 0

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))

    def counted(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal count
        count += 1
        from lowc import dynamo

        return dynamo.lowc_backend(graph, inputs, options={"matmul": "own", "isa": isa, "strict_errors": True})

    compiled = torch.compile(function, backend=counted, dynamic=True)
    for m, n, k in ((40, 50, 60), (3, 7, 5), (129, 33, 17), (2, 300, 600), (64, 64, 64)):
        x, w, b = normal(m, k), normal(n, k), normal(n)
        torch.testing.assert_close(compiled(x, w, b), function(x, w, b), rtol=1e-4, atol=1e-4)
    assert count == 1


@pytest.mark.parametrize("shape", [(40, 33, 600), (4, 100, 64), (1, 100, 64)], ids=str)
@pytest.mark.parametrize("right", ["rows", "columns"])
def test_nan_and_infinity_stay_where_they_belong(shape: tuple[int, int, int], right: str) -> None:
    m, n, k = shape
    x, y = normal(m, k), normal(k, n, seed=1)
    x[-1, k // 2] = float("nan")
    x[0, 3] = float("inf")
    y[5, n - 1] = float("inf")
    y = y if right == "rows" else y.t().contiguous().t()
    found, eager = own(torch.mm)(x, y), torch.mm(x, y)
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-3, equal_nan=True)
    assert found.isnan().any()


def test_a_factor_of_zero_depth_gives_zeros() -> None:
    x, y, b = torch.empty(20, 0), torch.empty(0, 30), normal(30)
    assert torch.equal(own(torch.mm)(x, y), torch.zeros(20, 30))
    assert torch.equal(own(torch.addmm)(b, x, y), b.expand(20, 30))


@pytest.mark.parametrize("columns", [2, 13, 17])
def test_one_row_of_columns_that_no_tile_divides(columns: int) -> None:
    x, w = torch.randn(1, 40), torch.randn(columns, 40)
    torch.testing.assert_close(own(lambda x, w: x @ w.T)(x, w), x @ w.T, rtol=1e-5, atol=1e-5)


def test_beta_of_zero_reads_nothing() -> None:
    x, y = normal(16, 20), normal(20, 24)
    bad = torch.full((24,), float("nan"))
    found = own(lambda b, x, y: torch.addmm(b, x, y, beta=0))(bad, x, y)
    torch.testing.assert_close(found, x @ y, rtol=1e-5, atol=1e-5)


def test_integers_and_the_default_are_left_to_aten(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(12).reshape(3, 4)
    assert torch.equal(own(torch.mm)(x, x.t()), x @ x.t())
    torch._dynamo.reset()
    y = normal(40, 40)
    default = torch.compile(torch.mm, backend="lowc", options={"strict_errors": True})
    assert torch.equal(default(y, y), y @ y)  # the library's bits


def test_results_are_the_same_each_time() -> None:
    x, y = normal(200, 300), normal(300, 250, seed=1)
    function = own(torch.mm)
    first = function(x, y)
    assert all(torch.equal(function(x, y), first) for _ in range(5))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(function(x, y), first)
    finally:
        torch.set_num_threads(threads)


def test_few_rows_are_own_by_default() -> None:
    if not able("avx512"):
        pytest.skip("no avx512 here")
    x, w, b = normal(8, 1024), normal(768, 1024, seed=1), normal(768, seed=2)
    torch._dynamo.reset()
    assert [name for name, _ in kernels(torch.nn.functional.linear, x, w, b, matmul="auto")] == ["addmm_0"]
    found = torch.compile(torch.nn.functional.linear, backend="lowc")(x, w, b)
    torch.testing.assert_close(found, torch.nn.functional.linear(x, w, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 4, 40, 100])
def test_weights_of_eight_bits(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, scale = normal(rows, 300), normal(200, seed=2)
    weights = torch.randint(-127, 128, (200, 300), generator=generator, dtype=torch.int8)

    def product(x: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
        return x @ (weights.to(torch.float32) * scale[:, None]).t()

    assert rows > 1 or len(kernels(product, x, weights, scale)) == 1
    exact = x.double() @ (weights.double() * scale.double()[:, None]).t()
    error, theirs = ((f(x, weights, scale).double() - exact).norm() for f in (own(product), product))
    assert error <= 2 * theirs
