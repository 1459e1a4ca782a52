"""Small graphs that need no Dynamo, what they compute, and how to compile them with a cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lowc import reuse
from lowc.cache.folder import Folder
from lowc.frontend.read import Reading
from lowc.frontend.unread import Source
from lowc.ir import types
from lowc.ir.graph import Graph, Input, Node, Ref, TensorMeta, devices_of
from lowc.ir.graph_printer import print_graph
from lowc.ir.index import Symbol, ix
from lowc.options import Options

SIZE = 37
C = torch.linspace(1, 2, SIZE)
X = torch.linspace(-2, 2, SIZE)


def meta(*shape: Any) -> TensorMeta:
    steps, step = [], ix(1)
    for n in reversed(shape):
        steps.append(step)
        step = step * n
    return TensorMeta(types.f32, tuple(map(ix, shape)), tuple(reversed(steps)), ix(0), "cpu")


def chain(number: float = 1.0, where: str = "", name: str = "inference") -> Graph:
    """exp(x) * c + number"""
    m = meta(SIZE)
    nodes = (
        Node("exp", "aten.exp.default", (Ref("x"),), (), (m,), where),
        Node("mul", "aten.mul.Tensor", (Ref("exp"), Ref("c")), (), (m,)),
        Node("add", "aten.add.Tensor", (Ref("mul"), number), (), (m,)),
    )
    return Graph(name, (), (Input("x", m), Input("c", m)), nodes, (Ref("add"),))


def chain_of(x: torch.Tensor, number: float = 1.0) -> torch.Tensor:
    return x.exp() * C + number


def product() -> Graph:
    """(x @ x).exp().sum(1), of any size: two native calls around one of ATen, checks of nothing."""
    n = Symbol("s0", 2, None)
    square, row = meta(n, n), meta(n)
    nodes = (
        Node("neg", "aten.neg.default", (Ref("x"),), (), (square,)),
        Node("mm", "aten.mm.default", (Ref("neg"), Ref("x")), (), (square,)),
        Node("exp", "aten.exp.default", (Ref("mm"),), (), (square,)),
        Node("sum", "aten.sum.dim_IntList", (Ref("exp"), (1,)), (), (row,)),
    )
    return Graph("inference", (n,), (Input("x", square),), nodes, (Ref("sum"),))


def product_of(x: torch.Tensor) -> torch.Tensor:
    return (-x @ x).exp().sum(1)


def folder(path: Path, limit: int = 1 << 30) -> Folder:
    """A Folder as a new process would have it."""
    return Folder(str(path), limit)


def compiled(
    graph: Graph, cache: Folder | None, constants: Sequence[Any] = (), **options: Any
) -> Callable[[list[Any]], list[Any]]:
    return reuse.compile_or_reuse(source(graph, constants), Options(**options), cache)


def source(graph: Graph, constants: Sequence[Any] = ()) -> Source:
    """``graph`` as if it were an FX graph that nobody has read; its text is that of the ``Graph``."""
    held = list(constants)
    text = f"{print_graph(graph)}{len(held)} constants"
    return Source(graph.name, held, lambda: (text, sorted(set(devices_of(graph).values()))), lambda: Reading(graph, held, True))


def check(cache: Folder | None, number: float = 1.0, **options: Any) -> Any:
    """Compiles or reuses ``chain`` and compares one call with eager; the program."""
    call: Any = compiled(chain(number), cache, [C], **options)
    torch.testing.assert_close(call([X])[0], chain_of(X, number))
    return call.program


@contextmanager
def silent(caplog: Any) -> Iterator[None]:
    """Nothing is logged as a warning inside (``caplog``: pytest's)."""
    caplog.clear()
    yield
    assert not [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
