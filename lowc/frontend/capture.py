"""Runs a function through Dynamo and AOTAutograd, and says what it was broken into and why anew.  For tools that show what
happens."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

from lowc.frontend.aot import Compiled, compile_module
from lowc.frontend.recompiles import Recompile, recompile
from lowc.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Why Dynamo ended a graph, and the user's "file.py:12 in forward: code"."""

    reason: str
    where: str


@dataclass(frozen=True, slots=True)
class Capture:
    """``graphs`` in the order in which they were compiled; ``unsupported``: reasons of graphs that torch runs as they are;
    ``recompiles``: why later calls were compiled anew; ``result``: of the first call."""

    graphs: tuple[Graph, ...]
    breaks: tuple[GraphBreak, ...]
    unsupported: tuple[str, ...]
    recompiles: tuple[Recompile, ...] = ()
    result: Any = None


def capture(
    fn: Callable[..., Any],
    args: Sequence[Any],
    compile_graph: Callable[[Graph, list[torch.Tensor]], Compiled],
    *,
    dynamic: bool | None = None,
    backward: bool = True,
    keep: Collection[str] = (),
    more: Sequence[Sequence[Any]] = (),
) -> Capture:
    """Calls ``fn`` (a module as well) on ``args`` under ``torch.compile``, each graph compiled by ``compile_graph``; then on each
    of ``more``, without a backward pass.

    With ``backward``, and where an output needs gradients, the sum of all outputs is propagated back, so that backward graphs
    are captured too; else the call is made under ``no_grad``.  ``keep``: see ``compile_module``.
    An exception of ``compile_graph`` is raised as it is.
    """
    torch._dynamo.reset()
    counters["graph_break"].clear()
    counters["lowc"].clear()
    graphs: list[Graph] = []
    breaks: list[GraphBreak] = []
    recompiles: list[Recompile] = []

    def record(graph: Graph, constants: list[torch.Tensor]) -> Compiled:
        graphs.append(graph)
        return compile_graph(graph, constants)

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        why: Any = getattr(gm, "compile_subgraph_reason", None)
        if why is not None and why.graph_break:
            breaks.append(GraphBreak(_first_line(why.reason), _frame(why.user_stack)))
        if (again := recompile(gm)) is not None:
            recompiles.append(again)
        return compile_module(gm, inputs, record, keep=keep)

    try:
        with torch.set_grad_enabled(backward):
            compiled = torch.compile(fn, backend=backend, dynamic=dynamic)
            out = compiled(*args)
        if backward:
            _backward(out)
        for given in more:
            with torch.set_grad_enabled(backward):
                compiled(*given)
    except BackendCompilerFailed as error:
        raise error.inner_exception from None
    # Breaks in frames that Dynamo gave up on leave no graph behind, only a count.
    known = {b.reason for b in breaks}
    breaks += [GraphBreak(r, "") for r in map(_first_line, counters["graph_break"]) if r not in known]
    prefix = "unsupported: "
    unsupported = tuple(str(key)[len(prefix) :] for key in counters["lowc"] if str(key).startswith(prefix))
    return Capture(tuple(graphs), tuple(breaks), unsupported, tuple(recompiles), out)


def _backward(out: Any) -> None:
    leaves = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves = [t for t in leaves if t.is_floating_point()]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(t) for t in leaves])


def _first_line(reason: str) -> str:
    return reason.strip().splitlines()[0] if reason.strip() else "no reason given"


def _frame(stack: Sequence[Any]) -> str:
    if not stack:
        return ""
    frame = stack[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}" + (f": {frame.line}" if frame.line else "")
