"""From Dynamo's graphs to compiled functions: AOTAutograd with lowc's decompositions and partitioner.

AOTAutograd makes the graph functional, traces the backward pass and splits both; each of the graphs that come out is handed on as
a ``Source``, which whoever compiles it may read.  A graph that cannot be imported is run by torch as it is, which is logged and
counted in ``torch._dynamo.utils.counters["lowc"]``.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified

from lowc.frontend import kept
from lowc.frontend.kept import boxed, hidden

if TYPE_CHECKING:
    from lowc.frontend.kept import Place
    from lowc.frontend.unread import Source
    from lowc.ir.graph import Graph

Compiled = Callable[[list[Any]], Sequence[Any]]
CompileGraph = Callable[["Graph", list[torch.Tensor]], Compiled]
Form = tuple[str, torch.dtype]
CompileSource = Callable[["Source"], Compiled]

CHANNELS_LAST = frozenset(
    (("cpu", torch.float32), ("cpu", torch.bfloat16), ("cpu", torch.float16), ("cuda", torch.bfloat16), ("cuda", torch.float16))
)
"""The devices and dtypes of convolutions that get operands in ``channels_last``."""


def compile_module(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph | None = None,
    *,
    compile_source: CompileSource | None = None,
    keep: Collection[str] | Callable[[], Collection[str]] = (),
    strict: bool = False,
    fallback_random: bool = False,
    channels_last: bool = False,
    own_convolutions: bool = False,
    place: "Place | None" = None,
) -> Callable[..., Any]:
    """A function that does what ``gm`` (a graph of torch calls, as Dynamo makes them) does, gradients included.

    ``compile_graph`` is called once for each graph that AOTAutograd makes of it: "inference", or "forward" and "backward"; or
    ``compile_source`` is, before that is read.
    ``keep``: ops that are not to be taken apart, as ``aten.gelu.default``, or what tells them if it matters.  With ``strict``, a
    graph that cannot be imported raises Unsupported.  With ``fallback_random``, random numbers are ATen's own.  With
    ``channels_last``, convolutions get operands that lie so (on a GPU those of 16 bits), but in inference on a CPU those of f32
    with ``own_convolutions``: they are likely to be lowc's own.  ``place``: where what AOTAutograd makes is kept, so
    that a later process need not trace; its keys have whatever decides on all the others.
    """
    if any(isinstance(x, list | tuple | dict) for x in example_inputs):
        again = partial(
            compile_module,
            compile_graph=compile_graph,
            compile_source=compile_source,
            keep=keep,
            strict=strict,
            fallback_random=fallback_random,
            channels_last=channels_last,
            own_convolutions=own_convolutions,
            place=place,
        )
        return flatten_graph_inputs(gm, example_inputs, again)

    compile_ = compile_source or partial(_read_and_compile, compile_graph)
    if logging.getLogger("lowc").isEnabledFor(logging.INFO):
        from lowc.frontend.recompiles import log_recompile

        log_recompile(gm)
    lies = CHANNELS_LAST if channels_last else frozenset[Form]()
    inferred = lies - {("cpu", torch.float32)} if own_convolutions else lies
    table: dict[Any, Callable[..., Any]] = {}

    def fill() -> None:
        from lowc.frontend.decompositions import decompositions

        table.update(decompositions(keep() if callable(keep) else keep, fallback_random=fallback_random))

    lookup = kept.Lookup(place, fill) if place and kept.possible() else None
    if not lookup:
        fill()

    def compiler(name: str) -> Callable[..., Compiled]:
        whole = name == "inference"  # the others are parts of a graph that ``partition`` has seen

        def compiled(gm: fx.GraphModule, _inputs: Any) -> Compiled:
            from lowc.frontend import aten_graphs

            if whole:
                aten_graphs.prepare(gm, not fallback_random, inferred)
            named = lookup is not None and lookup.keyed
            return aten_graphs.compile_fx_graph(gm, name, compile_, strict=strict, named=named)

        return compiled

    def partition(*joint: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        from lowc.frontend import aten_graphs

        return aten_graphs.partition(*joint, own_random=not fallback_random, channels_last=lies, **options)

    # By this count DDP, which has parts of a graph compiled one by one, knows that AOTAutograd has seen a part.
    counters["aot_autograd"]["total"] += 1
    with kept.asking(lookup):
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=kept.asked(compiler("forward")) if lookup else compiler("forward"),
            bw_compiler=_untraced(compiler("backward")),
            inference_compiler=compiler("inference"),
            partition_fn=partition,
            decompositions=table,
            keep_inference_input_mutations=True,
        )


def _untraced(compiler: Callable[..., Compiled]) -> Callable[..., Compiled]:
    """``compiler`` hidden from Dynamo, and what it makes as well.

    A backward graph is compiled and run when the user asks for gradients, which may be in a frame that Dynamo is watching: it
    would then trace lowc itself, statement by statement (Dynamo hides forward graphs on its own).
    """

    def compile_hidden(graph: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        compiled = hidden(compiler)(graph, inputs)
        found = boxed(hidden(compiled))
        kept.rename(compiled, found)
        return found

    return compile_hidden


def _read_and_compile(compile_graph: Any, source: "Source") -> Compiled:
    reading = source.read()
    return compile_graph(reading.graph, reading.constants)
