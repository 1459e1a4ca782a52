"""One way through: the stages in the order in which a graph passes them.  The only module that imports them
all.

    ir.Graph ─ lowering ─ Module @LOOPS ─ scheduler ─ Module @MACHINE ─ backend ─ Artifact ─ runtime ─
    callable

A kernel that gets no code does not stop the graph: the ops in it are lowered anew as ATen calls, with one
warning. ``options.strict_errors`` raises instead.  Neither does a bug in lowc, but the warning says that it is
one, and ``options.check`` raises it, too.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from lowc.artifact import Artifact, Native
from lowc.collection import collection_paused
from lowc.errors import InternalError, LowcError, OptionError, Unsupported, VerifyError
from lowc.ir import arithmetic
from lowc.ir.graph import Graph, device_of
from lowc.ir.graph_printer import print_graph
from lowc.ir.nodes import Extern, Module
from lowc.lowering.asked import UNDECIDED, Asked, Decided
from lowc.lowering.lower import lower
from lowc.options import Options, with_stream
from lowc.target import Target
from lowc.trace import Trace, fresh_directory

if TYPE_CHECKING:
    from lowc.runtime.program import Program

log = logging.getLogger("lowc")

Compiled = Callable[[list[Any]], list[Any]]
Made = TypeVar("Made")


def compile_graph(
    graph: Graph,
    constants: Sequence[Any] = (),
    options: Options | None = None,
    trace: Trace | None = None,
    decided: Decided = UNDECIDED,
) -> Compiled:
    """A function from a list of inputs, which it empties, to the list of outputs.

    ``constants``: the tensors that are the graph's last inputs; the function's list has only those before
    them.  ``decided``: what was measured of single nodes.  The function's attribute ``program`` holds the host program and the
    artifact.  Raises OptionError
    for an unknown pass in ``options.off``, LowcError for a graph that cannot be compiled at all, InternalError
    if a bug in lowc is the cause.
    """
    options = options or Options()
    try:
        return _compile(graph, constants, options, trace, decided)
    except LowcError:
        raise
    except Exception as error:
        if options.strict_errors or options.check:
            raise
        raise InternalError(error) from error


def _compile(
    graph: Graph, constants: Sequence[Any], options: Options, trace: Trace | None, decided: Decided
) -> Compiled:
    from lowc.scheduler import pipeline

    pipeline.switched_off(options)
    trace = trace or Trace(fresh_directory(options.dump, graph.name))
    trace.dump("graph", lambda: print_graph(graph))

    def attempt(forbidden: frozenset[str]) -> "Program":
        artifact, bind = compile_artifact(graph, options, trace, forbidden, decided)
        with trace.phase("runtime"):
            return bind(artifact, constants)

    # The IR has no cycles, and each full collection walks all that torch and Dynamo keep: a tenth to a third of the time
    # for a graph of a thousand nodes, and growing faster than the graph.
    with collection_paused():
        program = _with_fallbacks(graph, options, trace, attempt)
    trace.dump("host", lambda: program.source, "py")
    for step in program.artifact.program:
        if isinstance(step, Extern) and not arithmetic.is_size(step):
            trace.count(f"extern {step.target}")
    if options.time:
        miss = " (cache miss)" if trace.counters.get("cache miss") else ""
        print(f"lowc: {graph.name}{miss}\n{trace.report()}", file=sys.stderr)
    return program.call


def cross_compile(graph: Graph, target: Target, options: Options, trace: Trace, constants: int = 0) -> Artifact:
    """The artifact of a graph on "cuda:0" for a GPU that need not be there; nothing is loaded or run.

    ``constants``: how many of the last inputs are tensors of the graph's own.  Errors are those of ``compile_graph``.
    """
    from lowc.runtime.cuda import program
    from lowc.scheduler import pipeline

    pipeline.switched_off(options)
    options = with_stream(options, graph.name)
    trace.dump("graph", lambda: print_graph(graph))

    def attempt(forbidden: frozenset[str]) -> Artifact:
        return _gpu_artifact(_lowered(graph, options, trace, forbidden, target), target, options, trace)

    with collection_paused():
        artifact = _with_fallbacks(graph, options, trace, attempt)
    trace.dump("host", lambda: program.source(artifact, constants, options, target.cores), "py")
    return artifact


def interpreted(module: Module) -> Compiled:
    """``module``, of any level, as a function of the list of its inputs: its host program, the interpreter for native code."""
    artifact, bind = _interpreted(module)
    return bind(artifact, ()).call


def run_by_aten(graph: Graph, constants: Sequence[Any] = ()) -> Compiled:
    """``graph`` as calls of ATen alone: what is compiled for elsewhere can be called here."""
    module = lower(graph, Options(), frozenset(node.name for node in graph.nodes))
    artifact, bind = _interpreted(module)
    return bind(artifact, constants).call


def _with_fallbacks(
    graph: Graph, options: Options, trace: Trace, attempt: Callable[[frozenset[str]], Made]
) -> Made:
    """``attempt``, each time with more nodes left to ATen, until it succeeds."""
    forbidden: frozenset[str] = frozenset()
    while True:
        try:
            return attempt(forbidden)
        except OptionError:
            raise
        except Exception as error:
            culprits = _culprits(error, graph) - forbidden
            bug = isinstance(error, VerifyError) or not isinstance(error, LowcError)
            if options.strict_errors or (bug and options.check) or not culprits:
                raise
            where = ", ".join(sorted(culprits)[:4]) + (
                f" and {len(culprits) - 4} more" if len(culprits) > 4 else ""
            )
            reason = InternalError(error) if bug else error
            log.warning("no code for %s in graph %s, ATen runs it: %s", where, graph.name, reason)
            log.debug("the reason in full", exc_info=True)
            trace.count("fallbacks")
            forbidden |= culprits


def compile_artifact(
    graph: Graph,
    options: Options,
    trace: Trace,
    forbidden: frozenset[str] = frozenset(),
    decided: Decided = UNDECIDED,
) -> tuple[Artifact, "Bind"]:
    """Everything but the binding to this process: the artifact, and the function that binds it.

    Nodes named in ``forbidden`` become ATen calls; ``decided``: what was measured of others.  Raises
    Unsupported for a graph on another device than a CPU or an NVIDIA GPU.
    """
    from lowc.scheduler import pipeline

    with trace.phase("target"):
        target = target_of(graph, options)
    module = _lowered(graph, options, trace, forbidden, target, decided)
    if target is None:
        return _interpreted(module)
    device = device_of(graph)
    if device.startswith("cuda"):
        return _compile_gpu(module, target, _number(device), with_stream(options, graph.name), trace)
    from lowc.backends import x86

    with trace.phase("scheduler"):
        module = pipeline.run(module, target, options, trace)
    with trace.phase("backend"):
        artifact = x86.compile_module(module, target, options)
    if trace.dumping:
        for extension, show in x86.stages(target, options).items():
            trace.dump("x86", lambda show=show: show(module), extension.removeprefix("."))
    return artifact, lambda made, constants: _bind_x86(made, constants, graph.name == "forward")


def target_of(graph: Graph, options: Options) -> Target | None:
    """For what ``graph`` is compiled; None for the interpreter.  Raises Unsupported for another device than a CPU or an NVIDIA
    GPU, and what ``gpu_target`` raises."""
    device = device_of(graph)
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise Unsupported(f"tensors on device {kind}", hint="lowc compiles for cpu and cuda")
    if kind == "cuda":
        return gpu_target(_number(device))
    if options.isa == "interp":
        return None
    from lowc.backends import x86

    return x86.detect(options)


def _number(device: str) -> int:
    """0 of "cuda" and "cuda:0"."""
    return int(device.partition(":")[2] or 0)


def lowered(
    graph: Graph,
    options: Options,
    target: Target | None,
    forbidden: frozenset[str] = frozenset(),
    decided: Decided = UNDECIDED,
) -> Module:
    """``graph`` @LOOPS as it is compiled for ``target`` (None: for the interpreter): what is ATen's there is ATen's here.

    Nodes named in ``forbidden`` become ATen calls.  Raises what ``lowering.lower`` raises.
    """
    _, library, attention, convolution = asked(options, target)
    return lower(
        graph, options, forbidden,
        library=library, attention=attention, convolution=convolution, target=target, decided=decided,
    )  # fmt: skip


def asked(options: Options, target: Target | None) -> Asked:
    """What is lowc's own under ``options`` for ``target``."""
    from lowc.scheduler import choose_attention, choose_convolution, choose_library

    if target is None:
        return Asked(options)
    library = choose_library.library(target, options) if target.kind == "nvptx" else None
    return Asked(options, library, choose_attention.library(target, options), choose_convolution.library(target, options))


