"""Products of float8 (``torch._scaled_mm``) on a GPU: lowc's own kernels beside the library's (cuBLASLt through ATen).

    python -m benchmarks.gpu_fp8 [--check] [--errors] [--only 4096] [--ways 256x128/2/1,…] [--rounds 3] [--name h200_fp8]

``--check`` compares with float64, over shapes, types, scales, biases, results, what follows, and sizes of the call; ``--errors``
prints errors of results of f32 beside the library's, with and without ``use_fast_accum``.  Each product is timed as ATen does it
("eager"; where something follows also as lowc calls it, "library"), as lowc's own, and by each of ``--ways`` (rows x columns /
groups / teams).  How times are taken: ``benchmarks/gpu_matmul.py``.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu_matmul import RESULTS, Done, Graph, error, in_turn, prepared, watched
from benchmarks.gpu_products import Product
from benchmarks.report import table
from lowc.scheduler import choose_tensor_cores as choose

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 4096, 14336), (2048, 28672, 4096), (2048, 6144, 4096), (8192, 4096, 1024),
    (512, 4096, 4096), (128, 4096, 4096), (16, 4096, 14336), (5000, 3072, 2000), (2048, 2048, 2048), (1024, 1024, 1024),
    (16, 4096, 4096), (64, 4096, 4096), (128, 4096, 14336), (16, 28672, 4096), (256, 4096, 4096), (512, 512, 512),
)  # fmt: skip


def eighths(*shape: int, dtype: torch.dtype = E4) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def factors(m: int, n: int, k: int, by_row: bool, x: torch.dtype = E4, y: torch.dtype = E4) -> tuple[Tensor, ...]:
    """x, y, and their scales."""
    shapes = ((m, 1), (1, n)) if by_row else ((), ())
    scales = [torch.rand(s, device="cuda") + 0.5 for s in shapes]
    return eighths(m, k, dtype=x), eighths(n, k, dtype=y).t(), *scales


def function_of(
    out: torch.dtype = BF16, fast: bool = False, after: Callable[[Tensor], Tensor] | None = None
) -> Callable[..., Any]:
    def function(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor, bias: Tensor | None = None) -> Tensor:
        made = torch._scaled_mm(x, y, sx, sy, bias=bias, out_dtype=out, use_fast_accum=fast)
        return made if after is None else after(made)

    return function


def exact(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor, bias: Tensor | None = None) -> Tensor:
    made = x.double() @ y.double() * sx.double() * sy.double()
    return made if bias is None else made + bias.double()


# ---------------------------------------------------------------- values


def compiled(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {"matmul": "own", "strict_errors": True, "cache": False, "check": True}
    return torch.compile(function, backend="lowc", fullgraph=True, options=options, **{"dynamic": False, **given})


def check() -> int:
    """How many checks fail; prints those."""
    failed = total = 0

    def one(name: str, function: Callable[..., Any], args: tuple[Any, ...], after: Any = None, **given: Any) -> None:
        nonlocal failed, total
        total += 1
        wanted = exact(*args)
        wanted = after(wanted) if after is not None else wanted
        try:
            done = Done()
            with watched(done):
                call = compiled(function, **given)
                ours = max(error(call(*args), wanted) for _ in range(3))
            torch.cuda.synchronize()
        except Exception as problem:
            print(f"FAIL {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            failed += 1
            if "CUDA" in str(problem):
                raise
            return
        try:
            theirs = error(function(*args), wanted)
        except Exception as problem:
            theirs = 0.0
            print(f"eager {name}: {str(problem)[:150]}", flush=True)
        out = call(*args).dtype
        bound = max(1.5 * theirs, {BF16: 2.0**-8, F16: 2.0**-10, F32: 2.0**-14}[out])
        if not ours <= bound or not done.steps:
            print(f"FAIL {name} ({done.way}): error {ours:.2e}, the library's {theirs:.2e}", flush=True)
            failed += 1

    shapes = ((128, 128, 128), (333, 80, 144), (17, 48, 32), (1000, 1008, 1008), (129, 272, 4096), (2, 64, 64), (5000, 640, 96))
    for m, n, k in shapes:
        for fast in (False, True):
            for by_row in (False, True):
                one(f"{m}x{n}x{k} {fast=} {by_row=}", function_of(fast=fast), factors(m, n, k, by_row))
    for x, y in ((E5, E4), (E4, E5)):
        one(f"{x} {y}", function_of(), factors(200, 144, 272, False, x, y))
        one(f"{x} {y} fast", function_of(fast=True), factors(200, 144, 272, False, x, y))
    bias = torch.randn(272, device="cuda")
    for out in (BF16, F16):
        one(f"bias {out}", function_of(out), (*factors(300, 272, 512, False), bias.to(out)))
    one("f32", function_of(F32), factors(300, 272, 512, False))
    one("bias silu", function_of(after=F.silu), (*factors(300, 272, 512, True), bias.to(BF16)), F.silu)
    one("many tiles", function_of(fast=True, after=F.silu), factors(2600, 4096, 512, True), F.silu)
    one("many tiles, accurate", function_of(after=F.silu), factors(2600, 4096, 512, True), F.silu)
    one("slices", function_of(), factors(256, 256, 16384, True))
    one("slices, fast", function_of(fast=True), factors(256, 256, 16384, True))
    for way in (*choose.WAYS, *choose.APART):
        fast = way in choose.WAYS
        with only(way):
            one(f"way {way.name} {fast=}", function_of(fast=fast), factors(64 if way.tile[1] < 64 else 3000, 4096, 2320, True))
    print(f"{total - failed} of {total} checks pass", flush=True)
    return failed


def errors() -> None:
    """Of results of f32, relative (Frobenius), beside the library's."""
    lines: list[list[str]] = []
    for m, n, k in ((512, 512, 512), (512, 512, 4096), (512, 512, 32768)):
        for name, scale in (("randn", torch.randn), ("rand", torch.rand)):
            x, y = (scale(s, device="cuda").to(E4) for s in ((m, k), (n, k)))
            args = (x, y.t(), torch.ones((), device="cuda"), torch.ones((), device="cuda"))
            wanted, found = exact(*args), []
            for fast in (False, True):
                function = function_of(F32, fast)
                found += [f"{error(function(*args), wanted):.1e}", f"{error(compiled(function)(*args), wanted):.1e}"]
            lines.append([f"{name} {m}x{n}x{k}", *found])
    print(table(["product", "cuBLASLt", "lowc", "cuBLASLt fast", "lowc fast"], lines), flush=True)


