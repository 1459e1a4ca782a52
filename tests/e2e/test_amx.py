"""Products by AMX through torch.compile: any shapes and layouts, beside float64, on one thread and on several."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from lowc.backends import x86  # noqa: E402
from lowc.dynamo import lowc_backend  # noqa: E402
from lowc.options import Options  # noqa: E402

if "amx-bf16" not in x86.detect(Options()).ops:
    pytest.skip("no AMX here, or no permission to use it", allow_module_level=True)

Product = Callable[..., "torch.Tensor"]
SHAPES = [(1, 64, 64), (0, 64, 64), (64, 0, 64), (33, 1, 65), (65, 127, 31), (40, 200, 96), (130, 70, 513), (16, 300, 320)]


def compiled(function: Product) -> Product:
    torch._dynamo.reset()
    options = {"matmul": "own", "strict_errors": True, "cache": False}
    return torch.compile(function, backend=lowc_backend, options=options, fullgraph=True, dynamic=False)


def close(function: Product, *args: "torch.Tensor") -> None:
    """Within roundings to bf16 of the same in float64; NaN and infinities where that has them."""
    got = compiled(function)(*args).double()
    wanted = function(*(a.double() for a in args))
    torch.testing.assert_close(got, wanted, rtol=2**-6, atol=2**-6, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_and_layouts(shape: tuple[int, int, int], turned: tuple[bool, bool], threads: int) -> None:
    m, n, k = shape
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = (torch.randn(k, m).bfloat16().mT if turned[0] else torch.randn(m, k).bfloat16()) / 8
        y = (torch.randn(n, k).bfloat16().mT if turned[1] else torch.randn(k, n).bfloat16()) / 8
        close(lambda a, b: a @ b, x, y)
    finally:
        torch.set_num_threads(before)


def test_batches_strides_and_what_follows() -> None:
    torch.manual_seed(1)
    x, y = torch.randn(3, 50, 160).bfloat16()[:, ::2, 3:99], torch.randn(3, 96, 80).bfloat16()[..., ::2]
    close(lambda a, b: torch.nn.functional.gelu((a / 8) @ b) + 1.0, x, y)
    w, bias, r = torch.randn(200, 96).bfloat16() / 8, torch.randn(200).bfloat16(), torch.randn(70, 200).bfloat16()
    close(lambda a, b, c, d: d + torch.relu(torch.nn.functional.linear(a, b, c)), torch.randn(70, 96).bfloat16(), w, bias, r)


def test_nan_and_infinities_stay_in_their_rows() -> None:
    torch.manual_seed(2)
    x, y = torch.randn(70, 99).bfloat16(), torch.randn(99, 50).bfloat16()
    x[3, 98], x[69, 0], y[5, 49] = torch.nan, torch.inf, -torch.inf
    got, wanted = compiled(lambda a, b: a @ b)(x, y).double(), x.double() @ y.double()
    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())


@pytest.mark.parametrize("shape", [(33, 40, 72), (70, 136, 200), (64, 64, 64), (5, 512, 1024)], ids=str)
def test_bytes_are_exact(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    torch.manual_seed(3)
    x, w = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((m, k), (n, k)))
    got = compiled(lambda a, b: torch._int_mm(a, b.T))(x, w)
    assert torch.equal(got.double(), x.double() @ w.double().T)


WARM = """
import sys, torch
from lowc.dynamo import lowc_backend
torch.manual_seed(0)
x, w = torch.randn(32, 512).bfloat16(), torch.randn(512, 512).bfloat16()
f = torch.compile(torch.nn.functional.linear, backend=lowc_backend, options={"matmul": "own", "strict_errors": True})
print(f(x, w).double().sum().item(), "llvmlite" in sys.modules)
"""


def test_a_process_that_finds_the_code_in_the_cache_has_the_permission(tmp_path: Path) -> None:
    outputs = []
    for _ in range(2):
        env = {**os.environ, "LOWC_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", WARM], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split())
    assert outputs[0][0] == outputs[1][0]
