"""From a tensor graph to loop nests: ``lower`` walks the nodes and asks the table for each one's function.

An op that has no function, or whose function raises NotLowered, becomes a call of ATen with that reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import signature
from typing import Any, ParamSpec

from lowc.errors import LowcError, NotLowered, Unsupported
from lowc.ir import arithmetic, collective, tiles
from lowc.ir.graph import Graph, GraphArg, Meta, Node, Ref, TensorMeta, device_of, devices_of, refs, refs_of
from lowc.ir.index import Index, Symbol, atoms, constant, sole_atom
from lowc.ir.nodes import Arg, Buffer, Extern, Module
from lowc.ir.types import f32, i8
from lowc.lowering import choose_product, collectives, windows
from lowc.lowering.asked import UNDECIDED, Asked, Attends, Convolves, Decided, Whose
from lowc.lowering.attention import lines_of
from lowc.lowering.builder import Builder
from lowc.lowering.matmul import along_depth, copied_along, pieces
from lowc.lowering.table import ACTIVATION, COPYING, POINTWISE, SIZES, TABLE
from lowc.lowering.values import Coords, Value, contiguous_strides, whole
from lowc.options import Options
from lowc.target import Target

ROWS_AT_ONCE = frozenset({"aten._softmax.default", "aten._log_softmax.default"})
ELEMENTWISE = (POINTWISE.keys() | ACTIVATION.keys()) - ROWS_AT_ONCE
PASSED_ON = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten._to_copy.default")
Env = dict[str, tuple[Any, ...]]
Told = ParamSpec("Told")


def lower(
    graph: Graph,
    options: Options | None = None,
    forbid: frozenset[str] = frozenset(),
    *,
    alone: bool = False,
    library: Whose | None = None,
    attention: Attends | None = None,
    convolution: Convolves | None = None,
    target: Target | None = None,
    decided: Decided = UNDECIDED,
) -> Module:
    """The module at level LOOPS that computes ``graph``: one kernel for each op, or an extern call with the reason.

    The nodes named in ``forbid`` become extern calls whatever they are.  ``alone``: what has a loop nest that is slower than
    ATen has it nevertheless; there will be no ATen.  ``library``, ``attention``, ``convolution``: as in ``Asked``.  ``target``:
    for what it shall be fast; None where that is all the same.  ``decided``: what was measured of single nodes.

    Raises LowcError for a graph that cannot be expressed at all (e.g. a mutation of what is no strided window), Unsupported for
    one that returns a window of an input at a place that only a call tells.
    """
    taken = [i.name for i in graph.inputs] + [s.name for s in graph.symbols]
    gpu = not device_of(graph).startswith("cpu")
    usual = Asked(options, library, attention, convolution)

    def asked() -> Asked:
        return decided.asked if builder.node in decided.own else usual

    def unless_left(ask: Callable[Told, str]) -> Callable[Told, str]:
        """``ask``, but for nodes that were measured to be ATen's."""
        return lambda *told, **named: decided.left.get(builder.node) or ask(*told, **named)

    def whose(x: Value, y: Value, loose: bool) -> str:
        options, library, *_ = asked()
        if alone or (options is not None and options.matmul == "own" and not gpu):
            return ""
        if gpu:
            eighths = {x.dtype.kind, y.dtype.kind} == {"x"}
            if not eighths and (x.dtype != y.dtype or (x.dtype.kind != "f" and x.dtype != i8)):
                return f"of {x.dtype} and {y.dtype}"
            if any(constant(s) == 0 for v in (x, y) for s in (v.strides or ())[-2:]):
                return "a factor is expanded"
            if x.dtype == f32 and not (graph.tf32 and along_depth(x, y)):
                return "lowc's own of f32 are for where TF32 is allowed, of factors that lie along the depth"
            in_lines = copied_along(x) is not None and copied_along(y) is not None
            if library is None:
                return "on a GPU"
            return library(x.dtype, x.shape, y.shape, builder.followed, in_lines, along_depth(x, y), pieces(x, y), loose)
        made = all(y.buffer is not entry for entry in inputs)
        return "" if choose_product.own(x, y, options, target, made) else "lowc's own with option matmul='own'"

    def attends(q: Value, k: Value, v: Value, bias: Value | None, causal: bool, wanted: str, other: str) -> str:
        if alone:
            return ""
        options, _, attention, _ = asked()
        if attention is None:
            own = options is not None and options.attention == "own"
            return "" if own else "a library's (lowc's own with option attention='own')"
        in_lines = all(lines_of(x) for x in (q, k, v))
        return attention(q.dtype, q.shape, k.shape, v.shape, bias is not None, causal, in_lines, wanted, other)

    def convolves(x: Value, w: Value, out: TensorMeta, steps: Coords, groups: Index, wanted: str) -> str:
        if alone and not gpu and (target is None or target.kind == "x86"):
            return ""
        *_, convolution = asked()
        if convolution is None:
            return "a library's (lowc's own in artifacts)"
        return convolution(x.dtype, x.shape, w.shape, out, steps, groups, builder.followed, wanted)

    inputs: list[Buffer | Symbol | None] = []
    engine = gpu and not alone and library is not None
    builder = Builder(
        taken, gpu, graph.deterministic, atomic=gpu, library=unless_left(whose), alone=alone, engine=engine,
        attention=unless_left(attends), convolution=unless_left(convolves), tf32=engine and graph.tf32, default=graph.default,
        processors=target.cores if engine and target is not None and tiles.ABILITY in target.ops else 0,
    )  # fmt: skip
    builder.used = {(r.name, r.number) for n in graph.nodes for r in refs_of(n)}
    builder.used |= {(r.name, r.number) for r in refs(graph.outputs)}
    metas = [i.meta for i in graph.inputs]
    sizes = [n for m in metas for n in ((*m.shape, *m.strides) if isinstance(m, TensorMeta) else (m,) if m is not None else ())]
    builder.given = {a for size in sizes for a in atoms(size) if isinstance(a, Symbol)}
    env: Env = {}
    devices = devices_of(graph)
    for given in graph.inputs:
        inputs.append(_input(given.name, given.meta, builder, env))
    followed = _followed(graph)
    bases = _bases(graph)
    for node in graph.nodes:
        builder.followed = node.name in followed
        if node.name in bases:
            ref, meta = bases[node.name]
            builder.stem, builder.origin = _stem(node.target), (_origin(node),)
            lying = windows.lying(builder, _resolve(ref, env), meta)
            env[ref.name] = (*env[ref.name][: ref.number], lying, *env[ref.name][ref.number + 1 :])
        env[node.name] = _node(builder, node, env, devices, node.name in forbid)
    results = [_resolve(o, env) for o in graph.outputs]
    for value in _tensors(tuple(results)):
        if value.buffer.name in builder.strayed:
            raise Unsupported(
                f"{builder.strayed[value.buffer.name]} returns a part of an input at a place that only the call tells",
                hint="return a .clone() of it",
            )
    outputs = tuple(_outside(builder, r) for r in results)
    module = Module("LOOPS", graph.symbols, tuple(inputs), tuple(builder.temps), outputs, tuple(builder.steps))
    return replace(module, schedules=tuple(decided.schedules.items())) if decided.schedules else module


