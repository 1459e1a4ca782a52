"""Convolutions get their operands in ``channels_last``, in which ATen's on a CPU take half to four fifths of the time, and in
which those of 16 bits are products on tensor cores on a GPU, ATen's and lowc's own.

    convolution = aten.convolution(x, w, …)           →  clone = aten.clone(x, memory_format=channels_last)
    relu = aten.relu(convolution)                        convolution = aten.convolution(clone, w, …)        # channels_last
    convolution_1 = aten.convolution(relu, v, …)         relu = aten.relu(convolution)                      # channels_last
    return convolution_1                                 convolution_1 = aten.convolution(relu, v, …)       # needs no copy
                                                         return aten.clone(convolution_1, memory_format=contiguous)

All values after such a convolution have the strides that their ops then give: by a rule where there is one (``strides.py``), else
found with fake tensors as they were in the first place, once for each op and the types that it takes, which the layers of a model
repeat.  What the graph returns has the strides that it had, and so has what an op gets that names strides, views memory, draws
random numbers (in the order of memory) or gives sizes that are no numbers.  Done before the backward pass is parted from the
forward one, so that both agree on what is kept.
In inference on a CPU lowc's own, with what follows them fused, are faster than either: those operands stay as they are.
"""

import operator
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._mode_utils import no_dispatch

from lowc.frontend.source import inherited
from lowc.frontend.strides import is_pointwise, of_convolution, of_result, stay

_ATEN = torch.ops.aten
_FORWARD, _BACKWARD = _ATEN.convolution.default, _ATEN.convolution_backward.default
_BY_STRIDES = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter", "set_"})
"""Ops that read memory as it lies."""


def to_channels_last(graph: fx.Graph, forms: Collection[tuple[str, torch.dtype]]) -> bool:
    """Whether any convolution of ``graph`` got other operands.  Only those of ``forms``, a device and a dtype, of sizes that are
    numbers, in two spatial dimensions."""
    wanted = {node: _operands(node) for node in graph.nodes if node.target in (_FORWARD, _BACKWARD) and _suits(node, forms)}
    if not any(_differ(node.args[n]) for node, numbers in wanted.items() for n in numbers):
        return False
    mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    if mode is None:
        return False
    if any(_reads_around(node) for node in graph.nodes) or _results_share(graph):
        return False
    before = {node: node.meta.get("val") for node in graph.nodes}
    changed: set[fx.Node] = set()
    copied: dict[fx.Node, fx.Node] = {}
    types = _Types(mode)
    with mode:
        for node in list(graph.nodes):
            if node.op == "output":
                returned = {n for n in node.all_input_nodes if _differs(n.meta.get("val"), before[n])}
                _give_back(graph, node, before, returned, types)
            elif node.op == "call_function":
                for number in wanted.get(node, ()):
                    if _differ(node.args[number]):
                        copy = _clone(graph, node, node.args[number], torch.channels_last, types)
                        copied.setdefault(node.args[number], copy)
                        node.update_arg(number, copy)
                        changed.add(copy)
                if is_pointwise(node) and node.meta.get("partitioner_tag") != "is_backward":
                    _take_copies(node, changed, copied)
                if not changed.isdisjoint(node.all_input_nodes):
                    _again(graph, node, before, changed, types)
    return True


class _Types:
    """What ops give, as fake tensors; asked once for each op and types that it takes."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._known: dict[Any, Any] = {}

    def of(self, node: fx.Node, old: Any) -> Any:
        """What ``node`` gives, ``old`` before; None if it is a view that there is not of what lies so, or if that is unknown."""
        if (lying := of_convolution(node, old)) is not None:
            values = old if isinstance(old, tuple | list) else (old,)
            made = [s and self.fresh(v, v.shape, s) for v, s in zip(values, lying, strict=True)]
            return tuple(made) if isinstance(old, tuple | list) else made[0]
        call: Any = node.target
        args: Any
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        key = (call, _described(args), _described(kwargs)) if _makes_memory(call) else (None,)
        if (known := self._known.get(key)) is not None:
            return self._made(known)
        try:
            value = self._detached(*args) if call is _ATEN.detach.default else call(*args, **kwargs)
        except (RuntimeError, ValueError, KeyError):
            return None
        if None not in key:
            self._known[key] = _described(value)
        return value

    def _detached(self, source: Tensor) -> Tensor:
        """As FakeTensorMode makes it, once that has found out how; there is one for all that autograd keeps."""
        device = source.device
        with in_kernel_invocation_manager(self._mode):
            memory = _ATEN.detach.default(source)
        return FakeTensor(self._mode, memory, device)

    def fresh(self, like: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        """A tensor of the dtype and on the device of ``like``."""
        return self._fake(like.dtype, shape, strides, like.device)

    def _made(self, described: Any) -> Any:
        kind, *rest = described
        if kind is Tensor:
            return self._fake(*rest)
        return tuple(map(self._made, rest)) if kind is tuple else rest[0]

    def _fake(self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], device: torch.device) -> Tensor:
        # As FakeTensorMode makes one, which would take seven times as long to find out that it shall.
        with no_dispatch():
            memory = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        return FakeTensor(self._mode, memory, device)


@lru_cache(1 << 10)
def _makes_memory(target: Any) -> bool:
    """Whether ``target`` gives what is in no memory of its operands."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return all(result.alias_info is None for result in target._schema.returns)


