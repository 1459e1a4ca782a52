"""The graphs that AOTAutograd makes: what is done to one before it is parted, how it is parted, and what compiles the parts.

Loaded where AOTAutograd traces: a process that finds what it has traced before (``kept``) does without.
"""

import logging
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition

from lowc.errors import LowcError, OptionError
from lowc.frontend import kept, ranks
from lowc.frontend.cse import merge_equal_nodes
from lowc.frontend.kept import boxed
from lowc.frontend.outside import with_python_values
from lowc.frontend.unread import Source, constants_of, text_of
from lowc.frontend.unused import drop_unused

if TYPE_CHECKING:
    from lowc.frontend.aot import Compiled, CompileSource
    from lowc.frontend.read import Reading

log = logging.getLogger("lowc.frontend")


def compile_fx_graph(
    gm: fx.GraphModule, name: str, compile_source: "CompileSource", *, strict: bool = False, named: bool = False
) -> "Compiled":
    """Compiles one functional ATen graph; the result takes a list of inputs, which it may empty, and returns the outputs.
    ``named``: it is to have the name of its entry in the cache, if it is nothing else."""
    _without_functions(gm)
    drop_unused(gm.graph)
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


def _read(gm: fx.GraphModule, name: str, strict: bool) -> "Reading":
    from lowc.frontend.read import read  # half of the frontend, which a process that hits does without

    return read(gm, name, strict)


def partition(
    joint: fx.GraphModule,
    inputs: Any,
    *,
    own_random: bool,
    channels_last: Collection[tuple[str, torch.dtype]],
    num_fwd_outputs: int,
    **kwargs: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    from lowc.frontend.saved import keep_copies

    drop_unused(joint.graph)
    prepare(joint, own_random, channels_last)
    _see_through_detach(joint.graph)
    merge_equal_nodes(joint.graph)
    with config.patch(cse=False):  # torch's own merging of equal nodes, which ours replaces
        forward, backward = min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
    keep_copies(forward, backward, num_fwd_outputs)
    return forward, backward


def prepare(gm: fx.GraphModule, own_random: bool, channels_last: Collection[tuple[str, torch.dtype]]) -> None:
    """What is done to a whole graph, before it is parted.  ``channels_last``: convolutions on these devices, of these dtypes, get
    operands that lie so.  (What does it is not loaded for a graph in which there is nothing to do.)"""
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
        drop_unused(graph)


def _is_log_softmax(value: Any) -> bool:
    """Whether ``value`` is what ``decomp_norm.log_softmax`` makes: x - log(sum), perhaps converted."""
    aten = torch.ops.aten
    while isinstance(value, fx.Node) and value.target in (aten._to_copy.default, aten.clone.default, aten.detach.default):
        value = value.args[0]
    if not isinstance(value, fx.Node) or value.target is not aten.sub.Tensor:
        return False
    last = value.args[1]
    return isinstance(last, fx.Node) and last.target is aten.log.default


def _run_by_torch(gm: fx.GraphModule) -> "Compiled":
    gm.recompile()

    def run(args: list[Any]) -> Sequence[Any]:
        given = tuple(args)
        args.clear()
        return gm(*given)

    return boxed(run)
