"""One function through the whole compiler, with every text that came up on the way."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lowc.artifact import Artifact, Usage
from lowc.cli.elsewhere import on_gpu
from lowc.errors import LowcError
from lowc.ir.graph import Graph
from lowc.ir.nodes import Module
from lowc.options import Options
from lowc.target import Target

if TYPE_CHECKING:
    from lowc.backends.nvptx.devices import Model


@dataclass(frozen=True, slots=True)
class Compiled:
    """``fused`` is the last module at level LOOPS, ``machine`` what the backend gets.

    Neither knows of fallbacks: a kernel without code is still there.  ``texts``: (stage, extension, content) in the order of the
    compiler's dumps, fallbacks included.  ``made``: what was made of the graph, and if that is for a GPU, which one, and what the
    driver says of its kernels, by their names in the PTX (nothing if it is not there).
    """

    graph: Graph
    fused: Module
    machine: Module
    target: Target
    texts: tuple[tuple[str, str, str], ...]
    made: "Made"


@dataclass(frozen=True, slots=True)
class Made:
    artifact: Artifact
    gpu: "Model | None" = None
    usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])


@dataclass(frozen=True, slots=True)
class Report:
    """All graphs of one function, and where Dynamo broke it: (reason, user line); ``unsupported``: graphs left to torch."""

    graphs: tuple[Compiled, ...]
    breaks: tuple[tuple[str, str], ...]
    unsupported: tuple[str, ...]


def compile_all(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    options: Options,
    *,
    dynamic: bool | None = None,
    backward: bool = True,
    gpu: "Model | None" = None,
) -> Report:
    """Compiles and calls ``fn`` on ``args`` once, and its backward pass where there is one.

    With ``gpu`` it is compiled for that one instead of where ``args`` are, and ATen runs it.  Raises LowcError if ``fn`` raises.
    """
    from lowc.frontend.capture import capture
    from lowc.lowering.table import TABLE

    # Dynamo's own word on each graph break would stand beside ours.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    found: list[Compiled] = []
    ours: list[Exception] = []

    def compile_one(graph: Graph, constants: Any) -> Any:
        try:
            compiled, call = _compiled(graph, constants, options, gpu)
        except Exception as error:
            ours.append(error)
            raise
        found.append(compiled)
        return call

    try:
        seen = capture(fn, args, compile_one, dynamic=dynamic, backward=backward, keep=TABLE.keys())
    except LowcError:
        raise
    except Exception as error:
        if ours:
            raise
        raise LowcError(
            f"the function raises {type(error).__name__}: {error}", hint="call it without torch.compile"
        ) from error
    return Report(tuple(found), tuple((b.reason, b.where) for b in seen.breaks), seen.unsupported)


def _compiled(
    graph: Graph, constants: Sequence[Any], options: Options, gpu: "Model | None"
) -> tuple[Compiled, Callable[[list[Any]], Any]]:
    """``graph``, shown for ``gpu`` or for where it is, and a function that runs it."""
    from lowc import compiler
    from lowc.lowering.lower import device_of
    from lowc.trace import Trace

    quiet = replace(options, dump="", time=False)
    with TemporaryDirectory() as folder:
        if gpu is not None:
            shown = on_gpu(graph)
            made = Made(compiler.cross_compile(shown, target_for(options, gpu), quiet, Trace(folder), len(constants)), gpu)
            call = compiler.run_by_aten(graph, constants)
        else:
            shown = graph
            call: Any = compiler.compile_graph(graph, constants, quiet, Trace(folder))
            made = _made(call.program, device_of(graph))
        texts = _read(Path(folder))
    return Compiled(shown, *schedule(shown, options, target_for(options, made.gpu)), texts, made), call


def _made(program: Any, device: str) -> Made:
    """What a bound ``program`` is made of; on a GPU, with what the driver knows."""
    if program.gpu is None:
        return Made(program.artifact)
    from lowc.backends.nvptx.devices import Model
    from lowc.runtime.cuda.device import facts

    known = facts(int(device.partition(":")[2] or 0))
    gpu = Model(known.name, known.capability, known.processors, known.l2, known.bandwidth, known.driver)
    module = program.gpu.loaded.module
    return Made(program.artifact, gpu, module.usage() if module else {})


def target_for(options: Options, gpu: "Model | None") -> Target:
    """The Target for ``gpu``, or the one of this processor that ``options.isa`` asks for.

    "interp" has none: what is shown is then for this processor.
    """
    if gpu is not None:
        from lowc.backends.nvptx.devices import target_of

        return target_of(gpu)
    from lowc.backends import x86

    return x86.detect(replace(options, isa="auto") if options.isa == "interp" else options)


def schedule(graph: Graph, options: Options, target: Target) -> tuple[Module, Module, Target]:
    """``graph`` lowered and taken through the passes that leave it at level LOOPS; the same at MACHINE; for which target."""
    from lowc.lowering import lower
    from lowc.scheduler import pipeline

    module = lower(graph, options)
    fused = module
    off = pipeline.switched_off(options)
    for row in pipeline.PASSES:
        if row.name not in off and row.only in ("", target.kind):
            module = pipeline.apply(row, module, target, options)
            fused = module if row.gives == "LOOPS" else fused
    return fused, module, target


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
