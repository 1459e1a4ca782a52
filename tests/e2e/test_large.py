"""More than 2**31 elements in the artifact that a small call has made: pointwise, reductions, a transpose, a gather.

    python -m pytest -m slow tests/e2e/test_large.py          # needs 20 GB of memory
    python -m pytest -m gpu tests/e2e/test_large.py
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lowc.compiler import compile_graph
from lowc.dynamo import lowc_backend
from lowc.ir.index import upper_bound
from lowc.ir.nodes import Launch
from lowc.lowering.lower import lower
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.trace import Trace

ROWS, COLUMNS = 46349, 46351  # 2**31 + 838851 elements, both odd
SMALL = (67, 66)


def pointwise(x: Tensor) -> Tensor:
    return (x + 1) * 3


def row_sums(x: Tensor) -> Tensor:
    return x.sum(1, dtype=torch.int64)


def column_sums(x: Tensor) -> Tensor:
    return x.sum(0, dtype=torch.int64)


def whole_sum(x: Tensor) -> Tensor:
    return x.sum(dtype=torch.int64)


def transpose(x: Tensor) -> Tensor:
    return (x.t() + 1).contiguous()


def gather(x: Tensor) -> Tensor:
    last = x.shape[0] * x.shape[1] - 1
    where = last - torch.arange(5000, device=x.device) % (last + 1)
    return x.flatten()[where] + 1


FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (pointwise, row_sums, column_sums, whole_sum, transpose, gather)
each = pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def made(rows: int, columns: int, device: str) -> Tensor:
    """i8 whose value hangs on row and column, made without a large temporary."""
    down = (torch.arange(rows, device=device) % 23).to(torch.int8)
    across = (torch.arange(columns, device=device) % 19).to(torch.int8)
    return down[:, None] - across


def check(fn: Callable[[Tensor], Tensor], device: str) -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return lowc_backend(gm, inputs, options={"strict_errors": True})

    compiled = torch.compile(fn, backend=backend, fullgraph=True, dynamic=True)
    for shape in (SMALL, (ROWS, COLUMNS)):
        x = made(*shape, device)
        expected, got = fn(x), compiled(x)
        assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype)
        assert torch.equal(got, expected)
        del expected, got, x
    assert len(graphs) == 1


@pytest.mark.slow
@each
def test_on_cpu(fn: Callable[[Tensor], Tensor]) -> None:
    check(fn, "cpu")


@pytest.mark.gpu
@each
def test_on_gpu(fn: Callable[[Tensor], Tensor]) -> None:
    check(fn, "cuda")
    torch.cuda.empty_cache()


@each
def test_addresses_on_a_gpu_have_64_bits(fn: Callable[[Tensor], Tensor]) -> None:
    """Where nothing bounds a size, no address of an input or a result is computed in 32 bits."""
    pytest.importorskip("llvmlite")
    from lowc.backends import nvptx
    from lowc.backends.nvptx.module import emit_module
    from lowc.frontend.aot import compile_module

    target = nvptx.default()
    texts: list[str] = []
    unbounded: set[str] = set()

    def compile_one(graph: Any, constants: Any) -> Any:
        module = pipeline.run(lower(graph), target, Options(check=True), Trace())
        texts.append(emit_module(module, target)[0])
        kernels = [step.kernel for step in module.steps if isinstance(step, Launch)]
        unbounded.update(p.name for k in kernels for p in k.params if upper_bound(p.shape[0]) is None)
        return compile_graph(graph, constants, Options())

    compiled = torch.compile(
        fn, backend=lambda gm, inputs: compile_module(gm, inputs, compile_one, strict=True), fullgraph=True, dynamic=True
    )
    x = made(*SMALL, "cpu")
    assert torch.equal(compiled(x), fn(x))
    (text,) = texts
    widths = re.findall(r'getelementptr [^,]*, ptr addrspace\(1\) %"p\.(\w+)", (i\d+) %', text)
    assert {bits for name, bits in widths if name in unbounded} == {"i64"}
