"""What an artifact says of itself, as plain data and as JSON.

Sizes that are known only when called are trees of numbers, names and operations, ``["+", ["*", 4, "s0"], 1]``: ``value`` does the
arithmetic; comparisons are 1 or 0.  A tensor has a name, a dtype (lowc's names: "f32"), sizes and strides in elements.

    {"abi": 2, "name": "model", "lowc": "0.1.0", "numerics": "fast",
     "symbols": [{"name": "s0", "low": 2, "high": 64, "from": [input, dimension, factor, added]}, ...],
     "inputs": [tensor, ...], "weights": [tensor and its key, ...], "outputs": [tensor, or a size], "returns": structure,
     "conditions": [[tree that is not 0, as a person reads it], ...], "weights_file": null or {"name", "size", "sha256"},
     "code": [{"level": "x86-64-v3", "needs": [flags of /proc/cpuinfo], "section": "x86-64-v3.o", "format": "elf",
               "symbol": function, "slots": [["input", 0], ["weight", 3], ["output", 0], ["workspace", 0], ["symbol", 0], ...],
               "workspace": tree, "checks": {number of a step: ops and lines}}, ...]}

``code`` lists the best first; a reader skips formats that it does not know (PTX, one day).  Behind each code lies
``interface``, a checksum of what it was compiled for: its accesses are right for those sizes alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from lowc.standalone.dtypes import NUMBERS

ABI = 2
"""What native code expects of its caller: one pointer to 8-byte slots as ``slots`` lists them; 0 or an error code comes back."""

Tree = int | str | list[Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """``key``: of a weight, its name in the weights' file.  ``device`` is "cpu".  ``value``: of an input that is an integer (0-d,
    i64): what it must be, mostly the symbol that is found in it."""

    name: str
    dtype: str
    shape: tuple[Tree, ...]
    strides: tuple[Tree, ...]
    key: str = ""
    device: str = "cpu"
    value: Tree | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """An integer that is returned."""

    name: str
    value: Tree


ITSELF = -1


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size known when called, ``low`` .. ``high`` (None: no bound).  ``source``: (input, dimension, factor, added): the
    dimension, or the input itself if the dimension is ITSELF, is factor * symbol + added."""

    name: str
    low: int
    high: int | None
    source: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Code:
    """Native code for processors that have all of ``needs``, in ``section``.  ``format``: "elf", an object file, whose function
    ``symbol`` does a call.  ``workspace``: bytes.  ``checks``: the ops of each step that may fail."""

    level: str
    needs: tuple[str, ...]
    section: str
    symbol: str
    slots: tuple[tuple[str, int], ...]
    workspace: Tree
    checks: Mapping[str, str]
    format: str = "elf"


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the top of this file.  ``returns``: the structure of what a call returns: a number of an output, None, ["tuple", ...],
    ["list", ...] or ["dict", {name: ...}].  ``conditions``: on sizes, beyond
    their ranges.  ``code``: the best first."""

    name: str
    symbols: tuple[Symbol, ...]
    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    outputs: tuple[Tensor | Size, ...]
    returns: Any
    conditions: tuple[tuple[Tree, str], ...]
    code: tuple[Code, ...]
    numerics: str
    lowc: str
    weights_file: Mapping[str, Any] | None = None
    abi: int = ABI


def to_json(manifest: Manifest) -> dict[str, Any]:
    """``manifest`` as what ``json`` can write."""
    return asdict(manifest)


def interface(manifest: Manifest, slots: Sequence[tuple[str, int]], workspace: Tree) -> bytes:
    """The 32 bytes behind the code that expects its memory in ``slots``: of all that decides how large that memory is."""
    tensors = [list(map(_interface, part)) for part in (manifest.inputs, manifest.weights, manifest.outputs)]
    symbols = [(s.name, s.low, s.high, s.source) for s in manifest.symbols]
    conditions = [tree for tree, _ in manifest.conditions]
    return sha256(json.dumps([symbols, tensors, conditions, slots, workspace]).encode()).digest()


def _interface(item: Tensor | Size) -> Any:
    if isinstance(item, Size):
        return item.value
    number = () if item.value is None else (item.value,)
    return (item.dtype, item.shape, item.strides, *number)


READING = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading JSON of another form than expected raises."""


def from_json(data: Any) -> Manifest:
    """The manifest that ``to_json`` wrote.  Raises one of READING for anything else."""
    symbols = tuple(
        Symbol(_text(s["name"]), _int(s["low"]), None if s["high"] is None else _int(s["high"]), _four(s["source"]))
        for s in data["symbols"]
    )
    known = frozenset(s.name for s in symbols)
    made = Manifest(
        _text(data["name"]),
        symbols,
        tuple(_tensor(t, known) for t in data["inputs"]),
        tuple(_tensor(t, known) for t in data["weights"]),
        tuple(
            _tensor(t, known) if "dtype" in t else Size(_text(t["name"]), _tree(t["value"], known)) for t in data["outputs"]
        ),
        data["returns"],
        tuple((_tree(tree, known), _text(shown)) for tree, shown in data["conditions"]),
        tuple(_code(c, known) for c in data["code"]),
        _text(data["numerics"]),
        _text(data["lowc"]),
        _file(data["weights_file"]),
        _int(data["abi"]),
    )
    _check(made)
    return made


