"""One sample in eager and compiled: what became of it.

The op is compiled through AOTAutograd directly, as lowc's backend does for a graph of Dynamo's that holds this one call; without
Dynamo's own tracing and guards that takes a few hundredths of a second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_module_simplified

from lowc.compiler import compile_graph
from lowc.errors import Unsupported
from lowc.frontend.aot import compile_module
from lowc.ir import arithmetic
from lowc.ir.graph import Graph
from lowc.ir.nodes import Extern
from lowc.lowering.table import TABLE
from lowc.options import parse
from tests.sweep.compare import difference
from tests.sweep.samples import WIDER, Case, copied

# What eager leaves as it was in memory.
UNINITIALISED = set("empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_".split())

# From which result on what there is is of no use to anyone but the op's own gradient: a seed where there is no dropout, padding.
FOR_GRADIENTS = {"torch.ops.aten._efficient_attention_forward": 1}

DRAWS = 16


@dataclass
class Outcome:
    """``status``:

    * lowered: right, without a call of ATen;
    * extern: right, with the calls of ATen in ``externs`` (target, reason);
    * torch: right, but lowc cannot import the graph, so torch runs it (``detail`` says why);
    * refused: AOTAutograd itself cannot trace it (a size that depends on data, say);
    * skipped: eager raises;
    * inherited: other results than eager's, but those of AOTAutograd without lowc (``detail``);
    * wrong, error: other results than eager's; an exception of lowc's (``detail``).

    ``workers`` adds "crash" and "timeout", and "known" for a difference that ``known`` has the reason of.
    """

    status: str
    detail: str = ""
    externs: list[tuple[str, str]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)


def attempt(op: Any, case: Case, grad: bool, check: bool = False) -> Outcome:
    """``case`` compiled and compared with eager, with ``grad`` its gradients as well.  ``check``: verify after each pass."""
    tensors = case.tensors
    if not grad:
        tensors = [t.detach() for t in tensors]
    try:
        eager, forward = run(case.function, tensors, grad)
    except Exception as error:
        return Outcome("skipped", _say(error))
    made: list[tuple[Graph, Any]] = []
    try:
        compiled = _compiled(case, tensors, made, check)
        ours, _ = run(compiled, tensors, grad)
    except Unsupported as error:
        return Outcome("torch", error.message)
    except Exception as error:
        return _blamed(error, case, tensors, grad)
    outcome = _judged(made)
    exact = _exact(case, tensors, grad)
    alike = partial(
        difference,
        ours,
        exact=exact,
        op=op,
        values=op.name not in UNINITIALISED,
        forward=forward,
        undefined=range(FOR_GRADIENTS.get(op.name, forward), forward - len(tensors)),
    )
    found = alike(eager)
    if found is not None:
        plain = _without_lowc(case, tensors, grad)
        same = plain is not None and alike(plain) is None
        if same or not by_chance(op, case, tensors, grad, compiled, found):
            outcome.status, outcome.detail = "inherited" if same else "wrong", found
    return outcome


def run(function: Callable[..., Any], tensors: Sequence[Tensor], grad: bool) -> tuple[list[Any], int]:
    """(results, then the arguments as they are afterwards, then their gradients; the number of the first gradient).

    Random numbers start from the same seed each time.  Raises what kernels on a GPU raise, too: they are waited for.
    """
    given = [copied(t) for t in tensors]
    torch.manual_seed(0)
    results = list(function(*given))
    found = [*results, *(g.detach() for g in given)]
    forward = len(found)
    wanted = [g for g in given if g.requires_grad]
    ends = [r for r in results if r.requires_grad]
    if grad and wanted and ends:
        found += torch.autograd.grad(ends, wanted, [cotangent(e) for e in ends], allow_unused=True)
    if any(isinstance(x, Tensor) and x.is_cuda for x in found):
        torch.cuda.synchronize()
    return found, forward


def cotangent(end: Tensor) -> Tensor:
    """What is propagated back into ``end``: no two elements the same."""
    if end.layout != torch.strided:
        return torch.ones_like(end)
    values = torch.linspace(0.5, 1.5, end.numel(), dtype=torch.float64)
    return values.reshape(end.shape).to(end.dtype).to(end.device)


def graph_module(case: Case, count: int) -> fx.GraphModule:
    graph = fx.Graph()
    inputs = tuple(graph.placeholder(f"arg{n}") for n in range(count))
    graph.output(graph.call_function(case.function, inputs))
    return fx.GraphModule({}, graph)


def _compiled(case: Case, tensors: list[Tensor], made: list[tuple[Graph, Any]], check: bool) -> Callable[..., Any]:
    options = parse(None, {"strict_errors": True, "check": check})

    def compile_one(graph: Graph, constants: list[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        call = compile_graph(graph, constants, options)
        made.append((graph, call))
        return call

    inputs = [copied(t) for t in tensors]
    gm = graph_module(case, len(inputs))
    # Random numbers are ATen's: lowc's own are others than eager's (tests/e2e has what is asked of those).
    return compile_module(gm, inputs, compile_one, keep=TABLE.keys(), strict=True, fallback_random=True)


def _judged(made: list[tuple[Graph, Any]]) -> Outcome:
    externs: dict[tuple[str, str], None] = {}
    targets: dict[str, None] = {}
    for graph, call in made:
        targets.update({node.target: None for node in graph.nodes})
        for step in call.program.artifact.program:
            if isinstance(step, Extern) and not arithmetic.is_size(step):
                externs[step.target, step.because] = None
    return Outcome("extern" if externs else "lowered", "", list(externs), list(targets))


def _blamed(error: Exception, case: Case, tensors: list[Tensor], grad: bool) -> Outcome:
    """Refused if AOTAutograd without lowc raises as well, else lowc's error."""
    if "CUDA error" in str(error):  # after a fault on a GPU all that follows would raise, too
        return Outcome("error", _say(error))
    try:
        _plainly(case, tensors, grad)
    except Exception as other:
        return Outcome("refused", _say(other))
    return Outcome("error", _say(error))


