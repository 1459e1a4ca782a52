"""What a graph takes and returns that is no tensor and no integer: Python's floats and truth values, and other objects.

Inside, a float is a 0-d f64 tensor and a truth value an integer (see ``floats.py`` and ``shapes.py``).  An object (the device
mesh of a DTensor, the ragged size of a nested tensor) is nothing there: it can only be an input that is returned as it came.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._library.fake_class_registry import FakeScriptObject

from lowc.frontend.symbols import is_ragged

Compiled = Callable[[list[Any]], Sequence[Any]]


def is_object(value: Any) -> bool:
    """Whether the value of an input is an object that can pass through."""
    return isinstance(value, FakeScriptObject | torch.ScriptObject) or is_ragged(value)


def with_python_values(gm: fx.GraphModule, compiled: Compiled) -> Compiled:
    """``compiled``, what was made of ``gm``, taking and returning Python's numbers and objects; itself where there are none."""
    graph = gm.graph
    inputs = graph.find_nodes(op="placeholder")
    given = [n for n, node in enumerate(inputs) if isinstance(node.meta.get("val"), torch.SymFloat)]
    objects = {node: n for n, node in enumerate(inputs) if is_object(node.meta.get("val"))}
    passed = [(n, objects[node]) for n, node in enumerate(_results(graph)) if node in objects]
    made = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in _results(graph)]
    floats = [n for n, value in enumerate(made) if isinstance(value, torch.SymFloat)]
    truths = [n for n, value in enumerate(made) if isinstance(value, torch.SymBool)]
    if not (given or floats or truths or passed):
        return compiled

    def run(args: list[Any]) -> Sequence[Any]:
        for n in given:
            args[n] = torch.scalar_tensor(args[n], dtype=torch.float64)
        kept = [(place, args[n]) for place, n in passed]
        results = list(compiled(args))
        for place, value in kept:
            results[place] = value
        for n in floats:
            results[n] = results[n].item()
        for n in truths:
            results[n] = bool(results[n])
        return results

    return run


def _results(graph: fx.Graph) -> Sequence[Any]:
    returned = graph.output_node().args[0]
    return returned if isinstance(returned, Sequence) else (returned,)
