"""``flex_attention`` on a GPU: lowc's own kernel beside Inductor's template (Triton) and the formula, in turn in one process.

    python -m benchmarks.gpu_flex_attention [--gradients] [--check] [--checks D64/ALiBi] [--only D128,T4096/D64] [--rounds 7]
        [--name h200_flex_attention]

``--check`` compares with float64 first, over functions, lengths, widths of heads, shared heads and lengths of the call, and times
nothing if something is wrong.  Times are of CUDA graphs of some calls each, sides in turn, each a burst after a pause; the median
of the rounds counts.  The formula is torch's own, with whole matrices of scores: what a backend gets that leaves the op alone.
It cannot be in a CUDA graph, and is timed by itself, up to ``DENSE`` queries.  With ``--gradients`` all that is of the backward
pass: gradients of queries, keys and values from that of the result.  Results: ``benchmarks/results/NAME.md``.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu_attention import Ways, qkv
from benchmarks.gpu_matmul import (
    BURST,
    DTYPES,
    RESULTS,
    Graph,
    arguments,
    burst,
    error,
    in_turn,
    random,
    replayed,
)
from benchmarks.report import table

CALLS = 2  # of a CUDA graph
DENSE = 4096
WINDOW, DOCUMENTS = 512, 8
OPTIONS = {"strict_errors": True, "stream": "caller", "cache": False}
Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """Queries [B, H, L, D]; keys and values [B, H / shared, S, D]; ``score`` and ``mask``: names of functions, "" for none."""

    batch: int
    heads: int
    rows: int
    deep: int
    score: str = ""
    mask: str = ""
    keys: int = 0
    shared: int = 1
    lse: bool = False

    def args(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return qkv(self.batch, self.heads, self.rows, self.deep, dtype, keys=self.keys, shared=self.heads // self.shared)

    def function(self) -> Function:
        rows, keys = self.rows, self.keys or self.rows
        torch.manual_seed(1)
        slopes = 2.0 ** -(torch.arange(self.heads, device="cuda") % 8 + 1.0)
        documents = torch.randint(0, DOCUMENTS, (max(rows, keys),), device="cuda").sort().values
        bias = torch.randn(2 * max(rows, keys), device="cuda", dtype=torch.bfloat16)
        filled = torch.tensor([keys // 3], device="cuda").expand(self.batch)
        scores: dict[str, Function | None] = {
            "": None,
            "ALiBi": lambda s, b, h, i, j: s + slopes[h] * (j - i),
            "capped": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
            "relative": lambda s, b, h, i, j: s + bias[i - j + keys],
            "relu": lambda s, b, h, i, j: torch.relu(s),
            "sine": lambda s, b, h, i, j: torch.sin(s),
            "of documents": lambda s, b, h, i, j: s + bias[documents[i] * DOCUMENTS + documents[j]],
        }
        masks: dict[str, Function] = {
            "causal": lambda b, h, i, j: i >= j,
            "late": lambda b, h, i, j: i - 100 >= j,
            "window": lambda b, h, i, j: (i >= j) & (i - j < WINDOW),
            "both sides": lambda b, h, i, j: (i - j < 70) & (j - i < 45),
            "documents": lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]),
            "prefix": lambda b, h, i, j: (i >= j) | (j < 70),
            "filled": lambda b, h, i, j: (j < filled[b]) & (i < 150),
        }
        mask = create_block_mask(masks[self.mask], None, None, rows, keys, device="cuda") if self.mask else None
        score, shared, lse = scores[self.score], self.shared > 1, self.lse

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=shared, return_lse=lse)

        return attend


def checks(dtype: torch.dtype) -> dict[str, Case]:
    found: dict[str, Case] = {}
    if dtype == torch.float16:
        return {f"D{deep} T700": Case(1, 3, 700, deep, "ALiBi", "window") for deep in (64, 128)}
    for deep in (64, 128):
        for mask in ("causal", "window", "documents"):
            found[f"D{deep} T1000 {mask}"] = Case(2, 3, 1000, deep, "", mask)
        for score in ("ALiBi", "capped"):
            found[f"D{deep} T1000 causal, {score}"] = Case(2, 3, 1000, deep, score, "causal")
    for score, mask in (("relative", "both sides"), ("of documents", "late"), ("capped", "prefix"), ("", "filled")):
        found[f"D64 T333 {mask}, {score}"] = Case(2, 2, 333, 64, score, mask, lse=mask == "late")
    found["D128 T129 S700, 2 heads of keys"] = Case(2, 4, 129, 128, "ALiBi", "both sides", keys=700, shared=2)
    found["D96 T700 S129"] = Case(1, 2, 700, 96, "relative", "window", keys=129)
    found["D256 T300"] = Case(1, 2, 300, 256, "ALiBi", "causal")
    return found


def check(dtype: torch.dtype, gradients: bool, wanted: list[str]) -> int:
    """How many checks fail, of those whose names have one of ``wanted`` (if there are any); prints those."""
    failed, began = 0, time.perf_counter()
    made = {n: c for n, c in checks(dtype).items() if not wanted or any(part in n for part in wanted)}
    if gradients:
        made = {n: c for n, c in made.items() if c.deep <= 128}  # wider ones are torch's
    for name, case in made.items():
        torch._dynamo.reset()
        function, args = case.function(), case.args(dtype)
        if gradients:
            function = differentiated(function, case.lse)
        exact, eager = (clean(function(*a)) for a in ([x.double() for x in args], args))
        ways = Ways("gradients" if gradients else "choices")
        try:
            with ways:
                options = {**OPTIONS, "check": True}
                if gradients:
                    inner = torch.compile(case.function(), backend="lowc", fullgraph=True, options=options)
                    compiled: Function = differentiated(inner, case.lse)
                else:
                    compiled = torch.compile(function, backend="lowc", fullgraph=True, options=options)
                ours = max(error(clean(compiled(*args)), exact) for _ in range(3))
                torch.cuda.synchronize()
        except Exception as problem:
            print(f"FAIL {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            failed += 1
            if "CUDA" in str(problem):
                break  # the context is gone
            continue
        theirs = error(eager, exact)
        print(f"{name}: {ours:.2e}, {theirs:.2e}", flush=True)
        if not ways.found or not ours <= max(1.5 * theirs, 2 * torch.finfo(dtype).eps):
            print(f"FAIL {name}: error {ours:.2e}, the formula's {theirs:.2e}{'' if ways.found else ', not our own'}", flush=True)
            failed += 1
    print(f"{dtype}: {len(made) - failed} of {len(made)} checks pass, {time.perf_counter() - began:.0f} s", flush=True)
    return failed


def differentiated(function: Function, lse: bool) -> Function:
    """The gradients of random sums of what ``function`` gives."""

    def gradients(*args: Tensor) -> tuple[Tensor, ...]:
        args = tuple([a.detach().requires_grad_() for a in args])
        with torch.enable_grad():
            found = clean(function(*args))
            generator = torch.Generator("cuda").manual_seed(2)
            wanted = [torch.randn(x.shape, device="cuda", generator=generator).bfloat16().to(x.dtype) for x in found]
            return torch.autograd.grad(found[: 1 + lse], args, wanted)

    return gradients


def clean(found: Any) -> tuple[Tensor, ...]:
    """Results as a tuple; 0 for the logarithms of rows that see nothing."""
    several = found if isinstance(found, tuple) else (found,)
    return tuple([torch.where(x.isneginf(), 0.0, x) for x in several])


# ---------------------------------------------------------------- times


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    kinds = (("", "causal"), ("ALiBi", "causal"), ("capped", "causal"), ("", "window"), ("", "documents"))
    for batch, heads, rows in ((4, 16, 1024), (2, 16, 4096), (1, 16, 16384)):
        for deep in (128, 64):
            for score, mask in kinds:
                name = f"B{batch} H{heads} T{rows} D{deep} {mask}{', ' * bool(score)}{score}"
                found[name] = Case(batch, heads, rows, deep, score, mask)
    return found


def measure(case: Case, dtype: torch.dtype, rounds: int, gradients: bool) -> tuple[dict[str, float], float]:
    """Milliseconds by side; the relative difference of lowc's result to Inductor's."""
    if gradients:
        return measure_gradients(case, dtype, rounds)
    args = case.args(dtype)
    torch._dynamo.reset()
    sides = {"own": torch.compile(case.function(), backend="lowc", options=OPTIONS, dynamic=False)}
    sides["Inductor"] = torch.compile(case.function(), dynamic=False)
    results = {name: side(*args) for name, side in sides.items()}
    apart = error(results["own"], results["Inductor"].double())
    graphs: dict[str, Graph] = {name: replayed(lambda side=side: side(*args), CALLS) for name, side in sides.items()}
    found = in_turn(graphs, rounds)
    if case.rows <= DENSE:
        found["formula"] = dense(case.function(), args)
    return found, apart


def measure_gradients(case: Case, dtype: torch.dtype, rounds: int) -> tuple[dict[str, float], float]:
    """The same of the backward pass."""
    args = tuple([a.requires_grad_() for a in case.args(dtype)])
    grad = random(*args[0].shape[:3], args[2].shape[3], dtype=dtype)
    torch._dynamo.reset()
    sides: dict[str, Function] = {"own": torch.compile(case.function(), backend="lowc", options=OPTIONS, dynamic=False)}
    sides["Inductor"] = torch.compile(case.function(), dynamic=False)
    graphs: dict[str, Graph] = {}
    results: dict[str, tuple[Tensor, ...]] = {}
    with torch.enable_grad():
        for name, side in sides.items():
            graphs[name], results[name] = backward(side, args, grad)
        apart = error(results["own"], tuple([x.double() for x in results["Inductor"]]))
        found = in_turn(graphs, rounds)
        if case.rows <= DENSE:
            del graphs, results
            out = case.function()(*args)
            found["formula"] = dense(lambda: torch.autograd.grad(out, args, grad, retain_graph=True), ())
    return found, apart


def backward(function: Function, args: tuple[Tensor, ...], grad: Tensor) -> tuple[Graph, tuple[Tensor, ...]]:
    """A CUDA graph of the backward pass of ``function``, and what it gives."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # where the forward pass was is where autograd has the backward pass
        out = function(*args)
        found = [torch.autograd.grad(out, args, grad, retain_graph=True) for _ in range(3)][-1]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = torch.autograd.grad(out, args, grad, retain_graph=True)
    replays = max(1, round(BURST / max(burst(graph, 1, 2), 1e-3)))
    return Graph(graph, 1, replays, lambda: (out, kept)), found


