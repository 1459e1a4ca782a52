"""A torch.compile backend that imports each graph and runs it with the reference executor."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import graph_executor
import pytest
import torch

from lowc.frontend.aot import compile_module
from lowc.ir.graph import Graph


@dataclass
class Recorder:
    """The backend, and the graphs that it was given."""

    graphs: list[Graph] = field(default_factory=list)
    strict: bool = True
    fallback_random: bool = False

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any], **_: Any) -> Callable[..., Any]:
        return compile_module(
            gm, inputs, self.compile_graph, strict=self.strict, fallback_random=self.fallback_random
        )

    def compile_graph(self, graph: Graph, constants: list[torch.Tensor]) -> Callable[[list[Any]], list[Any]]:
        self.graphs.append(graph)

        def call(args: list[Any]) -> list[Any]:
            given = [*args, *constants]
            args.clear()
            return graph_executor.run(graph, given)

        return call

    def targets(self, name: str) -> list[str]:
        return [node.target for graph in self.graphs if graph.name == name for node in graph.nodes]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Recorder()
    torch._dynamo.reset()
