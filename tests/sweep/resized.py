"""One operator sample with sizes that are known only when called: compiled once, called with three sizes.

OpInfo samples cannot be resized as such.  So every size above 1 in the tensors of a sample is made symbolic, the op is traced and
compiled once for the sample, and the same artifact is called with it and with two more: every size above 1 larger by 1, and by 3,
values repeated as needed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from lowc.compiler import compile_graph
from lowc.errors import Unsupported
from lowc.frontend.aot import compile_module
from lowc.ir.graph import Graph
from lowc.lowering.table import TABLE
from lowc.options import parse
from tests.sweep.compare import difference
from tests.sweep.samples import WIDER, Case, cases, copied, entries
from tests.sweep.trial import UNINITIALISED
from tests.sweep.workers import Task

GROWTH = (0, 1, 3)
"""How much larger every size above 1 is, call by call."""


def resized(x: Tensor, more: int) -> Tensor:
    """``x`` with every size above 1 larger by ``more``, its values repeated, its dimensions in the same order in memory."""
    if not more:
        return x
    shape = [n + more if n > 1 else n for n in x.shape]
    order = sorted(range(x.dim()), key=lambda d: (x.stride(d), x.shape[d]), reverse=True)
    count = torch.Size(shape).numel()
    flat = x.permute(order).reshape(-1)
    ascends = x.dim() == 1 and not x.is_complex() and torch.equal(x.sort()[0], x)
    flat = flat[torch.arange(count) % max(1, flat.numel())] if flat.numel() else flat.new_zeros(count)
    flat = flat.sort()[0] if ascends else flat  # offsets and boundaries mean nothing in another order
    back = [order.index(d) for d in range(x.dim())]
    return flat.reshape([shape[d] for d in order]).permute(back)


def suitable(case: Case) -> bool:
    """Whether the tensors of ``case`` are plain ones, one of which can grow."""
    plain = all(
        t.layout == torch.strided and not (t.is_conj() or t.is_neg() or t.is_nested or t.storage_offset()) for t in case.tensors
    )
    return plain and any(n > 1 for t in case.tensors for n in t.shape)


def results(function: Callable[..., Any], tensors: Sequence[Tensor]) -> list[Any]:
    """What ``function`` returns, and its arguments as they are afterwards; random numbers start from the same seed."""
    given = [copied(t) for t in tensors]
    torch.manual_seed(0)
    return [*function(*given), *given]


class Dynamic:
    """``case`` compiled once, all sizes above 1 symbolic, random numbers as in eager; with ``plain`` by AOTAutograd alone.

    Raises what those raise.
    """

    def __init__(self, case: Case, check: bool = False, plain: bool = False) -> None:
        options = parse(None, {"strict_errors": True, "check": check})
        self.shape_env = ShapeEnv()
        mode = FakeTensorMode(shape_env=self.shape_env)
        with torch._guards.tracing(torch._guards.TracingContext(mode)):
            self.fakes = [_symbolic(mode, t.detach(), n) for n, t in enumerate(case.tensors)]

            def compile_one(graph: Graph, constants: list[Any]) -> Callable[[list[Any]], Sequence[Any]]:
                return compile_graph(graph, constants, options)

            gm = _graph_of(case, len(self.fakes))
            if plain:
                self.call = aot_module_simplified(gm, self.fakes, fw_compiler=lambda graph, _: graph)
            else:
                self.call = compile_module(gm, self.fakes, compile_one, keep=TABLE.keys(), strict=True, fallback_random=True)

    def admits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether torch's guards let ``tensors`` in.  A size that tracing has pinned to a number is one no more in the guards."""
        for fake, real in zip(self.fakes, tensors, strict=True):
            pinned = [n if isinstance(n, int) else n.node.maybe_as_int() for n in fake.shape]
            if any(n is not None and n != m for n, m in zip(pinned, real.shape, strict=True)):
                return False
        return bool(self.shape_env.evaluate_guards_for_args(self.fakes, list(tensors)))


