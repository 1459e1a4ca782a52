"""One function through the whole compiler, with every text that came up on the way."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lowc.cli import arguments
from lowc.errors import LowcError
from lowc.ir.graph import Graph
from lowc.ir.nodes import Module
from lowc.options import Options
from lowc.target import Target


@dataclass(frozen=True, slots=True)
class Compiled:
    """``fused`` is the last module at level LOOPS, ``machine`` what the backend gets.

    Neither knows of fallbacks: a kernel without code is still there.  ``texts``: (stage, extension, content) in the order of the
    compiler's dumps, fallbacks included.
    """

    graph: Graph
    fused: Module
    machine: Module
    target: Target
    texts: tuple[tuple[str, str, str], ...]


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
    more: Sequence[tuple[Any, ...]] = (),
) -> Report:
    """Compiles and calls ``fn`` on ``args`` once, and its backward pass where there is one; then calls it on each of ``more``.

    Raises LowcError if ``fn`` raises.
    """
    from lowc.compiler import compile_graph
    from lowc.frontend.capture import capture
    from lowc.lowering.table import TABLE
    from lowc.trace import Trace

    # Dynamo's own word on each graph break would stand beside ours.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    texts: list[tuple[tuple[str, str, str], ...]] = []
    ours: list[Exception] = []

    def compile_one(graph: Graph, constants: Any) -> Any:
        with TemporaryDirectory() as folder:
            try:
                return compile_graph(graph, constants, replace(options, dump="", time=False), Trace(folder))
            except Exception as error:
                ours.append(error)
                raise
            finally:
                texts.append(_read(Path(folder)))

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
    graphs = tuple(Compiled(g, *schedule(g, options), t) for g, t in zip(seen.graphs, texts))
    breaks, again = (tuple((each.reason, each.where) for each in found) for found in (seen.breaks, seen.recompiles))
    return Report(graphs, breaks, seen.unsupported, again)


def schedule(graph: Graph, options: Options) -> tuple[Module, Module, Target]:
    """``graph`` lowered and taken through the passes that leave it at level LOOPS; the same at MACHINE; for which target."""
    from lowc.lowering import lower
    from lowc.scheduler import pipeline

    module, target = lower(graph, options), arguments.target(options)
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
