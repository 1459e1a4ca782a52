"""The text of tensor graphs, for reading; and the spellings that graphs and the loop IR share.

Grammar of types and scalars: docs/design.md, 1.2.  Equal graphs have equal text, different ones different text, as long as no
value's name is one of a dtype or of a word like "none".
"""

import json
import math
from collections.abc import Iterable

from lowc.ir import graph
from lowc.ir.index import ONE, Index, Symbol, text
from lowc.ir.types import DType, f32


def print_graph(g: graph.Graph) -> str:
    """``g`` as text, one line for each input and node; for reading, there is no parser."""
    symbols = ", ".join(f"{s.name}: {range_text(s)}" for s in g.symbols)
    known: dict[int, str] = {}
    comments = {"": ""}

    def shown(meta: graph.Meta) -> str:
        """``_meta``, once for each object: the importer makes one of all values of a type."""
        found = known.get(id(meta))
        if found is None:
            found = known[id(meta)] = _meta(meta)
        return found

    def comment(where: str) -> str:
        """The user's line, which many nodes share."""
        if where not in comments:
            comments[where] = f"  # {' '.join(where.split())}"
        return comments[where]

    told = (" deterministic" * g.deterministic, " tf32" * g.tf32, f" {g.default}" * (g.default != f32))
    lines = [f"graph {g.name}({symbols}){''.join(told)} {{"]
    for item in g.inputs:
        lines.append(f"  input {item.name}: {shown(item.meta)}{' mutated' if item.mutated else ''}")
    for node in g.nodes:
        args = [_graph_arg(a) for a in node.args]
        if node.kwargs:
            args += [f"{name}={_graph_arg(a)}" for name, a in node.kwargs]
        metas = shown(node.outputs[0]) if len(node.outputs) == 1 else ", ".join(map(shown, node.outputs))
        lines.append(f"  {node.name}: {metas or 'none'} = {node.target}({', '.join(args)}){comment(node.where)}")
    if g.outputs:
        lines.append(f"  return {', '.join(map(_graph_arg, g.outputs))}")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _meta(meta: graph.Meta) -> str:
    if meta is None:
        return "none"
    if isinstance(meta, Index):
        return f"size {text(meta)}"
    offset = f" + {text(meta.offset)}" if meta.offset.terms else ""
    return f"{tensor_text(meta.dtype, meta.shape, meta.strides)}{offset} @{meta.device}"


def _graph_arg(arg: graph.GraphArg) -> str:
    if isinstance(arg, graph.Ref):
        return f"{arg.name}#{arg.number}" if arg.number else arg.name
    if isinstance(arg, tuple):
        return tuple_text([_graph_arg(a) for a in arg])
    return str(arg) if type(arg) is int else scalar_text(arg)  # most are


def tensor_text(dtype: DType, shape: tuple[Index, ...], strides: tuple[Index, ...]) -> str:
    """``f32[4, 5 : 1, 4]``."""
    numbers, steps = _numbers(shape), _numbers(strides)
    if numbers is not None and steps is not None:  # nearly always, and a graph has hundreds
        expected, step = list[int](), 1
        for size in reversed(numbers):
            expected.append(step)
            step *= size
        sizes = ", ".join(map(str, numbers))
        return f"{dtype.name}[{sizes}]" if steps == expected[::-1] else f"{dtype.name}[{sizes} : {', '.join(map(str, steps))}]"
    sizes = ", ".join(map(text, shape))
    if strides == contiguous(shape):
        return f"{dtype}[{sizes}]"
    return f"{dtype}[{sizes} : {', '.join(map(text, strides))}]"


def _numbers(indices: tuple[Index, ...]) -> list[int] | None:
    """``constant`` of each; None if one is not."""
    found: list[int] = []
    for index in indices:
        terms = index.terms
        if not terms:
            found.append(0)
        elif len(terms) == 1 and not terms[0][0]:
            found.append(terms[0][1])
        else:
            return None
    return found


def contiguous(shape: Iterable[Index]) -> tuple[Index, ...]:
    """Row-major strides, in elements."""
    strides: list[Index] = []
    step = ONE
    for size in reversed(tuple(shape)):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def range_text(symbol: Symbol) -> str:
    """``2..16``, ``2..``, ``2.. ~ 2048`` with a hint."""
    about = "" if symbol.hint is None else f" ~ {symbol.hint}"
    return f"{symbol.lo}..{'' if symbol.hi is None else symbol.hi}{about}"


def scalar_text(arg: object) -> str:
    """A number, a size, a string or a dtype, as arguments have them."""
    if arg is None:
        return "none"
    if isinstance(arg, bool | int | float):
        return number_text(arg)
    if isinstance(arg, Index):
        return f"idx({text(arg)})"
    if isinstance(arg, complex):
        return f"complex({number_text(arg.real)}, {number_text(arg.imag)})"
    return quoted(arg) if isinstance(arg, str) else str(arg)


def number_text(value: bool | float) -> str:
    """A number, exactly, with the sign of zero and of NaN."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def tuple_text(items: list[str]) -> str:
    """``(a, b)``; ``(a,)`` has one item."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def quoted(string: str) -> str:
    """``string`` as JSON has it."""
    return json.dumps(string, ensure_ascii=False)
