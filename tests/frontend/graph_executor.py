"""A reference executor: runs an ``ir.Graph`` by calling torch's own ops, to show that importing loses nothing."""

from typing import Any

import torch

from lowc.faults.reference import literal
from lowc.frontend.dtypes import TORCH_OF
from lowc.ir.graph import Graph, Ref, TensorMeta
from lowc.ir.index import Index, Symbol, evaluate
from lowc.ir.types import DType


def run(graph: Graph, args: list[Any]) -> list[Any]:
    """The outputs of ``graph`` on ``args`` (its constants included); checks each value against its meta on the way."""
    env: dict[str, int] = {}
    values: dict[str, tuple[Any, ...]] = {}
    assert len(args) == len(graph.inputs), (len(args), len(graph.inputs))
    for given, value in zip(graph.inputs, args, strict=True):
        bind_all(given.meta, value, env)
        values[given.name] = (value,)
    for given in graph.inputs:
        check(given.meta, values[given.name][0], env, given.name)
    for node in graph.nodes:
        op = resolve(node.target)
        result = op(*convert(node.args, values, env), **{k: convert(v, values, env) for k, v in node.kwargs})
        results = tuple(result) if isinstance(result, tuple | list) else (result,)
        for meta, value in zip(node.outputs, results, strict=True) if node.outputs else ():
            bind_all(meta, value, env)
            check(meta, value, env, node.name)
        values[node.name] = results
    return [convert(out, values, env) for out in graph.outputs]


def resolve(target: str) -> Any:
    namespace, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def bind_all(meta: Any, value: Any, env: dict[str, int]) -> None:
    """Gives symbols that ``meta`` mentions by themselves their values; those known keep theirs."""
    if isinstance(meta, Index):
        bind(meta, value, env)
    elif isinstance(meta, TensorMeta):
        for index, number in zip((*meta.shape, *meta.strides), (*value.shape, *value.stride()), strict=True):
            bind(index, number, env)


def bind(index: Index, number: int, env: dict[str, int]) -> None:
    if len(index.terms) == 1 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
        atom = index.terms[0][0][0]
        if isinstance(atom, Symbol):
            env.setdefault(atom.name, int(number))


def check(meta: Any, value: Any, env: dict[str, int], name: str) -> None:
    if isinstance(meta, TensorMeta):
        assert value.dtype == TORCH_OF[meta.dtype], name
        assert tuple(value.shape) == tuple(evaluate(n, env) for n in meta.shape), name
        strides = tuple(evaluate(n, env) for n in meta.strides)
        real = [(n, s, r) for n, s, r in zip(value.shape, strides, value.stride(), strict=True) if n > 1]
        assert value.numel() == 0 or all(s == r for _, s, r in real), (
            name,
            value.shape,
            strides,
            value.stride(),
        )
        assert str(value.device) == meta.device
    elif isinstance(meta, Index):
        assert evaluate(meta, env) == value, name


def convert(arg: Any, values: dict[str, tuple[Any, ...]], env: dict[str, int]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.name][arg.number]
    if isinstance(arg, tuple):
        return [convert(a, values, env) for a in arg]
    if isinstance(arg, DType):
        return TORCH_OF[arg]
    return literal(arg, env)
