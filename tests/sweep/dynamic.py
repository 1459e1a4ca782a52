"""Torch's operator samples with sizes that are known only when called: one artifact, three sizes each.

    python -m tests.sweep.dynamic --jobs 2                        # every op of op_db in float32 (some 20 minutes on two cores)
    python -m tests.sweep.dynamic --ops cumsum,nn.functional.pad --dtypes float32,int64

OpInfo samples cannot be resized as such.  So every size above 1 in the tensors of a sample is made symbolic, the op is traced and
compiled once for the sample, and the same artifact is called with it and with two more: every size above 1 larger by 1, and by 3,
values repeated as needed.  Sizes that eager refuses, and those that torch's own guards exclude (torch.compile would trace
anew), are counted and left out.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.testing._internal import common_methods_invocations

from lowc.compiler import compile_graph
from lowc.errors import Unsupported
from lowc.frontend.aot import compile_module
from lowc.ir.graph import Graph
from lowc.lowering.table import TABLE
from lowc.options import parse
from tests.sweep.compare import difference
from tests.sweep.samples import WIDER, Case, cases, copied, entries
from tests.sweep.trial import UNINITIALISED

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
    flat = flat[torch.arange(count) % max(1, flat.numel())] if flat.numel() else flat.new_zeros(count)
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
    """``case`` compiled once, all sizes above 1 symbolic; with ``plain`` by AOTAutograd alone.  Raises what those raise."""

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
                self.call = compile_module(gm, self.fakes, compile_one, keep=TABLE.keys(), strict=True)

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
    """(status, detail) of each size: right, wrong, error, refused (by AOTAutograd), torch (not imported), guarded, skipped (by
    eager), inherited (AOTAutograd alone is wrong as well)."""
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
                ours = "lowc" in str(getattr(error, "__traceback__", "")) or type(error).__module__.startswith("lowc")
                yield ("error" if ours else "refused"), f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                return
        if not compiled.admits(tensors):
            yield "guarded", ""
            continue
        try:
            found = results(compiled.call, tensors)
        except Exception as error:
            yield "error", f"+{more}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        exact = _exact(case, tensors)
        what = difference(found, eager, exact, op, values=op.name not in UNINITIALISED)
        if what and _inherited(op, case, tensors, eager):
            yield "inherited", ""
        else:
            yield ("wrong", f"+{more}: {what}") if what else ("right", "")


def _inherited(op: Any, case: Case, tensors: Sequence[Tensor], eager: Sequence[Any]) -> bool:
    """Whether AOTAutograd without lowc differs from eager, too."""
    try:
        found = results(Dynamic(case, plain=True).call, tensors)
    except Exception:
        return True
    return difference(found, eager, None, op) is not None


def _exact(case: Case, tensors: Sequence[Tensor]) -> list[Any] | None:
    if not any(t.dtype in WIDER for t in tensors):
        return None
    try:
        return results(case.widened, [t.to(WIDER.get(t.dtype, t.dtype)) for t in tensors])
    except Exception:
        return None


def sweep_op(name: str, dtype: str, limit: int | None, check: bool = False) -> tuple[Counter[str], list[str]]:
    """How often each status occurred for op ``name``, and the lines about what is wrong."""
    # Some ops set a seed of their own inside the call, which no traced graph can hold; ``results`` sets it outside.
    with patch.object(common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs)):
        return _sweep(name, dtype, limit, check)


def _sweep(name: str, dtype: str, limit: int | None, check: bool) -> tuple[Counter[str], list[str]]:
    op, counts, lines = entries()[name], Counter[str](), list[str]()
    try:
        found = list(cases(op, getattr(torch, dtype), False, limit, 0))
    except Exception as error:
        return Counter({"no samples": 1}), [f"{name} {dtype}: no samples: {error}"]
    for case in found:
        if not suitable(case):
            counts["static"] += 1
            continue
        for status, detail in attempt(op, case, check):
            counts[status] += 1
            if status in ("wrong", "error"):
                shapes = [tuple(t.shape) for t in case.tensors]
                lines.append(f"{name} {dtype} sample {case.number} {shapes}: {status} {detail}")
    return counts, lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep.dynamic")
    parser.add_argument("--ops", help="names as in op_db, comma-separated; default: all")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--samples", type=int, help="of each op at most so many; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", action="store_true", help="verify the IR after every pass")
    chosen = parser.parse_args()
    total = Counter[str]()
    names = chosen.ops.split(",") if chosen.ops else list(entries())
    tasks = [
        (name, dtype)
        for dtype in chosen.dtypes.split(",")
        for name in names
        if entries()[name].supports_dtype(getattr(torch, dtype), "cpu")
    ]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        jobs = {pool.submit(sweep_op, *task, chosen.samples, chosen.check): task for task in tasks}
        for done, job in enumerate(as_completed(jobs), 1):
            try:
                counts, lines = job.result()
            except Exception as error:
                counts, lines = Counter({"error": 1}), [f"{' '.join(jobs[job])}: {type(error).__name__}: {error}"]
            total += counts
            for line in lines:
                print(line, flush=True)
            if done % 100 == 0 or done == len(tasks):
                print(f"{done} of {len(tasks)} ops: {dict(total)}", flush=True)
    return 1 if total["wrong"] + total["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
