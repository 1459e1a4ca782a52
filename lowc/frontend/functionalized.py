"""Custom ops that change their arguments, as one op that copies first.

AOTAutograd turns a call of such an op into a higher-order op that has no name to be called by.  ``lowc::functionalized`` has: it
takes the tensors, the sizes and, as text, what is called and which argument is which.
"""

import ast
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2, auto_functionalized_v2_dense

from lowc.errors import Unsupported
from lowc.ir.graph import GraphArg, Ref
from lowc.ir.index import Index

TARGET = "lowc.functionalized.default"
HIGHER_ORDER = auto_functionalized_v2


def encode(op: Any, kwargs: Mapping[str, GraphArg]) -> tuple[GraphArg, ...]:
    """The arguments of ``lowc::functionalized`` for a call of ``op``; raises Unsupported for arguments that have no text."""
    register()
    tensors: list[Ref] = []
    sizes: list[Index] = []

    def text(value: Any) -> Any:
        if isinstance(value, Ref):
            tensors.append(value)
            return ("tensor", len(tensors) - 1)
        if isinstance(value, Index):
            sizes.append(value)
            return ("size", len(sizes) - 1)
        if isinstance(value, tuple):
            return [text(v) for v in value]
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return ("float", value.hex())
        raise Unsupported(f"{op}, which changes its arguments, takes {value!r}")

    call = repr((str(op), {key: text(value) for key, value in kwargs.items()}))
    return tuple(tensors), tuple(sizes), call


@cache
def register() -> torch.library.Library:
    """Makes the op known to torch (once); the library has to be kept."""
    library = torch.library.Library("lowc", "FRAGMENT")
    library.define("functionalized(Tensor[] tensors, SymInt[] sizes, str call) -> Tensor[]")
    library.impl("functionalized", functionalized, "CompositeExplicitAutograd")
    return library


def functionalized(tensors: list[Tensor], sizes: list[int], call: str) -> list[Tensor]:
    """The tensors that the op returns, then the changed ones."""
    target, structure = _parsed(call)
    namespace, name, overload = target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)

    def value(node: Any) -> Any:
        if isinstance(node, list):
            return [value(n) for n in node]
        if isinstance(node, tuple):
            kind, what = node
            return tensors[what] if kind == "tensor" else sizes[what] if kind == "size" else float.fromhex(what)
        return node

    results = auto_functionalized_v2_dense(op, **{key: value(node) for key, node in structure.items()})
    return [r for r in results if r is not None]


@cache
def _parsed(call: str) -> Any:
    return ast.literal_eval(call)
