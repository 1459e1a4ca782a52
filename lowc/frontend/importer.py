"""FX graphs of ATen ops to ``ir.Graph``: every value's type is read from the fake tensors in ``node.meta['val']``.

How FX values become graph arguments:

* a tensor is a ``Ref``; ``operator.getitem`` on a node with several results is folded into the Ref's number;
* symbolic integers and their arithmetic (``aten.sym_size.int``, ``operator.mul``, ...) become ``Index`` values and no node;
* ``torch.dtype`` is a ``DType``; a device, a memory format and a layout are strings with a mark:
  ``device:cuda:0``, ``memory_format:channels_last``, ``layout:strided`` (see ``ir/graph.py``);
* floats computed from sizes, or given, become 0-d f64 tensors (see ``floats.py``);
* sizes computed from floats become symbols, each with a node that computes it (see ``sizes.py``);
* other objects, as the device meshes of DTensors, only pass through: they are None here (see ``outside.py``);
* tensors that the module holds (``get_attr``) become further inputs, after the graph's own, and are returned beside it.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from lowc.errors import Unsupported
from lowc.frontend import floats, sizes, wrapped
from lowc.frontend.dtypes import dtype_of
from lowc.frontend.outside import is_object
from lowc.frontend.shapes import index_of, symbols_of
from lowc.frontend.source import user_line
from lowc.frontend.unread import attribute
from lowc.ir.graph import Graph, GraphArg, Input, Meta, Node, Ref, TensorMeta
from lowc.ir.index import Symbol, ix

_Env = dict[fx.Node, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """The input called ``name`` is an object of type ``kind``."""

    name: str
    kind: str


def import_graph(gm: fx.GraphModule, name: str) -> tuple[Graph, list[torch.Tensor]]:
    """(graph, constants): the constants are the values of the last ``len(constants)`` inputs of the graph.

    ``gm`` comes from AOTAutograd or export: placeholders, ATen ops with ``meta['val']``, one output.  Raises Unsupported, with
    the user's line, for what cannot be written down: calls of functions, in-place ops other than a closing ``copy_`` into an
    input, sparse or quantised tensors, and dtypes that lowc has no name for.
    """
    values = _symbolic_values(gm)
    symbols = symbols_of(values)
    derived = sizes.derive(gm, values, symbols)
    env: _Env = {}
    inputs: list[Input] = []
    constants: dict[str, torch.Tensor] = {}
    nodes: list[Node] = []
    outputs: tuple[GraphArg, ...] = ()
    for node in gm.graph.nodes:
        try:
            if node.op == "placeholder":
                inputs.append(_input(node, symbols, env))
            elif node.op == "get_attr":
                _constant(gm, node, constants, env)
            elif node.op == "call_function":
                nodes.extend(sizes.take_due(derived, inputs, nodes))
                nodes.extend(_call(node, symbols, env))
            elif node.op == "output":
                result = _arg(node.args[0], symbols, env)
                outputs = tuple(map(_output, result if isinstance(result, tuple) else (result,)))
            else:
                raise Unsupported(f"FX node {node.format_node()} cannot be imported")
        except Unsupported as error:
            # An input has no line of its own, but is first used on one.
            error.where = error.where or next(filter(None, map(user_line, (node, *node.users))), "")
            raise
    inputs += [Input(key, _tensor_meta(tensor, symbols)) for key, tensor in constants.items()]
    written = {node.args[0].name for node in nodes if node.target == _COPY and isinstance(node.args[0], Ref)}
    marked = tuple(Input(i.name, i.meta, i.name in written) for i in inputs)
    # Dynamo guards on these: another answer is another compilation.
    deterministic = torch.are_deterministic_algorithms_enabled()
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    default = dtype_of(torch.get_default_dtype())
    graph = Graph(name, tuple(symbols.values()), marked, tuple(nodes), outputs, deterministic, tf32, default)
    return graph, list(constants.values())


_COPY = "aten.copy_.default"
_APART = "torch._dynamo.graph_break() before and after the code that needs it lets lowc compile the rest"


def _symbolic_values(gm: fx.GraphModule) -> list[Any]:
    """Every tensor in the graph whose sizes or strides are not all known, and every symbolic number."""
    out: list[Any] = []
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, torch.Tensor):
                if each._has_symbolic_sizes_strides:
                    out.append(each)
            elif isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool) and not is_object(each):
                out.append(each)
    return out


# ---------------------------------------------------------------- nodes


def _input(node: fx.Node, symbols: Mapping[Any, Symbol], env: _Env) -> Input:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        env[node] = Ref(node.name)
        return Input(node.name, _tensor_meta(value, symbols))
    if is_object(value):
        env[node] = Held(node.name, type(value).__name__)
        return Input(node.name, None)
    if isinstance(value, int | torch.SymInt | torch.SymBool):
        env[node] = index_of(value, symbols)
        return Input(node.name, env[node])
    if isinstance(value, torch.SymFloat):
        env[node] = floats.Float(Ref(node.name))
        return Input(node.name, floats.SCALAR)
    if value is None or not node.users:  # torch.export has written down what a float or a string was
        env[node] = None
        return Input(node.name, None)
    raise Unsupported(f"input {node.name} is a {type(value).__name__}")


def _output(value: Any) -> GraphArg:
    if isinstance(value, floats.Float):
        return value.ref
    return None if isinstance(value, Held) else value


def _constant(gm: fx.GraphModule, node: fx.Node, constants: dict[str, torch.Tensor], env: _Env) -> None:
    value = attribute(gm, node)
    if isinstance(value, fx.GraphModule):
        env[node] = None  # the op that takes it is refused by its name
        return
    if not isinstance(value, torch.Tensor):
        raise Unsupported(f"attribute {node.target} is a {type(value).__name__}, not a tensor")
    constants[node.name] = value
    env[node] = Ref(node.name)


def _call(node: fx.Node, symbols: Mapping[Any, Symbol], env: _Env) -> tuple[Node, ...]:
    """The nodes that ``node`` becomes: one, or none where it only picks a result or computes a size."""
    target, value = node.target, node.meta.get("val")
    if target is operator.getitem:
        env[node] = _picked(_arg(node.args[0], symbols, env), node.args[1])
        return ()
    if (
        isinstance(value, torch.SymInt | torch.SymBool | int)
        and target != torch.ops.aten._local_scalar_dense.default
    ):
        env[node] = index_of(value, symbols)
        return ()
    if isinstance(value, torch.SymFloat):
        env[node] = floats.Float(Ref(node.name))
        if target == torch.ops.aten._local_scalar_dense.default:
            (tensor,) = node.all_input_nodes
            taken = _tensor_meta(tensor.meta["val"], symbols)
            return tuple(floats.item(node.name, env[tensor], taken, user_line(node)))
        function = getattr(target, "__name__", str(target))
        return tuple(floats.arithmetic(node.name, function, _arg(node.args, symbols, env), user_line(node)))
    if getattr(target, "__name__", "") in wrapped.WRAPPERS:
        return (_wrapped(node, symbols, env),)
    if getattr(target, "__name__", "") == "with_effects":
        return _with_effects(node, symbols, env)
    if not isinstance(target, torch._ops.OpOverload):
        raise Unsupported(_no_op(target))
    nodes, env[node] = _op_call(node, target, node.args, value, symbols, env)
    return nodes


def _no_op(target: Any) -> str:
    name = getattr(target, "__name__", str(target))
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{name} calls functions, for which a graph has no place (torch.compile cuts it there, an export does not)"
    return f"{name} is no op of torch's; torch.library.custom_op makes a function one"


def _op_call(
    node: fx.Node, op: Any, fx_args: tuple[Any, ...], value: Any, symbols: Mapping[Any, Symbol], env: _Env
) -> tuple[tuple[Node, ...], Any]:
    """(the nodes for the call of ``op`` that ``node`` is, its results): ``value`` has the results' types."""
    args = _arg(fx_args, symbols, env)
    kwargs = tuple((key, _arg(arg, symbols, env)) for key, arg in node.kwargs.items())
    special = {type(env[n]) for n in node.all_input_nodes} & {Held, floats.Float}
    if Held in special:
        held = next(value for value in tree_leaves((args, kwargs)) if isinstance(value, Held))
        raise Unsupported(f"{op} takes {held.name}, a {held.kind}")
    _check_functional(op, fx_args)
    several = isinstance(value, tuple | list)
    metas = tuple(_meta(v, symbols) for v in (value if several else () if value is None else (value,)))
    results: Any = Ref(node.name)
    if isinstance(value, torch.SymInt | torch.SymBool | int):
        results = index_of(value, symbols)
    elif several:
        results = tuple(Ref(node.name, n) for n in range(len(metas)))
    made = Node(node.name, str(op), args, kwargs, metas, user_line(node))
    if floats.Float not in special:
        return (made,), results
    values = {n.name: n.meta.get("val") for n in node.all_input_nodes}
    taken = {name: _tensor_meta(v, symbols) for name, v in values.items() if isinstance(v, torch.Tensor)}
    try:
        return tuple(floats.with_tensors(made, taken)), results
    except Unsupported:
        return (wrapped.with_floats(made, op),), results