def _followed(graph: Graph) -> set[str]:
    """The nodes of which nothing but a pointwise op makes use, perhaps through a view of another shape, or converted."""
    users: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in {r.name for r in refs_of(node)}:
            users.setdefault(name, []).append(node)
    returned = {r.name for r in refs(graph.outputs)}
    found: set[str] = set()
    for node in reversed(graph.nodes):
        using = users.get(node.name, [])
        if len(using) == 1 and node.name not in returned:
            (user,) = using
            if user.target in ELEMENTWISE or (user.target in PASSED_ON and user.name in found):
                found.add(node.name)
    return found


def _bases(graph: Graph) -> dict[str, tuple[Ref, TensorMeta]]:
    """The tensors of whose storage nodes take windows, and how these lie, by the nodes' names."""
    made: dict[str, tuple[Meta, ...]] = {given.name: (given.meta,) for given in graph.inputs}
    found: dict[str, tuple[Ref, TensorMeta]] = {}
    for node in graph.nodes:
        made[node.name] = node.outputs
        if node.target in windows.BY_STORAGE and isinstance(ref := node.args[0], Ref):
            meta = made[ref.name][ref.number]
            assert isinstance(meta, TensorMeta)
            found[node.name] = ref, meta
    return found


def _input(name: str, meta: TensorMeta | Index | None, builder: Builder, env: Env) -> Buffer | Symbol | None:
    if isinstance(meta, TensorMeta):
        buffer = Buffer(name, meta.dtype, meta.shape, meta.strides)
        builder.offsets[name] = meta.offset
        env[name] = (whole(buffer),)
        return buffer
    env[name] = (meta,)
    return _as_symbol(meta)