# ---------------------------------------------------------------- times


class only:
    """While it lasts, products are done by one way, in one piece."""

    def __init__(self, way: choose.Way) -> None:
        self.way = way

    def __enter__(self) -> None:
        self.before = choose.ways_of, choose.slices
        choose.ways_of, choose.slices = lambda size: (self.way,), lambda found, target: 1

    def __exit__(self, *_: object) -> None:
        choose.ways_of, choose.slices = self.before


def products() -> dict[str, Product]:
    found: dict[str, Product] = {}
    for m, n, k in SHAPES:
        for fast in (False, True):
            for by_row in (False, True) if max(m, n, k) > 4000 and m > 1000 else (True,):
                name = f"{m}x{n}x{k} {'row' if by_row else 'one'}{' fast' if fast else ''}"
                sets = [factors(m, n, k, by_row) for _ in range(3 if m <= 128 else 1)]
                found[name] = Product(function_of(fast=fast), tuple(sets), 2.0 * m * n * k)
    for fast in (False, True):
        name = f"4096x4096x4096 row silu{' fast' if fast else ''}"
        found[name] = Product(function_of(fast=fast, after=F.silu), (factors(4096, 4096, 4096, True),), 2.0 * 4096**3, True)
    return found


def way_of(text: str) -> choose.Way:
    tile, groups, teams = text.split("/")
    high, wide = map(int, tile.split("x"))
    return choose.Way((high, wide), int(groups), int(teams), 1.0, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    began = time.perf_counter()
    if given.check:
        check()
        print(f"checks took {time.perf_counter() - began:.0f} s", flush=True)
    if given.errors:
        errors()
    parts, ways = ([p for p in text.split(",") if p] for text in (given.only, given.ways))
    lines: list[list[str]] = []
    for name, product in products().items():
        if parts and not any(part in name for part in parts):
            continue
        done = Done()
        try:
            graphs: dict[str, Graph] = {"eager": prepared(product, "")}
        except RuntimeError as problem:
            print(f"{name}: eager {str(problem)[:120]}", flush=True)
            continue
        with watched(done):
            graphs["own"] = prepared(product, "own")
        if product.followed:
            graphs["library"] = prepared(product, "library")
        for way in ways:
            try:
                with only(way_of(way)):
                    graphs[way] = prepared(product, "own")
            except Exception as problem:
                print(f"{name} {way}: {type(problem).__name__}: {str(problem)[:150]}", flush=True)
        taken = in_turn(graphs, given.rounds)
        rates = {side: f"{product.flops / time_ / 1e9:.0f}" for side, time_ in taken.items()}
        best = min(taken[s] for s in ("eager", "library") if s in taken)
        shown = [f"{taken['own'] * 1e3:.1f}", *(rates.get(s, "") for s in ("eager", "library", "own", *ways))]
        lines.append([name, *shown, f"{best / taken['own']:.2f}", done.way])
        print(" | ".join(lines[-1]), flush=True)
    text = table(["product", "own us", "eager", "library", "own", *ways, "library / own", "way"], lines)
    print(f"took {time.perf_counter() - began:.0f} s")
    if given.name:
        title = f"# Products of float8 on {torch.cuda.get_device_name()}, torch {torch.__version__}"
        (RESULTS / f"{given.name}.md").write_text(f"{title}\n\n{text}\n")


if __name__ == "__main__":
    main()
