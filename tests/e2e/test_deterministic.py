"""``torch.use_deterministic_algorithms``: what is summed into indexed places does not depend on timing, or ATen is left to it."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lowc import lowc_backend
from lowc.frontend.capture import capture
from lowc.ir.elsewhere import on_gpu
from lowc.ir.graph import Graph
from lowc.ir.graph_printer import print_graph
from lowc.ir.nodes import Extern, Launch, Store
from lowc.ir.walk import statements
from lowc.lowering.lower import lower
from lowc.lowering.table import TABLE

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


def index_add(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.index_add(0, index, source)


def scatter_add(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_add(0, index[:, None].expand_as(source), source)


def scatter_amax(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_reduce(0, index[:, None].expand_as(source), source, "amax")


def index_put(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.index_put((index,), source, accumulate=True)


def embedding(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    weight = x.detach().requires_grad_()
    (torch.nn.functional.embedding(index, weight) * source).sum().backward()
    assert weight.grad is not None
    return weight.grad


SUMS = [index_add, scatter_add, scatter_amax, index_put]


def inputs(dtype: torch.dtype = torch.float32, rows: int = 1000) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    source = torch.randn(rows, 8, generator=g) * 100
    return torch.ones(5, 8).to(dtype), torch.randint(5, (rows,), generator=g), source.to(dtype)


def captured(fn: Callable[..., Any], *args: Any) -> list[Graph]:
    def run(graph: Graph, constants: list[Tensor]) -> Any:
        from lowc.compiler import run_by_aten

        return run_by_aten(graph, constants)

    return list(capture(fn, args, run, keep=TABLE.keys()).graphs)


def embedding_loss(weight: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, weight) * source


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("fn", SUMS)
def test_float_sums_on_a_gpu_are_left_to_aten_with_a_reason(fn: Callable[..., Tensor]) -> None:
    (graph,) = captured(fn, *inputs())
    assert graph.deterministic and ") deterministic {" in print_graph(graph)
    (step,) = lower(on_gpu(graph)).steps
    assert isinstance(step, Extern) and "deterministic algorithms are asked for" in step.because
    assert not any(isinstance(s, Extern) for s in lower(graph).steps), "threads of a CPU keep the order"


@pytest.mark.usefixtures("deterministic")
def test_gradients_of_embeddings_on_a_gpu_are_left_to_aten() -> None:
    weight, index, source = inputs()
    _, backward = captured(embedding_loss, weight.requires_grad_(), index, source)
    called = [s.target for s in lower(on_gpu(backward)).steps if isinstance(s, Extern)]
    assert called == ["aten.embedding_dense_backward.default"]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("fn", [index_add, scatter_add, index_put])
def test_integer_sums_stay_atomic(fn: Callable[..., Tensor]) -> None:
    (graph,) = captured(fn, *inputs(torch.int32))
    (step,) = lower(on_gpu(graph)).steps
    assert isinstance(step, Launch)
    assert any(isinstance(s, Store) and s.reducer == "add" for s in statements(step.kernel.body))


@pytest.mark.parametrize("fn", SUMS)
def test_else_a_gpu_has_kernels(fn: Callable[..., Tensor]) -> None:
    torch._dynamo.reset()
    (graph,) = captured(fn, *inputs())
    assert not graph.deterministic
    assert [type(s) for s in lower(on_gpu(graph)).steps] == [Launch]


@pytest.mark.usefixtures("deterministic")
def test_another_answer_is_another_compilation() -> None:
    graphs: list[Graph] = []

    def backend(gm: Any, example: Any) -> Any:
        from lowc.compiler import run_by_aten
        from lowc.frontend.aot import compile_module

        def compile_graph(graph: Graph, constants: list[Tensor]) -> Any:
            graphs.append(graph)
            return run_by_aten(graph, constants)

        return compile_module(gm, example, compile_graph, keep=TABLE.keys())

    compiled = torch.compile(index_add, backend=backend)
    for wanted in (True, False, True):
        torch.use_deterministic_algorithms(wanted)
        assert torch.equal(compiled(*inputs()), index_add(*inputs()))
    assert [g.deterministic for g in graphs] == [True, False]


@pytest.mark.usefixtures("deterministic")
def test_new_memory_is_filled_as_torch_fills_it() -> None:
    compiled = torch.compile(lambda x: (torch.empty(3), torch.empty_like(x)), backend=lowc_backend, fullgraph=True)
    for got in compiled(torch.ones(4, 2)):
        assert got.isnan().all()


@pytest.mark.parametrize("fn", [index_add, scatter_add, index_put])
def test_threads_of_a_cpu_add_in_order(fn: Callable[..., Tensor]) -> None:
    """Sums of many rows, wide enough for several threads, are those of a loop, bit for bit."""
    torch._dynamo.reset()
    g = torch.Generator().manual_seed(1)
    x, source = torch.zeros(7, 512), torch.randn(3000, 512, generator=g) * 1000
    index = torch.randint(7, (3000,), generator=g)
    want = x.numpy().copy()
    np.add.at(want, index.numpy(), source.numpy())
    compiled = torch.compile(fn, backend=lowc_backend, fullgraph=True, options={"strict_errors": True})
    for _ in range(3):
        assert np.array_equal(compiled(x, index, source).numpy(), want)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("fn", [*SUMS, embedding])
@pytest.mark.usefixtures("deterministic")
def test_sums_on_a_gpu_repeat_bit_for_bit(fn: Callable[..., Tensor]) -> None:
    given = [t.cuda() for t in inputs(rows=100_000)]
    compiled = torch.compile(fn, backend=lowc_backend)
    first, eager = compiled(*given), fn(*given)
    assert torch.equal(first, eager)
    for _ in range(5):
        assert torch.equal(compiled(*given), first)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("deterministic")
def test_what_has_no_deterministic_form_raises_as_in_eager() -> None:
    x = torch.rand(100, device="cuda")

    def histogram(x: Tensor) -> Tensor:
        return torch.histc(x * 2, 10)

    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        histogram(x)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.compile(histogram, backend=lowc_backend)(x)
