"""Convolutions on a CPU get their operands in ``channels_last``, in which ATen's take half to four fifths of the time.

    convolution = aten.convolution(x, w, …)           →  clone = aten.clone(x, memory_format=channels_last)
    relu = aten.relu(convolution)                        convolution = aten.convolution(clone, w, …)        # channels_last
    convolution_1 = aten.convolution(relu, v, …)         relu = aten.relu(convolution)                      # channels_last
    return convolution_1                                 convolution_1 = aten.convolution(relu, v, …)       # needs no copy
                                                         return aten.clone(convolution_1, memory_format=contiguous)

All values after such a convolution have the strides that their ops then give, found with fake tensors as they were in the first
place.  What the graph returns has the strides that it had, and so has what an op gets that names strides or views memory.  Done
before the backward pass is parted from the forward one, so that both agree on what is kept.  In inference lowc's own, with
what follows them fused, are faster than either: those operands stay as they are.
"""

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode

_ATEN = torch.ops.aten
_FORWARD, _BACKWARD = _ATEN.convolution.default, _ATEN.convolution_backward.default
_BY_STRIDES = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter", "set_"})
"""Ops that read memory as it lies."""


DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


def to_channels_last(graph: fx.Graph, dtypes: Collection[torch.dtype] = DTYPES) -> bool:
    """Whether any convolution of ``graph`` got other operands.  Only those of ``dtypes``, of sizes that are numbers, in two
    spatial dimensions."""
    wanted = {node: _operands(node) for node in graph.nodes if node.target in (_FORWARD, _BACKWARD) and _suits(node, dtypes)}
    mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    if mode is None or not any(_differ(node.args[n]) for node, numbers in wanted.items() for n in numbers):
        return False
    before = {node: node.meta.get("val") for node in graph.nodes}
    changed: set[fx.Node] = set()
    with mode:
        for node in list(graph.nodes):
            if node.op == "output":
                _give_back(graph, node, before, {n for n in node.all_input_nodes if _differs(n.meta.get("val"), before[n])})
            elif node.op == "call_function":
                for number in wanted.get(node, ()):
                    if _differ(node.args[number]):
                        copy = _clone(graph, node, node.args[number], torch.channels_last)
                        node.update_arg(number, copy)
                        changed.add(copy)
                if not changed.isdisjoint(node.all_input_nodes):
                    _again(graph, node, before, changed)
    return True


def _suits(node: fx.Node, dtypes: Collection[torch.dtype]) -> bool:
    first = 0 if node.target is _FORWARD else 1
    values = [n.meta.get("val") for n in node.args[: first + 2] if isinstance(n, fx.Node)]
    transposed = node.args[first + 6]
    return not transposed and all(
        isinstance(v, Tensor)
        and v.dim() == 4
        and v.device.type == "cpu"
        and v.layout == torch.strided
        and v.dtype in dtypes
        and not v._has_symbolic_sizes_strides
        for v in values
    )


def _operands(node: fx.Node) -> tuple[int, ...]:
    """The numbers of those arguments of a convolution that have channels: what goes in, or the gradient and what went in."""
    return (0,) if node.target is _FORWARD else (0, 1)


def _differ(node: Any) -> bool:
    """Whether ``node`` is not in ``channels_last`` and could tell the difference."""
    value = node.meta.get("val")
    return min(value.shape) > 0 and value.shape[1] > 1 and value.shape[2] * value.shape[3] > 1 and not _lies(value)


def _lies(value: Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def _clone(graph: fx.Graph, before: fx.Node, source: Any, form: torch.memory_format) -> fx.Node:
    """A copy of ``source`` in ``form``, made before the node ``before``."""
    with graph.inserting_before(before):
        node = graph.call_function(_ATEN.clone.default, (source,), {"memory_format": form})
    node.meta = {k: v for k, v in source.meta.items() if k in ("stack_trace", "partitioner_tag", "seq_nr")}
    if "partitioner_tag" in before.meta:
        node.meta["partitioner_tag"] = before.meta["partitioner_tag"]
    node.meta["val"] = _ATEN.clone.default(source.meta["val"], memory_format=form)
    return node


def _again(graph: fx.Graph, node: fx.Node, before: dict[fx.Node, Any], changed: set[fx.Node]) -> None:
    """The type of ``node`` anew, of whose operands some lie otherwise now."""
    if node.target is _ATEN.copy_.default:
        return
    new = None if _by_strides(node) else _typed(node)
    if new is None:
        _give_back(graph, node, before, changed)
        return
    node.meta["val"] = new
    if _strides(new) != _strides(before[node]):
        changed.add(node)


def _by_strides(node: fx.Node) -> bool:
    """Whether ``node`` means something else, or nothing that is known here, with other strides."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    if torch.Tag.nondeterministic_seeded in target.tags or node.meta.get("unbacked_bindings"):
        return True  # numbers are drawn as memory lies; sizes that data tells would get other symbols
    return target.namespace not in ("aten", "prims") or target._schema.name.split("::")[1] in _BY_STRIDES


def _typed(node: fx.Node) -> Any:
    """What ``node`` gives, as fake tensors; None if it is a view that there is not of what lies so, or if that is unknown."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    call: Any = node.target
    try:
        return call(*args, **kwargs)
    except (RuntimeError, ValueError, KeyError):
        return None


def _differs(value: Any, before: Any) -> bool:
    """Whether a tensor that is returned has other strides, also along dimensions of size 1."""
    return isinstance(value, Tensor) and value.stride() != before.stride()


def _strides(value: Any) -> list[Any]:
    """The strides of tensors along dimensions that have any."""
    values = value if isinstance(value, tuple | list) else (value,)
    return [[s for n, s in zip(v.shape, v.stride(), strict=True) if n > 1] if isinstance(v, Tensor) else None for v in values]


def _as_before(graph: fx.Graph, user: fx.Node, source: fx.Node, before: dict[fx.Node, Any]) -> fx.Node:
    """A copy of ``source`` with the strides that it had."""
    value = before[source]
    form = torch.contiguous_format if value.is_contiguous() else torch.channels_last
    if value.is_contiguous(memory_format=form):
        return _clone(graph, user, source, form)
    with graph.inserting_before(user):
        blank = graph.call_function(
            _ATEN.empty_strided.default, (list(value.shape), list(value.stride())), {"dtype": value.dtype, "device": value.device}
        )
        node = graph.call_function(_ATEN.copy.default, (blank, source))
    for made in (blank, node):
        made.meta = {k: v for k, v in source.meta.items() if k in ("stack_trace", "partitioner_tag", "seq_nr")}
        made.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return node


def _give_back(graph: fx.Graph, user: fx.Node, before: dict[fx.Node, Any], changed: set[fx.Node]) -> None:
    """Gives ``user`` what it takes as it lay before."""
    for source in [n for n in user.all_input_nodes if n in changed]:
        user.replace_input_with(source, _as_before(graph, user, source, before))
