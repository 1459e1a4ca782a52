"""Attention on a GPU: lowc's own kernel beside cuDNN's and flash attention (through ATen), in turn in one process.

    python -m benchmarks.gpu_attention [--gradients] [--check] [--ways] [--only D128,T4096] [--rounds 7] [--name h200_attention]

``--check`` compares with float64 first, over lengths, widths of heads, layouts, masks, shared heads, and lengths of the call, and
times nothing if something is wrong.  Times are of CUDA graphs of some calls each, sides in turn, each a burst after a pause; the
median of the rounds counts.  TFLOP/s are of 4 * B * H * T * T * D operations, half of that where it is causal.  Results:
``benchmarks/results/NAME.md``.

``--ways`` times the ways of doing it that there are beside the one that is chosen.  ``--gradients``: those of attention, see
``gpu_attention_gradients``.
"""

import dataclasses
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_matmul import DTYPES, RESULTS, Case, Graph, arguments, error, in_turn, random, replayed
from benchmarks.report import table
from lowc.scheduler import choose_attention

LIBRARIES = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
CALLS = 2  # of a CUDA graph
OPTIONS = {"attention": "own", "strict_errors": True, "stream": "caller", "cache": False}


def attend(**given: Any) -> Callable[..., Tensor]:
    """``scaled_dot_product_attention`` with keywords; a fourth tensor is its mask."""

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **given)

    return function


