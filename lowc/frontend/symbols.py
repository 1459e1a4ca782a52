"""Where torch keeps symbolic numbers, and what it knows of a symbol."""

from typing import Any

import sympy
import torch
from torch.utils._sympy.singleton_int import SingletonInt

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def numbers(value: Any) -> tuple[Any, ...]:
    """The sizes, strides and offset of a tensor; a number as it is."""
    if isinstance(value, torch.Tensor):
        return (
            (*value.shape, *value.stride(), value.storage_offset())
            if value.layout == torch.strided
            else tuple(value.shape)
        )
    return (value,)


def is_ragged(value: Any) -> bool:
    """Whether ``value`` is the size of a nested tensor's ragged dimension: a symbol that stands for no number."""
    return isinstance(value, torch.SymInt) and isinstance(
        value.node.shape_env.backed_var_to_val.get(value.node.expr), SingletonInt
    )


def hint_of_symbol(symbol: sympy.Symbol, shape_env: Any) -> int | None:
    """The size that ``symbol`` stood for while tracing, or what ``mark_unbacked`` was told; None if its value hangs on data."""
    for known in (shape_env.var_to_hint_override, shape_env.backed_var_to_val):
        if (value := known.get(symbol)) is not None:
            return int(value)
    return None