def dense(function: Function, args: tuple[Tensor, ...]) -> float:
    """Milliseconds of a call."""
    times: list[float] = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function(*args)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)


def main() -> None:
    given = arguments()
    dtype = DTYPES[given.dtype]
    torchs._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # eager is the formula; else Dynamo is asked each time
    functorch.donated_buffer = False  # backward passes are repeated
    with torch.no_grad():
        wanted = [part for part in given.checks.split("/") if part]
        if (given.check or wanted) and sum(check(d, given.gradients, wanted) for d in (torch.bfloat16, torch.float16)):
            sys.exit(1)
        lines: list[list[str]] = []
        for name, case in cases().items():
            if given.only and not any(all(part in name for part in either.split(",")) for either in given.only.split("/")):
                continue
            try:
                found, apart = measure(case, dtype, given.rounds, given.gradients)
            except Exception as problem:
                print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
                continue
            micros = [f"{found[side] * 1e3:.1f}" if side in found else "" for side in ("own", "Inductor", "formula")]
            ratios = [f"{found[side] / found['own']:.2f}" if side in found else "" for side in ("Inductor", "formula")]
            line = [name, *micros, *ratios]
            print("  ".join(line), f" difference {apart:.1e}", flush=True)
            if not apart < 1e-2:
                sys.exit(f"{name}: results differ")
            lines.append(line)
    what = "gradients of flex_attention" if given.gradients else "flex_attention"
    text = table([what, "own us", "Inductor us", "formula us", "Inductor / own", "formula / own"], lines)
    print(text)
    if given.name:
        title = f"# flex_attention on {torch.cuda.get_device_name()}, {given.dtype}"
        (RESULTS / f"{given.name}.md").write_text(f"{title}\n\n{text}\n")


if __name__ == "__main__":
    main()
