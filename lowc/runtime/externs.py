"""Calls of ATen ops by name.

``resolve`` gives the op itself, called as eager calls it; ``resolve_into`` an op that puts its results into
given memory: the ``out`` overload where there is one that takes the same arguments, otherwise the op and a
copy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowc.errors import LowcError


def overload(target: str) -> Any:
    """The ``OpOverload`` called ``target``, e.g. "aten.mm.default"; LowcError if this torch has none."""
    space, _, rest = target.partition(".")
    name, _, which = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), name), which or "default")
    except AttributeError:
        raise LowcError(f"torch {torch.__version__} has no op {target}") from None


def resolve(target: str, results: int) -> Callable[..., Any]:
    """The op, returning its result, or a sequence of ``results`` of them if there are several.

    What would be a view of an argument is copied: distinct buffers never overlap, and an argument may be in a workspace.
    """
    op = overload(target)
    call = _direct(op)
    if target.startswith("_c10d"):  # ``lowc.ir`` is not loaded for the others
        from lowc.ir import collective

        if target == collective.WAIT:
            return lambda tensor, *running: call(tensor)  # the others only have to live until then
    if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):
        call = _copying(call)
    if results == 1 and _returns_list(op):
        return lambda *args, **kwargs: call(*args, **kwargs)[0]
    return call


def _copying(call: Callable[..., Any]) -> Callable[..., Any]:
    def copied(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        return result.clone() if isinstance(result, torch.Tensor) else [r.clone() for r in result]

    return copied


def resolve_into(target: str, results: int) -> Callable[..., None]:
    """The op as ``into(memory, *args, **kwargs)``, where ``memory`` is a sequence of ``results`` tensors of
    its results' shapes.
    """
    op = overload(target)
    names = [] if _returns_list(op) else _out_names(op, results)
    if names is not None and names:
        out_op, keys = names
        return lambda memory, *args, **kwargs: out_op(*args, **kwargs, **dict(zip(keys, memory, strict=True)))
    call = resolve(target, results)

    def copied(memory: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        values = call(*args, **kwargs)
        for place, value in zip(memory, (values,) if results == 1 else values, strict=True):
            place.copy_(value)

    return copied


def _direct(op: Any) -> Callable[..., Any]:
    """The C++ function behind an overload; calling it skips the overload's own Python frame."""
    return op._op if isinstance(op, torch._ops.OpOverload) else op


def _returns_list(op: Any) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


def _out_names(op: Any, results: int) -> tuple[Any, tuple[str, ...]] | None:
    """(overload, names of its out arguments) that computes ``op`` into given memory, or None."""
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    packet = op.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [a for a in other._schema.arguments if a.is_out]
        others = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if len(outs) == results and others == wanted and all(str(a.type) == "Tensor" for a in outs):
            return other._op, tuple(a.name for a in outs)
    return None
