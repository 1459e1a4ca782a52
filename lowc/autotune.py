"""``mode="max-autotune"``: which products, attentions and convolutions are lowc's own and which a library's is measured, and
which of their schedules those of lowc's own get.

    ir.Graph ─ what may be either ─ compile, time, flip one kind, compile, time ... ─ Decided ─ compiler

The whole graph is compiled and timed on made inputs with the choice for one kind of nodes turned over, so that what is fused
with a kernel of lowc's own counts.  Nodes of one kind (op, types, who uses them) are decided together, those that read most
first, until the budget of seconds is spent; each decision stands on those before it.  Then all are tried with the next schedules
by the model, instead of the best.  The result is what the cache keeps: a
graph that is found there is not measured again.

Nothing is measured, and all is as in the default mode, where sizes are known only when called, where made inputs find no room
beside the user's, and where running the graph could be seen from outside: graphs with collectives, with ops that are not torch's
own, also inside of another, or with assertions about data or computed indices, which made inputs may not stand, where ATen checks
them on a GPU.
"""

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from lowc import compiler
from lowc.frontend import wrapped
from lowc.ir import arithmetic
from lowc.ir.graph import Graph, Node, Ref, TensorMeta, device_of, refs, refs_of
from lowc.ir.index import constant
from lowc.ir.nodes import Extern, Module
from lowc.lowering.asked import Decided
from lowc.options import Options
from lowc.target import Target
from lowc.trace import Trace

log = logging.getLogger("lowc")

TORCHS_AND_OURS = ("aten.", "prims.", "lowc.")
SEEN = ("aten._assert_async.", wrapped.TARGET)  # a failure on a GPU is the end of the process's context; calls ops of anybody's
AS_THEY_ARE = (  # ops whose results have the elements of what they take
    "aten.view.", "aten.unsqueeze.", "aten.squeeze.", "aten.expand.", "aten.permute.", "aten.slice.", "aten.select.",
    "aten.clone.", "aten._to_copy.",
)  # fmt: skip
TRIED = 3  # schedules of a kind, the best by the model among them
GAIN = 1.02  # what the present choice must take of the other's time, at least, for that to be taken


class Kind(NamedTuple):
    """Nodes that are decided together, what they read in bytes, and whether they are lowc's own without measuring."""

    nodes: tuple[str, ...]
    size: int
    own: bool


def compile_tuned(graph: Graph, constants: Sequence[Any], options: Options, trace: Trace | None = None) -> compiler.Compiled:
    """``compiler.compile_graph`` after measuring.  Raises what that raises."""
    return compiler.compile_graph(graph, constants, options, trace, decide(graph, constants, options))


def decide(graph: Graph, constants: Sequence[Any], options: Options) -> Decided:
    """What measuring gives, within ``options.autotune_budget_s`` seconds (one compilation may go beyond); nothing where that
    fails, for whatever reason: whoever compiles the graph next says so, if it is one of the graph's."""
    try:
        with _unseen(device_of(graph)):
            return _measured(graph, constants, options)
    except Exception as error:
        log.info("nothing of graph %s is measured: %s: %s", graph.name, type(error).__name__, error)
        return Decided()


def _unseen(device: str) -> AbstractContextManager[None]:
    """In which checks of made inputs that fail on ``device``, a GPU, which is told late, are not told to the user's next call."""
    if not device.startswith("cuda"):
        return nullcontext()
    from lowc.runtime.cuda.device import unreported

    return unreported()


def _measured(graph: Graph, constants: Sequence[Any], options: Options) -> Decided:
    target = compiler.target_of(graph, options)
    kinds = _kinds(graph, options, target) if target is not None and _can_run(graph) else []
    if not kinds:
        return Decided()
    from lowc.frontend.made import inputs_for, ratio

    inputs = inputs_for(graph, len(graph.inputs) - len(constants))
    if inputs is None:
        return Decided()
    quiet = options._replace(time=False, dump="", strict_errors=True)
    asked = compiler.asked(_all(options, "own"), target)
    until = time.monotonic() + options.autotune_budget_s
    # Raises where a kernel has no code: a part of the graph is ATen's then, and that is not what would be timed.
    best = compiler.compile_graph(graph, constants, quiet)
    taken = Decided(asked)

    def measured(kind: Kind, other: Decided, said: str) -> tuple[float, Any]:
        """How many times as long as with ``other`` the graph takes as it is best so far, and the graph with that; 0: unknown."""
        try:
            made = compiler.compile_graph(graph, constants, quiet, None, other)
            gain = 1 / ratio(best, made, inputs)
        except Exception as error:
            log.info("not measured: %s of graph %s: %s", kind.nodes[0], graph.name, error)
            return 0.0, best
        log.info("%s of graph %s: %s %.3f of the time", kind.nodes[0], graph.name, said, 1 / gain)
        return gain, made

    trials = [(kind, number) for number in range(TRIED) for kind in kinds]
    spent = set[str]()  # of these kinds there are no more schedules
    with _progress(graph.name, len(trials)) as advance:
        for done, (kind, number) in enumerate(trials):
            advance(done)
            if time.monotonic() > until:
                left = len(trials) - done
                log.info("autotune_budget_s is spent: %d of %d choices are not measured", left, len(trials))
                break
            first = kind.nodes[0]
            if not number:
                gain, other = measured(kind, _with(taken, kind, not kind.own), _said(kind))
                if gain >= GAIN:
                    taken, best = _with(taken, kind, not kind.own, gain), other
                elif gain:
                    taken = _with(taken, kind, kind.own, 1 / gain)
            elif first not in spent:
                gain, other = measured(kind, _scheduled(taken, kind, number), f"lowc's own by schedule {number + 1} takes")
                if gain >= GAIN:  # of several the fastest may be so by chance: it has to be so twice
                    gain = min(gain, 1 / ratio(best, other, inputs))
                if gain >= GAIN:
                    taken, best = _scheduled(taken, kind, number, gain), other
                elif not gain:
                    spent.add(first)
    return taken