def _lowered(
    graph: Graph,
    options: Options,
    trace: Trace,
    forbidden: frozenset[str],
    target: Target | None = None,
    decided: Decided = UNDECIDED,
) -> Module:
    from lowc.scheduler import pipeline

    with trace.phase("lowering"):
        module = lowered(graph, options, target, forbidden, decided)
    trace.dump("lowering", lambda: pipeline.listing(module, options))
    return module


Bind = Callable[[Artifact, Sequence[Any]], "Program"]


def _bind_x86(artifact: Artifact, constants: Sequence[Any], forward: bool) -> "Program":
    """``forward``: the graph is the forward pass of a training step."""
    from lowc.runtime.program import bind

    return bind(artifact, linked(artifact) if artifact.code else {}, constants, forward=forward)


def linked(artifact: Artifact) -> dict[str, Callable[[Any], int]]:
    """The native functions of an artifact for x86, in this process, by their symbols.  Raises CodegenError."""
    from lowc.runtime import openmp
    from lowc.runtime.linker import Library
    from lowc.runtime.program import natives_of

    symbols = [step.symbol for step in artifact.program if isinstance(step, Native)]
    return natives_of(Library(artifact.code, symbols, openmp.functions()), symbols)


def _interpreted(module: Module) -> tuple[Artifact, Bind]:
    from lowc.runtime import interpreted
    from lowc.runtime.program import bind

    return interpreted.artifact(module), lambda made, constants: bind(made, interpreted.natives(made), constants)


