"""Attention of few queries on a GPU, as in decoding: lowc's own kernels beside what torch has, in turn in one process.

    python -m benchmarks.gpu_decode [--ways] [--inductor] [--only B1,K8192] [--rounds 7] [--name h200_decode]

``scaled_dot_product_attention`` beside cuDNN's, flash and memory-efficient attention; with ``--inductor`` also
``flex_attention``, whose mask compares keys with a place that a tensor tells, beside Inductor's.  Results are compared with
float64 first, for the first and the last batch.  Times are of CUDA graphs of some calls each, sides in turn, each a burst after a
pause; the median of the rounds counts.  GB/s are of keys and values alone.  Caches of up to some 50 MB are in the GPU's own, for
all sides.  ``--ways``: times for each number of ranges of keys, in place of the table.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu_attention import OPTIONS, qkv
from benchmarks.gpu_matmul import DTYPES, RESULTS, Graph, arguments, error, in_turn, replayed
from benchmarks.report import table
from lowc.lowering import few_queries

LIBRARIES = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
SIDES = ("own", *LIBRARIES, "own flex", "Inductor flex")
CALLS = 4  # of a CUDA graph
Size = tuple[int, int, int, int, int, int]  # batch, heads of queries, of keys, queries, keys, width of a head


def cases() -> dict[str, Size]:
    found: dict[str, Size] = {}
    for queries in (1, 16):
        for batch in (1, 8):
            for shared in (8, 32):
                for keys in (2048, 8192, 32768):
                    found[f"B{batch} H32/{shared} Q{queries} K{keys} D128"] = (batch, 32, shared, queries, keys, 128)
    return found


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def flex(size: Size) -> Callable[..., Any]:
    """Queries are the last of the places that a cache has."""
    batch, heads, shared, queries, keys, _ = size
    place = torch.full((batch,), keys - 1, device="cuda")
    seen = create_block_mask(lambda b, h, i, j: j <= place[b], batch, None, queries, keys)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=seen, enable_gqa=heads != shared)

    return function


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(*(torch.stack((x[0], x[-1])).double() for x in (q, k, v)))


def own(q: Tensor, k: Tensor, v: Tensor) -> Graph:
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="lowc", options=OPTIONS, dynamic=False)
    return replayed(lambda: compiled(q, k, v), CALLS)


def measure(size: Size, dtype: torch.dtype, rounds: int, inductor: bool) -> dict[str, float]:
    """Milliseconds by side; those that have no kernel for it are left out."""
    batch, heads, shared, queries, keys, deep = size
    q, k, v = qkv(batch, heads, queries, deep, dtype, keys=keys, shared=shared)
    wide = exact(q, k, v)
    torch._dynamo.reset()
    sides: dict[str, tuple[Any, Callable[..., Any]]] = {
        "own": (nullcontext(), torch.compile(attend, backend="lowc", options=OPTIONS, dynamic=False)),
        **{name: (sdpa_kernel(backend), attend) for name, backend in LIBRARIES.items()},
    }
    if inductor:
        sides["own flex"] = nullcontext(), torch.compile(flex(size), backend="lowc", options=OPTIONS, dynamic=False)
        sides["Inductor flex"] = nullcontext(), torch.compile(flex(size), dynamic=False)
    graphs: dict[str, Graph] = {}
    for name, (context, side) in sides.items():
        try:
            with context:
                result = side(q, k, v)
                off = error(torch.stack((result[0], result[-1])), wide)
                if not off < 1e-2 and name.startswith("own"):
                    sys.exit(f"{size}, {name}: error {off:.1e}")
                graphs[name] = replayed(lambda side=side: side(q, k, v), CALLS)
        except RuntimeError as problem:
            print(f"{size}, {name}: {str(problem).splitlines()[0][:100]}", flush=True)
    return in_turn(graphs, rounds)


def ways(size: Size, dtype: torch.dtype, rounds: int) -> str:
    """Microseconds by the number of ranges."""
    batch, heads, shared, queries, keys, deep = size
    args = qkv(batch, heads, queries, deep, dtype, keys=keys, shared=shared)
    chosen = few_queries._time
    graphs: dict[str, Graph] = {"chosen": own(*args)}
    tiles = -(-keys // few_queries.KEYS)
    for count in sorted({-(-tiles // -(-tiles // n)) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= tiles}):

        def forced(tiles: int, size: int, *_: Any, count: int = count) -> float:
            return abs(-(-tiles // size) - count)

        few_queries._time = forced
        try:
            graphs[str(count)] = own(*args)
        finally:
            few_queries._time = chosen
    return " · ".join(f"{side} {ms * 1e3:.1f}" for side, ms in in_turn(graphs, rounds).items())


def main() -> None:
    given = arguments()
    dtype = DTYPES[given.dtype]
    lines: list[list[str]] = []
    with torch.no_grad():
        for name, size in cases().items():
            if given.only and not all(part in name for part in given.only.split(",")):
                continue
            if given.ways:
                print(f"{name}: {ways(size, dtype, given.rounds)}", flush=True)
                continue
            found = measure(size, dtype, given.rounds, given.inductor)
            batch, _, shared, _, keys, deep = size
            rate = 2 * batch * shared * keys * deep * dtype.itemsize / found["own"] / 1e6
            best = min(ms for side, ms in found.items() if side in LIBRARIES)
            times = [f"{found[side] * 1e3:.1f}" if side in found else "" for side in SIDES]
            line = [name, *times, f"{rate:.0f}", f"{best / found['own']:.2f}"]
            print("  ".join(line), flush=True)
            lines.append(line)
    if not lines:
        return
    text = table(["attention, us", *SIDES, "own GB/s", "best library / own"], lines)
    print(text)
    if given.name:
        (RESULTS / f"{given.name}.md").write_text(f"# Few queries on {torch.cuda.get_device_name()}, {given.dtype}\n\n{text}\n")


if __name__ == "__main__":
    main()
