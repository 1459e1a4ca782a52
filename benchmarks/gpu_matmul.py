"""Matrix products on a GPU: lowc's own kernels beside the library's (cuBLAS through ATen), in turn in one process.

    python -m benchmarks.gpu_matmul [--check] [--ways] [--only 4096,bmm] [--dtype bf16] [--rounds 5] [--name h200]

``--check`` compares with float64 first, over layouts, odd sizes, epilogues, batches, divided depths, and sizes of the call, and
times nothing if something is wrong; ``--checks slices,tf32`` does those alone whose names have such a part.  Times are of CUDA
graphs of some calls each (what the host does is not in them), sides in turn, each a burst after a pause; the median of the rounds
counts.  What is timed: ``benchmarks/gpu_products.py``; ``--only`` takes parts of names, as of groups (mm, small, skinny, wgrad,
bmm, tf32), or "none".  Results: ``benchmarks/results/NAME.md``.

``--ways`` times the ways of ``choose_tensor_cores.plans`` that the model of costs has near the best one, each beside its
prediction (in spans), and says which constants of the model would fit what was measured.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_products import CALLS, Case, Product, checks, products, random
from benchmarks.report import table
from lowc.scheduler import choose_tensor_cores as choose
from lowc.scheduler import contract
from lowc.scheduler.tensor_cores import TensorCores

__all__ = ["Case"]
ROUNDS = 5
PAUSE = 0.04  # seconds for the card to cool
BURST = 6.0  # milliseconds
SMALL = 2e9  # floating-point operations below which a graph has more calls
MANY = 5 * CALLS
EPS = {torch.float32: 2.0**-12}  # of TF32, so that factors that are cut off instead of rounded (7.7e-4) fail
RESULTS = Path(__file__).parent / "results"


# ---------------------------------------------------------------- values


def error(found: Any, exact: Any) -> float:
    """The largest relative error (Frobenius) of the results; infinite where something is no number."""
    worst = 0.0
    many = found if isinstance(found, tuple) else (found,)
    for a, b in zip(many, exact if isinstance(exact, tuple) else (exact,), strict=True):
        if not bool(torch.isfinite(a).all()):
            return float("inf")
        worst = max(worst, float((a.double() - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def check(dtype: torch.dtype, parts: list[str]) -> int:
    """How many checks fail, of those whose names have one of ``parts`` (if there are any); prints those.  TF32 is allowed."""
    failed = total = 0
    torch.set_float32_matmul_precision("high")
    for name, ((function, args), given) in checks(dtype).items():
        if parts and not any(part in name for part in parts):
            continue
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
        if not ours <= max(1.5 * eager, 2 * EPS.get(dtype, torch.finfo(dtype).eps)):
            print(f"FAIL {name}: error {ours:.2e}, the library's {eager:.2e}", flush=True)
            failed += 1
    torch.set_float32_matmul_precision("highest")
    print(f"{dtype}: {total - failed} of {total} checks pass", flush=True)
    return failed


# ---------------------------------------------------------------- times


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


class Graph(NamedTuple):
    """A CUDA graph of ``count`` calls; ``replays`` of a burst.  ``call`` has the tensors that the graph reads: were it gone, they
    would be as well, and capturing the next graph gives free memory back to the driver."""

    graph: torch.cuda.CUDAGraph
    count: int
    replays: int
    call: Callable[[], Any]


def replayed(call: Callable[[], Any], count: int) -> Graph:
    graph = captured(call, count)
    return Graph(graph, count, max(1, round(BURST / max(count * burst(graph, count, 2), 1e-3))), call)


@dataclass
class Done:
    """What was chosen for the last product that was compiled: slices of the depth and tiles of each of its launches."""

    size: choose.Size | None = None
    slices: list[int] = field(default_factory=list[int])
    steps: list[TensorCores] = field(default_factory=list[TensorCores])

    @property
    def way(self) -> str:
        names = [choose.Way(s.tile, s.groups, s.teams, 0.0, 0.0).name for s in self.steps]
        return "; ".join([n + (f", {c} slices" if c > 1 else "") for n, c in zip(names, self.slices, strict=False)])


@contextmanager
def watched(done: Done) -> Iterator[None]:
    """While it lasts, ``done`` gets what is chosen for each product."""
    slices, carried = choose.slices, contract.tensor_cores

    def sliced(found: Any, target: Any) -> int:
        done.size, done.slices, done.steps = choose.size_of(found), [slices(found, target)], []
        return done.slices[-1]

    def tiled(loop: Any, step: TensorCores, taken: set[str]) -> Any:
        made = carried(loop, step, taken)
        done.steps.append(step)
        return made

    choose.slices, contract.tensor_cores = sliced, tiled
    try:
        yield
    finally:
        choose.slices, contract.tensor_cores = slices, carried


@contextmanager
def forced(way: choose.Way, slices: int) -> Iterator[None]:
    """While it lasts, products are done that way."""
    every, chosen = choose.ways_of, choose.slices
    choose.ways_of, choose.slices = lambda size: (way,), lambda found, target: slices
    try:
        yield
    finally:
        choose.ways_of, choose.slices = every, chosen


def prepared(product: Product, matmul: str) -> Graph:
    """A graph of calls of a product as it is (``matmul`` ""), or compiled with that option."""
    torch._dynamo.reset()
    torch.set_float32_matmul_precision(product.precision)
    options = {"matmul": matmul, "strict_errors": True, "stream": "caller", "cache": False}
    function = product.function
    compiled = torch.compile(function, backend="lowc", options=options, dynamic=False) if matmul else function
    turn = numbers()
    call = lambda: compiled(*product.sets[next(turn) % len(product.sets)])  # noqa: E731
    try:
        return replayed(call, CALLS if product.flops >= SMALL else MANY)
    finally:
        torch.set_float32_matmul_precision("highest")


def in_turn(graphs: dict[str, Graph], rounds: int) -> dict[str, float]:
    """Milliseconds of a call by name, the median of ``rounds`` bursts of each."""
    times: dict[str, list[float]] = {side: [] for side in graphs}
    for turn in range(rounds):
        order = list(graphs)
        for side in order[turn % len(order) :] + order[: turn % len(order)]:
            graph = graphs[side]
            times[side].append(burst(graph.graph, graph.count, graph.replays))
    return {side: statistics.median(found) for side, found in times.items()}


def measure(product: Product, rounds: int) -> tuple[dict[str, float], str]:
    """Milliseconds by side, and how lowc's own is done.  The sides: the library as eager runs it, lowc with its calls (where
    pointwise ops follow), lowc's own."""
    done = Done()
    with watched(done):
        graphs = {"eager": prepared(product, "")}
        if product.followed:
            graphs["library"] = prepared(product, "library")
        graphs["own"] = prepared(product, "own")
    found = in_turn(graphs, rounds)
    return {"library": found["eager"], **found}, done.way


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