def _with_effects(node: fx.Node, symbols: Mapping[Any, Symbol], env: _Env) -> tuple[Node, ...]:
    """``with_effects(token, op, *args) → (token, *results)`` as the call of ``op``.

    Tokens only tie effects to their order, which is that of the graph: calls that lowc leaves to torch keep it.  The token that
    comes out is the one that went in.
    """
    token, op, *args = node.args
    if not isinstance(op, torch._ops.OpOverload):
        raise Unsupported(_no_op(op))
    values = node.meta["val"][1:]
    count = len(op._schema.returns)
    value = None if count == 0 else values[0] if count == 1 else values
    nodes, results = _op_call(node, op, tuple(args), value, symbols, env)
    each = results if count > 1 else (None if count == 0 else results,)
    env[node] = (_arg(token, symbols, env), *each)
    return nodes


def _wrapped(node: fx.Node, symbols: Mapping[Any, Symbol], env: _Env) -> Node:
    """An op inside a higher-order op that ``lowc::call`` can stand for."""
    wrapper = str(getattr(node.target, "__name__", ""))
    before, op, rest = _around_op(node)
    args = _arg((*before, *rest), symbols, env)
    kwargs = {key: _arg(value, symbols, env) for key, value in node.kwargs.items()}
    call = wrapped.encode(wrapper, op, args, kwargs)
    flat, spec = tree_flatten(
        node.meta["val"] if "val" in node.meta else _value_inside(wrapper, node, op, rest)
    )
    if not all(r is None or isinstance(r, torch.Tensor) for r in flat) or not _on_cpu(wrapper, flat):
        raise Unsupported(f"{op} in {wrapper} returns something else than tensors of the CPU")
    numbers = iter(range(len(flat)))
    refs = [None if r is None else Ref(node.name, next(numbers)) for r in flat]
    env[node] = _tuples(tree_unflatten(refs, spec))
    metas = tuple(_tensor_meta(r, symbols) for r in flat if r is not None)
    return Node(node.name, wrapped.TARGET, call, (), metas, user_line(node))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, tuple | list) else value