def _check(made: Manifest) -> None:
    """Raises ValueError if something refers to what is not there."""
    counts = {
        "input": len(made.inputs), "weight": len(made.weights), "output": len(made.outputs), "symbol": len(made.symbols),
        "workspace": 1,
    }  # fmt: skip
    for code in made.code:
        for kind, number in code.slots:
            if not 0 <= number < counts.get(kind, 0) or (kind == "output" and isinstance(made.outputs[number], Size)):
                raise ValueError(f"a slot holds {kind} {number}, which is not there")
    for symbol in made.symbols:
        number, dim, factor, _ = symbol.source
        source = made.inputs[number] if 0 <= number < len(made.inputs) else None
        there = source and (source.value is not None if dim == ITSELF else 0 <= dim < len(source.shape))
        if not there or factor < 1:
            raise ValueError(f"the size {symbol.name} is not where it should be")
    if any(not 0 <= number < len(made.outputs) for number in _leaves(made.returns)):
        raise ValueError("an output is returned that is not there")


def _leaves(structure: Any) -> list[int]:
    if structure is None or type(structure) is int:
        return [] if structure is None else [structure]
    kind, inner = structure
    if (kind, type(inner)) not in (("tuple", list), ("list", list), ("dict", dict)):
        raise ValueError(f"results come in a {kind}")
    return [number for part in (inner.values() if kind == "dict" else inner) for number in _leaves(part)]


def _code(data: Any, known: frozenset[str]) -> Code:
    return Code(
        _text(data["level"]),
        tuple(map(_text, data["needs"])),
        _text(data["section"]),
        _text(data["symbol"]),
        tuple((_text(kind), _int(number)) for kind, number in data["slots"]),
        _tree(data["workspace"], known),
        {_text(step): _text(what) for step, what in data["checks"].items()},
        _text(data["format"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _int(value: Any) -> int:
    """A number that native code can hold."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r} is no number of 64 bits")
    return value


def _file(row: Any) -> Mapping[str, Any] | None:
    if row is None:
        return None
    name = _text(row["name"])
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name of a file")
    return {"name": name, "size": _int(row["size"]), "sha256": _text(row["sha256"])}


def _four(value: Any) -> tuple[int, int, int, int]:
    a, b, c, d = map(_int, value)
    return a, b, c, d


def _tensor(data: Any, known: frozenset[str]) -> Tensor:
    shape, strides = (tuple(_tree(n, known) for n in data[what]) for what in ("shape", "strides"))
    if len(shape) != len(strides):
        raise ValueError(f"{data['name']} has {len(shape)} sizes and {len(strides)} strides")
    if data["dtype"] not in NUMBERS:
        raise ValueError(f"{data['name']} has the unknown dtype {data['dtype']!r}")
    value = data.get("value")
    if value is not None and (data["dtype"] != "i64" or shape):
        raise ValueError(f"{data['name']} is no integer")
    value = None if value is None else _tree(value, known)
    return Tensor(_text(data["name"]), _text(data["dtype"]), shape, strides, _text(data["key"]), _text(data["device"]), value)


def _tree(data: Any, known: frozenset[str]) -> Tree:
    if isinstance(data, str) and data in known:
        return data
    if type(data) is int:
        return _int(data)
    if isinstance(data, list) and len(data) == 3 and data[0] in OPERATIONS:
        return [data[0], _tree(data[1], known), _tree(data[2], known)]
    raise ValueError(f"{data!r} is no size")


OPERATIONS = ("+", "*", "//", "%", "min", "max", "<", "<=", "==", "!=")


def value(tree: Tree, sizes: Mapping[str, int]) -> int:
    """What ``tree`` comes to; divisors below 1 count as 1, as in native code."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return sizes[tree]
    name, a, b = tree[0], value(tree[1], sizes), value(tree[2], sizes)
    if name == "+":
        return a + b
    if name == "*":
        return a * b
    if name in ("//", "%"):
        return a // max(b, 1) if name == "//" else a % max(b, 1)
    if name in ("min", "max"):
        return min(a, b) if name == "min" else max(a, b)
    return int({"<": a < b, "<=": a <= b, "==": a == b, "!=": a != b}[name])


def values(trees: Sequence[Tree], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Each of ``trees``."""
    return tuple([tree if isinstance(tree, int) else value(tree, sizes) for tree in trees])
