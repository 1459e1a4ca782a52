"""Matrix products on a GPU: lowc's own kernels beside the library's (cuBLAS through ATen), in turn in one process.

    python -m benchmarks.gpu_matmul [--check] [--ways] [--only 4096,bmm] [--dtype bf16] [--rounds 7] [--name h200]

``--check`` compares with float64 first, over layouts, odd sizes, epilogues, batches, and sizes of the call, and times nothing if
something is wrong.  Times are of CUDA graphs of some calls each (what the host does is not in them), sides in turn, each a burst
after a pause; the median of the rounds counts.  Results: ``benchmarks/results/NAME.md``.

``--ways`` times the ways of ``choose_tensor_cores.WAYS`` that the model of costs has near the best one, each beside its
prediction (in spans), and says which constants of the model would fit what was measured.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.report import table
from lowc.scheduler import choose_tensor_cores as choose

ROUNDS = 7
PAUSE = 0.05  # seconds for the card to cool
BURST = 8.0  # milliseconds
RESULTS = Path(__file__).parent / "results"
Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


def random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def laid(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> Tensor:
    """Random values: "n" contiguous, "t" transposed, "g" with a gap behind each row."""
    if layout == "t":
        return random(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT
    if layout == "g":
        return random(*shape[:-1], shape[-1] + 8, dtype=dtype)[..., : shape[-1]]
    return random(*shape, dtype=dtype)


# ---------------------------------------------------------------- values


def checks(dtype: torch.dtype) -> dict[str, tuple[Case, dict[str, Any]]]:
    """(function, arguments) and keywords of ``torch.compile``, by name."""
    found: dict[str, tuple[Case, dict[str, Any]]] = {}

    def add(name: str, function: Callable[..., Any], *args: Tensor, **given: Any) -> None:
        found[name] = (function, args), given

    def mm(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    shapes = [(128, 128, 64), (256, 512, 512), (333, 77, 129), (17, 40, 24)]
    if dtype == torch.bfloat16:
        shapes += [(1000, 1000, 1000), (129, 257, 65), (2, 3, 5), (4096, 64, 8)]
    for m, n, k in shapes:
        for form in ("nn", "nt", "tn", "tt", "gg"):
            add(f"{m}x{n}x{k} {form}", mm, laid((m, k), form[0], dtype), laid((k, n), form[1], dtype))
    x, w, b = random(300, 256, dtype=dtype), random(520, 256, dtype=dtype), random(520, dtype=dtype)
    r = random(300, 520, dtype=dtype)
    add("linear", F.linear, x, w, b)
    add("linear gelu + residual", lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r)
    add("linear silu", lambda x, w, b: F.silu(F.linear(x, w, b)), x, w, b)
    add("relu(x @ y) * 2, f32 out", lambda x, w: (x @ w.t()).relu().float() * 2, x, w)
    add("two results", lambda x, w, b: ((y := F.linear(x, w, b)), y.sigmoid()), x, w, b)
    add("addmm alpha beta", lambda r, x, w: torch.addmm(r, x, w.t(), beta=0.5, alpha=2.0), r, x, w)
    add("bmm", torch.bmm, random(6, 200, 72, dtype=dtype), random(6, 72, 136, dtype=dtype))
    add("bmm t", lambda x, y: torch.bmm(x, y.mT), random(6, 200, 72, dtype=dtype), random(6, 136, 72, dtype=dtype))
    add("bmm odd", torch.bmm, random(5, 31, 33, dtype=dtype), random(5, 33, 35, dtype=dtype))
    heads = random(2, 64, 4, 32, dtype=dtype)
    add("heads", lambda q, k: q.transpose(1, 2) @ k.transpose(1, 2).mT, heads, random(2, 64, 4, 32, dtype=dtype))
    add("3-d linear", F.linear, random(3, 50, 64, dtype=dtype), random(96, 64, dtype=dtype))
    add("two layers", lambda x, w, v: F.relu(x @ w.t()) @ v, x, w, random(520, 264, dtype=dtype))
    add("dynamic", lambda x, w, b: F.silu(F.linear(x, w, b)), x, w, b, dynamic=True)
    for form in ("nn", "nt", "tn", "tt"):  # several tiles for each block, by teams of threads too
        add(f"2600x1100x200 {form}", mm, laid((2600, 200), form[0], dtype), laid((200, 1100), form[1], dtype))
    for m, n, k in ((5000, 640, 96), (64, 9000, 136), (40, 1000, 2048), (700, 1500, 328), (3072, 4096, 64)):
        add(f"{m}x{n}x{k} silu", lambda x, y: F.silu(x @ y), laid((m, k), "n", dtype), laid((k, n), "t", dtype))
    wide = random(4000, 128, dtype=dtype), random(1600, 128, dtype=dtype), random(1600, dtype=dtype)
    add("gelu + residual, many tiles", lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, *wide, random(4000, 1600, dtype=dtype))
    add("bf16 and f32 out, many tiles", lambda x, w, b: ((y := F.linear(x, w, b)), y.float() * 2), *wide)
    add("many small", torch.bmm, random(300, 100, 40, dtype=dtype), random(300, 40, 264, dtype=dtype))
    add("persistent", mm, laid((3000, 192), "n", dtype), laid((192, 5000), "t", dtype))
    add("reduce-overhead", lambda x, w, b: F.silu(F.linear(x, w, b)), x, w, b, mode="reduce-overhead")
    return found


def error(found: Any, exact: Any) -> float:
    """The largest relative error (Frobenius) of the results; infinite where something is no number."""
    worst = 0.0
    many = found if isinstance(found, tuple) else (found,)
    for a, b in zip(many, exact if isinstance(exact, tuple) else (exact,), strict=True):
        if not bool(torch.isfinite(a).all()):
            return float("inf")
        worst = max(worst, float((a.double() - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def check(dtype: torch.dtype) -> int:
    """How many checks fail; prints those."""
    failed = total = 0
    for name, ((function, args), given) in checks(dtype).items():
        torch._dynamo.reset()
        exact = function(*(a.double() for a in args))
        eager = error(function(*args), exact)
        options = {"matmul": "own", "strict_errors": True, "check": True}
        total += 1
        try:
            if "mode" in given:  # torch.compile takes a mode or options
                os.environ["LOWC_MATMUL"] = "own"
                compiled = torch.compile(function, backend="lowc", fullgraph=True, **given)
            else:
                compiled = torch.compile(function, backend="lowc", fullgraph=True, options=options, **given)
            ours = 0.0
            for _ in range(4):
                ours = max(ours, error(compiled(*args), exact))
            torch.cuda.synchronize()
            if given.get("dynamic"):
                for m in (2, 7, 128, 130, 1111):
                    x = random(m, args[0].shape[1], dtype=dtype)
                    ours = max(ours, error(compiled(x, *args[1:]), function(x.double(), *(a.double() for a in args[1:]))))
        except Exception as problem:
            print(f"FAIL {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            failed += 1
            if "CUDA" in str(problem):
                break  # the context is gone
            continue
        finally:
            os.environ.pop("LOWC_MATMUL", None)
        if not ours <= max(1.5 * eager, 2 * torch.finfo(dtype).eps):
            print(f"FAIL {name}: error {ours:.2e}, the library's {eager:.2e}", flush=True)
            failed += 1
    print(f"{dtype}: {total - failed} of {total} checks pass", flush=True)
    return failed


# ---------------------------------------------------------------- times


def cases(dtype: torch.dtype) -> dict[str, tuple[Case, float]]:
    """(function, arguments) and its floating-point operations, by name."""
    found: dict[str, tuple[Case, float]] = {}

    def linear(m: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
        return random(m, k, dtype=dtype), random(n, k, dtype=dtype, scale=k**-0.5), random(n, dtype=dtype)

    for m, n, k in [
        (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 1024), (16384, 1024, 4096),
        (8192, 11008, 4096), (512, 4096, 4096), (128, 4096, 4096), (5000, 3000, 2000), (2048, 4096, 4096), (16384, 768, 3072),
    ]:  # fmt: skip
        args, flops = linear(m, n, k), 2.0 * m * n * k
        found[f"mm {m}x{n}x{k}"] = ((lambda x, w, b: x @ w.t(), args), flops)
    args, flops = linear(4096, 4096, 4096), 2.0 * 4096**3
    found["nn 4096"] = ((lambda x, w, b: x @ w, args), flops)
    found["tn 4096"] = ((lambda x, w, b: x.t() @ w, args), flops)
    found["tt 4096"] = ((lambda x, w, b: x.t() @ w.t(), args), flops)
    r = random(4096, 4096, dtype=dtype)
    found["bias 4096"] = ((F.linear, args), flops)
    found["bias silu 4096"] = ((lambda x, w, b: F.silu(F.linear(x, w, b)), args), flops)
    found["bias gelu residual 4096"] = ((lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, (*args, r)), flops)
    args, flops = linear(16384, 3072, 768), 2.0 * 16384 * 3072 * 768
    found["gpt2 mlp up gelu 16384x3072x768"] = (
        (lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), args), flops,
    )  # fmt: skip
    args = linear(16384, 768, 3072)
    r = random(16384, 768, dtype=dtype)
    found["gpt2 mlp down residual"] = ((lambda x, w, b, r: F.linear(x, w, b) + r, (*args, r)), 2.0 * 16384 * 3072 * 768)
    args = linear(4096, 4096, 4097)
    found["odd depth 4096x4096x4097"] = ((lambda x, w, b: x @ w.t(), args), 2.0 * 4096 * 4096 * 4097)
    x, y = random(64, 512, 128, dtype=dtype), random(64, 128, 512, dtype=dtype)
    found["bmm 64x512x512x128"] = ((lambda x, y: torch.bmm(x, y), (x, y)), 2.0 * 64 * 512 * 512 * 128)
    return found


def captured(call: Callable[[], Any], count: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of ``count`` calls."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return graph


def burst(graph: torch.cuda.CUDAGraph, count: int, replays: int) -> float:
    """Milliseconds of device time for one call of the ``count`` in ``graph``."""
    torch.cuda.synchronize()
    time.sleep(PAUSE)
    graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / replays / count


Graph = tuple[torch.cuda.CUDAGraph, int, int]


def replayed(call: Callable[[], Any], count: int) -> Graph:
    """A graph of ``count`` calls; how many; replays of a burst."""
    graph = captured(call, count)
    return graph, count, max(1, round(BURST / max(count * burst(graph, count, 2), 1e-3)))


def prepared(function: Callable[..., Any], args: tuple[Tensor, ...], matmul: str) -> Graph:
    """A graph of calls of ``function`` as it is (``matmul`` ""), or compiled with that option; how many; replays of a burst."""
    torch._dynamo.reset()
    options = {"matmul": matmul, "strict_errors": True, "stream": "caller", "cache": False}
    compiled = torch.compile(function, backend="lowc", options=options, dynamic=False) if matmul else function
    return replayed(lambda: compiled(*args), 4)


def in_turn(graphs: dict[str, Graph], rounds: int) -> dict[str, float]:
    """Milliseconds of a call by name, the median of ``rounds`` bursts of each."""
    times: dict[str, list[float]] = {side: [] for side in graphs}
    for turn in range(rounds):
        order = list(graphs)
        for side in order[turn % len(order) :] + order[: turn % len(order)]:
            times[side].append(burst(*graphs[side]))
    return {side: statistics.median(found) for side, found in times.items()}


def measure(function: Callable[..., Any], args: tuple[Tensor, ...], rounds: int) -> dict[str, float]:
    """Milliseconds by side: the library as eager runs it, lowc with its calls, lowc's own."""
    sides = (("eager", ""), ("library", "library"), ("own", "own"))
    return in_turn({side: prepared(function, args, matmul) for side, matmul in sides}, rounds)