def _around_op(node: fx.Node) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
    """(arguments before, the op, arguments after)."""
    for number, arg in enumerate(node.args):
        if isinstance(arg, torch._ops.OpOverload):
            return node.args[:number], arg, node.args[number + 1 :]
    raise Unsupported(f"{node.target} holds no op")


def _value_inside(wrapper: str, node: fx.Node, op: Any, args: tuple[Any, ...]) -> Any:
    """The type of the results of a random op, which the partitioner leaves out, found by running it on fake tensors."""
    args, kwargs = tree_map_only(fx.Node, lambda n: n.meta["val"], (args, node.kwargs))
    mode = detect_fake_mode((args, kwargs))
    if mode is None:
        raise Unsupported(f"{op} in {wrapper} has no type")
    with mode:
        value = op(*args, **kwargs)
    return (torch.get_rng_state(), value) if wrapper == "run_and_save_rng_state" else value


def _on_cpu(wrapper: str, results: list[Any]) -> bool:
    return "rng" not in wrapper or all(r.device.type == "cpu" for r in results if r is not None)


def _picked(results: Any, number: Any) -> Any:
    if not isinstance(results, tuple) or not isinstance(number, int):
        raise Unsupported(f"getitem {number!r} of something that has no numbered results")
    return results[number]


def _check_functional(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
    if not op._schema.is_mutable:
        return
    destination = args[0] if args else None
    if str(op) == _COPY and isinstance(destination, fx.Node) and destination.op == "placeholder":
        return
    raise Unsupported(f"{op} changes a tensor in place")


# ---------------------------------------------------------------- values


def _meta(value: Any, symbols: Mapping[Any, Symbol]) -> Meta:
    if isinstance(value, torch.Tensor):
        return _tensor_meta(value, symbols)
    if isinstance(value, int | torch.SymInt):
        return index_of(value, symbols)
    if isinstance(value, torch.SymBool) and isinstance(value.node.expr, sympy.Eq):  # of data: Eq(u0, 1)
        return index_of(value.node.expr.lhs, symbols)
    if value is None:
        return None
    raise Unsupported(f"a result is a {type(value).__name__}")


def _tensor_meta(value: torch.Tensor, symbols: Mapping[Any, Symbol]) -> TensorMeta:
    if value.layout != torch.strided:
        raise Unsupported(f"tensors of layout {value.layout} are not supported", hint=_APART)
    if value.is_quantized or value.is_conj() or value.is_neg():
        raise Unsupported("quantised tensors and lazily conjugated or negated ones are not supported", hint=_APART)
    shape, strides, offset = value.shape, value.stride(), value.storage_offset()
    if not value._has_symbolic_sizes_strides:
        return _fixed_meta(value.dtype, tuple(shape), strides, offset, value.device)
    return TensorMeta(
        dtype_of(value.dtype),
        tuple(index_of(n, symbols) for n in shape),
        tuple(index_of(n, symbols) for n in strides),
        index_of(offset, symbols),
        str(value.device),
    )


@lru_cache(1 << 10)
def _fixed_meta(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, device: torch.device
) -> TensorMeta:
    """One object for all values of a type: the layers of a model repeat few of them."""
    return TensorMeta(dtype_of(dtype), tuple(map(ix, shape)), tuple(map(ix, strides)), ix(offset), str(device))


def _arg(value: Any, symbols: Mapping[Any, Symbol], env: _Env) -> Any:
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, tuple | list):
        return tuple(_arg(v, symbols, env) for v in value)
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    if isinstance(value, torch.SymInt | torch.SymBool):
        return index_of(value, symbols)
    if isinstance(value, torch.dtype):
        return dtype_of(value)
    if isinstance(value, torch.device):
        return f"device:{value}"
    if isinstance(value, torch.layout | torch.memory_format):
        return f"{type(value).__name__}:{str(value).removeprefix('torch.')}"
    raise Unsupported(f"an argument is a {type(value).__name__}: {value!r}")
