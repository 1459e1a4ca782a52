"""Graphs that call functions: the code around the calls and the functions are compiled, the calls are torch's."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch.nn.attention.flex_attention import flex_attention

from lowc import lowc_backend
from lowc.frontend.subgraphs import compile_pieces


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a.sin() + 1, lambda a: a.cos() * 2, (x.exp(),)) * 3


def nested(x: Tensor) -> Tensor:
    def inner(a: Tensor) -> Tensor:
        return torch.cond(a[0, 0] > 0, lambda b: b * 2, lambda b: b - 1, (a,)) + 1

    return torch.cond(x.sum() > 0, inner, lambda a: a.cos(), (x,)) - x


def loop(x: Tensor) -> Tensor:
    return while_loop(lambda n, a: n < 5, lambda n, a: (n + 1, (a * 1.1).sin()), (torch.tensor(0), x))[1] + x.exp()


def running(x: Tensor) -> tuple[Tensor, Tensor]:
    last, every = scan(lambda carry, row: (carry + row.sin(), (carry * row).cos()), torch.zeros(x.shape[1]), x)
    return last * 2, every + x


def rows(x: Tensor) -> Tensor:
    return map_rows(lambda row: row.softmax(-1) + 1, x) * 2


@mark_compile_region
def region(x: Tensor) -> Tensor:
    return (x.sin() + x).relu()


def regions(x: Tensor) -> Tensor:
    return region(region(x) * 2) - 1


FUNCTIONS = [branch, nested, loop, running, rows, regions]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_pieces_and_functions_are_compiled(
    fn: Callable[[Tensor], Any], dynamic: bool, recorder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for sign in (1, -1):
        x = torch.rand(5, 16) * sign
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend=recorder, fullgraph=True, dynamic=dynamic)
        torch.testing.assert_close(compiled(x), fn(x))
        if dynamic:
            torch.testing.assert_close(compiled(y := x[:4, :15].contiguous()), fn(y))
    assert len(recorder.graphs) > 2 and "run by torch" not in caplog.text


@pytest.mark.parametrize("fn", [branch, nested, rows, regions], ids=lambda fn: fn.__name__)
def test_gradients(fn: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture) -> None:
    for sign in (1, -1):
        x = (torch.rand(5, 16) * sign).requires_grad_()
        y = x.detach().clone().requires_grad_()
        torch._dynamo.reset()
        torch.compile(fn, backend=lowc_backend, fullgraph=True)(x).square().sum().backward()
        fn(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert "run by torch" not in caplog.text


def columns(x: Tensor) -> tuple[Tensor, Tensor]:
    return scan(lambda carry, col: (carry * 0.5 + col.sum(), col.cos() * carry), x.sum(), x, dim=1)


def backwards(x: Tensor) -> Tensor:
    return scan(lambda carry, row: (carry * 0.5 + row.sin(), carry * row), x[0] * 0, x, reverse=True)[1].t() * 2


@pytest.mark.parametrize("fn", [columns, backwards], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_torch_passes_on_has_other_strides_than_its_fake_tensors(fn: Callable[[Tensor], Any], dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=lowc_backend, fullgraph=True, dynamic=dynamic)
    for rows in (4, 5) if dynamic else (4,):
        x = torch.rand(rows, 3, requires_grad=True)
        results = [f(x) for f in (compiled, fn)]
        torch.testing.assert_close(*results)
        sums = [sum(r.square().sum() for r in (result if isinstance(result, tuple) else (result,))) for result in results]
        torch.testing.assert_close(*(torch.autograd.grad(total, x) for total in sums))


def test_attention_by_a_function_that_is_more_than_ops_on_tensors(recorder: Any) -> None:
    """A call that has one stays a call; others, on a CPU, are nodes (``e2e/test_flex_attention.py``)."""

    def attention(x: Tensor) -> Tensor:
        q, rows = x.expand(1, 2, *x.shape) * 2, x.shape[0]
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + x.new_full((2 * rows,), 0.5)[i]) + 1

    compiled = torch.compile(attention, backend=recorder, fullgraph=True, dynamic=True)
    for x in (torch.rand(5, 16), torch.rand(7, 16)):
        torch.testing.assert_close(compiled(x), attention(x))
    assert len(recorder.graphs) == 2


def test_a_region_is_compiled_once(recorder: Any) -> None:
    x = torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(regions, backend=recorder, fullgraph=True)(x), regions(x))
    assert sum("aten.relu.default" in [n.target for n in graph.nodes] for graph in recorder.graphs) == 1


def test_what_a_branch_does_not_see_is_written_and_returned(recorder: Any) -> None:
    """An input written after the call, one returned as it is, and sizes that only a function uses."""

    def f(x: Tensor, y: Tensor, z: Tensor) -> tuple[Any, ...]:
        n = x.shape[0]
        y.mul_(2)
        out = torch.cond(y.sum() > 0, lambda a: a + n, lambda a: a - n, (x,))
        y.add_(out[0, 0])
        return out.view(-1)[: n + 1], z, n * 2

    compiled = torch.compile(f, backend=recorder, fullgraph=True, dynamic=True)
    for n in (3, 7):
        args = torch.randn(n, 4), torch.randn(5), torch.randn(2)
        others = tuple(a.clone() for a in args)
        torch.testing.assert_close(compiled(*args), f(*others))
        torch.testing.assert_close(args, others)


@mark_compile_region
def writing(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def test_a_region_writes_to_a_window_of_an_input() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return writing(x[:, 1:]), writing(x[:, :-1]), x

    torch._dynamo.reset()
    x = torch.rand(4, 3)
    y = x.clone()
    torch.testing.assert_close(torch.compile(f, backend=lowc_backend, fullgraph=True)(x), f(y))
    torch.testing.assert_close(x, y)


def test_values_are_freed_after_their_last_use() -> None:
    made: list[weakref.ref[Tensor]] = []
    alive: list[list[bool]] = []

    def compile_piece(piece: torch.fx.GraphModule) -> Callable[[list[Any]], list[Any]]:
        def run(args: list[Any]) -> list[Any]:
            given = tuple(args)
            args.clear()
            results = piece(*given)
            del given
            alive.append([ref() is not None for ref in made])
            made.extend(weakref.ref(r) for r in results)
            return list(results)

        return run

    def compile_all(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        run = compile_pieces(gm, compile_piece)
        return make_boxed_func(lambda *args: run(list(args)))

    def f(x: Tensor) -> Tensor:
        return torch.cond(x[0] > 0, lambda a: a + 1, lambda a: a - 1, (x.sin(),)).cos()

    x = torch.rand(4)
    torch.testing.assert_close(torch.compile(f, backend=aot_autograd(fw_compiler=compile_all))(x), f(x))
    # The first piece made a truth value and a sine, which torch's call holds; the last piece was given the branch's result alone.
    assert alive == [[], [True, True], [False, False, False]]
