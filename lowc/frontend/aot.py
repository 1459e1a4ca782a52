"""From Dynamo's graphs to compiled functions: AOTAutograd with lowc's decompositions and partitioner.

AOTAutograd makes the graph functional, traces the backward pass and splits both; each of the graphs that come out is handed on as
a ``Source``, which whoever compiles it may read.  A graph that cannot be imported is run by torch as it is, which is logged and
counted in ``torch._dynamo.utils.counters["lowc"]``.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch import config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition

from lowc.errors import LowcError, OptionError
from lowc.frontend import kept
from lowc.frontend.cse import merge_equal_nodes
from lowc.frontend.kept import Place, boxed, hidden
from lowc.frontend.outside import with_python_values
from lowc.frontend.unread import Source, constants_of, text_of

if TYPE_CHECKING:
    from lowc.frontend.read import Reading
    from lowc.ir.graph import Graph

log = logging.getLogger("lowc.frontend")

Compiled = Callable[[list[Any]], Sequence[Any]]
CompileGraph = Callable[["Graph", list[torch.Tensor]], Compiled]
CompileSource = Callable[[Source], Compiled]

CHANNELS_LAST = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""The dtypes of convolutions that get operands in ``channels_last``."""


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
    place: Place | None = None,
) -> Callable[..., Any]:
    """A function that does what ``gm`` (a graph of torch calls, as Dynamo makes them) does, gradients included.

    ``compile_graph`` is called once for each graph that AOTAutograd makes of it: "inference", or "forward" and "backward"; or
    ``compile_source`` is, before that is read.
    ``keep``: ops that are not to be taken apart, as ``aten.gelu.default``, or what tells them if it matters.  With ``strict``, a
    graph that cannot be imported raises Unsupported.  With ``fallback_random``, random numbers are ATen's own.  With
    ``channels_last``, convolutions on a CPU get operands that lie so, but in inference those of f32 with ``own_convolutions``:
    they are likely to be lowc's own.  ``place``: where what AOTAutograd makes is kept, so that a later process need not trace;
    its keys have whatever decides on all the others.
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
    lies = CHANNELS_LAST if channels_last else frozenset[torch.dtype]()
    table: dict[Any, Callable[..., Any]] = {}

    def fill() -> None:
        from lowc.frontend.decompositions import decompositions

        table.update(decompositions(keep() if callable(keep) else keep, fallback_random=fallback_random))

    lookup = kept.Lookup(place, fill) if place and kept.possible() else None
    if not lookup:
        fill()

    def compiler(name: str) -> Callable[..., Compiled]:
        whole = name == "inference"  # the others are parts of a graph that ``_partition`` has seen

        def compiled(gm: fx.GraphModule, _inputs: Any) -> Compiled:
            if whole:
                _prepare(gm, not fallback_random, lies - {torch.float32} if own_convolutions else lies)
            return compile_fx_graph(gm, name, compile_, strict=strict, named=lookup is not None and lookup.keyed)

        return compiled

    # By this count DDP, which has parts of a graph compiled one by one, knows that AOTAutograd has seen a part.
    counters["aot_autograd"]["total"] += 1
    with kept.asking(lookup):
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=kept.asked(compiler("forward")) if lookup else compiler("forward"),
            bw_compiler=_untraced(compiler("backward")),
            inference_compiler=compiler("inference"),
            partition_fn=partial(_partition, own_random=not fallback_random, channels_last=lies),
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


def _drop_unused(graph: fx.Graph) -> None:
    """``unused.drop_unused``; what it needs is not loaded where nothing is traced."""
    from lowc.frontend.unused import drop_unused

    drop_unused(graph)


def compile_fx_graph(
    gm: fx.GraphModule, name: str, compile_source: CompileSource, *, strict: bool = False, named: bool = False
) -> Compiled:
    """Compiles one functional ATen graph; the result takes a list of inputs, which it may empty, and returns the outputs.
    ``named``: it is to have the name of its entry in the cache, if it is nothing else."""
    from lowc.frontend import ranks

    _without_functions(gm)
    _drop_unused(gm.graph)
    if any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in gm.graph.nodes):
        from lowc.frontend.subgraphs import calls_functions, compile_pieces

        if calls_functions(gm):
            merge_equal_nodes(gm.graph)
            return boxed(compile_pieces(gm, lambda piece: compile_fx_graph(piece, name, compile_source, strict=strict)))
    source = Source(name, constants_of(gm), partial(text_of, gm, name), partial(_read, gm, name, strict))
    try:
        with ranks.noted(name):
            compiled = compile_source(source)
    except LowcError as error:
        if strict or isinstance(error, OptionError):
            raise
        log.warning("%s %s graph is run by torch, not lowc: %s", "an" if name[0] in "aeiou" else "a", name, error)
        counters["lowc"]["graphs_unsupported"] += 1
        counters["lowc"][f"unsupported: {error.message}"] += 1
        return _run_by_torch(gm)
    counters["lowc"]["graphs"] += 1
    found = boxed(with_python_values(gm, compiled))
    if named and found is compiled:
        kept.name(found, source)
    return found


def _read_and_compile(compile_graph: Any, source: Source) -> Compiled:
    reading = source.read()
    return compile_graph(reading.graph, reading.constants)


def _read(gm: fx.GraphModule, name: str, strict: bool) -> "Reading":
    from lowc.frontend.read import read  # half of the frontend, which a process that hits does without

    return read(gm, name, strict)


def _partition(
    joint: fx.GraphModule,
    inputs: Any,
    *,
    own_random: bool,
    channels_last: Collection[torch.dtype],
    num_fwd_outputs: int,
    **kwargs: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    from lowc.frontend.saved import keep_copies

    _drop_unused(joint.graph)
    _prepare(joint, own_random, channels_last)
    _see_through_detach(joint.graph)
    merge_equal_nodes(joint.graph)
    with config.patch(cse=False):  # torch's own merging of equal nodes, which ours replaces
        forward, backward = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
    keep_copies(forward, backward, num_fwd_outputs)
    return forward, backward


def _prepare(gm: fx.GraphModule, own_random: bool, channels_last: Collection[torch.dtype]) -> None:
    """What is done to a whole graph, before it is parted.  ``channels_last``: convolutions of these dtypes get operands that lie
    so.  (What does it is not loaded for a graph in which there is nothing to do.)"""
    _without_functions(gm)
    graph = gm.graph
    if own_random and any(_draws(node.target) for node in graph.nodes):
        from lowc.frontend.random import replace_random_ops

        replace_random_ops(graph)
    if channels_last and any(graph.find_nodes(op="call_function", target=op) for op in _CONVOLUTIONS):
        from lowc.frontend.channels_last import to_channels_last

        to_channels_last(graph, channels_last)


def _without_functions(gm: fx.GraphModule) -> None:
    hop = torch.ops.higher_order
    if any(gm.graph.find_nodes(op="call_function", target=t) for t in (hop.flex_attention, hop.flex_attention_backward)):
        from lowc.frontend.flex_attention import replace_flex_attention

        replace_flex_attention(gm)
    if any(gm.graph.find_nodes(op="call_function", target=hop.out_dtype)):
        from lowc.frontend.out_dtype import replace_out_dtype

        replace_out_dtype(gm)


_CONVOLUTIONS = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


@lru_cache(1 << 10)
def _draws(target: Any) -> bool:
    """Whether ``target`` is an op that draws random numbers."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _see_through_detach(graph: fx.Graph) -> None:
    """Uses the logarithms of probabilities themselves where autograd keeps a ``detach`` of them, which the partitioner would not
    compute again: so it can keep the logits.  (For an activation that a layer needs whole, keeping it is best.)"""
    found = [n for n in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default) if _is_log_softmax(n.args[0])]
    for node in found:
        for user in [user for user in node.users if user.op != "output"]:
            user.replace_input_with(node, node.args[0])
    if found:
        _drop_unused(graph)


def _is_log_softmax(value: Any) -> bool:
    """Whether ``value`` is what ``decomp_norm.log_softmax`` makes: x - log(sum), perhaps converted."""
    aten = torch.ops.aten
    while isinstance(value, fx.Node) and value.target in (aten._to_copy.default, aten.clone.default, aten.detach.default):
        value = value.args[0]
    if not isinstance(value, fx.Node) or value.target is not aten.sub.Tensor:
        return False
    last = value.args[1]
    return isinstance(last, fx.Node) and last.target is aten.log.default


def _run_by_torch(gm: fx.GraphModule) -> Compiled:
    gm.recompile()

    def run(args: list[Any]) -> Sequence[Any]:
        given = tuple(args)
        args.clear()
        return gm(*given)

    return boxed(run)
