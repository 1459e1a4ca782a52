"""Programs of ``torch.export`` as graphs for an artifact: inputs, weights and results by name, nothing left for torch to do.

    ExportedProgram (a file of torch.export.save, or exported here) ─ decompositions ─ ir.Graph, weights

The graph's inputs are the user's tensors, then the weights; all results are tensors of their own, contiguous.
"""

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import UserError
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import TreeSpec, tree_unflatten

from lowc.errors import LowcError
from lowc.frontend.attention import attention
from lowc.frontend.cse import merge_equal_nodes
from lowc.frontend.decompositions import decompositions
from lowc.frontend.flex_attention import replace_flex_attention
from lowc.frontend.guards import Condition, conditions
from lowc.frontend.importer import import_graph
from lowc.frontend.numbers import as_tensors
from lowc.frontend.out_dtype import replace_out_dtype
from lowc.frontend.random import replace_random_ops
from lowc.frontend.unused import drop_unused
from lowc.ir.graph import Graph, GraphArg, Input, Node, Ref, TensorMeta, refs, refs_of
from lowc.ir.index import Index, contiguous_strides, ix

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)

# torch.export puts functions of its own into tables of the process while it is at work, and fails if another thread has done so.
_alone = RLock()


@dataclass(frozen=True, slots=True)
class Exported:
    """``graph``: its inputs are ``inputs`` (tensors and integers of a call, by the user's names), then ``weights`` (by their
    names in the model).  ``outputs``: names of the graph's outputs.  ``returns``: see ``standalone.manifest.Manifest``.
    ``conditions``: what sizes must be beyond their ranges, see ``guards``.  ``seed``: the name of the last of ``inputs``, if that
    is the seed of random numbers (``random``); else ""."""

    graph: Graph
    inputs: tuple[str, ...]
    weights: dict[str, torch.Tensor]
    outputs: tuple[str, ...]
    returns: Any
    conditions: list[tuple[str, Condition]]
    seed: str = ""


