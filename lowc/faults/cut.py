"""A part of a graph as a graph of its own, with the values that it takes from the rest as inputs."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lowc.faults import reference
from lowc.faults.judge import Expected, expected
from lowc.ir.graph import Graph, GraphArg, Input, Meta, Node, Ref, TensorMeta
from lowc.ir.index import Index, Symbol, atoms, ix, sole_atom


@dataclass(frozen=True)
class Case:
    """A graph and what to call it with: a value for each of its inputs."""

    graph: Graph
    inputs: tuple[Any, ...]

    def copies(self) -> list[Any]:
        """The inputs as a call may have them, which may write to them."""
        return [reference.copied(value) for value in self.inputs]

    def expected(self) -> list[Expected]:
        return expected(self.graph, self.inputs)

    def found(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """What a call gave, in the order of ``expected``; ``inputs``: what it was called with, afterwards."""
        return [*outputs, *(value for given, value in zip(self.graph.inputs, inputs, strict=True) if given.mutated)]


class Source:
    """A case to cut from, with the values of all its nodes."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.values, self.sizes = reference.eager(case.graph, case.inputs)
        given = zip(case.graph.inputs, case.inputs, strict=True)
        self.values = {**self.values, **{i.name: (value,) for i, value in given}}  # as they are before, not after

    def cut(self, names: Collection[str], only: Collection[tuple[str, int]] | None = None) -> Case | None:
        """The nodes of ``names``; results are what the rest of the graph uses or returns of them (``only``: of those, these).

        None if nothing is left that can be seen.
        """
        graph = self.case.graph
        nodes = tuple(n for n in graph.nodes if n.name in names)
        outside = {(r.name, r.number) for n in graph.nodes if n.name not in names for r in references((n.args, n.kwargs))}
        outside |= {(r.name, r.number) for r in references(graph.outputs)}
        outputs = tuple(
            Ref(n.name, k)
            for n in nodes
            for k, meta in enumerate(n.outputs)
            if (n.name, k) in outside and isinstance(meta, TensorMeta) and n.target != "aten.copy_.default"
        )
        if only is not None:
            outputs = tuple(o for o in outputs if (o.name, o.number) in only)
            nodes = _needed(nodes, outputs)
        written = {r.name for n in nodes if n.target == "aten.copy_.default" for r in references(n.args[:1])}
        if not nodes or not (outputs or written):
            return None
        inputs, values = self._inputs(nodes, written)
        part = replace(graph, inputs=inputs, nodes=_renamed(nodes), outputs=outputs, symbols=_symbols(graph, inputs, nodes))
        return Case(part, values)

    def _inputs(self, nodes: Sequence[Node], written: Collection[str]) -> tuple[tuple[Input, ...], tuple[Any, ...]]:
        graph = self.case.graph
        own = {n.name for n in nodes}
        metas: dict[str, tuple[Meta, ...]] = {i.name: (i.meta,) for i in graph.inputs} | {n.name: n.outputs for n in graph.nodes}
        used = ((r.name, r.number) for n in nodes for r in references((n.args, n.kwargs)))
        wanted = list(dict.fromkeys(each for each in used if each[0] not in own))
        order = {name: k for k, name in enumerate(metas)}
        wanted.sort(key=lambda w: (order[w[0]], w[1]))
        inputs: list[Input] = []
        values: list[Any] = []
        known: set[Symbol] = set()
        for name, number in wanted:
            meta = metas[name][number]
            inputs.append(Input(_input_name(name, number), meta, name in written))
            values.append(self.values[name][number])
            if isinstance(meta, TensorMeta):
                known |= {s for n in (*meta.shape, *meta.strides) for s in _itself(n)}
        made = {s for n in nodes for m in n.outputs if isinstance(m, Index) for s in _itself(m)}
        for symbol in dict.fromkeys(s for n in (*inputs, *nodes) for s in _used(n)):
            if symbol not in known and symbol not in made:
                inputs.append(Input(f"size_{symbol.name}", ix(symbol)))
                values.append(self.sizes[symbol.name])
        return tuple(inputs), tuple(values)


def _renamed(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """``nodes`` with references to what are inputs now by the inputs' names."""
    own = {n.name for n in nodes}

    def change(arg: Any) -> Any:
        if isinstance(arg, Ref):
            return arg if arg.name in own else Ref(_input_name(arg.name, arg.number))
        return tuple(map(change, arg)) if isinstance(arg, tuple) else arg

    return tuple(replace(n, args=change(n.args), kwargs=change(n.kwargs)) for n in nodes)


def _input_name(name: str, number: int) -> str:
    return f"{name}_{number}_in" if number else name


def _needed(nodes: Sequence[Node], outputs: Iterable[Ref]) -> tuple[Node, ...]:
    """The nodes that ``outputs``, or what is written to inputs, come from."""
    wanted = {o.name for o in outputs}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name in wanted or node.target == "aten.copy_.default":
            kept.append(node)
            wanted |= {r.name for r in references((node.args, node.kwargs))}
    return tuple(reversed(kept))


def references(arg: Any) -> Iterator[Ref]:
    """The Refs in an argument, or in tuples of them."""
    if isinstance(arg, Ref):
        yield arg
    elif isinstance(arg, tuple):
        for inner in arg:
            yield from references(inner)


def between(graph: Graph, names: Collection[str], silent: Collection[str]) -> set[str]:
    """``names`` with the nodes on the way from one of them to another, and those of ``silent`` that lead to them.

    ``silent``: nodes without a step of their own, as views; a kernel reads through them.
    """
    uses = {n.name: {r.name for r in references((n.args, n.kwargs))} for n in graph.nodes}
    found = set(names)
    below: set[str] = set()  # what comes from them
    for node in graph.nodes:
        if uses[node.name] & (below | found):
            below.add(node.name)
    above: set[str] = set()  # what leads to them
    for node in reversed(graph.nodes):
        if node.name in above or node.name in found:
            above |= uses[node.name]
    found |= below & above
    for node in reversed(graph.nodes):
        if node.name in found:
            found |= uses[node.name] & set(silent)
    return found


def _symbols(graph: Graph, inputs: Sequence[Input], nodes: Sequence[Node]) -> tuple[Symbol, ...]:
    used = {s for item in (*inputs, *nodes) for s in _used(item)}
    return tuple(s for s in graph.symbols if s in used)


def _used(item: Input | Node) -> Iterator[Symbol]:
    if isinstance(item, Input):
        yield from _of_meta(item.meta)
        return
    for meta in item.outputs:
        yield from _of_meta(meta)
    yield from _of_arg((item.args, item.kwargs))


def _of_meta(meta: Meta) -> Iterator[Symbol]:
    indices = (*meta.shape, *meta.strides, meta.offset) if isinstance(meta, TensorMeta) else (meta,) if meta is not None else ()
    for index in indices:
        yield from (a for a in atoms(index) if isinstance(a, Symbol))


def _of_arg(arg: GraphArg | tuple[Any, ...]) -> Iterator[Symbol]:
    if isinstance(arg, Index):
        yield from (a for a in atoms(arg) if isinstance(a, Symbol))
    elif isinstance(arg, tuple):
        for inner in arg:
            yield from _of_arg(inner)


def _itself(index: Index) -> Iterator[Symbol]:
    """The symbol that ``index`` is, if it is one."""
    if isinstance(atom := sole_atom(index), Symbol):
        yield atom
