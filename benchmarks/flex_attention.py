"""``flex_attention`` on a CPU: lowc's own kernel beside torch's formula and, with a C++ compiler, Inductor.

    python -m benchmarks.flex_attention --threads 1 --inductor
    python -m benchmarks.flex_attention --dtype bfloat16 --only document

Eager calls compute the formula with whole matrices of scores; Inductor has a template for CPUs, which reads the blocks of masks.
All sides run in one process, round by round in turn; the table has medians and their ratios.  Each case is a process of its own.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.attention import BLOCK
from benchmarks.report import table
from benchmarks.sides import beside_inductor, failed, inductor_cells, timed, titled

DOCUMENTS = 8


@dataclass(frozen=True)
class Case:
    """Queries [1, H, L, D]; keys and values [1, H / shared, S, D]; ``score`` and ``mask``: names of functions, "" for none."""

    heads: int
    rows: int
    keys: int
    deep: int
    score: str = ""
    mask: str = ""
    shared: int = 1

    def made(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        wide = (1, self.heads // self.shared, self.keys, self.deep)
        return tuple(torch.randn(s).to(dtype) for s in ((1, self.heads, self.rows, self.deep), wide, wide))

    def function(self) -> Callable[..., Tensor]:
        slopes = 2.0 ** -(torch.arange(self.heads) + 1.0)
        documents = torch.randint(0, DOCUMENTS, (self.keys,)).sort().values
        filled = torch.tensor([self.keys // 4])
        scores: dict[str, Any] = {
            "": None,
            "alibi": lambda s, b, h, i, j: s + slopes[h] * (j - i),
            "capped": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
        }
        masks: dict[str, Any] = {
            "causal": lambda b, h, i, j: i >= j,
            "window": lambda b, h, i, j: (i >= j) & (i - j < 128),
            "documents": lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]),
            "filled": lambda b, h, i, j: j < filled[b],
        }
        mask = create_block_mask(masks[self.mask], 1, None, self.rows, self.keys, device="cpu") if self.mask else None
        score, shared = scores[self.score], self.shared > 1

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=shared)

        return attend


CASES: dict[str, Case] = {
    "1x8x1024x64": Case(8, 1024, 1024, 64),
    "1x8x1024x64 causal": Case(8, 1024, 1024, 64, "", "causal"),
    "1x8x1024x64 causal ALiBi": Case(8, 1024, 1024, 64, "alibi", "causal"),
    "1x8x1024x64 causal, capped by tanh": Case(8, 1024, 1024, 64, "capped", "causal"),
    "1x8x1024x64 window of 128": Case(8, 1024, 1024, 64, "", "window"),
    "1x8x1024x64 8 documents, causal": Case(8, 1024, 1024, 64, "", "documents"),
    "1x32x256x128 causal ALiBi, 8 heads of keys": Case(32, 256, 256, 128, "alibi", "causal", 4),
    "decode 1x32x1x2048x128, 8 heads of keys, a quarter filled": Case(32, 1, 2048, 128, "", "filled", 4),
}


def measure(name: str, dtype: torch.dtype, threads: int, inductor: bool) -> dict[str, Any]:
    """Milliseconds of a call, median and least, for "eager", "own" and perhaps "inductor", and the errors against float64."""
    torchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # eager is the formula; else Dynamo is asked each time
    torch.manual_seed(0)
    if threads:
        torch.set_num_threads(threads)
    args = CASES[name].made(dtype)
    torch.manual_seed(1)
    eager = CASES[name].function()
    sides: dict[str, Callable[..., Any]] = {"eager": eager}
    for side in ("own", *(["inductor"] if inductor else [])):  # functions of their own, as Dynamo keeps one result for each
        torch.manual_seed(1)
        given: dict[str, Any] = {"backend": "lowc", "options": {"cache": False}} if side == "own" else {}
        sides[side] = torch.compile(CASES[name].function(), fullgraph=True, **given)
    return timed(sides, args, eager(*(a.double() for a in args)), threads, BLOCK)


def markdown(results: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    head = ["flex_attention", "eager ms", "own ms", "eager / own", "error own / eager"]
    head += ["Inductor ms", "Inductor / own"] if given.inductor else []
    rows: list[list[str]] = []
    for name, row in results.items():
        if "error" in row:
            rows.append(failed(name, row, len(head)))
            continue
        eager, own = row["eager"], row["own"]
        rows.append([name, f"{eager['median_ms']:.3f}", f"{own['median_ms']:.3f}"])
        rows[-1].append(f"{eager['median_ms'] / own['median_ms']:.2f}")
        rows[-1].append(f"{own['error'] / max(eager['error'], 1e-30):.2f}")
        if given.inductor:
            rows[-1] += inductor_cells(row, own)
    return titled(table(head, rows), given)


def main() -> None:
    beside_inductor(__doc__, "benchmarks.flex_attention", CASES, measure, markdown, "flex_attention on the CPU")


if __name__ == "__main__":
    main()