def _as_symbol(meta: Index | None) -> Symbol | None:
    """The symbol that an index is, if it is just one."""
    atom = sole_atom(meta) if meta is not None else None
    return atom if isinstance(atom, Symbol) else None


def _resolve(arg: GraphArg, env: Env) -> Any:
    """``arg`` with references replaced by Values and indices."""
    if isinstance(arg, Ref):
        return env[arg.name][arg.number]
    if isinstance(arg, tuple):
        return tuple(_resolve(a, env) for a in arg)
    return arg


def _node(
    builder: Builder, node: Node, env: Env, devices: dict[str, str], forbidden: bool
) -> tuple[Any, ...]:
    """Emits ``node``; gives a Value or Index for each of its outputs."""
    if node.target == arithmetic.TARGET:
        (symbol,) = (_as_symbol(meta) for meta in node.outputs if isinstance(meta, Index))
        args = tuple(_outside(builder, a) for a in node.args)
        builder.steps.append(Extern(node.target, args, (), (symbol,), origin=(_origin(node),)))
        return node.outputs
    if node.target in SIZES and all(isinstance(m, Index) for m in node.outputs):
        return node.outputs
    args = tuple(_resolve(a, env) for a in node.args)
    kwargs = {name: _resolve(a, env) for name, a in node.kwargs}
    builder.stem, builder.node = _stem(node.target), node.name
    builder.origin = (_origin(node),)
    if node.target == collective.WAIT:
        return (collectives.wait(builder, node.outputs[0], args[0]),)
    if collective.is_collective(node.target):
        return _extern(builder, node, args, kwargs, collectives.REASON)
    if forbidden:
        return _extern(builder, node, args, kwargs, "no code could be generated for its kernel")
    function = TABLE.get(node.target)
    if function is None:
        return _extern(builder, node, args, kwargs, "no lowering for this op")
    mark = builder.mark()
    try:
        _check_devices(node, devices)
        return _call(function, builder, node, args, kwargs)
    except NotLowered as reason:
        builder.rewind(mark)
        return _extern(builder, node, args, kwargs, reason.message)


def _origin(node: Node) -> str:
    return f"{node.name} = {node.target}" + (f"  # {node.where}" if node.where else "")


def _stem(target: str) -> str:
    """ "add" of "aten.add.Tensor"."""
    parts = target.split(".")
    return parts[1] if len(parts) > 2 else parts[-1]


def _check_devices(node: Node, devices: dict[str, str]) -> None:
    """Raises NotLowered unless everything the node touches is on the graph's device."""
    here = {m.device for m in node.outputs if isinstance(m, TensorMeta)}
    here.update(
        devices[r.name] for r in refs_of(node) if r.name in devices
    )
    if here - {devices[""]}:
        raise NotLowered("touches " + " and ".join(sorted(here)) + f" in a graph on {devices['']}")