def _graph_of(case: Case, count: int) -> fx.GraphModule:
    graph = fx.Graph()
    inputs = tuple(graph.placeholder(f"arg{n}") for n in range(count))
    graph.output(graph.call_function(case.function, inputs))
    return fx.GraphModule({}, graph)


def _symbolic(mode: FakeTensorMode, x: Tensor, number: int) -> Tensor:
    sizes = [DimDynamic.DYNAMIC if n > 1 else DimDynamic.STATIC for n in x.shape]
    context = StatelessSymbolicContext(sizes)
    return mode.from_tensor(x, source=ConstantSource(f"arg{number}"), symbolic_context=context)


def attempt(op: Any, case: Case, check: bool = False) -> Iterator[tuple[str, str]]:
    """(status, detail) of each size:

    * right;
    * wrong, error: other results than eager's; an exception of lowc's;
    * inherited, refused: AOTAutograd without lowc differs from eager as well; it raises as well;
    * torch: lowc cannot import the graph, so torch runs it;
    * guarded: torch's own guards exclude the size, so that torch.compile would trace anew;
    * skipped: eager raises.
    """
    compiled: Dynamic | None = None
    for more in GROWTH:
        tensors = [resized(t.detach(), more) for t in case.tensors]
        try:
            eager = results(case.function, tensors)
        except Exception:
            yield "skipped", ""
            continue
        if compiled is None:
            if more:
                return
            try:
                compiled = Dynamic(case, check)
            except Unsupported as error:
                yield "torch", error.message
                return
            except Exception as error:
                yield _blamed(error, op, case, tensors, eager)
                return
        if not compiled.admits(tensors):
            yield "guarded", ""
            continue
        try:
            found = results(compiled.call, tensors)
        except Exception as error:
            status, detail = _blamed(error, op, case, tensors, eager)
            yield status, f"+{more}: {detail}"
            continue
        exact = _exact(case, tensors)
        what = difference(found, eager, exact, op, values=op.name not in UNINITIALISED)
        if what is None:
            yield "right", ""
        else:
            yield ("inherited" if _plain(op, case, tensors, eager) else "wrong"), f"+{more}: {what}"


def _blamed(error: Exception, op: Any, case: Case, tensors: Sequence[Tensor], eager: Sequence[Any]) -> tuple[str, str]:
    """Refused if AOTAutograd without lowc raises as well, else lowc's error."""
    theirs = _plain(op, case, tensors, eager)
    if theirs is not None and theirs.startswith("raises "):
        return "refused", theirs
    return "error", _say(error)


def _plain(op: Any, case: Case, tensors: Sequence[Tensor], eager: Sequence[Any]) -> str | None:
    """How AOTAutograd without lowc differs from eager ("raises ..." for an exception), or None."""
    try:
        found = results(Dynamic(case, plain=True).call, tensors)
    except Exception as error:
        return f"raises {_say(error)}"
    return difference(found, eager, None, op, values=op.name not in UNINITIALISED)


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _exact(case: Case, tensors: Sequence[Tensor]) -> list[Any] | None:
    if not any(t.dtype in WIDER for t in tensors):
        return None
    try:
        return results(case.widened, [t.to(WIDER.get(t.dtype, t.dtype)) for t in tensors])
    except Exception:
        return None


def messages(task: Task, skip: int) -> Iterator[tuple[Any, ...]]:
    """What a worker says about ``task`` (see ``workers``): a try for each sample, a result for each of its sizes."""
    try:
        found = list(cases(entries()[task.op], getattr(torch, task.dtype), False, task.limit, 0))
    except Exception as error:
        yield "failed", f"no samples: {_say(error)}"
        return
    for case in found[skip:]:
        yield "try", case.number, str([tuple(t.shape) for t in case.tensors])
        if not suitable(case):
            yield "result", "static", "", (), ()
            continue
        for status, detail in attempt(entries()[task.op], case, task.check):
            yield "result", status, detail, (), ()
