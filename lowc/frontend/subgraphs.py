"""Graphs with calls of functions (``cond``, ``while_loop``, ``scan``, ``map``, ``invoke_subgraph``, ...), cut at these calls.

lowc's IR has no functions.  What comes between two such calls is a graph for lowc, and so is each function that torch calls
with tensors; the calls themselves are torch's, in the order of the graph:

    s = sin(x)                                     piece 0, compiled
    c = higher_order.cond(p, f, g, (s,))           torch calls f or g, both compiled
    y = c[0] * 2; z = exp(x)                       piece 1, compiled

A function is compiled once however often it is called.  What torch passes to functions and returns may lie otherwise in memory
than its fake tensors; it is copied then, see ``layouts.py``.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from lowc.frontend.layouts import as_traced
from lowc.frontend.unread import attribute
from lowc.frontend.wrapped import WRAPPERS

Compiled = Callable[[list[Any]], Sequence[Any]]
Compile = Callable[[fx.GraphModule], Compiled]

CALLED_WITH_TENSORS = frozenset({"cond", "while_loop", "scan", "map_impl", "invoke_subgraph"})
"""Ops whose functions are called as they are.  Others trace them, or map them over a dimension, and take torch's own."""


@dataclass(frozen=True, slots=True)
class Step:
    """``run`` takes the values named ``takes`` as one list and returns those named ``gives``; ``last`` are not used after it."""

    run: Compiled
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    last: tuple[str, ...]


def calls_functions(gm: fx.GraphModule) -> bool:
    return any(_is_call(node) for node in gm.graph.nodes)


def compile_pieces(gm: fx.GraphModule, compile_piece: Compile) -> Compiled:
    """What ``gm`` does, with ``compile_piece`` asked for each piece and each function; takes a list, which it empties."""
    functions: dict[fx.GraphModule, Callable[..., Any]] = {}

    def function(inner: fx.GraphModule) -> Callable[..., Any]:
        if inner not in functions:
            functions[inner] = _unboxed(inner, compile_piece(inner))
        return functions[inner]

    made: list[tuple[Compiled, tuple[str, ...], tuple[str, ...]]] = []
    for nodes in _pieces(gm.graph):
        if _is_call(nodes[0]):
            made.append(_call(gm, nodes, function))
        else:
            piece, takes, gives = _piece(gm, nodes)
            made.append((compile_piece(piece), takes, gives))
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    results = gm.graph.output_node().args[0]
    return _runner(names, _tensors(gm), _with_last_uses(made, results), results)


def _tensors(gm: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that the module holds, by the name of the node that reads one."""
    values = {node.name: attribute(gm, node) for node in gm.graph.find_nodes(op="get_attr")}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _runner(names: list[str], held: dict[str, torch.Tensor], steps: list[Step], results: Any) -> Compiled:
    def run(args: list[Any]) -> Sequence[Any]:
        values: dict[str, Any] = {**held, **dict(zip(names, args, strict=True))}
        args.clear()
        for step in steps:
            given = [values[name] for name in step.takes]
            for name in step.last:
                del values[name]
            values.update(zip(step.gives, step.run(given), strict=True))
        return map_arg(results, lambda node: values[node.name])

    return run


def _with_last_uses(made: list[tuple[Compiled, tuple[str, ...], tuple[str, ...]]], results: Any) -> list[Step]:
    used: set[str] = set()
    map_arg(results, lambda node: used.add(node.name))
    steps: list[Step] = []
    for run, takes, gives in reversed(made):
        steps.append(Step(run, takes, gives, tuple(name for name in takes if name not in used)))
        used.update(takes)
    return steps[::-1]


def _pieces(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """Runs of nodes that lowc can take, and between them a call of functions with the nodes that pick its results."""
    piece: list[fx.Node] = []
    picked: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node in picked:
            continue
        if not _is_call(node):
            piece.append(node)
            continue
        if piece:
            yield piece
        call = [node]
        for made in call:  # grows: results can be tuples of tuples
            call.extend(user for user in made.users if user.target is operator.getitem)
        picked.update(call)
        yield call
        piece = []
    if piece:
        yield piece


def _is_call(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    inner = node.target.name() in (*WRAPPERS, "with_effects") and any(isinstance(a, torch._ops.OpOverload) for a in node.args)
    return not inner


def _piece(gm: fx.GraphModule, nodes: list[fx.Node]) -> tuple[fx.GraphModule, tuple[str, ...], tuple[str, ...]]:
    """(a graph of ``nodes``, what it takes, what it gives): every value that is used elsewhere is given."""
    inside = set(nodes)
    taken = dict.fromkeys(_sizes(gm))
    taken |= {a: None for node in nodes for a in node.all_input_nodes if a not in inside}
    given = [node for node in nodes if any(user not in inside for user in node.users)]
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in taken:
        values[node] = graph.placeholder(node.name)
        values[node].meta = _meta(gm, node)
    for node in nodes:
        values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(tuple(values[node] for node in given))
    return fx.GraphModule(gm, graph), tuple(n.name for n in taken), tuple(n.name for n in given)


def _sizes(gm: fx.GraphModule) -> list[fx.Node]:
    """The inputs that are sizes, of which the types of what a piece takes and gives may be made."""
    return [node for node in gm.graph.find_nodes(op="placeholder") if isinstance(node.meta.get("val"), torch.SymInt)]


def _meta(gm: fx.GraphModule, node: fx.Node) -> dict[str, Any]:
    if node.op == "get_attr" and "val" not in node.meta:
        return {**node.meta, "val": attribute(gm, node)}
    return dict(node.meta)


def _call(
    gm: fx.GraphModule, nodes: list[fx.Node], function: Callable[[fx.GraphModule], Callable[..., Any]]
) -> tuple[Compiled, tuple[str, ...], tuple[str, ...]]:
    """(torch's call of the first of ``nodes``, what it takes, what it gives): the others pick results of it."""
    node, *picks = nodes
    target: Any = node.target
    known: dict[fx.Node, Any] = {}
    for each in node.all_input_nodes:
        # A function, or a constant of another kind: how the arguments of a function that writes to them nest.
        if each.op == "get_attr" and not isinstance(held := attribute(gm, each), torch.Tensor):
            called = isinstance(held, fx.GraphModule) and target.name() in CALLED_WITH_TENSORS
            known[each] = function(held) if called else held
    sizes = _sizes(gm)
    takes = list(dict.fromkeys([*(each for each in node.all_input_nodes if each not in known), *sizes]))
    gives = [each for each in nodes if any(user not in nodes for user in each.users)]
    arrange = as_traced(gives, sizes)

    def run(args: list[Any]) -> Sequence[Any]:
        values: dict[Any, Any] = {**known, **dict(zip(takes, args, strict=True))}
        args.clear()
        arguments, keywords = map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = target(*arguments, **keywords)
        for pick in picks:
            made, number = pick.args
            values[pick] = values[made][number]
        return arrange([values[each] for each in gives], [values[each] for each in sizes])

    return run, tuple(n.name for n in takes), tuple(n.name for n in gives)


def _unboxed(gm: fx.GraphModule, compiled: Compiled) -> Callable[..., Any]:
    """``compiled`` called as ``gm`` is: with one argument for each input, and with one result where ``gm`` has no tuple."""
    several = isinstance(gm.graph.output_node().args[0], tuple | list)
    arrange = as_traced(gm.graph.find_nodes(op="placeholder"))

    def call(*args: Any) -> Any:
        results = compiled(arrange(args, ()))
        return tuple(results) if several else results[0]

    return call
