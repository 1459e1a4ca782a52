"""``flex_attention``, which takes functions of a score, as an op that takes tensors and text: ``lowc::flex_attention``.

    flex_attention(q, k, v, score, (…, mask), scale, …, (slopes,), ())
      →  lowc::flex_attention([q, k, v, slopes], [], "…")            # see ``ir/element_function.py`` for the text

``lowering/flex_attention.py`` makes a kernel of it; ``call`` is what it means in terms of torch.  Both follow torch's formula:
what is seen is what the mask function says, for every score.  The lists of blocks that a BlockMask has besides tell which scores
need not be looked at; they are not read, and what computed them is dropped.  Calls stay as they are, torch's, if they are not on
a CPU, or if a function is more than functional ops on tensors.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch._higher_order_ops.flex_attention import sdpa_dense, sdpa_dense_backward
from torch._subclasses.fake_tensor import unset_fake_temporarily

from lowc.errors import LowcError
from lowc.frontend.dtypes import TORCH_DTYPES, TORCH_OF, dtype_of
from lowc.frontend.unread import attribute
from lowc.frontend.unused import drop_unused
from lowc.ir import element_function
from lowc.ir.element_function import Function, Line, marked, parsed, resolved
from lowc.ir.types import DTYPES
from lowc.once import once

DEVICES = frozenset({"cpu", "cuda"})
# what tracing makes of a number that indexes a tensor (``offset[0]``)
UNCHANGED = frozenset({torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.detach_.default, torch.ops.aten.detach.default})
PLACES = frozenset({"device", "layout", "pin_memory", "memory_format"})  # of numbers on a CPU, they say nothing
PLACE = 4  # parameters: batch, head, query, key; a score comes before them


class _StaysError(Exception):
    """Why a call stays torch's."""


def replace_flex_attention(gm: fx.GraphModule) -> int:
    """Replaces the calls in ``gm`` that can be; returns how many there were."""
    replaced = 0
    hop = torch.ops.higher_order
    found = [*gm.graph.find_nodes(op="call_function", target=hop.flex_attention)]
    found += gm.graph.find_nodes(op="call_function", target=hop.flex_attention_backward)
    for node in found:
        forward = node.target is hop.flex_attention
        try:
            args = _arguments(gm, *node.args) if forward else _arguments_backward(gm, node, *node.args)
        except _StaysError:
            continue
        register()
        ours = torch.ops.lowc
        with gm.graph.inserting_before(node):
            op: Any = ours.flex_attention.default if forward else ours.flex_attention_backward.default
            made = gm.graph.call_function(op, args)
        made.meta.update(node.meta)
        if not forward:
            made.meta["val"] = node.meta["val"][:3]
            for pick in [user for user in node.users if user.args[1] == 3]:  # nothing, for each tensor that is captured
                gm.graph.erase_node(pick)
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)
        replaced += 1
    if replaced:
        drop_unused(gm.graph)
    return replaced


def _arguments(
    gm: fx.GraphModule, query: fx.Node, key: fx.Node, value: fx.Node, score: fx.Node, block_mask: Sequence[Any], scale: Any,
    options: Any, score_others: Sequence[Any] = (), mask_others: Sequence[Any] = (),
) -> tuple[list[fx.Node], list[fx.Node], str]:  # fmt: skip
    given = _Given([query, key, value], [])
    functions = [(score, "s", score_others), (block_mask[-1], "", mask_others)]
    return _written(gm, given, functions, scale)


def _arguments_backward(
    gm: fx.GraphModule, node: fx.Node, query: fx.Node, key: fx.Node, value: fx.Node, out: fx.Node, sums: fx.Node,
    grad: fx.Node | None, grad_sums: fx.Node | None, score: fx.Node, joint: fx.Node, block_mask: Sequence[Any], scale: Any,
    options: Any, score_others: Sequence[Any] = (), mask_others: Sequence[Any] = (),
) -> tuple[list[fx.Node], list[fx.Node], str]:  # fmt: skip
    if grad is None or any(pick.users for pick in node.users if pick.args[1] == 3):
        raise _StaysError("gradients of what is captured")
    given = _Given([query, key, value, out, sums, grad, *([] if grad_sums is None else [grad_sums])], [])
    functions = [(score, "s", score_others), (joint, "sg", score_others), (block_mask[-1], "", mask_others)]
    return _written(gm, given, functions, scale, 0.0 if grad_sums is None else 1.0)