# ---------------------------------------------------------------- ways


@dataclass
class Fit:
    """Of one way: (spans, turns, measured spans) for each product whose epilogue only stores."""

    points: list[tuple[float, int, float]] = field(default_factory=list)

    def constants(self) -> tuple[float, float]:
        """(time of a span, time of an end) that fit best, in the units of ``choose_tensor_cores``."""
        rows = [[spans, turns] for spans, turns, _ in self.points]
        weights = [1 / time for _, _, time in self.points]
        left = torch.tensor([[x * w for x in row] for row, w in zip(rows, weights, strict=True)], dtype=torch.float64)
        right = torch.tensor([[time * w] for (_, _, time), w in zip(self.points, weights, strict=True)], dtype=torch.float64)
        span, end = torch.linalg.lstsq(left, right).solution.flatten().tolist()
        return span, end


def ways(names: list[str], dtype: torch.dtype, rounds: int) -> None:
    """Times and predictions of the ways that the model has near the best, for each product."""
    every, sizes = choose.WAYS, list[choose.Size]()
    sized = choose.size_of
    fits = {way.name: Fit() for way in every}
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    unit = 1024 / 1.755e6  # milliseconds of a span, at the clock of the data sheet

    def noted(found: Any) -> choose.Size:
        sizes.append(sized(found))
        return sizes[-1]

    choose.size_of = noted
    for name, ((function, args), flops) in cases(dtype).items():
        if names and not any(part in name for part in names):
            continue
        graphs = {"eager": prepared(function, args, ""), "library": prepared(function, args, "library")}
        sizes.clear()
        graphs["chosen"] = prepared(function, args, "own")
        size = max(sizes, key=lambda s: s.rows * s.columns * s.depth)
        predicted = {way.name: choose.cost(size, way, processors) for way in every}
        near = sorted((w for w in every if predicted[w.name] < 1.35 * min(predicted.values())), key=lambda w: predicted[w.name])
        for way in near[:5]:
            choose.WAYS = (way,)
            try:
                graphs[way.name] = prepared(function, args, "own")
            except Exception as problem:
                print(f"{name}, {way.name}: {type(problem).__name__}: {str(problem)[:150]}", flush=True)
            finally:
                choose.WAYS = every
        with torch.no_grad():
            times = in_turn(graphs, rounds)
        shown = [f"{side} {flops / ms / 1e9:.0f}" for side, ms in times.items() if side not in predicted]
        for way in near:
            if way.name not in times:
                continue
            spans = times[way.name] / unit - choose.START
            rate = flops / times[way.name] / 1e9
            shown.append(f"{way.name} {rate:.0f} ({spans + choose.START:.0f}, said {predicted[way.name]:.0f})")
            blocks = size.batch * -(-size.rows // way.tile[0]) * -(-size.columns // way.tile[1])
            turns = -(-blocks // processors)
            if size.work <= 4:
                fits[way.name].points.append((turns * -(-size.depth // 64), turns if way.teams == 1 else 1, spans))
        print(f"{name} [work {size.work}]: " + " · ".join(shown), flush=True)
    choose.size_of = sized
    for way in every:
        if len(fits[way.name].points) > 2:
            span, end = fits[way.name].constants()
            print(f"{way.name}: span {way.span} end {way.end}; measured would fit span {span:.3f} end {end:.2f}", flush=True)


DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def arguments() -> argparse.Namespace:
    """What benchmarks of tensor cores can be asked for; sets the seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--name", default="")
    parser.add_argument("--gradients", action="store_true", help="of attention")
    torch.manual_seed(0)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    dtype = DTYPES[given.dtype]
    if given.check and sum(check(d) for d in (torch.bfloat16, torch.float16)):
        sys.exit(1)
    if given.ways:
        ways([part for part in given.only.split(",") if part], dtype, given.rounds)
        return
    lines: list[list[str]] = []
    for name, ((function, args), flops) in cases(dtype).items():
        if given.only and not any(part in name for part in given.only.split(",")):
            continue
        try:
            with torch.no_grad():
                found = measure(function, args, given.rounds)
        except Exception as problem:
            print(f"{name}: {type(problem).__name__}: {str(problem)[:200]}", flush=True)
            continue
        rates = [f"{flops / found[side] / 1e9:.0f}" for side in ("eager", "library", "own")]
        line = [name, f"{found['own'] * 1e3:.1f}", *rates, f"{found['library'] / found['own']:.3f}"]
        print("  ".join(line), flush=True)
        lines.append(line)
    text = table(["product", "own us", "eager TFLOP/s", "library", "own", "own / library"], lines)
    print(text)
    if given.name:
        (RESULTS / f"{given.name}.md").write_text(
            f"# Matrix products on {torch.cuda.get_device_name()}, {given.dtype}\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
