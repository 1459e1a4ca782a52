"""One function through the whole compiler, with every text that came up on the way."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lowc.artifact import Artifact, Usage
from lowc.errors import LowcError
from lowc.ir.elsewhere import on_gpu
from lowc.ir.graph import Graph, device_of
from lowc.ir.nodes import Module
from lowc.lowering.asked import UNDECIDED, Decided
from lowc.options import Options, is_tuned
from lowc.target import Target

if TYPE_CHECKING:
    from lowc.backends.nvptx.devices import Model
    from lowc.trace import Trace


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one graph.

    ``texts``: (stage, extension, content) in the order of the compiler's dumps, fallbacks included.  ``gpu``: the one that it is
    for, None for the CPU.  ``artifact``: None if it could not be compiled at all.  ``usage``: what the driver says of its
    kernels, by their names in the PTX; empty where the GPU is not there.  ``seconds``: of each step of the artifact's module by
    its number, if it was measured.
    """

    texts: tuple[tuple[str, str, str], ...]
    gpu: "Model | None"
    artifact: Artifact | None
    usage: Mapping[str, Usage]
    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Compiled:
    """``lowered`` has a kernel for each op, ``fused`` is the last module at level LOOPS, ``machine`` what the backend gets.

    None of them knows of fallbacks: a kernel without code is still there, but not in ``result``.  ``decided``: what was measured.
    """

    graph: Graph
    lowered: Module
    fused: Module
    machine: Module
    target: Target
    result: Result
    decided: Decided = UNDECIDED


@dataclass(frozen=True, slots=True)
class Report:
    """All graphs of one function, and where Dynamo broke it: (reason, user line); ``unsupported``: graphs left to torch;
    ``recompiles``: why further calls were compiled anew (reason, user line)."""

    graphs: tuple[Compiled, ...]
    breaks: tuple[tuple[str, str], ...]
    unsupported: tuple[str, ...]
    recompiles: tuple[tuple[str, str], ...] = ()


def compile_all(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    options: Options,
    *,
    dynamic: bool | None = None,
    backward: bool = True,
    gpu: "Model | None" = None,
    more: Sequence[tuple[Any, ...]] = (),
    measure: bool = False,
) -> Report:
    """Compiles and calls ``fn`` on ``args`` once, and its backward pass where there is one; then calls it on each of ``more``.

    With ``gpu`` it is compiled for that one instead of where ``args`` are, and ATen runs it.  With ``measure``, the steps of
    graphs that run on the CPU are timed.  Raises LowcError if ``fn`` raises.
    """
    from lowc.autotune import decide
    from lowc.cli.timing import timed
    from lowc.frontend.capture import capture
    from lowc.lowering.table import TABLE
    from lowc.trace import Trace

    # Dynamo's own word on each graph break would stand beside ours.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    found: list[tuple[Graph, Result, Decided]] = []
    ours: list[Exception] = []

    def compile_one(graph: Graph, constants: Any) -> Any:
        shown = graph if gpu is None else on_gpu(graph)
        here = gpu or _gpu_of(graph)
        artifact, usage, seconds = None, {}, dict[int, float]()
        decided = UNDECIDED
        with TemporaryDirectory() as folder:
            try:
                if gpu is None and is_tuned(options):
                    decided = decide(graph, constants, options)
                artifact, usage, call = _compiled(graph, shown, constants, options, gpu, Trace(folder), decided)
                if measure and here is None and options.isa != "interp":
                    return timed(call, artifact, constants, options, seconds)
                return call
            except Exception as error:
                ours.append(error)
                raise
            finally:
                found.append((shown, Result(_read(Path(folder)), here, artifact, usage, seconds), decided))

    try:
        seen = capture(fn, args, compile_one, dynamic=dynamic, backward=backward, keep=TABLE.keys(), more=more)
    except LowcError:
        raise
    except Exception as error:
        if ours:
            raise
        raise LowcError(
            f"the function raises {type(error).__name__}: {error}", hint="call it without torch.compile"
        ) from error
    graphs = tuple(Compiled(g, *schedule(g, options, target_for(options, r.gpu), d), r, d) for g, r, d in found)
    breaks, again = (tuple((each.reason, each.where) for each in stops) for stops in (seen.breaks, seen.recompiles))
    return Report(graphs, breaks, seen.unsupported, again)


def _compiled(
    graph: Graph,
    shown: Graph,
    constants: Sequence[Any],
    options: Options,
    gpu: "Model | None",
    trace: "Trace",
    decided: Decided,
) -> tuple[Artifact, Mapping[str, Usage], Callable[[list[Any]], Any]]:
    """The artifact of ``shown``, which is ``graph`` or that moved to ``gpu``; what the driver says of it; a function that runs
    ``graph``."""
    from lowc import compiler

    quiet = options._replace(dump="", time=False)
    if gpu is not None:
        artifact = compiler.cross_compile(shown, target_for(options, gpu), quiet, trace, len(constants))
        return artifact, {}, compiler.run_by_aten(graph, constants)
    call: Any = compiler.compile_graph(graph, constants, quiet, trace, decided)
    on_device = call.program.gpu
    module = on_device and on_device.loaded.module
    return call.program.artifact, module.usage() if module else {}, call


def _gpu_of(graph: Graph) -> "Model | None":
    """The GPU that ``graph`` is on, as the driver knows it; None if it is on none."""
    kind, _, index = device_of(graph).partition(":")
    if kind != "cuda":
        return None
    from lowc.backends.nvptx.devices import Model
    from lowc.runtime.cuda.device import facts

    known = facts(int(index or 0))
    return Model(known.name, known.capability, known.processors, known.l2, known.bandwidth, known.driver)


def target_for(options: Options, gpu: "Model | None") -> Target:
    """The Target for ``gpu``, or the one of this processor that ``options.isa`` asks for.

    "interp" has none: what is shown is then for this processor.
    """
    if gpu is not None:
        from lowc.backends.nvptx.devices import target_of

        return target_of(gpu)
    from lowc.backends import x86

    return x86.detect(options._replace(isa="auto") if options.isa == "interp" else options)


def schedule(
    graph: Graph, options: Options, target: Target, decided: Decided = UNDECIDED
) -> tuple[Module, Module, Module, Target]:
    """``graph`` lowered; taken through the passes that leave it at level LOOPS; the same at MACHINE; for which target."""
    from lowc import compiler
    from lowc.scheduler import pipeline

    lowered = compiler.lowered(graph, options, target, decided=decided)
    module = fused = lowered
    off = pipeline.switched_off(options)
    for row in pipeline.PASSES:
        if row.name not in off and row.only in ("", target.kind):
            module = pipeline.apply(row, module, target, options)
            fused = module if row.gives == "LOOPS" else fused
    return lowered, fused, module, target


def _read(folder: Path) -> tuple[tuple[str, str, str], ...]:
    """The dumps in ``folder``, named ``NN_STAGE.EXTENSION``; what is not text is left out."""
    found: list[tuple[str, str, str]] = []
    for path in sorted(folder.iterdir(), key=lambda p: int(p.name.partition("_")[0])):
        try:
            content = path.read_text()
        except UnicodeDecodeError:
            continue
        found.append((path.stem.partition("_")[2], path.suffix[1:], content))
    return tuple(found)
