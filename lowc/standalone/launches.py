"""What an artifact says of its code for a GPU, as plain data: which GPUs run it, and how its kernels are launched, in order.

    {"capability": 90, "exact": true, "driver": 12000, "cubin": "sm_90.cubin" or "",
     "launches": [{"kernel": name in the PTX, "step": 0, "grid": tree, "threads": [128, 1], "shared": bytes,
                   "params": [["input", 0, 0], ["weight", 3, 0], ["workspace", 0, tree in bytes], ["symbol", 0, 0], ...],
                   "aligned": [positions of params], "maps": [map, ...]}, ...]}

A kernel takes ``params``, then the address of a word for failed checks, the step's number, and its tensor maps, 128 bytes each:

    {"param": 0, "dtype": "bf16", "offset": tree, "sizes": [tree, ...], "strides": [tree, ...], "box": [64, 64]}

as in ``artifact.TensorMap``; with "lower", "upper" and "steps" if it is of places.  All launches of a call go to one stream, one
after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowc.standalone.trees import Tree, number, text, tree, within

MAP_DTYPES = {"f8e4m3": 0, "f8e5m2": 0, "f16": 6, "f32": 7, "bf16": 9, "tf32": 11}
"""Numbers of the driver's CUtensorMapDataType (``artifact.MAP_DTYPES``)."""
ALIGNMENT = 16
"""Bytes: where params that are ``aligned`` must begin, and tensor maps."""
_THREADS, _SHARED, _RANK, _BOX, _CORNER, _STEP = 1024, 1 << 18, 5, 256, 1 << 15, 8
MOST = (1 << 31) - 1
"""Blocks of a launch, and steps."""


@dataclass(frozen=True, slots=True)
class Map:
    """See the top of this file.  ``param``: a position in ``Launching.params``.  ``sizes``: in elements, innermost first;
    ``strides`` in bytes, one less; ``box``: elements that are copied at a time; ``lower``, ``upper``, ``steps``: of places."""

    param: int
    dtype: str
    offset: Tree
    sizes: tuple[Tree, ...]
    strides: tuple[Tree, ...]
    box: tuple[int, ...]
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Launching:
    """One launch.  ``params``: (kind, number, bytes from there); ``grid`` in blocks, ``threads`` of a block along x and y."""

    kernel: str
    step: int
    grid: Tree
    threads: tuple[int, int]
    shared: int
    params: tuple[tuple[str, int, Tree], ...]
    aligned: tuple[int, ...]
    maps: tuple[Map, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """Code for compute ``capability`` (90 for 9.0), which later ones run as well unless ``exact``.  ``driver``: the CUDA version
    (12000 for 12.0) whose driver can read the PTX.  ``cubin``: the section with what ptxas made of it, or ""."""

    capability: int
    exact: bool
    driver: int
    cubin: str
    launches: tuple[Launching, ...]


def read(data: Any, known: frozenset[str], counts: Mapping[str, int]) -> Gpu:
    """``Gpu`` of JSON.  ``known``: names of sizes; ``counts``: how many there are of each kind of param.

    Raises ValueError, KeyError or TypeError for anything else, or what no launch can be."""
    return Gpu(
        within(data["capability"], 10, 999, "the capability"),
        bool(data["exact"]),
        number(data["driver"]),
        text(data["cubin"]),
        tuple(_launching(each, known, counts) for each in data["launches"]),
    )


def _launching(data: Any, known: frozenset[str], counts: Mapping[str, int]) -> Launching:
    x, y = (within(n, 1, _THREADS, "the number of threads") for n in data["threads"])
    within(x * y, 1, _THREADS, "the number of threads")
    params = tuple(_param(each, known, counts) for each in data["params"])
    made = Launching(
        text(data["kernel"]),
        within(data["step"], 0, MOST, "the step"),
        tree(data["grid"], known),
        (x, y),
        within(data["shared"], 0, _SHARED, "the shared memory"),
        params,
        tuple(within(n, 0, len(params) - 1, "param") for n in data["aligned"]),
        tuple(_map(each, known, len(params)) for each in data["maps"]),
    )
    if any(params[n][0] == "symbol" for n in (*made.aligned, *(m.param for m in made.maps))):
        raise ValueError("a size is used as an address")
    return made


def _param(data: Any, known: frozenset[str], counts: Mapping[str, int]) -> tuple[str, int, Tree]:
    kind, place, offset = data
    if not 0 <= number(place) < counts.get(text(kind), 0):
        raise ValueError(f"a param holds {kind} {place}, which is not there")
    if kind != "workspace" and offset != 0:
        raise ValueError(f"a param is {kind} {place} and {offset} bytes")
    return kind, place, tree(offset, known)


def _map(data: Any, known: frozenset[str], params: int) -> Map:
    sizes, strides = (_trees(data[what], known) for what in ("sizes", "strides"))
    box = tuple(within(n, 1, _BOX, "the size of a box") for n in data["box"])
    corners = [tuple(within(n, -_CORNER, _CORNER, "a corner") for n in data.get(what, ())) for what in ("lower", "upper")]
    steps = tuple(within(n, 1, _STEP, "a step") for n in data.get("steps", ()))
    rank = len(sizes)
    if not 1 <= rank <= _RANK or len(strides) != rank - 1 or len(box) != (2 if steps else rank):
        raise ValueError("a tensor map has no rank that is possible")
    if {len(corners[0]), len(corners[1]), len(steps)} != {rank - 2 if steps else 0}:
        raise ValueError("a tensor map of places that is none")
    if data["dtype"] not in MAP_DTYPES:
        raise ValueError(f"a tensor map of dtype {data['dtype']!r}")
    param, offset = within(data["param"], 0, params - 1, "param"), tree(data["offset"], known)
    return Map(param, data["dtype"], offset, sizes, strides, box, corners[0], corners[1], steps)


def _trees(data: Sequence[Any], known: frozenset[str]) -> tuple[Tree, ...]:
    return tuple(tree(each, known) for each in data)