def _without_lowc(case: Case, tensors: list[Tensor], grad: bool) -> list[Any] | None:
    try:
        return _plainly(case, tensors, grad)
    except Exception:
        return None


def _plainly(case: Case, tensors: list[Tensor], grad: bool) -> list[Any]:
    """The results of AOTAutograd's graphs as torch runs them."""

    def as_it_is(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        return gm

    inputs = [copied(t) for t in tensors]
    return run(aot_module_simplified(graph_module(case, len(inputs)), inputs, fw_compiler=as_it_is), tensors, grad)[0]


def _exact(case: Case, tensors: list[Tensor], grad: bool) -> list[Any] | None:
    """The results on float64 inputs, or of dtype float64; None where the op does not take them."""
    if not any(t.dtype in WIDER for t in tensors) and not any(isinstance(x, torch.dtype) and x in WIDER for x in case.leaves):
        return None
    try:
        wide = [t.detach().to(WIDER.get(t.dtype, t.dtype)).requires_grad_(t.requires_grad) for t in tensors]
        return run(case.widened, wide, grad)[0]
    except Exception:
        return None


def by_chance(
    op: Any, case: Case, tensors: list[Tensor], grad: bool, compiled: Callable[..., Any], found: str
) -> bool:
    """Whether only rounding is in question, and over some draws of the values is about as large as eager's: where few elements
    are compared, eager's largest error may happen to be small."""
    if "tolerances" not in found:
        return False
    ours_all, eager_all = 0.0, 0.0
    for seed in range(DRAWS):
        drawn = [_redrawn(t, seed) for t in tensors]
        try:
            eager, forward = run(case.function, drawn, grad)
        except Exception:  # values that the op does not take
            return False
        ours, _ = run(compiled, drawn, grad)
        exact = _exact(case, drawn, grad)
        again = difference(ours, eager, exact, op, forward=forward)
        if exact is None or (again is not None and "tolerances" not in again):
            return False
        number = int(found.split()[1].rstrip(":"))
        a, b, c = (x[number].detach().double() for x in (ours, eager, exact))
        there = a.isfinite() & b.isfinite() & c.isfinite()
        ours_all += float((a - c)[there].square().sum())
        eager_all += float((b - c)[there].square().sum())
    return ours_all**0.5 <= 1.2 * eager_all**0.5


def _redrawn(x: Tensor, seed: int) -> Tensor:
    """``x`` with floats a tenth larger or smaller, at random."""
    if not x.is_floating_point() or 0 in x.stride():
        return x
    draw = torch.Generator().manual_seed(seed)
    factor = (1 + 0.1 * torch.randn(x.shape, generator=draw, dtype=torch.float64)).to(x.device)
    changed = copied(x.detach())
    return changed.copy_(x.detach().double() * factor).requires_grad_(x.requires_grad)


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