def qkv(
    batch: int, heads: int, rows: int, deep: int, dtype: torch.dtype, keys: int = 0, shared: int = 0, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, values: [B, H, L, D], [B, H', S, D] twice."""
    keys, shared = keys or rows, shared or heads
    q = random(batch, heads, rows, deep, dtype=dtype, scale=scale)
    return q, random(batch, shared, keys, deep, dtype=dtype), random(batch, shared, keys, deep, dtype=dtype)


# ---------------------------------------------------------------- values


def checks(dtype: torch.dtype) -> dict[str, tuple[Case, dict[str, Any]]]:
    """(function, arguments) and keywords of ``torch.compile``, by name."""
    found: dict[str, tuple[Case, dict[str, Any]]] = {}

    def add(name: str, function: Callable[..., Any], *args: Tensor, **given: Any) -> None:
        found[name] = (function, args), given

    for deep in (32, 64, 96, 128, 256) if dtype == torch.bfloat16 else (64, 128):
        for rows in (200, 1024):
            for causal in (False, True):
                add(f"D{deep} T{rows} {'causal' if causal else 'full'}", attend(is_causal=causal), *qkv(1, 3, rows, deep, dtype))
    if dtype == torch.float16:
        return found
    for rows in (2, 63, 129, 2500):
        add(f"D64 T{rows} causal", attend(is_causal=True), *qkv(2, 2, rows, 64, dtype))
        add(f"D128 T{rows} full", attend(), *qkv(1, 2, rows, 128, dtype))
    add("more keys than queries", attend(), *qkv(2, 2, 100, 64, dtype, keys=777))
    add("fewer keys than queries", attend(), *qkv(2, 2, 777, 128, dtype, keys=100))
    add("large scores", attend(), *qkv(1, 2, 600, 64, dtype, scale=8.0))
    add("scale", attend(scale=0.3, is_causal=True), *qkv(1, 2, 600, 128, dtype))
    add("negative scale", attend(scale=-0.1), *qkv(1, 2, 300, 64, dtype))
    for shared in (1, 2):
        args = qkv(2, 4, 300, 64, dtype, shared=shared)
        add(f"4 heads of queries, {shared} of keys", attend(is_causal=True, enable_gqa=True), *args)
    heads = random(2, 500, 3, 4, 64, dtype=dtype)
    add("one tensor of all", lambda x: attend(is_causal=True)(*(x[:, :, n].transpose(1, 2) for n in range(3))), heads)
    add("lengths of the call", attend(is_causal=True), *qkv(2, 2, 300, 64, dtype), lengths=True)
    return found


def lengths(args: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    b, h, _, d = args[0].shape
    return [qkv(b, h, rows, d, args[0].dtype) for rows in (2, 5, 128, 129, 700)]


def check(dtype: torch.dtype) -> int:
    """How many checks fail; prints those."""
    failed = total = 0
    for name, ((function, args), given) in checks(dtype).items():
        torch._dynamo.reset()
        exact = function(*(a.double() for a in args))
        eager = error(function(*args), exact)
        total += 1
        ways = Ways()
        several = given.pop("lengths", False)
        for tensor in args if several else ():
            torch._dynamo.mark_dynamic(tensor, 2)
        try:
            with ways:
                compiled = torch.compile(function, backend="lowc", fullgraph=True, options={**OPTIONS, "check": True}, **given)
                ours = 0.0
                for _ in range(4):
                    ours = max(ours, error(compiled(*args), exact))
                torch.cuda.synchronize()
                for other in lengths(args) if several else ():
                    ours = max(ours, error(compiled(*other), function(*(a.double() for a in other))))
        except Exception as problem:
            print(f"FAIL {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            failed += 1
            if "CUDA" in str(problem):
                break  # the context is gone
            continue
        if not ways.found or not ours <= max(1.5 * eager, 2 * torch.finfo(dtype).eps):
            print(f"FAIL {name}: error {ours:.2e}, the library's {eager:.2e}{'' if ways.found else ', not our own'}", flush=True)
            failed += 1
    print(f"{dtype}: {total - failed} of {total} checks pass", flush=True)
    return failed


class Ways:
    """Notes the ways that are chosen for attention, or by another function of ``choose_attention``, while it is entered."""

    def __init__(self, function: str = "choices") -> None:
        self.function = function

    def __enter__(self) -> "Ways":
        self.found: list[Any] = []
        self.choices = getattr(choose_attention, self.function)

        def noted(*args: Any) -> Any:
            ways = self.choices(*args)
            self.found += ways[:1]
            return ways

        setattr(choose_attention, self.function, noted)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(choose_attention, self.function, self.choices)


# ---------------------------------------------------------------- times


def cases(dtype: torch.dtype) -> dict[str, tuple[tuple[int, int, int, int], bool]]:
    """(batch, heads, length, width of a head), whether causal, by name."""
    found: dict[str, tuple[tuple[int, int, int, int], bool]] = {}
    for deep in (128, 64):
        for batch, heads, rows in ((4, 16, 1024), (4, 16, 2048), (2, 16, 4096), (1, 16, 8192), (1, 16, 16384)):
            for causal in (False, True):
                name = f"B{batch} H{heads} T{rows} D{deep} {'causal' if causal else 'full'}"
                found[name] = (batch, heads, rows, deep), causal
    return found


def measure(size: tuple[int, int, int, int], causal: bool, dtype: torch.dtype, rounds: int) -> tuple[dict[str, float], float]:
    """Milliseconds by side; the relative difference of lowc's result to flash attention's."""
    torch._dynamo.reset()
    q, k, v = qkv(*size, dtype)
    function = attend(is_causal=causal)
    compiled = torch.compile(function, backend="lowc", options=OPTIONS, dynamic=False)
    graphs = {"own": replayed(lambda: compiled(q, k, v), CALLS)}
    for name, backend in LIBRARIES.items():
        with sdpa_kernel(backend):
            graphs[name] = replayed(lambda: function(q, k, v), CALLS)
    with sdpa_kernel(LIBRARIES["flash"]):
        apart = error(compiled(q, k, v), function(q, k, v).double())
    return in_turn(graphs, rounds), apart


def ways(names: list[str], dtype: torch.dtype, rounds: int) -> None:
    """TFLOP/s of variants of the chosen way: blocks that take tiles in turns, the order of tiles."""
    chosen = choose_attention.choices
    for name, (size, causal) in cases(dtype).items():
        if not all(part in name for part in names):
            continue
        q, k, v = qkv(*size, dtype)
        function = attend(is_causal=causal)
        variants: dict[str, dict[str, Any]] = {"chosen": {}}
        variants["a block for each tile"] = {"blocks": 0}
        variants["tiles in turns"] = {"blocks": torch.cuda.get_device_properties(0).multi_processor_count}
        if causal:
            variants["other order"] = {"late_first": None}
        graphs: dict[str, Graph] = {}
        for variant, fields in variants.items():

            def changed(*args: Any, fields: dict[str, Any] = fields) -> Any:
                found = chosen(*args)[:1]
                values = {f: (not found[0].late_first if f == "late_first" else x) for f, x in fields.items()} if found else {}
                return tuple(dataclasses.replace(way, **values) for way in found)

            choose_attention.choices = changed
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="lowc", options=OPTIONS, dynamic=False)
            try:
                graphs[variant] = replayed(partial(compiled, q, k, v), CALLS)
            except Exception as problem:
                print(f"{name}, {variant}: {type(problem).__name__}: {str(problem)[:150]}", flush=True)
            finally:
                choose_attention.choices = chosen
        work = operations(size, causal)
        times = in_turn(graphs, rounds)
        print(f"{name}: " + " · ".join(f"{side} {work / ms / 1e9:.0f}" for side, ms in times.items()), flush=True)


def operations(size: tuple[int, int, int, int], causal: bool) -> float:
    return 4.0 * math.prod(size) * size[2] * (0.5 if causal else 1.0)


def main() -> None:
    given = arguments()
    dtype = DTYPES[given.dtype]
    if given.gradients:
        from benchmarks import gpu_attention_gradients

        gpu_attention_gradients.run(given, dtype)
        return
    with torch.no_grad():
        if given.check and sum(check(d) for d in (torch.bfloat16, torch.float16)):
            sys.exit(1)
        if given.ways:
            ways([part for part in given.only.split(",") if part], dtype, given.rounds)
            return
        lines: list[list[str]] = []
        for name, (size, causal) in cases(dtype).items():
            if given.only and not all(part in name for part in given.only.split(",")):
                continue
            found, apart = measure(size, causal, dtype, given.rounds)
            work = operations(size, causal)
            rates = [f"{work / found[side] / 1e9:.0f}" for side in ("own", *LIBRARIES)]
            line = [name, f"{found['own'] * 1e3:.1f}", *rates, f"{found['cuDNN'] / found['own']:.3f}"]
            print("  ".join(line), f" difference {apart:.1e}", flush=True)
            if not apart < 1e-2:
                sys.exit(f"{name}: results differ")
            lines.append(line)
    text = table(["attention", "own us", "own TFLOP/s", *LIBRARIES, "own / cuDNN"], lines)
    print(text)
    if given.name:
        (RESULTS / f"{given.name}.md").write_text(f"# Attention on {torch.cuda.get_device_name()}, {given.dtype}\n\n{text}\n")


if __name__ == "__main__":
    main()
