"""What an artifact says of itself, as plain data and as JSON.

Sizes that are known only when called are ``trees``.  A tensor has a name, a dtype (lowc's names: "f32"), sizes and strides in
elements.

    {"abi": 2, "name": "model", "lowc": "0.1.0", "numerics": "fast",
     "symbols": [{"name": "s0", "low": 2, "high": 64, "from": [input, dimension, factor, added]}, ...],
     "inputs": [tensor, ...], "weights": [tensor and its key, ...], "outputs": [tensor, or a size], "returns": structure,
     "conditions": [[tree that is not 0, as a person reads it], ...], "weights_file": null or {"name", "size", "sha256"},
     "code": [{"level": "x86-64-v3", "needs": [flags of /proc/cpuinfo], "section": "x86-64-v3.o", "format": "elf",
               "symbol": function, "slots": [["input", 0], ["weight", 3], ["output", 0], ["workspace", 0], ["symbol", 0], ...],
               "workspace": tree, "checks": {number of a step: ops and lines}, "gpu": null, or see ``launches``,
               "once": null, or {"symbol": function, "sizes": [bytes, ...]}}, ...]}

``code`` lists the best first, those for GPUs (format "ptx") behind those for CPUs; a reader skips formats that it does not know.
Behind each code lies ``interface``, a checksum of what it was compiled for: its accesses are right for those sizes alone.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from lowc.standalone import launches
from lowc.standalone.dtypes import NUMBERS
from lowc.standalone.trees import Tree, number, text, tree

FORMATS = ("elf", "ptx")
ABI = 2
"""What native code expects of its caller: one pointer to 8-byte slots as ``slots`` lists them; 0 or an error code comes back."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """``key``: of a weight, its name in the weights' file.  ``device`` is "cpu".  ``value``: of an input that is an integer (0-d,
    i64): what it must be, mostly the symbol that is found in it.  ``drawn``: of the input that is the seed of random numbers
    (i64, one element): a caller need not give it, the system then does."""

    name: str
    dtype: str
    shape: tuple[Tree, ...]
    strides: tuple[Tree, ...]
    key: str = ""
    device: str = "cpu"
    value: Tree | None = None
    drawn: bool = False


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
class Once:
    """What is made of the weights once, before the first call: memory of ``sizes`` bytes, slots ("made", number), which the
    function ``symbol`` of the same slots fills; it reads nothing but weights."""

    symbol: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Code in ``section``.  ``workspace``: bytes.  ``checks``: the ops of each step that may fail.

    ``format`` "elf": an object file for processors that have all of ``needs``; its function ``symbol`` does a call on ``slots``.
    "ptx": text for GPUs (``level`` is "sm_90"); ``gpu`` says which, and what a call launches."""

    level: str
    needs: tuple[str, ...]
    section: str
    symbol: str
    slots: tuple[tuple[str, int], ...]
    workspace: Tree
    checks: Mapping[str, str]
    format: str = "elf"
    gpu: launches.Gpu | None = None
    once: Once | None = None


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


CHECK_BYTES = 32


def interface(manifest: Manifest, code: Code) -> bytes:
    """The 32 bytes behind ``code``: of all that decides where its memory is and how large it is."""
    tensors = [list(map(_interface, part)) for part in (manifest.inputs, manifest.weights, manifest.outputs)]
    symbols = [(s.name, s.low, s.high, s.source) for s in manifest.symbols]
    conditions = [condition for condition, _ in manifest.conditions]
    more = [asdict(each) for each in (code.gpu, code.once) if each is not None]
    return sha256(json.dumps([symbols, tensors, conditions, code.slots, code.workspace, *more]).encode()).digest()


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
        Symbol(text(s["name"]), number(s["low"]), None if s["high"] is None else number(s["high"]), _four(s["source"]))
        for s in data["symbols"]
    )
    known = frozenset(s.name for s in symbols)
    if len(known) != len(symbols):
        raise ValueError("two sizes have one name")
    counts = {"symbol": len(symbols), "workspace": 1} | {part[:-1]: len(data[part]) for part in ("inputs", "weights", "outputs")}
    made = Manifest(
        text(data["name"]),
        symbols,
        tuple(_tensor(t, known) for t in data["inputs"]),
        tuple(_tensor(t, known) for t in data["weights"]),
        tuple(
            _tensor(t, known) if "dtype" in t else Size(text(t["name"]), tree(t["value"], known)) for t in data["outputs"]
        ),
        data["returns"],
        tuple((tree(condition, known), text(shown)) for condition, shown in data["conditions"]),
        tuple(_code(c, known, counts) for c in data["code"]),
        text(data["numerics"]),
        text(data["lowc"]),
        _file(data["weights_file"]),
        number(data["abi"]),
    )
    _check(made)
    return made


