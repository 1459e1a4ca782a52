"""flex_attention of few queries by a cache in pages on a GPU, beside Inductor's, in turn in one process.

    python -m benchmarks.gpu_pages [--only B1,K8192] [--rounds 7] [--name h200_pages]

Masks are those of torch's ``PagedAttention``: all sequences have pages of 128 keys in one cache, given out in turns, and a table
tells whose a page is.  Results are compared with float64 first.  Times are of CUDA graphs of some calls each, the median of the
rounds.  ``one range``: lowc's own where ranges of keys are not computed apart.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu_attention import OPTIONS, qkv
from benchmarks.gpu_matmul import DTYPES, RESULTS, Graph, arguments, error, in_turn, replayed
from benchmarks.report import table
from lowc.lowering import few_queries

PAGE, DEEP, HEADS, SHARED = 128, 128, 32, 8
CALLS = 4  # of a CUDA graph
SIDES = ("own", "one range", "Inductor")
Size = tuple[int, int, int]  # batch, queries, keys of each


def cases() -> dict[str, Size]:
    return {f"B{b} Q{q} K{k}": (b, q, k) for q in (1, 16) for b in (1, 2, 4, 16) for k in (2048, 8192)}


def paged(size: Size, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], Callable[..., Any], Tensor]:
    """(queries and caches, attention by the table, the result in float64)."""
    batch, queries, keys = size
    q, k, v = qkv(batch, HEADS, queries, DEEP, dtype, keys=keys, shared=SHARED)
    held = batch * keys // PAGE
    caches = [torch.zeros(1, SHARED, held * PAGE, DEEP, device="cuda", dtype=dtype) for _ in range(2)]
    pages = PagedAttention(held, PAGE, batch, device="cuda")
    for filled in range(PAGE, keys + 1, PAGE):
        for b in range(batch):
            pages.reserve(torch.tensor(b, device="cuda"), torch.tensor(filled, device="cuda"))
    numbers = torch.arange(keys, device="cuda").expand(batch, keys)
    pages.assign(torch.arange(batch, device="cuda"), numbers, k, v, caches[0], caches[1])
    place = torch.full((batch,), keys - 1, device="cuda")
    seen = create_block_mask(lambda b, h, i, j: j <= place[b], batch, None, queries, keys, BLOCK_SIZE=(128, PAGE))
    by_pages = pages.convert_logical_block_mask(seen)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=by_pages, enable_gqa=True)

    wide = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), enable_gqa=True)
    return (q, *caches), function, wide


def measure(size: Size, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Milliseconds by side."""
    args, function, wide = paged(size, dtype)
    graphs: dict[str, Graph] = {}
    limit = few_queries.MOST
    for side in SIDES:
        torch._dynamo.reset()
        few_queries.MOST = 1 if side == "one range" else limit
        given = {} if side == "Inductor" else {"backend": "lowc", "options": OPTIONS}
        try:
            compiled: Any = torch.compile(function, dynamic=False, **given)
            off = error(compiled(*args), wide)
        finally:
            few_queries.MOST = limit
        if not off < 1e-2:
            sys.exit(f"{size}, {side}: error {off:.1e}")
        graphs[side] = replayed(lambda compiled=compiled: compiled(*args), CALLS)
    return in_turn(graphs, rounds)


def main() -> None:
    given = arguments()
    lines: list[list[str]] = []
    with torch.no_grad():
        for name, size in cases().items():
            if given.only and not all(part in name for part in given.only.split(",")):
                continue
            found = measure(size, DTYPES[given.dtype], given.rounds)
            line = [name, *(f"{found[side] * 1e3:.1f}" for side in SIDES), f"{found['Inductor'] / found['own']:.2f}"]
            print("  ".join(line), flush=True)
            lines.append(line)
    if not lines:
        return
    text = table([f"pages, {HEADS} heads by {SHARED}, us", *SIDES, "Inductor / own"], lines)
    print(text)
    if given.name:
        (RESULTS / f"{given.name}.md").write_text(f"# Keys in pages on {torch.cuda.get_device_name()}, {given.dtype}\n\n{text}\n")


if __name__ == "__main__":
    main()
