"""Matrix products by ``mma.sync`` on a GPU, also where lowc would take ``wgmma``: correctness, and times of ways of doing them.

    python -m benchmarks.gpu_mma [--check] [--only 4096] [--rounds 3] [--ways 128x128/4/2/3,…] [--name h200_mma]

Each product is timed as the library does it, as lowc does it (on capability 9.0 mostly by ``wgmma``), by ``mma.sync``, and by
each way of ``--ways`` (rows x columns / warps / shares of the columns / stages).  Checks compare with float64 in matrix norms,
beside the library's error.  How times are taken: ``benchmarks/gpu_matmul.py``.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu_matmul import RESULTS, Graph, error, in_turn, prepared
from benchmarks.gpu_products import Product, laid, mm, random
from benchmarks.report import table
from lowc.scheduler import choose_mma, choose_tensor_cores
from lowc.scheduler.tensor_cores import TensorCores

BF16 = torch.bfloat16


@contextmanager
def by_warps(way: str = "") -> Iterator[None]:
    """While it lasts, products of lowc's own are done by ``mma.sync``, that way if one is given."""
    before, chosen, slices = choose_tensor_cores.choices, choose_mma.choices, choose_tensor_cores.slices

    def only(kernel: Any, target: Any) -> Iterator[TensorCores]:
        tile, warps, shares, stages = way.split("/")
        high, wide = map(int, tile.split("x"))
        for step in chosen(kernel, target):
            yield replace(step, tile=(high, wide), groups=int(warps) // 4, shares=int(shares), stages=int(stages))

    choose_tensor_cores.choices = lambda *_: ()
    choose_tensor_cores.slices = (lambda found, target: 1) if way else choose_mma.slices
    if way:
        choose_mma.choices = only
    try:
        yield
    finally:
        choose_tensor_cores.choices, choose_mma.choices, choose_tensor_cores.slices = before, chosen, slices


def whole(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")


def int_mm(x: Tensor, w: Tensor) -> Tensor:
    return torch._int_mm(x, w.t())


def checks() -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """Layouts, odd sizes and rows that begin anywhere, bases that are not aligned, epilogues, batches."""
    found: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {}
    for form in ("nn", "nt", "tn", "tt"):
        for m, n, k in ((333, 77, 129), (256, 512, 512), (130, 264, 72), (1000, 1003, 1001), (100, 198, 66)):
            found[f"{m}x{n}x{k} {form}"] = mm, (laid((m, k), form[0], BF16), laid((k, n), form[1], BF16))
    x, w, b = random(300, 256, dtype=BF16), random(520, 256, dtype=BF16), random(520, dtype=BF16)
    found["bias gelu + residual"] = lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, (x, w, b, random(300, 520, dtype=BF16))
    found["f16"] = mm, (random(300, 129, dtype=torch.float16), random(129, 200, dtype=torch.float16))
    found["two results"] = lambda x, w, b: ((y := F.linear(x, w, b)), y.sigmoid().float()), (x, w, b)
    found["bmm odd"] = torch.bmm, (random(5, 31, 33, dtype=BF16), random(5, 33, 35, dtype=BF16))
    found["bmm"] = torch.bmm, (random(6, 200, 72, dtype=BF16), random(6, 72, 136, dtype=BF16))
    base = random(300 * 256 + 8, dtype=BF16)
    for shift in (1, 2, 4):
        found[f"base {2 * shift} bytes on"] = lambda x, w: x @ w.t(), (base[shift : shift + 300 * 256].view(300, 256), w)
    for m, n, k in ((128, 128, 64), (333, 77, 131), (17, 40, 24), (1000, 1000, 1000), (64, 72, 9000)):
        found[f"tf32 {m}x{n}x{k}"] = mm, (laid((m, k), "n", torch.float32), laid((k, n), "t", torch.float32))
    for form, (m, n, k) in (("nt", (256, 256, 16384)), ("tn", (200, 136, 5000)), ("nn", (130, 70, 4104)), ("tt", (64, 72, 9001))):
        found[f"slices {m}x{n}x{k} {form}"] = mm, (laid((m, k), form[0], BF16), laid((k, n), form[1], BF16))
    for m, n, k in ((128, 128, 64), (333, 72, 208), (1000, 1000, 1008)):
        found[f"i8 {m}x{n}x{k}"] = int_mm, (whole(m, k), whole(n, k))
    found["relu of a factor"] = lambda x, w: torch.relu(x) @ w.t(), (x, w)
    return found


def check(ways: list[str]) -> int:
    """How many checks fail; prints those."""
    failed = total = 0
    torch.set_float32_matmul_precision("high")
    for name, (function, args) in checks().items():
        exact = args[0].double() @ args[1].double().t() if function is int_mm else function(*(a.double() for a in args))
        eager = error(function(*args), exact)
        for way in ways:
            torch._dynamo.reset()
            total += 1
            try:
                with by_warps(way):
                    options = {"matmul": "own", "strict_errors": True, "cache": False}
                    compiled = torch.compile(function, backend="lowc", fullgraph=True, dynamic=False, options=options)
                    ours = max(error(compiled(*args), exact) for _ in range(2))
                torch.cuda.synchronize()
            except Exception as problem:
                print(f"FAIL {name} {way}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
                failed += 1
                if "CUDA" in str(problem):
                    return failed
                continue
            eps = {torch.float32: 2.0**-12, torch.int8: 0.0, BF16: 2.0**-7}.get(args[0].dtype, 2.0**-10)
            if not ours <= max(1.5 * eager, 2 * eps):
                print(f"FAIL {name} {way}: error {ours:.2e}, the library's {eager:.2e}", flush=True)
                failed += 1
    torch.set_float32_matmul_precision("highest")
    print(f"{total - failed} of {total} checks pass", flush=True)
    return failed


def products() -> dict[str, Product]:
    """What is timed."""
    found: dict[str, Product] = {}

    def add(name: str, function: Callable[..., Any], *args: Tensor, followed: bool = False) -> None:
        m, k, n = *args[0].shape[-2:], args[1].shape[-1] if function in (mm, torch.bmm) else args[1].shape[0]
        count = args[0].shape[0] if args[0].dim() == 3 else 1
        found[name] = Product(function, (args,), 2.0 * count * m * n * k, followed)

    for m, n, k, form in (
        (4096, 4096, 4096, "nt"), (8192, 8192, 8192, "nt"), (4096, 4096, 4096, "nn"), (4096, 4096, 4096, "tn"),
        (2048, 2048, 2048, "nt"), (1024, 1024, 1024, "nt"), (512, 512, 512, "nt"), (256, 256, 256, "nn"), (128, 4096, 4096, "nt"),
        (1024, 1003, 1001, "nn"), (4096, 4096, 4097, "nt"), (4096, 4098, 4098, "nn"), (512, 511, 510, "nt"),
        (512, 512, 511, "nt"), (512, 511, 512, "nn"), (256, 255, 253, "nn"), (768, 765, 762, "nn"), (500, 2000, 500, "nn"),
        (256, 256, 16384, "tn"),
    ):  # fmt: skip
        add(f"{m}x{n}x{k} {form}", mm, laid((m, k), form[0], BF16), laid((k, n), form[1], BF16))
    x, w, b = random(8192, 1024, dtype=BF16), random(4096, 1024, dtype=BF16), random(4096, dtype=BF16)
    add("8192x4096x1024 bias gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, followed=True)
    x, w = random(4096, 4096, dtype=torch.float32), random(4096, 4096, dtype=torch.float32)
    found["tf32 4096x4096x4096"] = Product(lambda x, w: x @ w.t(), ((x, w),), 2.0 * 4096**3, precision="high")
    found["i8 4096x4096x4096"] = Product(int_mm, ((whole(4096, 4096), whole(4096, 4096)),), 2.0 * 4096**3)
    x, w, b = random(1000, 1001, dtype=BF16), random(1003, 1001, dtype=BF16), random(1003, dtype=BF16)
    add("1000x1003x1001 bias gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, followed=True)
    add("bmm 64x512x512x128 nn", torch.bmm, random(64, 512, 128, dtype=BF16), random(64, 128, 512, dtype=BF16))
    add("bmm 32x255x257x65 nn", torch.bmm, random(32, 255, 65, dtype=BF16), random(32, 65, 257, dtype=BF16))
    return found


def measure(product: Product, ways: list[str], rounds: int) -> dict[str, float]:
    """Milliseconds by side."""
    graphs: dict[str, Graph] = {"library": prepared(product, "library" if product.followed else "")}
    graphs["own"] = prepared(product, "own")
    for way in ways:
        try:
            with by_warps(way):
                graphs[way or "mma"] = prepared(product, "own")
        except Exception as problem:
            print(f"{way}: {type(problem).__name__}: {str(problem)[:200]}", flush=True)
    return in_turn(graphs, rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="")
    parser.add_argument("--wide", default="", help="parts of names of products of which all ways are timed")
    parser.add_argument("--name", default="")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    began = time.perf_counter()
    ways = [w for w in given.ways.split(",") if w]
    if given.check and check([""]):
        print("wrong", flush=True)
    print(f"checks took {time.perf_counter() - began:.0f} s", flush=True)
    parts, wide = ([p for p in text.split(",") if p] for text in (given.only, given.wide))
    lines: list[list[str]] = []
    every = products()
    for name in sorted(every, key=lambda n: not any(p in n for p in wide)):
        if parts and not any(p in name for p in parts):
            continue
        product, all_ways = every[name], not wide or any(p in name for p in wide)
        found = measure(product, ["", *(ways if all_ways else ())], given.rounds)
        rates = {side: product.flops / time_ / 1e9 for side, time_ in found.items()}
        print(f"{name}: " + ", ".join(f"{side} {found[side] * 1e3:.1f}us {rates[side]:.0f}" for side in found), flush=True)
        shown = [f"{rates[s]:.0f}" if s in rates else "" for s in ("library", "own", "mma", *ways)]
        lines.append([name, *shown, f"{found['library'] / found['mma']:.2f}" if "mma" in found else ""])
    text = table(["product (bf16, TFLOP/s)", "library", "own", "mma", *ways, "mma / library"], lines)
    print(text)
    print(f"took {time.perf_counter() - began:.0f} s")
    if given.name:
        (RESULTS / f"{given.name}.md").write_text(f"# Products by mma.sync on {torch.cuda.get_device_name()}\n\n{text}\n")


if __name__ == "__main__":
    main()