def _written(
    gm: fx.GraphModule, given: "_Given", asked: Sequence[tuple[fx.Node, str, Sequence[Any]]], scale: Any, *more: float
) -> tuple[list[fx.Node], list[fx.Node], str]:
    """The arguments for functions that take a score ("s"), where it is, and a gradient ("g"), and what they capture."""
    query = given.tensors[0].meta["val"]
    mode = detect_fake_mode([node.meta.get("val") for node in given.tensors])
    if mode is None or not isinstance(scale, float) or query.device.type not in DEVICES:
        raise _StaysError("no device of lowc's")
    given.device = query.device
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    functions: list[Function] = []
    with mode:
        place = [torch.empty((), dtype=torch.int64, device=given.device) for _ in range(PLACE)]
        for held, taken, others in asked:
            score = torch.empty((), dtype=working, device=given.device)
            before, behind = ([score] if letter in taken else [] for letter in "sg")
            captured = [given.argument(o) for o in others]
            functions.append(_function(gm, attribute(gm, held), [*before, *place, *behind], captured, others))
    return given.tensors, given.sizes, element_function.text(functions, scale, *more)


class _Given:
    """The tensors and the sizes that an op takes."""

    def __init__(self, tensors: list[fx.Node], sizes: list[fx.Node]) -> None:
        self.tensors, self.sizes, self.device = tensors, sizes, torch.device("cpu")

    def argument(self, value: Any) -> Any:
        """``value``, which a function captures, as an argument."""
        if isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return marked(value)
        if isinstance(value, fx.Node):
            found = value.meta.get("val")
            if isinstance(found, Tensor) and found.device == self.device and found.layout == torch.strided:
                return "tensor", _place(self.tensors, value)
            if isinstance(found, torch.SymInt):
                return "size", _place(self.sizes, value)
        raise _StaysError("captures something else than tensors and sizes")


def _place(nodes: list[fx.Node], node: fx.Node) -> int:
    """Where ``node`` is in ``nodes``, added if it is not there."""
    if node not in nodes:
        nodes.append(node)
    return nodes.index(node)


def _function(
    gm: fx.GraphModule, inner: fx.GraphModule, parameters: Sequence[Tensor], captured: Sequence[Any], others: Sequence[Any]
) -> Function:
    """``inner``, whose dtypes are told anew: it was traced with scores of the dtype of queries, and is called with wider ones."""
    values: dict[fx.Node, Any] = {}
    args: dict[fx.Node, Any] = {}
    fakes: list[Any] = [*parameters, *(o.meta["val"] if isinstance(o, fx.Node) else o for o in others)]
    known: list[Any] = [*(("%", n) for n in range(len(parameters))), *captured]
    lines: list[Line] = []
    for node in inner.graph.nodes:
        if node.op == "placeholder":
            values[node], args[node] = fakes[len(values)], known[len(args)]
        elif node.op == "get_attr" and isinstance(held := attribute(inner, node), Tensor) and not held.shape:
            values[node] = torch.empty((), dtype=held.dtype)
            args[node] = ("%", len(parameters) + len(lines))
            number = _number(held)
            dtype = dtype_of(held.dtype).name
            lines.append(Line("aten.full.default", [[], number], {"dtype": ("dtype", dtype)}, dtype, []))
        elif node.target in UNCHANGED:
            values[node], args[node] = values[node.args[0]], args[node.args[0]]
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable:
            values[node] = _called(node, values)
            written = [_argument(a, args) for a in node.args]
            kwargs = {key: _argument(a, args) for key, a in node.kwargs.items() if key not in PLACES}
            args[node] = ("%", len(parameters) + len(lines))
            shape = list(values[node].shape)
            if not all(isinstance(n, int) for n in shape):
                raise _StaysError("makes a tensor of symbolic sizes")
            if shape and values[node].device != parameters[0].device:
                raise _StaysError("makes a tensor on another device")
            lines.append(Line(str(node.target), written, kwargs, dtype_of(values[node].dtype).name, shape))
        elif node.op == "output":
            result: Any = node.args[0]
            result = result[0] if isinstance(result, tuple | list) else result  # the first gradient is that of the score
            return Function(len(parameters), tuple(lines), _argument(result, args))
        else:
            raise _StaysError(f"holds {node.format_node()}")
    raise _StaysError("has no result")