def gpu_target(index: int) -> Target:
    """The Target of GPU ``index``.  Raises LowcError where there is no driver, or the GPU is too old."""
    from lowc.runtime.cuda import device

    known = device.facts(index)
    nvptx: Any = import_module("lowc.backends.nvptx")
    return nvptx.target(known.capability, known.processors, known.driver, known.l2)


def _compile_gpu(
    module: Module, target: Target, index: int, options: Options, trace: Trace
) -> tuple[Artifact, Bind]:
    """The artifact of a module @LOOPS for GPU ``index``.  (``options.isa`` is about CPUs.)"""
    from lowc.backends.nvptx import walker
    from lowc.runtime.cuda import program

    if options.dump:
        options = options._replace(dump=trace.dump_dir)  # code that is rejected goes beside the graph's own files
    artifact = _gpu_artifact(module, target, options, trace)
    return artifact, lambda made, constants: program.bind(made, walker.address(), index, constants, options)


def _gpu_artifact(module: Module, target: Target, options: Options, trace: Trace) -> Artifact:
    from lowc.scheduler import pipeline

    nvptx: Any = import_module("lowc.backends.nvptx")
    with trace.phase("scheduler"):
        module = pipeline.run(module, target, options, trace)
    with trace.phase("backend"):
        artifact = nvptx.compile_module(module, target, options)
    if trace.dumping:
        for extension, show in nvptx.stages(target, options).items():
            trace.dump("nvptx", lambda show=show: show(module), extension.removeprefix("."))
    return artifact


def _culprits(error: Exception, graph: Graph) -> frozenset[str]:
    """Names of the nodes to leave to ATen after ``error``: those of the kernel that it names, or else all."""
    every = frozenset(node.name for node in graph.nodes)
    named = frozenset(origin.split(" = ")[0] for origin in getattr(error, "origin", ()))
    return (named & every) or every