def near(size: choose.Size, processors: int) -> list[tuple[float, int, choose.Way]]:
    """Plans that the model has near the best one: of each number of slices the best few."""
    every = sorted(choose.plans(size, processors), key=lambda p: p[0])
    found: list[tuple[float, int, choose.Way]] = []
    for count in dict.fromkeys(p[1] for p in every):
        found += [p for p in every if p[1] == count][: 4 if count == 1 else 2 if count in (2, 3, 4, 8, 16, every[0][1]) else 0]
    return sorted((p for p in found if p[0] < 1.5 * every[0][0] or p[1] == 1 and p[0] < math.inf), key=lambda p: p[0])[:8]


def ways(chosen: dict[str, Product], rounds: int) -> None:
    """Times and predictions of the plans that the model has near the best, for each product."""
    fits = {way.name: Fit() for way in (*choose.WAYS, *choose.FINER)}
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    unit = 1024 / 1.755e6  # milliseconds of a span, at the clock of the data sheet
    for name, product in chosen.items():
        done = Done()
        graphs = {"eager": prepared(product, "")}
        if product.followed:
            graphs["library"] = prepared(product, "library")
        with watched(done):
            graphs["chosen"] = prepared(product, "own")
        plans = near(done.size, processors) if done.size is not None else []
        titles = {f"{way.name}/{count}": (time, count, way) for time, count, way in plans}
        for title, (_, count, way) in titles.items():
            try:
                with forced(way, count):
                    graphs[title] = prepared(product, "own")
            except Exception as problem:
                print(f"{name}, {title}: {type(problem).__name__}: {str(problem)[:150]}", flush=True)
        times = in_turn(graphs, rounds)
        shown = [f"{s} {times[s] * 1e3:.1f}us {product.flops / times[s] / 1e9:.0f}" for s in graphs if s not in titles]
        for title, (predicted, count, way) in titles.items():
            if title not in times or done.size is None:
                continue
            spans = times[title] / unit
            shown.append(f"{title} {times[title] * 1e3:.1f}us ({spans:.1f}, said {predicted:.1f})")
            blocks = done.size.batch * -(-done.size.rows // way.tile[0]) * -(-done.size.columns // way.tile[1])
            turns = -(-blocks // processors)
            if done.size.work <= 4 and count == 1:
                deep = turns * -(-done.size.depth // 64)
                fits[way.name].points.append((deep, turns if way.teams == 1 else 1, spans - choose.START))
        print(f"{name} [{done.way}]: " + " | ".join(shown), flush=True)
    for way in choose.WAYS:
        if len(fits[way.name].points) > 2:
            span, end = fits[way.name].constants()
            print(f"{way.name}: span {way.span} end {way.end}; measured would fit span {span:.3f} end {end:.2f}", flush=True)


DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def arguments() -> argparse.Namespace:
    """What benchmarks of tensor cores can be asked for; sets the seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--checks", default="")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--name", default="")
    parser.add_argument("--gradients", action="store_true", help="of attention")
    parser.add_argument("--inductor", action="store_true", help="flex_attention as well, beside Inductor's")
    torch.manual_seed(0)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    began = time.perf_counter()
    parts = [part for part in given.only.split(",") if part]
    checked = [part for part in given.checks.split(",") if part]
    if given.check or checked:
        if sum(check(d, checked) for d in (torch.bfloat16, torch.float16, torch.float32)):
            sys.exit(1)
        print(f"checks took {time.perf_counter() - began:.0f} s", flush=True)
    every = products(DTYPES[given.dtype])
    groups = {n.split()[0] for n in every}
    chosen = {n: p for n, p in every.items() if not parts or any(n.split()[0] == q if q in groups else q in n for q in parts)}
    torch.set_grad_enabled(False)
    if given.ways:
        ways(chosen, given.rounds)
        print(f"took {time.perf_counter() - began:.0f} s", flush=True)
        return
    lines: list[list[str]] = []
    for name, product in chosen.items():
        try:
            found, way = measure(product, given.rounds)
        except Exception as problem:
            print(f"{name}: {type(problem).__name__}: {str(problem)[:200]}", flush=True)
            continue
        rates = [f"{product.flops / found[side] / 1e9:.0f}" for side in ("eager", "library", "own")]
        line = [name, f"{found['own'] * 1e3:.1f}", *rates, f"{found['library'] / found['own']:.3f}", way]
        print("  ".join(line), flush=True)
        lines.append(line)
    text = table(["product", "own us", "eager TFLOP/s", "library", "own", "own / library", "way"], lines)
    print(text)
    print(f"took {time.perf_counter() - began:.0f} s")
    if given.name:
        (RESULTS / f"{given.name}.md").write_text(
            f"# Matrix products on {torch.cuda.get_device_name()}, {given.dtype}\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
