"""What a graph's values should be: its ops one by one in torch, as eager computes them and in float64.

In float64 each result may be moved by what rounding to its own type would do (``noise``): how far results then move says how much
the graph makes of small errors, and which comparisons hang by a thread.
"""

from collections.abc import Sequence
from typing import Any

import torch

from lowc.errors import LowcError
from lowc.frontend.dtypes import TORCH_OF
from lowc.ir import arithmetic
from lowc.ir.graph import Graph, GraphArg, Meta, Node, Ref, TensorMeta
from lowc.ir.index import Index, Symbol, constant, evaluate, sole_atom
from lowc.ir.types import DType
from lowc.runtime import externs

ROUNDED = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""What rounding to a type may change, as a part of the value."""
REINTERPRETS = frozenset({"aten.view.dtype", "aten.view_copy.dtype"})
"""Ops on bits, which a value in another type does not have."""

Values = dict[str, tuple[Any, ...]]


def eager(graph: Graph, inputs: Sequence[Any]) -> tuple[Values, dict[str, int]]:
    """(the results of each node, and what each input holds at the end, by name; the sizes by symbol).

    ``inputs``: the tensors and numbers of the graph's inputs, constants included, which are copied.  Raises what torch raises.
    """
    run = _Run(graph, inputs, wide=False)
    return run.values, run.sizes


def wide(graph: Graph, inputs: Sequence[Any], noise: torch.Generator | None = None) -> Values:
    """``eager``'s values in float64; each moved at random by its rounding if there is ``noise``."""
    return _Run(graph, inputs, wide=True, noise=noise).values


def copied(value: Any) -> Any:
    """A tensor with memory of its own that lies as ``value`` does, gaps and offset included; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    storage = value.untyped_storage().clone()
    empty = torch.empty(0, dtype=value.dtype, device=value.device)
    return empty.set_(storage, value.storage_offset(), value.shape, value.stride())


class _Run:
    """One walk through a graph; ``dtypes``: of each value as the graph has it."""

    def __init__(self, graph: Graph, inputs: Sequence[Any], *, wide: bool, noise: torch.Generator | None = None) -> None:
        if len(inputs) != len(graph.inputs):
            raise LowcError(f"graph {graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}")
        self.values: Values = {}
        self.sizes: dict[str, int] = {}
        self.dtypes: dict[str, tuple[torch.dtype | None, ...]] = {}
        self.wide, self.noise = wide, noise
        self.written: set[int] = set()
        with torch.no_grad():
            for given, value in zip(graph.inputs, inputs, strict=True):
                self._keep(given.name, (given.meta,), (copied(value),))
                if given.mutated:
                    self.written.add(_memory(self.values[given.name][0]))
            for node in graph.nodes:
                self._keep(node.name, node.outputs, self._results(node))

    def _keep(self, name: str, metas: Sequence[Meta], results: tuple[Any, ...]) -> None:
        for meta, value in zip(metas, results, strict=False):
            _learn(meta, value, self.sizes)
        self.dtypes[name] = tuple(TORCH_OF.get(m.dtype) if isinstance(m, TensorMeta) else None for m in metas)
        if self.wide:
            results = tuple(self._moved(_widened(v), d) for v, d in zip(results, self.dtypes[name], strict=False))
        self.values[name] = results

    def _moved(self, value: Any, dtype: torch.dtype | None) -> Any:
        if self.noise is None or dtype not in ROUNDED or not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
            return value
        shift = torch.empty(value.shape, dtype=torch.float64, device=value.device).uniform_(-1, 1, generator=self.noise)
        return value.mul(1 + shift * ROUNDED[dtype])

    def _results(self, node: Node) -> tuple[Any, ...]:
        if node.target == arithmetic.TARGET:
            return (arithmetic.evaluate(node.args[0], self.sizes),)  # type: ignore[arg-type]
        if node.target.startswith("lowc."):
            _register()
        op = externs.overload(node.target)
        if self.wide and node.target not in REINTERPRETS:
            try:
                return self._called(op, node, True)
            except (RuntimeError, TypeError, NotImplementedError):
                pass  # not every op takes float64: then in the types that it has in the graph
        return self._called(op, node, False)

    def _called(self, op: Any, node: Node, wide: bool) -> tuple[Any, ...]:
        args = [self._arg(a, wide) for a in node.args]
        result = op(*args, **{name: self._arg(a, wide) for name, a in node.kwargs})
        results = tuple(result) if isinstance(result, tuple | list) else (result,)
        # What an input is later overwritten with must not show in a view of it that was taken before.
        if not self.written or node.target == "aten.copy_.default":
            return results
        return tuple(copied(r) if _memory(r) in self.written else r for r in results)

    def _arg(self, arg: GraphArg, wide: bool) -> Any:
        if isinstance(arg, Ref):
            value = self.values[arg.name][arg.number]
            dtype = self.dtypes[arg.name][arg.number]
            back = self.wide and not wide and dtype in ROUNDED and isinstance(value, torch.Tensor)
            return value.to(dtype) if back else value
        if isinstance(arg, tuple):
            return [self._arg(a, wide) for a in arg]
        if isinstance(arg, DType):
            return torch.float64 if wide and TORCH_OF[arg] in ROUNDED else TORCH_OF[arg]
        return literal(arg, self.sizes)


def literal(arg: GraphArg, sizes: dict[str, int]) -> Any:
    """An argument that is no tensor, as torch takes it."""
    if isinstance(arg, Index):
        number = constant(arg)
        return evaluate(arg, sizes) if number is None else number
    if isinstance(arg, str):
        kind, _, text = arg.partition(":")
        if kind == "device":
            return torch.device(text)
        if kind in ("layout", "memory_format"):
            return getattr(torch, text)
    return arg


def _memory(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in ROUNDED else value


def _register() -> None:
    from lowc.frontend import flex_attention, random, wrapped

    flex_attention.register()
    random.register()
    wrapped.register()


def _learn(meta: Meta, value: Any, sizes: dict[str, int]) -> None:
    """Values for the symbols that ``meta`` mentions by themselves."""
    pairs: list[tuple[Index, Any]] = []
    if isinstance(meta, Index):
        pairs = [(meta, value)]
    elif isinstance(meta, TensorMeta) and isinstance(value, torch.Tensor):
        pairs = list(zip((*meta.shape, *meta.strides), (*value.shape, *value.stride()), strict=True))
    for index, number in pairs:
        if isinstance(atom := sole_atom(index), Symbol):
            sizes.setdefault(atom.name, int(number))