def _check(made: Manifest) -> None:
    """Raises ValueError if something refers to what is not there."""
    for code in made.code:
        if code.format in FORMATS and (code.format == "ptx") != (code.gpu is not None):
            raise ValueError(f"the code for {code.level} does not say how it is launched")
        params = [(kind, n) for launch in code.gpu.launches for kind, n, _ in launch.params] if code.gpu else []
        for kind, n in (*code.slots, *params):
            if (kind == "output" and isinstance(made.outputs[n], Size)) or (kind == "input" and made.inputs[n].value is not None):
                raise ValueError(f"code takes {kind} {n} for a tensor, which it is not")
    for symbol in made.symbols:
        n, dim, factor, _ = symbol.source
        source = made.inputs[n] if 0 <= n < len(made.inputs) else None
        there = source and (source.value is not None if dim == ITSELF else 0 <= dim < len(source.shape))
        if not there or factor < 1:
            raise ValueError(f"the size {symbol.name} is not where it should be")
    if any(not 0 <= n < len(made.outputs) for n in _leaves(made.returns)):
        raise ValueError("an output is returned that is not there")


def _leaves(structure: Any) -> list[int]:
    if structure is None or type(structure) is int:
        return [] if structure is None else [structure]
    kind, inner = structure
    if (kind, type(inner)) not in (("tuple", list), ("list", list), ("dict", dict)):
        raise ValueError(f"results come in a {kind}")
    return [n for part in (inner.values() if kind == "dict" else inner) for n in _leaves(part)]


def _code(data: Any, known: frozenset[str], counts: Mapping[str, int]) -> Code:
    """An entry of ``code``; of one in a format that is not known, only what messages say."""
    if text(data["format"]) not in FORMATS:
        return Code(text(data["level"]), (), "", "", (), 0, {}, data["format"])
    once = _once(data["once"]) if data.get("once") else None
    counts = {**counts, "made": len(once.sizes) if once else 0}
    return Code(
        text(data["level"]),
        tuple(map(text, data["needs"])),
        text(data["section"]),
        text(data["symbol"]),
        tuple(_slot(kind, n, counts) for kind, n in data["slots"]),
        tree(data["workspace"], known),
        {text(step): text(what) for step, what in data["checks"].items()},
        data["format"],
        launches.read(data["gpu"], known, counts) if data.get("gpu") else None,
        once,
    )


def _once(data: Any) -> Once:
    sizes = tuple(map(number, data["sizes"]))
    if min(sizes, default=0) < 0:
        raise ValueError("what is made once has a size below 0")
    return Once(text(data["symbol"]), sizes)


def _slot(kind: Any, place: Any, counts: Mapping[str, int]) -> tuple[str, int]:
    if not 0 <= number(place) < counts.get(text(kind), 0):
        raise ValueError(f"a slot holds {kind} {place}, which is not there")
    return kind, place


def _file(row: Any) -> Mapping[str, Any] | None:
    if row is None:
        return None
    name = text(row["name"])
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name of a file")
    return {"name": name, "size": number(row["size"]), "sha256": text(row["sha256"])}


def _four(value: Any) -> tuple[int, int, int, int]:
    a, b, c, d = map(number, value)
    return a, b, c, d


def _tensor(data: Any, known: frozenset[str]) -> Tensor:
    shape, strides = (tuple(tree(n, known) for n in data[what]) for what in ("shape", "strides"))
    if len(shape) != len(strides):
        raise ValueError(f"{data['name']} has {len(shape)} sizes and {len(strides)} strides")
    if data["dtype"] not in NUMBERS:
        raise ValueError(f"{data['name']} has the unknown dtype {data['dtype']!r}")
    value = data.get("value")
    if value is not None and (data["dtype"] != "i64" or shape):
        raise ValueError(f"{data['name']} is no integer")
    value = None if value is None else tree(value, known)
    drawn = bool(data.get("drawn", False))
    if drawn and (data["dtype"], shape) != ("i64", (1,)):
        raise ValueError(f"{data['name']} is no seed")
    return Tensor(text(data["name"]), text(data["dtype"]), shape, strides, text(data["key"]), text(data["device"]), value, drawn)
