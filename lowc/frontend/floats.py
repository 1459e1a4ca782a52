"""Floating-point numbers computed from sizes (torch's SymFloat), as 0-d f64 tensors.

``x * (1.0 / n)`` with a symbolic ``n`` has no number for the graph to hold.  The arithmetic on such numbers becomes ATen ops on
0-d tensors, in f64 like Python's, and the ops that take one as a scalar become their forms that take a tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lowc.errors import Unsupported
from lowc.frontend.dtypes import dtype_of
from lowc.ir import types
from lowc.ir.graph import Node, Ref, TensorMeta
from lowc.ir.index import ZERO, Index
from lowc.ir.types import DType


@dataclass(frozen=True, slots=True)
class Float:
    """A symbolic float: the result of the node that ``ref`` names, a 0-d f64 tensor."""

    ref: Ref


SCALAR = TensorMeta(types.f64, (), (), ZERO, "cpu")

# Python's function, by name → the op on 0-d tensors.
_ARITHMETIC = {
    "truediv": "aten.div.Tensor",
    "mul": "aten.mul.Tensor",
    "add": "aten.add.Tensor",
    "sub": "aten.sub.Tensor",
    "pow": "aten.pow.Tensor_Tensor",
    "neg": "aten.neg.default",
    "abs": "aten.abs.default",
    "sym_float": "aten.clone.default",
    "_sym_sqrt": "aten.sqrt.default",
    "sym_sqrt": "aten.sqrt.default",
    "sqrt": "aten.sqrt.default",
    "sym_max": "aten.maximum.default",
    "sym_min": "aten.minimum.default",
}

# An op with a number → the same op with a tensor in its place.
_WITH_TENSOR = {
    **{f"aten.{name}.Tensor": f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")},
    **{
        f"aten.{name}.Scalar": f"aten.{name}.Tensor"
        for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")
    },
    "aten.rsub.Scalar": "aten.rsub.Tensor",
    "aten.pow.Tensor_Scalar": "aten.pow.Tensor_Tensor",
    "aten.pow.Scalar": "aten.pow.Tensor_Tensor",
    "aten.masked_fill.Scalar": "aten.masked_fill.Tensor",
    "aten.fill.Scalar": "aten.fill.Tensor",
    "aten.where.ScalarOther": "aten.where.self",
    "aten.where.ScalarSelf": "aten.where.self",
    "aten.where.Scalar": "aten.where.self",
    "aten.clamp.default": "aten.clamp.Tensor",
}
_FILLS = ("aten.full.default", "aten.full_like.default", "aten.new_full.default")


def arithmetic(name: str, function: str, args: Sequence[Any], where: str) -> list[Node]:
    """The nodes that compute Python's ``function`` of numbers, sizes and Floats; the last is called ``name``."""
    if function not in _ARITHMETIC:
        raise Unsupported(f"{function} of a floating-point size is not supported")
    nodes: list[Node] = []
    refs: list[Ref] = []
    for number, arg in enumerate(args):
        if isinstance(arg, Float):
            refs.append(arg.ref)
        elif isinstance(arg, Index | int | float):
            refs.append(Ref(f"{name}_{number}_"))
            kwargs = (("dtype", types.f64),)
            nodes.append(Node(refs[-1].name, "aten.scalar_tensor.default", (arg,), kwargs, (SCALAR,), where))
        else:
            raise Unsupported(f"{function} of {arg!r} is not supported")
    nodes.append(Node(name, _ARITHMETIC[function], tuple(refs), (), (SCALAR,), where))
    return nodes


def item(name: str, ref: Ref, meta: TensorMeta, where: str) -> list[Node]:
    """The nodes that make a Float of the only element of the tensor ``ref``, of type ``meta``; the last is called ``name``."""
    alone = Node(f"{name}_0_", "aten.view.default", (ref, ()), (), (replace(SCALAR, dtype=meta.dtype),), where)
    return [alone, _cast(name, Ref(alone.name), types.f64, where)]


def uses_float(args: Any) -> bool:
    """Whether a Float occurs in ``args``."""
    return isinstance(args, Float) or (isinstance(args, tuple | list) and any(map(uses_float, args)))


def with_tensors(node: Node, metas: Mapping[str, TensorMeta]) -> list[Node]:
    """``node``, which has Floats for numbers, as nodes that have tensors; ``metas`` has the types of the tensors it takes."""
    out = node.outputs[0] if node.outputs else None
    if not isinstance(out, TensorMeta):
        raise Unsupported(f"{node.target} of a floating-point size is not supported")
    if node.target in _FILLS:
        return _fill(node, out)
    if node.target == "aten.scalar_tensor.default" and isinstance(node.args[0], Float):
        return [_cast(node.name, node.args[0].ref, out.dtype, node.where)]
    if node.target not in _WITH_TENSOR or uses_float(tuple(v for _, v in node.kwargs)):
        raise Unsupported(f"{node.target} of a floating-point size is not supported")
    taken = [metas[a.name] for a in node.args if isinstance(a, Ref) and a.name in metas]
    default = dtype_of(torch.get_default_dtype())
    if default.bits < 32 and not any(m.dtype.kind == "f" for m in taken):
        raise Unsupported(f"{node.target} of integers and a floating-point size is not supported where floats are {default}")
    known = {m.dtype for m in taken if m.dtype.kind == "f"} or {default}
    wide = types.f64 if types.f64 in known else types.f32
    if out.dtype.kind == "f" and out.dtype.bits < 32 and all(not m.shape for m in taken):
        raise Unsupported(f"{node.target} of a 0-d {out.dtype} and a floating-point size is not supported")
    nodes: list[Node] = []
    args: list[Any] = []
    for number, arg in enumerate(node.args):
        if isinstance(arg, Float):
            nodes.append(_cast(f"{node.name}_{number}_", arg.ref, wide, node.where))
            args.append(Ref(nodes[-1].name))
        elif isinstance(arg, bool | int | float | Index):
            args.append(Ref(f"{node.name}_{number}_"))
            kwargs = (("dtype", wide),)
            nodes.append(
                Node(
                    args[-1].name, "aten.scalar_tensor.default", (arg,), kwargs, (_scalar(wide),), node.where
                )
            )
        else:
            args.append(arg)
    return [*nodes, replace(node, target=_WITH_TENSOR[node.target], args=tuple(args))]


def _scalar(dtype: DType) -> TensorMeta:
    return replace(SCALAR, dtype=dtype)


def _cast(name: str, ref: Ref, dtype: DType, where: str) -> Node:
    return Node(name, "aten._to_copy.default", (ref,), (("dtype", dtype),), (_scalar(dtype),), where)


def _fill(node: Node, out: TensorMeta) -> list[Node]:
    """A fill with -0.0, to which the number is added (-0.0 + x is x, the zeros included)."""
    if out.dtype.kind != "f":
        raise Unsupported(f"{node.target} of {out.dtype} with a floating-point size is not supported")
    wide = types.f64 if out.dtype == types.f64 else types.f32
    value = next(a for a in node.args if isinstance(a, Float))
    blank = replace(
        node, name=f"{node.name}_0_", args=tuple(-0.0 if isinstance(a, Float) else a for a in node.args)
    )
    number = _cast(f"{node.name}_1_", value.ref, wide, node.where)
    return [
        blank,
        number,
        Node(node.name, "aten.add.Tensor", (Ref(blank.name), Ref(number.name)), (), (out,), node.where),
    ]