def load_program(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    """The program that ``torch.export.save`` has written to ``path``.  Raises LowcError if it cannot be read."""
    if not os.path.isfile(path):
        raise LowcError(f"there is no file {os.fspath(path)}")
    try:
        with _alone, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about itself
            return torch.export.load(path)
    except Exception as error:
        raise LowcError(
            f"{os.fspath(path)} cannot be read: {_first_line(error)}",
            hint="torch.export.save(torch.export.export(model, inputs), path) writes such a file",
        ) from error


def export(
    fn: Callable[..., Any], inputs: Sequence[Any], *, dynamic: Any = None, named: Mapping[str, Any] | None = None
) -> torch.export.ExportedProgram:
    """``fn`` (a module, an FX graph or a function) exported for ``inputs``.

    ``dynamic``: True for every size of every tensor, or what ``torch.export.export`` takes as ``dynamic_shapes``; a float or a
    bool in whose place it has ``Dim.DYNAMIC`` becomes an input (``numbers``).  Raises LowcError where torch cannot export it.
    """
    module = fn if isinstance(fn, torch.nn.Module) else _module(fn)
    shapes = tuple(_all_dynamic(given) for given in inputs) if dynamic is True else dynamic
    module, inputs, shapes = as_tensors(module, inputs, shapes)
    try:
        with _alone, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, tuple(inputs), dict(named or {}), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        what = f"torch.export cannot export it: {_first_line(error)}"
        if isinstance(error, UserError):  # whose next lines say which size, and what to write for it
            what += "".join(f"\n  {line.strip()}" for line in str(error).strip().splitlines()[1:6] if line.strip())
        data = isinstance(error, GuardOnDataDependentSymNode)
        hint = "what data tells cannot choose what is computed: torch.where computes both"
        raise LowcError(what, hint=hint if data else "the model must be one graph of torch's") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def _module(fn: Callable[..., Any]) -> torch.nn.Module:
    """``fn`` as a module.  Torch notes the user's lines in functions by the name of ``forward`` only, so it gets that."""
    module: Any = torch.nn.Module()
    module.forward = fn
    if isinstance(fn, FunctionType):
        code = fn.__code__.replace(co_name="forward", co_qualname="forward")
        module.forward = FunctionType(code, fn.__globals__, "forward", fn.__defaults__, fn.__closure__)
        module.forward.__kwdefaults__ = fn.__kwdefaults__
    return module


def _all_dynamic(given: Any) -> Any:
    auto: Any = torch.export.Dim.AUTO
    return {d: auto for d in range(given.dim())} if isinstance(given, torch.Tensor) else None


def program_graph(program: torch.export.ExportedProgram, name: str, keep: Collection[str]) -> Exported:
    """What an artifact is made of.  ``keep``: ops that lowc has kernels for, which are not taken apart.

    Raises LowcError for a program that changes its inputs or buffers, or takes or returns what is no tensor or size, Unsupported
    for what cannot be written down.  One thread at a time; the others wait.
    """
    with _alone:
        return _program_graph(program, name, keep)


def _program_graph(program: torch.export.ExportedProgram, name: str, keep: Collection[str]) -> Exported:
    guards: list[str] = list(getattr(program, "_guards_code", ()))  # which decomposing forgets
    program = _taken_apart(program, keep)
    gm, signature = program.graph_module, program.graph_signature
    _check_pure(gm, signature)
    replace_flex_attention(gm)
    replace_out_dtype(gm)
    seed = _seed(gm.graph) if replace_random_ops(gm.graph) else ""
    merge_equal_nodes(gm.graph)
    drop_unused(gm.graph)
    with _ranges(program):
        graph, constants = import_graph(gm, "inference")
    own = dict(zip((i.name for i in graph.inputs[len(graph.inputs) - len(constants) :]), constants, strict=True))
    given, weights, targets = _sorted_inputs(program, graph, own)
    given += [i for i in graph.inputs if i.name == seed]
    graph, weights = _dense(graph, given, weights)
    graph, outputs, returns = _results(graph, program)
    metas = {i.name: i.meta for i in given}
    named = {targets[n]: w for n, w in weights.items()}
    return Exported(graph, tuple(metas), named, outputs, returns, conditions(guards, metas), seed)


def _seed(graph: fx.Graph) -> str:
    """Makes the draw that ``replace_random_ops`` has put into ``graph`` an input of it, whose name is returned."""
    drawn = [node for node in graph.nodes if node.target is torch.ops.aten.randint.low and node.meta["val"].shape == (1,)]
    draw = next(node for node in drawn if all(user.target is torch.ops.lowc.random.default for user in node.users))
    last = [node for node in graph.nodes if node.op == "placeholder"][-1:]
    name, taken = "seed", {node.name for node in graph.nodes}
    while name in taken:
        name += "_"
    with graph.inserting_after(*last) if last else graph.inserting_before(next(iter(graph.nodes))):
        seed = graph.placeholder(name)
    seed.meta["val"] = draw.meta["val"]
    draw.replace_all_uses_with(seed)
    graph.erase_node(draw)
    return seed.name


def _taken_apart(program: torch.export.ExportedProgram, keep: Collection[str]) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program.run_decompositions(_table(keep))
    except LowcError:
        raise
    except Exception as error:
        where = re.search(r'^File "(.+)", line (\d+), in (.+)$', str(error), re.MULTILINE)
        raise LowcError(
            f"torch.export cannot take the program apart: {_first_line(error)}",
            where="{}:{} in {}".format(*where.groups()) if where else "",
            hint="write the op by other ops, or leave it outside of the model",
        ) from error


def _table(keep: Collection[str]) -> dict[Any, Callable[..., Any]]:
    """lowc's decompositions, torch's for ops that are made of others wherever they run (``linear``), and attention's."""
    default = torch.export.default_decompositions()
    materialized: Any = default.materialize() if hasattr(default, "materialize") else default
    key = "CompositeImplicitAutograd"
    table = {
        op: function for op, function in materialized.items() if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
    }
    return table | decompositions(keep) | {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: attention}


@contextmanager
def _ranges(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Sizes have the ranges that the program promises.  While it traces, torch leaves out 0 and 1, which it may nevertheless be
    called with."""
    values = [node.meta.get("val") for node in program.graph.nodes]
    numbers = [n for v in values if isinstance(v, torch.Tensor) for n in v.shape if isinstance(n, torch.SymInt)]
    if not numbers:
        yield
        return
    ranges: Any = numbers[0].node.shape_env.var_to_range
    before = dict(ranges)
    ranges.update({symbol: allowed for symbol, allowed in program.range_constraints.items() if symbol in ranges})
    try:
        yield
    finally:
        ranges.update(before)


def _check_pure(gm: fx.GraphModule, signature: Any) -> None:
    changing = {
        OutputKind.BUFFER_MUTATION: "buffer",
        OutputKind.USER_INPUT_MUTATION: "input",
        OutputKind.PARAMETER_MUTATION: "parameter",
    }
    for spec in signature.output_specs:
        if spec.kind in changing:
            raise LowcError(
                f"the model changes its {changing[spec.kind]} {spec.target}, which an artifact cannot keep",
                hint="model.eval() before the export; return the new value instead of writing it",
            )
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise LowcError(f"the program has an output of kind {spec.kind.name}, which an artifact has not")
    for spec in signature.input_specs:
        if spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
            raise LowcError(f"the program takes {spec.arg.name}, which is no tensor")
        if not isinstance(spec.arg, TensorArgument | SymIntArgument | ConstantArgument):
            what = f"input {spec.arg.name} is neither a tensor nor an integer, and an artifact takes nothing else"
            raise LowcError(what, hint="pass a 0-d tensor")


def _sorted_inputs(
    program: torch.export.ExportedProgram, graph: Graph, own: Mapping[str, torch.Tensor]
) -> tuple[list[Input], dict[str, torch.Tensor], dict[str, str]]:
    """The inputs of a call, the weights by their inputs' names, and the weights' names in the model."""
    by_name = {i.name: i for i in graph.inputs}
    used = {ref.name for node in graph.nodes for ref in refs_of(node)}
    used |= {ref.name for ref in refs(graph.outputs)}
    given: list[Input] = []
    weights: dict[str, torch.Tensor] = {}
    targets: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind in _WEIGHTS and name in used:
            weights[name], targets[name] = _value(program, spec), str(spec.target)
        elif spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument | SymIntArgument):
            given.append(by_name[name])
    for name, tensor in own.items():
        weights[name], targets[name] = tensor, f"constant.{name}"
    return given, weights, targets


def _value(program: torch.export.ExportedProgram, spec: Any) -> torch.Tensor:
    tables: tuple[Mapping[str, Any], ...] = (program.state_dict, program.constants)
    for table in tables:
        if isinstance(found := table.get(spec.target), torch.Tensor):
            return found
    raise LowcError(f"the program has no value for {spec.target}")


def _dense(
    graph: Graph, given: Sequence[Input], weights: Mapping[str, torch.Tensor]
) -> tuple[Graph, dict[str, torch.Tensor]]:
    """``graph`` with inputs in this order, all weights contiguous."""
    by_name = {i.name: i for i in graph.inputs}
    inputs = list(given)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        meta = by_name[name].meta
        assert isinstance(meta, TensorMeta)
        tensors[name] = tensor.detach().to("cpu").contiguous()
        inputs.append(Input(name, replace(meta, strides=contiguous_strides(meta.shape), offset=ix(0))))
    return replace(graph, inputs=tuple(inputs)), tensors


def memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def _results(graph: Graph, program: torch.export.ExportedProgram) -> tuple[Graph, tuple[str, ...], Any]:
    """``graph`` with each tensor that it returns copied where it is an input, a view, returned twice or not contiguous."""
    metas = {i.name: (i.meta,) for i in graph.inputs} | {n.name: n.outputs for n in graph.nodes}
    nodes, outputs, names = list(graph.nodes), list[GraphArg](), list[str]()
    numbers: list[int | None] = []
    for output in graph.outputs:
        if output is None:
            numbers.append(None)
            continue
        numbers.append(len(outputs))
        names.append(f"output_{len(names)}")
        if isinstance(output, Ref):
            meta = metas[output.name][output.number]
            assert isinstance(meta, TensorMeta)
            dense = replace(meta, strides=contiguous_strides(meta.shape), offset=ix(0))
            node = Node(f"returned_{len(outputs)}", "aten.clone.default", (output,), _CONTIGUOUS, (dense,))
            nodes.append(node)
            outputs.append(Ref(node.name))
        elif isinstance(output, Index | int):
            outputs.append(ix(output))
        else:
            raise LowcError(f"the model returns {output!r}, which is neither a tensor nor a size")
    returns = _structure(numbers, program.call_spec.out_spec)
    return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs)), _named(names, returns), returns


_CONTIGUOUS: tuple[tuple[str, GraphArg], ...] = (("memory_format", "memory_format:contiguous_format"),)


def _structure(numbers: Sequence[int | None], spec: TreeSpec | None) -> Any:
    """How the model returns its results (tuples, lists and dicts), as plain data."""
    return _plain(tree_unflatten(numbers, spec)) if spec is not None else _plain(tuple(numbers))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return ["dict", {str(name): _plain(part) for name, part in value.items()}]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", [_plain(part) for part in value]]
    raise LowcError(f"the model returns a {type(value).__name__}", hint="return tensors in tuples, lists or dicts")


def _named(names: list[str], returns: Any) -> tuple[str, ...]:
    """The names of the outputs: keys of a dict of tensors, else "output" or numbers."""
    if returns == 0:
        return ("output",)
    if isinstance(returns, list) and returns[0] == "dict":
        for key, number in returns[1].items():
            if isinstance(number, int):
                names[number] = key
    return tuple(names)