def _said(kind: Kind) -> str:
    return "a library's instead of lowc's own takes" if kind.own else "lowc's own instead of a library's takes"


def _with(taken: Decided, kind: Kind, own: bool, times: float = 0.0) -> Decided:
    """``kind`` is lowc's ``own`` or not; ``times``: the graph's time otherwise over that with it, if it was measured."""
    otherwise = "a library's" if own else "lowc's own"
    why = f"measured: with {otherwise} the graph takes {times:.2f} times as long" if times else "is being measured"
    names = dict.fromkeys(kind.nodes, why)
    return taken._replace(own={**taken.own, **names}) if own else taken._replace(left={**taken.left, **names})


def _scheduled(taken: Decided, kind: Kind, number: int, times: float = 0.0) -> Decided:
    """``kind`` is lowc's own, by the schedule of that number; ``times``: the graph's time without that over its time with it."""
    first = kind.nodes[0]
    before = "a library's" if first in taken.left else f"number {taken.schedules.get(first, 0) + 1}"
    said = f"schedule {number + 1} by the model, with {before} the graph takes {times:.2f} times as long"
    why = f"{taken.own[first]}; {said}" if first in taken.own else f"measured: {said}"
    left = {node: reason for node, reason in taken.left.items() if node not in kind.nodes}
    schedules = {**taken.schedules, **dict.fromkeys(kind.nodes, number)}
    return Decided(taken.asked, {**taken.own, **dict.fromkeys(kind.nodes, why)}, left, schedules)


# ---------------------------------------------------------------- what may be either


def _all(options: Options, whose: str) -> Options:
    return options._replace(matmul=whose, attention=whose, convolution=whose)


def _kinds(graph: Graph, options: Options, target: Target) -> list[Kind]:
    """Those that read most first."""
    ours, theirs, usual = (
        _externs(compiler.lowered(graph, chosen, target)) for chosen in (_all(options, "own"), _all(options, "library"), options)
    )
    either = theirs - ours
    users = _users(graph)
    metas: dict[str, tuple[Any, ...]] = {i.name: (i.meta,) for i in graph.inputs} | {n.name: n.outputs for n in graph.nodes}
    if target.kind == "nvptx" and _places_computed(graph, metas, theirs):
        return []
    alike: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.name in either:
            types = [metas[r.name][r.number] for r in refs(node.args)]
            rest = [a for a in node.args if not isinstance(a, Ref)]
            text = repr((node.target, types, rest, node.kwargs, sorted(users.get(node.name, ())), node.name in usual))
            alike.setdefault(text, []).append(node)
    found = [
        Kind(tuple(n.name for n in nodes), sum(_size(metas, n) for n in nodes), nodes[0].name not in usual)
        for nodes in alike.values()
    ]
    return sorted(found, key=lambda kind: -kind.size)


def _places_computed(graph: Graph, metas: Mapping[str, tuple[Any, ...]], called: Collection[str]) -> bool:
    """Whether ATen, in a node of ``called``, is given integers that others compute: of made inputs these may be no places in a
    table, and ATen's check of that on a GPU is the end of the process's context."""
    computed: set[str] = set()
    for node in graph.nodes:
        taken = {ref.name for ref in refs_of(node)}
        if node.name in called:
            if any(isinstance(m, TensorMeta) and m.dtype.kind in "iu" for name in taken & computed for m in metas[name]):
                return True
        elif not node.target.startswith(AS_THEY_ARE) or taken & computed:
            computed.add(node.name)
    return False


def _externs(module: Module) -> set[str]:
    """Nodes that are calls of ATen."""
    return {o.split(" = ")[0] for s in module.steps if isinstance(s, Extern) and not arithmetic.is_size(s) for o in s.origin}


def _users(graph: Graph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        for ref in refs_of(node):
            found.setdefault(ref.name, []).append(node.target)
    return found


def _size(metas: dict[str, tuple[Any, ...]], node: Node) -> int:
    """Bytes that it reads."""
    total = 0
    for ref in refs(node.args):
        meta = metas[ref.name][ref.number]
        if isinstance(meta, TensorMeta):
            bytes_ = meta.dtype.bytes
            for n in meta.shape:
                bytes_ *= constant(n) or 0
            total += bytes_
    return total


def _can_run(graph: Graph) -> bool:
    """Whether running it cannot be seen from outside."""
    return all(n.target.startswith(TORCHS_AND_OURS) and not n.target.startswith(SEEN) for n in graph.nodes)


@contextmanager
def _progress(name: str, count: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, if standard error is one."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"lowc measures {name}", total=count)
        yield lambda done: bar.update(task, completed=done)
