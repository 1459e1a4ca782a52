"""The tensor graph between frontend and lowering: ATen ops by name, with the type of every value.

Plain data, no torch.  A graph is functional except that it may end in ``aten.copy_.default`` nodes that write an input.

Arguments that torch has types of its own for are strings with a mark: ``device:cuda:0``, ``memory_format:channels_last``,
``layout:strided``.  Any other string is one.  ``torch.dtype`` is a DType, a size a number or an Index, a list a tuple.
A truth value on sizes is an Index that is 0 or 1.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from lowc.ir.index import Index, Symbol
from lowc.ir.types import DType, f32


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """The type of a tensor value; sizes, strides and the storage offset are in elements.  ``device`` is e.g. "cpu", "cuda:0"."""

    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index
    device: str


@dataclass(frozen=True, slots=True)
class Ref:
    """Result ``number`` of the node (or the input) called ``name``."""

    name: str
    number: int = 0


GraphArg = Ref | Index | bool | int | float | complex | str | DType | None | tuple["GraphArg", ...]
Meta = TensorMeta | Index | None


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor, or a size (meta is the Symbol's Index).  ``mutated``: a closing copy_ writes it."""

    name: str
    meta: Meta
    mutated: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One op.  ``target`` is "aten.add.Tensor"; ``outputs`` has a meta for each result (None: not a tensor, or unused);
    ``where`` is the user's "file.py:12 in forward: y = x + 1", empty if unknown.
    """

    name: str
    target: str
    args: tuple[GraphArg, ...]
    kwargs: tuple[tuple[str, GraphArg], ...]
    outputs: tuple[Meta, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """``deterministic``: results must not depend on timing (``torch.use_deterministic_algorithms``), and memory that nobody has
    written is filled.  ``tf32``: products of f32 may be of rounded factors (``torch.backends.cuda.matmul.fp32_precision``).
    ``default``: the type of Python's floats (``torch.get_default_dtype``)."""

    name: str
    symbols: tuple[Symbol, ...]
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[GraphArg, ...]
    deterministic: bool = False
    tf32: bool = False
    default: DType = f32


def refs(arg: GraphArg) -> Iterator[Ref]:
    """What ``arg`` refers to, also inside of tuples."""
    if isinstance(arg, Ref):
        yield arg
    elif isinstance(arg, tuple):
        for inner in arg:
            yield from refs(inner)


def refs_of(node: Node) -> Iterator[Ref]:
    """What ``node`` is given."""
    return refs((node.args, tuple([value for _, value in node.kwargs])))


def device_of(graph: Graph) -> str:
    """Where kernels for ``graph`` run, as "cpu" or "cuda:0": where most of its values are."""
    return devices_of(graph)[""]


def devices_of(graph: Graph) -> dict[str, str]:
    """Where each input and node is; under "": the device of most of them."""
    named = {i.name: i.meta.device for i in graph.inputs if isinstance(i.meta, TensorMeta)}
    for node in graph.nodes:
        for meta in node.outputs:
            if isinstance(meta, TensorMeta):
                named[node.name] = meta.device
                break
    counts = Counter(named.values())
    named[""] = max(counts, key=counts.__getitem__, default="cpu")
    return named
