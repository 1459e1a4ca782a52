"""What the manifest of an artifact says of a model: inputs, outputs, weights, sizes, conditions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lowc import __version__
from lowc.errors import LowcError
from lowc.ir.graph import Graph, Input, Ref, TensorMeta
from lowc.ir.index import FloorDiv, Index, Max, Min, Mod, Symbol, atoms, constant, split
from lowc.ir.nodes import Buffer, Module, View
from lowc.options import Options
from lowc.standalone import manifest
from lowc.standalone.dtypes import NUMBERS
from lowc.standalone.trees import Tree, value

if TYPE_CHECKING:
    from lowc.frontend.exported import Exported


def described(exported: "Exported", name: str, options: Options) -> manifest.Manifest:
    """All but the code.  Raises LowcError for a size that no input tells."""
    graph = exported.graph
    given, fixed = graph.inputs[: len(exported.inputs)], graph.inputs[len(exported.inputs) :]
    metas = {i.name: (i.meta,) for i in graph.inputs} | {n.name: n.outputs for n in graph.nodes}
    outputs: list[manifest.Tensor | manifest.Size] = []
    for title, output in zip(exported.outputs, graph.outputs, strict=True):
        if isinstance(output, Ref):
            outputs.append(_tensor(title, metas[output.name][output.number]))
        else:
            assert isinstance(output, Index)
            outputs.append(manifest.Size(title, tree_of(output)))
    return manifest.Manifest(
        name,
        tuple(_symbol(symbol, given, graph) for symbol in graph.symbols),
        tuple(_input(i, exported) for i in given),
        tuple(_tensor(i.name, i.meta, key) for i, key in zip(fixed, exported.weights, strict=True)),
        tuple(outputs),
        exported.returns,
        tuple((tree, shown) for shown, tree in ((t, _condition(c)) for t, c in exported.conditions) if not isinstance(tree, int)),
        (),
        options.numerics,
        __version__,
    )


def _tensor(name: str, meta: object, key: str = "") -> manifest.Tensor:
    assert isinstance(meta, TensorMeta)
    if meta.dtype.name not in NUMBERS:
        raise LowcError(f"{name} has dtype {meta.dtype}, which artifacts do not have", hint="they have " + ", ".join(NUMBERS))
    return manifest.Tensor(name, meta.dtype.name, trees_of(meta.shape), trees_of(meta.strides), key)


def _number(name: str, meta: Index) -> manifest.Tensor:
    """An input that is an integer: 0-d, for the caller who has arrays."""
    return manifest.Tensor(name, "i64", (), (), value=tree_of(meta))


def _input(given: Input, exported: "Exported") -> manifest.Tensor:
    if isinstance(given.meta, Index):
        return _number(given.name, given.meta)
    made = _tensor(given.name, given.meta)
    return replace(made, drawn=True) if given.name == exported.seed else made


def _symbol(symbol: Symbol, given: Sequence[Input], graph: Graph) -> manifest.Symbol:
    """Where the size ``symbol`` is found: factor * symbol + added is a dimension of an input, or an input that is an integer."""
    for number, each in enumerate(given):
        extents = enumerate(each.meta.shape) if isinstance(each.meta, TensorMeta) else ((manifest.ITSELF, each.meta),)
        for dim, extent in extents:
            assert isinstance(extent, Index)
            factor, rest = split(extent, symbol)
            scale, added = constant(factor), constant(rest)
            if scale and scale > 0 and added is not None:
                return manifest.Symbol(symbol.name, symbol.lo, symbol.hi, (number, dim, scale, added))
    for node in graph.nodes:
        sizes = [n for meta in node.outputs for n in (meta.shape if isinstance(meta, TensorMeta) else (meta,))]
        if any(isinstance(n, Index) and symbol in atoms(n) for n in sizes):
            raise LowcError(
                f"data tells how large the result of {node.target} is, and sizes in an artifact follow from those of its inputs",
                where=node.where,
                hint="compute a mask of a known size instead, or leave the op outside of the model",
            )
    raise LowcError(f"the size {symbol.name} cannot be found from the sizes of the inputs")


def places(module: Module, exported: "Exported") -> dict[str, tuple[str, int]]:
    """What a call puts where code expects a buffer or a size of ``module``: by name, kind and number as in the manifest.  Temps
    that are placed in the workspace are not among them; inputs behind the weights are what is made of those once."""
    found: dict[str, tuple[str, int]] = {"workspace": ("workspace", 0)}
    count = len(exported.inputs)
    weights = count + len(exported.weights)
    for n, each in enumerate(module.inputs):
        if isinstance(each, Buffer):
            kind = "input" if n < count else "weight" if n < weights else "made"
            found[each.name] = kind, n - {"input": 0, "weight": count, "made": weights}[kind]
    for number, output in enumerate(module.outputs):
        if isinstance(output, View):
            found[output.buffer.name] = ("output", number)
    return found | {symbol.name: ("symbol", number) for number, symbol in enumerate(exported.graph.symbols)}


def _condition(condition: Any) -> Tree:
    """A condition of ``frontend.guards`` as the manifest has it; a number if it does not depend on the call."""
    if isinstance(condition, Index):
        return tree_of(condition)
    name, a, b = condition
    tree: list[Any] = [name, _condition(a), _condition(b)]
    return value(tree, {}) if all(isinstance(part, int) for part in tree[1:]) else tree


def trees_of(indices: Sequence[Index]) -> tuple[Tree, ...]:
    return tuple(map(tree_of, indices))


_OPERATIONS = {FloorDiv: "//", Mod: "%", Min: "min", Max: "max"}


def tree_of(index: Index) -> Tree:
    """``index`` as the manifest has it."""
    total: Tree | None = None
    for monomial, coefficient in index.terms:
        term: Tree | None = None if coefficient == 1 and monomial else coefficient
        for atom in monomial:
            if isinstance(atom, Symbol):
                part: Tree = atom.name
            elif isinstance(atom, FloorDiv | Mod):
                part = [_OPERATIONS[type(atom)], tree_of(atom.num), tree_of(atom.den)]
            else:
                assert isinstance(atom, Min | Max)
                part = [_OPERATIONS[type(atom)], tree_of(atom.a), tree_of(atom.b)]
            term = part if term is None else ["*", term, part]
        assert term is not None
        total = term if total is None else ["+", total, term]
    return 0 if total is None else total
