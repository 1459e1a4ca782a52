"""Sizes computed through floats, ``int(n * 0.3)`` or ``interpolate(scale_factor=0.7)``: each becomes a symbol and a node.

torch holds such a size as ``TruncToInt(0.3*ToFloat(s0))``, which no Index can say.  It gets a symbol of its own, with which the
rest of the graph goes on, and a node ``lowc.size.default`` that computes it as Python would (see ``ir/arithmetic.py``):

    f0: size f0 = lowc.size.default(("trunc", ("mul", ("float", idx(s0)), 0.3)))

How it is computed is read off the nodes of the graph, which are the user's operations in his order.  torch's expressions are not
in that order (``n * 0.1 * 3.0`` is ``0.3*n`` there, and rounds otherwise); they are used where the graph has no such nodes.
Two sizes that torch takes for equal are one symbol, computed as the first of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy import functions as tf

from lowc.errors import Unsupported
from lowc.frontend.shapes import ROUNDING, Symbols, index_of, numbers, range_of
from lowc.frontend.source import user_line
from lowc.ir import arithmetic
from lowc.ir.graph import GraphArg, Input, Meta, Node, TensorMeta
from lowc.ir.index import Index, Symbol, atoms, ix

# A function of an FX node, by name → the function of ``ir.arithmetic``.
_OF_NODES = {
    **{name: name for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs", "round")},
    **{name: name for name in ("trunc", "floor", "ceil")},
    **{f"_sym_{name}": name for name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "tanh", "atan")},
    "sym_float": "float",
    "sym_max": "max",
    "sym_min": "min",
}

# The same for torch's expressions.  What has more than two operands there is computed from the left.
_OF_EXPRESSIONS: dict[Any, str] = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    tf.Min: "min",
    tf.Max: "max",
    tf.ToFloat: "float",
    tf.IntTrueDiv: "truediv",
    tf.FloatTrueDiv: "truediv",
    tf.FloatPow: "pow",
    tf.TruncToInt: "trunc",
    tf.FloorToInt: "floor",
    tf.CeilToInt: "ceil",
    tf.RoundToInt: "round",
    sympy.Abs: "abs",
    tf.OpaqueUnaryFn_sqrt: "sqrt",
    tf.OpaqueUnaryFn_exp: "exp",
    tf.OpaqueUnaryFn_log: "log",
}


_EXACT = ("float", "trunc", "floor", "ceil", "round", "neg", "abs", "min", "max")


@dataclass(frozen=True, slots=True)
class Derived:
    """``node`` computes the size ``symbol`` from the sizes ``needs``."""

    symbol: Symbol
    node: Node
    needs: frozenset[Symbol]


def derive(gm: fx.GraphModule, values: Iterable[Any], symbols: Symbols) -> list[Derived]:
    """The sizes of that kind in ``values`` (tensors and symbolic numbers), each behind those that it is computed from; adds
    their symbols to ``symbols``.  What cannot be computed either is left out: its use raises Unsupported.

    A size that an input of the graph has is not computed again: a backward graph does not say how the forward graph got it.
    """
    derived: list[Derived] = []
    whole: set[Any] = set()
    found: dict[Any, Any] = {}
    for value in values:
        for number in numbers(value):
            if isinstance(number, torch.SymInt | torch.SymBool):
                if number.node.expr.has(*ROUNDING):
                    inside = [e for e in sympy.postorder_traversal(number.node.expr) if isinstance(e, ROUNDING)]
                    found.update(dict.fromkeys(inside, number.node.shape_env))
        whole.update(_whole(value))
    if not found:
        return []
    given = {expr for node in gm.graph.find_nodes(op="placeholder") for expr in _whole(node.meta.get("val"))}
    taken = {node.name for node in gm.graph.nodes} | {symbol.name for symbol in symbols.values()}
    for expr, shape_env in found.items():
        origin = None if expr in given else _first(gm, expr)
        tree = None if expr in given else _computation(expr, origin, symbols)
        if expr not in given and (tree is None or (_expressible(expr, symbols) and _roundings(tree) <= 1)):
            continue
        name = next(n for k in range(len(taken) + 1) if (n := f"f{len(derived) + k}") not in taken)
        taken.add(name)
        symbol = symbols[expr] = range_of(name, expr, shape_env, expr in whole, slack=1)
        if expr not in given:
            node = Node(name, arithmetic.TARGET, (tree,), (), (ix(symbol),), user_line(origin) if origin else "")
            derived.append(Derived(symbol, node, frozenset(_symbols(tree))))
    return derived


def _whole(value: Any) -> list[Any]:
    """The expressions that ``value``, or a dimension of it, is."""
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return [n.node.expr for n in sizes if isinstance(n, torch.SymInt)]


def _computation(expr: Any, origin: fx.Node | None, symbols: Symbols) -> GraphArg:
    """How ``expr`` is computed; None if there is no way."""
    try:
        return _of_node(origin, symbols, top=True) if origin else _of_expression(expr, symbols)
    except Unsupported:
        return None


def _roundings(tree: GraphArg) -> int:
    """How often a float may be rounded: with one rounding at most, an Index is as good (see ``shapes.py``)."""
    if not isinstance(tree, tuple):
        return 0
    return (tree[0] not in _EXACT) + sum(map(_roundings, tree[1:]))


def take_due(derived: list[Derived], inputs: Iterable[Input], nodes: Iterable[Node]) -> list[Node]:
    """Takes from ``derived`` what can be computed after ``inputs`` and ``nodes``."""
    if not derived:
        return []
    known = _told([*(i.meta for i in inputs), *(meta for node in nodes for meta in node.outputs)])
    due: list[Node] = []
    for d in list(derived):
        if d.needs <= known:
            derived.remove(d)
            due.append(d.node)
            known.add(d.symbol)
    return due


def _told(metas: Iterable[Meta]) -> set[Symbol]:
    """The sizes that are those of ``metas``."""
    sizes = [n for m in metas for n in (m.shape if isinstance(m, TensorMeta) else (m,))]
    return {a for n in sizes if isinstance(n, Index) for a in atoms(n) if isinstance(a, Symbol) and ix(a) == n}


def _symbols(tree: GraphArg) -> Iterable[Symbol]:
    if isinstance(tree, tuple):
        for operand in tree:
            yield from _symbols(operand)
    elif isinstance(tree, Index):
        yield from (atom for atom in atoms(tree) if isinstance(atom, Symbol))


def _expressible(expr: Any, symbols: Symbols) -> bool:
    try:
        index_of(expr, symbols)
    except Unsupported:
        return False
    return True


def _first(gm: fx.GraphModule, expr: Any) -> fx.Node | None:
    """The first node that computes ``expr`` by rounding a float."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.SymInt) and value.node.expr == expr:
            if _name(node) in ("trunc", "floor", "ceil", "round"):
                return node
    return None


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _of_node(node: fx.Node, symbols: Symbols, top: bool = False) -> GraphArg:
    """What ``node`` computes, down to sizes that have an Index."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt | int) and not top:
        return index_of(value, symbols)
    name = _OF_NODES.get(_name(node))
    if node.op != "call_function" or name is None:
        raise Unsupported(f"sizes computed by {_name(node)} are not supported")
    operands = [a for a in node.args if a is not None]
    return _call(name, [_of_node(a, symbols) if isinstance(a, fx.Node) else a for a in operands])


def _of_expression(expr: Any, symbols: Symbols) -> GraphArg:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Float:
        return float(expr)
    if _expressible(expr, symbols):
        return index_of(expr, symbols)
    name = _OF_EXPRESSIONS.get(type(expr))
    if name is None:
        raise Unsupported(f"sizes with {type(expr).__name__} are not supported: {expr}")
    operands = [_of_expression(a, symbols) for a in expr.args]
    while len(operands) > 2:
        operands[:2] = [_call(name, operands[:2])]
    return _call(name, operands)


def _call(name: str, operands: list[Any]) -> GraphArg:
    """``name`` of ``operands``, if that is arithmetic that the host program can do."""
    tree = (name, *operands)
    if what := arithmetic.wrong(tree):
        raise Unsupported(f"a size is computed by what the host program cannot do: {what}")
    return tree