def _call(
    function: Callable[..., Any], builder: Builder, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    out = node.outputs[0] if len(node.outputs) == 1 else node.outputs
    parameters = signature(function)
    takes_many = "outs" in parameters.parameters
    try:
        parameters.bind(builder, out, *args, **kwargs)
    except TypeError as reason:
        raise NotLowered(f"arguments that lowc does not know ({reason})") from reason
    result = function(builder, node.outputs if takes_many else out, *args, **kwargs)
    results = result if isinstance(result, tuple) else (result,)
    if takes_many and len(results) != len(node.outputs):
        results = _spread(results, node.outputs)
    for value, meta in zip(results, node.outputs, strict=True):
        if value is None:  # no tensor, or nothing uses it
            continue
        if isinstance(meta, TensorMeta) and (value.shape != meta.shape or value.dtype != meta.dtype):
            raise LowcError(
                f"lowering of {node.target} gave {value.dtype}{list(value.shape)}, not {meta.dtype}{list(meta.shape)}",
                where=node.where,
            )
    return results


def _spread(results: Iterable[Value], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results for the outputs that are used, None for the others."""
    given = iter(results)
    return tuple(next(given) if isinstance(meta, TensorMeta) else None for meta in outputs)


# ---------------------------------------------------------------- extern calls


def _extern(
    builder: Builder, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], because: str
) -> tuple[Any, ...]:
    """A call of ATen.  A view op is called in its copying form, so that no two buffers share memory."""
    target = COPYING.get(node.target, node.target)
    if node.target in windows.BY_STORAGE:
        windows.check_outside(builder, args[0])
    outside = tuple(_outside(builder, a) for a in args)
    named = tuple((name, _outside(builder, a)) for name, a in kwargs.items())
    written = _written(node, args, kwargs)
    for value in written:
        if value.strides is None:
            raise LowcError(f"{node.target} writes to what is no strided window", where=node.where)
    if written:
        results: list[Buffer | Symbol | None] = [None] * len(node.outputs)
        values: tuple[Any, ...] = (tuple(written) * len(node.outputs))[: len(node.outputs)]
    else:
        results, values = _results(builder, node, target != node.target or collective.starts(target))
        if target != node.target:
            _note_windows(builder, node, args, values)
    if collective.starts(target):
        collectives.note(builder, target, outside, results)
    writes = tuple({id(v.buffer): v.buffer for v in written}.values())
    builder.steps.append(Extern(target, outside, named, tuple(results), writes, because, builder.origin))
    return values


def _note_windows(builder: Builder, node: Node, args: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    """Remembers copies that stand for windows of inputs and do not lie as those do.

    Torch makes a result that is a view of an input again from the input, by the strides and the offset of what is returned, so
    that such a copy must not be returned.
    """
    sources = {v.buffer.name for v in _tensors(args)}
    if sources.isdisjoint(builder.offsets) and sources.isdisjoint(builder.strayed):
        return
    for value, meta in zip(values, node.outputs, strict=True):
        if isinstance(meta, TensorMeta) and (constant(meta.offset) != 0 or meta.strides != value.buffer.strides):
            builder.strayed[value.buffer.name] = node.target


def _results(
    builder: Builder, node: Node, copies: bool
) -> tuple[list[Buffer | Symbol | None], tuple[Any, ...]]:
    """New temps for the tensors that a call returns, and what the graph sees of them."""
    results: list[Buffer | Symbol | None] = []
    values: list[Any] = []
    for number, meta in enumerate(node.outputs):
        if isinstance(meta, TensorMeta) and _needless(builder, node, number, meta):
            # what ATen returns for results that were not asked for may have another shape than torch says
            results.append(None)
            values.append(None)
        elif isinstance(meta, TensorMeta):
            name = node.name if len(node.outputs) == 1 else f"{node.name}_{number}"
            strides = contiguous_strides(meta.shape) if copies else meta.strides
            buffer = Buffer(builder.fresh(name), meta.dtype, meta.shape, strides)
            builder.temps.append(buffer)
            results.append(buffer)
            values.append(whole(buffer))
        else:
            symbol = _as_symbol(meta)  # a size that inputs tell is no news
            results.append(None if symbol in builder.given else symbol)
            values.append(meta)
    return results, tuple(values)


def _needless(builder: Builder, node: Node, number: int, meta: TensorMeta) -> bool:
    """Whether nothing uses a result, one of several, nor can a size be found from it that nothing else tells."""
    if len(node.outputs) == 1 or (node.name, number) in builder.used:
        return False
    return not any(isinstance(a, Symbol) and a not in builder.given for size in meta.shape for a in atoms(size))


def _written(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Value]:
    """The arguments that an op changes: ``out=``, or the first one of an op whose name ends in an underscore."""
    if "out" in kwargs:
        return list(_tensors(kwargs["out"]))
    name = _stem(node.target)
    if name.endswith("_") and not name.endswith("__"):
        return list(_tensors(args[0] if args else next(iter(kwargs.values()), None)))
    return []


def _tensors(arg: Any) -> Iterable[Value]:
    if isinstance(arg, Value):
        yield arg
    elif isinstance(arg, tuple):
        for inner in arg:
            yield from _tensors(inner)


def _outside(builder: Builder, arg: Any) -> Arg:
    """An argument as ATen takes it."""
    if isinstance(arg, Value):
        return builder.view(arg)
    if isinstance(arg, tuple):
        return tuple(_outside(builder, a) for a in arg)
    return arg
