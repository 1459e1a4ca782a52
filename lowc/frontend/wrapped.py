"""Ops inside torch's higher-order ops, as one op that has a name to be called by.

``lowc::call`` takes the tensors, the sizes and, as text, what is called and which argument is which.  It stands for:

* ``auto_functionalized``: a custom op that changes its arguments; they are copied first, and returned behind the results;
* ``run_and_save_rng_state``: a random op; the state of the generator before it comes first among the results;
* ``run_with_rng_state``: the same op again, in the backward pass, on the state saved then (checkpointing);
* ``with_floats``: an op that takes a float computed from sizes as a plain number; what comes is a 0-d tensor.
"""

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2_dense

from lowc.errors import Unsupported
from lowc.frontend.dtypes import TORCH_OF
from lowc.frontend.floats import Float
from lowc.ir.graph import GraphArg, Node, Ref, TensorMeta
from lowc.ir.index import Index
from lowc.ir.types import DType
from lowc.once import once

TARGET = "lowc.call.default"
WRAPPERS = ("auto_functionalized_v2", "run_and_save_rng_state", "run_with_rng_state")

_MARKED = ("device", "layout", "memory_format")


def encode(
    wrapper: str, op: Any, args: tuple[GraphArg, ...], kwargs: Mapping[str, GraphArg]
) -> tuple[GraphArg, ...]:
    """The arguments of ``lowc::call`` for ``op`` inside ``wrapper``; raises Unsupported for arguments that have no text.

    For ``run_with_rng_state`` the first of ``args`` is the state.
    """
    register()
    tensors: list[Ref] = []
    sizes: list[Index] = []

    def text(value: Any) -> Any:
        if isinstance(value, Ref):
            tensors.append(value)
            return ("tensor", len(tensors) - 1)
        if isinstance(value, Float):
            tensors.append(value.ref)
            return ("item", len(tensors) - 1)
        if isinstance(value, Index):
            sizes.append(value)
            return ("size", len(sizes) - 1)
        if isinstance(value, tuple):
            return [text(v) for v in value]
        if isinstance(value, float):
            return ("float", value.hex())
        if isinstance(value, DType):
            return "dtype", str(TORCH_OF[value]).removeprefix("torch.")
        if isinstance(value, str) and value.split(":")[0] in _MARKED:
            return tuple(value.split(":", 1))
        if value is None or isinstance(value, bool | int | str):
            return value
        raise Unsupported(f"{op} in {wrapper} takes {value!r}")

    call = repr(
        (wrapper, str(op), [text(a) for a in args], {key: text(value) for key, value in kwargs.items()})
    )
    return tuple(tensors), tuple(sizes), call


def with_floats(node: Node, op: torch._ops.OpOverload) -> Node:
    """``node``, a call of ``op`` that has Floats among its arguments, as a node that has tensors for them."""
    if op._schema.is_mutable or any(r.alias_info is not None for r in op._schema.returns):
        raise Unsupported(f"{op} of a floating-point size is not supported")
    if not all(isinstance(meta, TensorMeta) for meta in node.outputs):
        raise Unsupported(f"{op} of a floating-point size, of which not all results are tensors, is not supported")
    return replace(node, target=TARGET, args=encode("with_floats", op, node.args, dict(node.kwargs)), kwargs=())


@once
def register() -> torch.library.Library:
    """Makes the op known to torch (once); the library has to be kept."""
    library = torch.library.Library("lowc", "FRAGMENT")
    library.define("call(Tensor[] tensors, SymInt[] sizes, str call) -> Tensor[]")
    library.impl("call", call, "CompositeExplicitAutograd")
    return library


def call(tensors: list[Tensor], sizes: list[int], call: str) -> list[Tensor]:
    """Does what ``call`` says; the tensors among the results, in order."""
    wrapper, target, arguments, keywords = _parsed(call)
    namespace, name, overload = target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    args = [_value(a, tensors, sizes) for a in arguments]
    kwargs = {key: _value(a, tensors, sizes) for key, a in keywords.items()}
    if wrapper == "auto_functionalized_v2":
        results: Any = auto_functionalized_v2_dense(op, *args, **kwargs)
    elif wrapper == "run_and_save_rng_state":
        state = torch.get_rng_state()
        results = (state, *_several(op(*args, **kwargs)))
    elif wrapper == "with_floats":
        results = _several(op(*args, **kwargs))
    else:
        now = torch.get_rng_state()
        torch.set_rng_state(args[0])
        results = _several(op(*args[1:], **kwargs))
        torch.set_rng_state(now)
    return [r for r in results if r is not None]


@lru_cache(1 << 10)
def _parsed(call: str) -> Any:
    return ast.literal_eval(call)


def _several(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _value(node: Any, tensors: list[Tensor], sizes: list[int]) -> Any:
    if isinstance(node, list):
        return [_value(n, tensors, sizes) for n in node]
    if not isinstance(node, tuple):
        return node
    kind, what = node
    if kind == "tensor":
        return tensors[what]
    if kind == "item":
        return tensors[what].item()
    if kind == "size":
        return sizes[what]
    if kind == "float":
        return float.fromhex(what)
    return torch.device(what) if kind == "device" else getattr(torch, what)