def _called(node: fx.Node, values: dict[fx.Node, Any]) -> Tensor:
    """The type of what ``node`` gives."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    target: Any = node.target
    try:
        value = target(*args, **kwargs)
    except Exception as error:  # torch's own, of any kind: then the call is torch's
        raise _StaysError(f"{node.target} cannot be called: {error}") from error
    if not isinstance(value, Tensor) or value.dtype not in TORCH_DTYPES:
        raise _StaysError(f"{node.target} gives no tensor")
    return value


def _number(held: Tensor) -> Any:
    try:
        with unset_fake_temporarily():
            number = held.item()
    except Exception as error:  # a fake tensor has none
        raise _StaysError("holds a tensor without data") from error
    return marked(number) if isinstance(number, float) else number


def _argument(arg: Any, args: dict[fx.Node, Any]) -> Any:
    if isinstance(arg, fx.Node):
        return args[arg]
    if isinstance(arg, tuple | list):
        return [_argument(a, args) for a in arg]
    if isinstance(arg, torch.dtype) and arg in TORCH_DTYPES:
        return "dtype", dtype_of(arg).name
    if isinstance(arg, float):
        return marked(arg)
    if arg is None or isinstance(arg, bool | int | str):
        return arg
    raise _StaysError(f"an argument is {arg!r}")


# ---------------------------------------------------------------- the op


@once
def register() -> torch.library.Library:
    """Makes the op known to torch (once); the library has to be kept.

    ``tensors``: queries [B, H, L, D], keys [B, H / G, S, D], values [B, H / G, S, E] (both may have batch 1), what the functions
    read; ``call``: the function of a score, that of a mask, and the scale.  Gives the result [B, H, L, E] and, of each row, the
    logarithm of the sum of exponentials and the greatest score, both over log(2) and f32.

    ``flex_attention_backward``: takes the result, these logarithms, the gradient of the result and perhaps (``call`` says so, by
    a number behind the scale) of the logarithms as well, behind queries, keys and values, of which it gives the gradients; its
    functions are of a score, of the gradient of a score, and of a mask.
    """
    library = torch.library.Library("lowc", "FRAGMENT")
    library.define("flex_attention(Tensor[] tensors, SymInt[] sizes, str call) -> Tensor[]")
    library.impl("flex_attention", call, "CompositeExplicitAutograd")
    library.define("flex_attention_backward(Tensor[] tensors, SymInt[] sizes, str call) -> Tensor[]")
    library.impl("flex_attention_backward", call_backward, "CompositeExplicitAutograd")
    return library


def call(tensors: list[Tensor], sizes: list[int], call: str) -> list[Tensor]:
    """``lowc::flex_attention`` by torch's own formula."""
    (score, mask), (scale,) = parsed(call)
    query, key, value = tensors[:3]
    nothing = (None,) * 15
    score_, mask_ = (_callable(f, tensors, sizes) for f in (score, mask))
    with _mapping():
        result, *rows = sdpa_dense(query, key, value, score_, (*nothing, mask_), scale, {})
    return [result, *(r.float() for r in rows)]


def call_backward(tensors: list[Tensor], sizes: list[int], call: str) -> list[Tensor]:
    """``lowc::flex_attention_backward`` by torch's own formula."""
    functions, (scale, has_sums) = parsed(call)
    score, joint, mask = (_callable(f, tensors, sizes) for f in functions)
    blocks = (*(None,) * 15, mask)
    query, key, value, out, sums, grad, *_ = tensors
    of_sums = tensors[6] if has_sums else None

    def gradient(*values: Tensor) -> list[Tensor | None]:
        return [joint(*values), None, None, None, None]

    with _mapping():
        found = sdpa_dense_backward(query, key, value, out, sums, grad, of_sums, score, gradient, blocks, scale, {}, (), ())
    return list(found[:3])


def _mapping() -> AbstractContextManager[None]:
    """Where ``vmap`` works, also in a call that a mode of torch's dispatch has caught: the first of a compiled graph is."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)
    for name in ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "FuncTorchVmapMode"):
        keys = keys.add(getattr(torch._C.DispatchKey, name))
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    guard: Any = torch._C._ForceDispatchKeyGuard
    return guard(included, excluded - keys)


def _callable(function: Function, tensors: list[Tensor], sizes: list[int]) -> Callable[..., Tensor]:
    def run(*values: Tensor) -> Tensor:
        known = list(values)
        kinds: dict[str, Callable[[Any], Any]] = {
            "%": known.__getitem__, "tensor": tensors.__getitem__, "size": sizes.__getitem__,
            "dtype": lambda name: TORCH_OF[DTYPES[name]],
        }  # fmt: skip
        for line in function.lines:
            target, args = _op(line.target), resolved(line.args, kinds, list)
            kwargs = {key: resolved(a, kinds, list) for key, a in line.kwargs.items()}
            if any(a.name == "device" for a in target._schema.arguments):
                kwargs["device"] = tensors[0].device
            known.append(target(*args, **kwargs))
        return resolved(function.result, kinds)

    return run


def _op(target: str) -> Any:
    space, name, overload = target.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), name), overload)
    except AttributeError:
        raise LowcError(f"torch {torch.__version__} has no op {target}") from None
