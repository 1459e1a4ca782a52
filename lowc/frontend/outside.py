"""Numbers that a graph takes and returns where Python has floats and truth values.

Inside, a float is a 0-d f64 tensor and a truth value an integer (see ``floats.py`` and ``shapes.py``).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

Compiled = Callable[[list[Any]], Sequence[Any]]


def with_python_numbers(gm: fx.GraphModule, compiled: Compiled) -> Compiled:
    """``compiled``, what was made of ``gm``, taking and returning Python's numbers; itself where there are none."""
    graph = gm.graph
    given = [n for n, node in enumerate(graph.find_nodes(op="placeholder")) if isinstance(node.meta.get("val"), torch.SymFloat)]
    made = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in _results(graph)]
    floats = [n for n, value in enumerate(made) if isinstance(value, torch.SymFloat)]
    truths = [n for n, value in enumerate(made) if isinstance(value, torch.SymBool)]
    if not (given or floats or truths):
        return compiled

    def run(args: list[Any]) -> Sequence[Any]:
        for n in given:
            args[n] = torch.scalar_tensor(args[n], dtype=torch.float64)
        results = list(compiled(args))
        for n in floats:
            results[n] = results[n].item()
        for n in truths:
            results[n] = bool(results[n])
        return results

    return run


def _results(graph: fx.Graph) -> Sequence[Any]:
    returned = graph.output_node().args[0]
    return returned if isinstance(returned, Sequence) else (returned,)
