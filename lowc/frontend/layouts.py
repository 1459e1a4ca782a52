"""Tensors that torch hands to compiled code, or that its calls of functions return, with the strides that they were traced with.

Compiled code takes the strides that a graph shows for granted.  Dynamo guards those of the graph's inputs; nobody guards what
torch's ``scan`` or ``while_loop`` slice, stack and pass on, whose fake tensors often lie otherwise:

    traced: row f32[4]{1}     given: x[:, 0] of f32[4, 3], with stride 3     compiled code gets a copy with stride 1
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lowc.errors import Unsupported
from lowc.frontend.shapes import index_of, symbols_of
from lowc.ir.index import Index, Symbol, atoms, constant, evaluate

Arrange = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


def as_traced(given: Sequence[fx.Node], known: Sequence[fx.Node] = ()) -> Arrange:
    """A function of the values of ``given`` and ``known`` that returns those of ``given``, each tensor with the strides of
    the node's fake tensor: itself, or a copy.  Both tell what the symbols in these strides are; a tensor whose strides have
    others stays as it is.  Strides of dimensions of size 0 and 1 say nothing.
    """
    metas = [node.meta.get("val") for node in (*given, *known)]
    planned = {n: strides for n, meta in enumerate(metas[: len(given)]) if (strides := _strides(meta)) is not None}
    needed = {a.name for strides in planned.values() for s in strides for a in atoms(s) if isinstance(a, Symbol)}
    fixed = {n: tuple(c for s in strides if (c := constant(s)) is not None) for n, strides in planned.items()}
    told = _told(metas, needed)

    def arrange(values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        every = (*values, *others)
        sizes = {name: every[n] if dim is None else every[n].shape[dim] for name, (n, dim) in told.items()}
        out = list(values)
        for n, strides in planned.items():
            wanted = fixed[n]
            if len(wanted) < len(strides):
                try:
                    wanted = tuple(evaluate(s, sizes) for s in strides)
                except KeyError:
                    continue
            out[n] = _with_strides(out[n], wanted)
        return out

    return arrange


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == strides or not tensor.numel():
        return tensor
    if all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True)):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _strides(meta: Any) -> tuple[Index, ...] | None:
    """None for what is no tensor, or has strides that no Index can say."""
    if not isinstance(meta, torch.Tensor) or meta.layout != torch.strided:
        return None
    try:
        symbols = symbols_of([meta])
        return tuple(index_of(s, symbols) for s in meta.stride())
    except Unsupported:
        return None


def _told(metas: Sequence[Any], needed: set[str]) -> dict[str, tuple[int, int | None]]:
    """Where each symbol's value is: (the number of a value, its dimension, or None for a value that is the number)."""
    found: dict[str, tuple[int, int | None]] = {}
    for n, meta in enumerate(metas):
        sizes = enumerate(meta.shape) if isinstance(meta, torch.Tensor) else [(None, meta)]
        for dim, size in sizes:
            if isinstance(size, torch.SymInt) and str(size.node.expr) in needed:
                found.setdefault(str(size.node.expr), (n, dim))
    return found