def _described(value: Any) -> Any:
    """Something hashable that has the types of tensors and the values of all else; None for types that are not all numbers."""
    if isinstance(value, Tensor):
        if value._has_symbolic_sizes_strides or value.layout != torch.strided or value.storage_offset():
            return None
        return (Tensor, value.dtype, value.shape, value.stride(), value.device)
    if isinstance(value, tuple | list):
        items = [_described(v) for v in value]
        return None if None in items else (tuple, *items)
    if isinstance(value, dict):
        return _described(list(value.items()))
    return None if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else (type(value), value)


def _suits(node: fx.Node, forms: Collection[tuple[str, torch.dtype]]) -> bool:
    first = 0 if node.target is _FORWARD else 1
    values: list[Any] = [n.meta.get("val") for n in node.args[: first + 2] if isinstance(n, fx.Node)]
    transposed, groups = node.args[first + 6], node.args[first + 8]
    if transposed or not all(isinstance(v, Tensor) and v.dim() == 4 and v.layout == torch.strided for v in values):
        return False
    if any((v.device.type, v.dtype) not in forms or v._has_symbolic_sizes_strides for v in values):
        return False
    return bool(groups == 1 or values[0].device.type == "cpu")  # others are no products on a GPU


def _operands(node: fx.Node) -> tuple[int, ...]:
    """The numbers of those arguments of a convolution that have channels: what goes in, or the gradient and what went in."""
    return (0,) if node.target is _FORWARD else (0, 1)


def _differ(node: Any) -> bool:
    """Whether ``node`` is not in ``channels_last`` and could tell the difference."""
    value = node.meta.get("val")
    return min(value.shape) > 0 and value.shape[1] > 1 and value.shape[2] * value.shape[3] > 1 and not _lies(value)


def _lies(value: Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def _clone(graph: fx.Graph, before: fx.Node, source: Any, form: torch.memory_format, types: _Types) -> fx.Node:
    """A copy of ``source`` in ``form``, made before the node ``before``."""
    with graph.inserting_before(before):
        node = graph.call_function(_ATEN.clone.default, (source,), {"memory_format": form})
    node.meta = inherited(source)
    if "partitioner_tag" in before.meta:
        node.meta["partitioner_tag"] = before.meta["partitioner_tag"]
    value = source.meta["val"]
    node.meta["val"] = types.fresh(value, value.shape, _strides_in(value.shape, form))
    return node


def _take_copies(node: fx.Node, changed: set[fx.Node], copied: dict[fx.Node, fx.Node]) -> None:
    """Gives ``node``, one of whose operands lies otherwise now, the copies that there are of others: it reads them all the same
    way then."""
    if not changed.isdisjoint(node.all_input_nodes):
        for source in [n for n in node.all_input_nodes if n in copied]:
            node.replace_input_with(source, copied[source])


def _strides_in(shape: Sequence[int], form: torch.memory_format) -> tuple[int, ...]:
    with no_dispatch():
        return torch.empty(shape, device="meta", memory_format=form).stride()


def _again(graph: fx.Graph, node: fx.Node, before: dict[fx.Node, Any], changed: set[fx.Node], types: _Types) -> None:
    """The type of ``node`` anew, of whose operands some lie otherwise now."""
    if node.target is _ATEN.copy_.default:
        return
    old = before[node]
    if stay(node, old):
        return
    if (lying := of_result(node, old)) is not None:
        if lying != old.stride():
            node.meta["val"] = types.fresh(old, old.shape, lying)
            changed.add(node)
        return
    new = None if _by_strides(node) or _is_symbolic(old) else types.of(node, old)
    if new is None:
        _give_back(graph, node, before, changed, types)
    elif _strides(new) != _strides(old):
        if _overlaps(old):  # no copy has elements that meet
            _give_back(graph, node, before, changed, types)
            return
        node.meta["val"] = new
        changed.add(node)
    else:
        node.meta["val"] = _lying(old, new)


def _by_strides(node: fx.Node) -> bool:
    """Whether ``node`` means something else, or nothing that is known here, with other strides."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    return target.namespace not in ("aten", "prims") or _names_strides(target) or torch.Tag.nondeterministic_seeded in target.tags


@lru_cache(1 << 10)
def _names_strides(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.split("::")[1] in _BY_STRIDES


def _reads_around(node: fx.Node) -> bool:
    """Whether ``node`` reads memory beside what it takes, which a copy of that does not have."""
    if not _names_strides(node.target):
        return False
    values = [n.meta.get("val") for n in node.all_input_nodes if n.op != "placeholder"]
    return any(isinstance(v, Tensor) and (_is_symbolic(v) or v.untyped_storage().nbytes() != _extent(v)) for v in values)


def _results_share(graph: fx.Graph) -> bool:
    """Whether two results that have dimensions lie in one memory, as copies of them would not."""
    nodes = [n for n in graph.output_node().all_input_nodes if n.op != "placeholder"]
    values = [v for n in nodes if isinstance(v := n.meta.get("val"), Tensor) and v.layout == torch.strided and v.dim() > 0]
    refs = [StorageWeakRef(v.untyped_storage()) for v in values]
    return len(set(refs)) < len(refs)


def _extent(value: Tensor) -> int:
    """The bytes from the first element of ``value`` to its last."""
    if value.numel() == 0:
        return 0
    return value.itemsize * (1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)))


def _is_symbolic(value: Any) -> bool:
    """Whether any of the results ``value`` is, or has sizes, of no known number: asking about these would add guards."""
    values = value if isinstance(value, tuple | list) else (value,)
    return any(v._has_symbolic_sizes_strides if isinstance(v, Tensor) else v is not None for v in values)


def _overlaps(value: Any) -> bool:
    """Whether elements of a tensor lie in one place, as of one that is expanded."""
    if not isinstance(value, Tensor):
        return False
    beside = 0  # from an element to the last that is told from it by the smaller strides
    for stride, size in sorted((s, n) for n, s in zip(value.shape, value.stride(), strict=True) if n > 1):
        if stride <= beside:
            return True
        beside += (size - 1) * stride
    return False


def _lying(old: Any, new: Any) -> Any:
    """``old``, in its own memory, which views of it are still known to be in, with the strides of ``new`` along dimensions of
    size 1."""
    if isinstance(old, tuple | list):
        return type(old)([_lying(a, b) for a, b in zip(old, new, strict=True)])
    if not isinstance(old, Tensor) or old.stride() == new.stride():
        return old
    return _ATEN.as_strided.default(old, new.shape, new.stride())


def _differs(value: Any, before: Any) -> bool:
    """Whether a tensor that is returned has other strides, also along dimensions of size 1."""
    return isinstance(value, Tensor) and value is not before and value.stride() != before.stride()


def _strides(value: Any) -> list[Any]:
    """The strides of tensors along dimensions that have any."""
    values = value if isinstance(value, tuple | list) else (value,)
    return [[s for n, s in zip(v.shape, v.stride(), strict=True) if n > 1] if isinstance(v, Tensor) else None for v in values]


def _as_before(graph: fx.Graph, user: fx.Node, source: fx.Node, before: dict[fx.Node, Any], types: _Types) -> fx.Node:
    """A copy of ``source`` with the strides that it had, its type in the memory in which views of ``source`` are known to be."""
    value = before[source]
    lying = _ATEN.as_strided.default(value, value.shape, value.stride(), 0)
    form = torch.contiguous_format if value.is_contiguous() else torch.channels_last
    if value.is_contiguous(memory_format=form):
        node = _clone(graph, user, source, form, types)
        node.meta["val"] = lying
        return node
    with graph.inserting_before(user):
        blank = graph.call_function(
            _ATEN.empty_strided.default, (list(value.shape), list(value.stride())), {"dtype": value.dtype, "device": value.device}
        )
        node = graph.call_function(_ATEN.copy.default, (blank, source))
    for made in (blank, node):
        made.meta = inherited(source) | {"val": lying}
    return node


def _give_back(graph: fx.Graph, user: fx.Node, before: dict[fx.Node, Any], changed: set[fx.Node], types: _Types) -> None:
    """Gives ``user`` what it takes as it lay before."""
    for source in [n for n in user.all_input_nodes if n in changed]:
        user.replace_input_with(source, _as_before(graph, user, source, before, types))
