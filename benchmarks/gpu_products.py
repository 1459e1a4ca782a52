"""Matrix products that ``benchmarks.gpu_matmul`` checks and times, by name; a name's first word is the group that it belongs to.

Where a product takes about what memory needs for its factors, as with few rows, calls take turns at several sets of them, more
than the L2 cache holds: in a model the weights of a layer come from memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
CALLS = 4  # of a CUDA graph: as many sets of factors take turns
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Product:
    """``sets``: arguments that calls take in turn.  ``followed``: whether pointwise ops follow.  ``precision``: what
    ``torch.set_float32_matmul_precision`` is given."""

    function: Callable[..., Any]
    sets: tuple[tuple[Tensor, ...], ...]
    flops: float
    followed: bool = False
    precision: str = "highest"


def random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def laid(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> Tensor:
    """Random values: "n" contiguous, "t" transposed, "g" with a gap behind each row."""
    if layout == "t":
        return random(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT
    if layout == "g":
        return random(*shape[:-1], shape[-1] + 8, dtype=dtype)[..., : shape[-1]]
    return random(*shape, dtype=dtype)


def mm(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


# ---------------------------------------------------------------- values


def checks(dtype: torch.dtype) -> dict[str, tuple[Case, dict[str, Any]]]:
    """(function, arguments) and keywords of ``torch.compile``, by name."""
    found: dict[str, tuple[Case, dict[str, Any]]] = {}

    def add(name: str, function: Callable[..., Any], *args: Tensor, **given: Any) -> None:
        found[name] = (function, args), given

    if dtype == torch.float32:
        _single(add)
        return found
    shapes = [(128, 128, 64), (333, 77, 129), (17, 40, 24)]
    if dtype == torch.bfloat16:
        shapes += [(256, 512, 512), (1000, 1000, 1000), (129, 257, 65), (4096, 64, 8)]
    for m, n, k in shapes:
        for form in ("nn", "nt", "tn", "tt", "gg"):
            add(f"{m}x{n}x{k} {form}", mm, laid((m, k), form[0], dtype), laid((k, n), form[1], dtype))
    x, w, b = random(300, 256, dtype=dtype), random(520, 256, dtype=dtype), random(520, dtype=dtype)
    r = random(300, 520, dtype=dtype)
    add("linear gelu + residual", lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r)
    add("two results", lambda x, w, b: ((y := F.linear(x, w, b)), y.sigmoid()), x, w, b)
    add("addmm alpha beta", lambda r, x, w: torch.addmm(r, x, w.t(), beta=0.5, alpha=2.0), r, x, w)
    add("bmm", torch.bmm, random(6, 200, 72, dtype=dtype), random(6, 72, 136, dtype=dtype))
    add("bmm odd", torch.bmm, random(5, 31, 33, dtype=dtype), random(5, 33, 35, dtype=dtype))
    _slices(add, dtype)
    _few_rows(add, dtype)
    if dtype != torch.bfloat16:
        return found
    add("linear", F.linear, x, w, b)
    add("linear silu", lambda x, w, b: F.silu(F.linear(x, w, b)), x, w, b)
    add("relu(x @ y) * 2, f32 out", lambda x, w: (x @ w.t()).relu().float() * 2, x, w)
    add("bmm t", lambda x, y: torch.bmm(x, y.mT), random(6, 200, 72, dtype=dtype), random(6, 136, 72, dtype=dtype))
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
    for m, n, k in ((1500, 3000, 520), (2560, 2560, 1032), (5000, 3000, 2000)):  # columns behind the last strip
        add(f"finer {m}x{n}x{k}", mm, laid((m, k), "n", dtype), laid((k, n), "t", dtype))
        add(f"finer {m}x{n}x{k} silu", lambda x, y: F.silu(x @ y), laid((m, k), "n", dtype), laid((k, n), "t", dtype))
    add("persistent", mm, laid((3000, 192), "n", dtype), laid((192, 5000), "t", dtype))
    add("reduce-overhead", lambda x, w, b: F.silu(F.linear(x, w, b)), x, w, b, mode="reduce-overhead")
    return found


def _slices(add: Callable[..., None], dtype: torch.dtype) -> None:
    """Products of few tiles, whose depth is divided: layouts, depths that are no multiple of slices, epilogues, batches."""
    for form, (m, n, k) in (("nt", (256, 256, 16384)), ("tn", (200, 136, 5000)), ("nn", (130, 70, 4104)), ("tt", (64, 72, 9000))):
        add(f"slices {m}x{n}x{k} {form}", mm, laid((m, k), form[0], dtype), laid((k, n), form[1], dtype))
    x, w, b = random(100, 6000, dtype=dtype), random(72, 6000, dtype=dtype, scale=6000**-0.5), random(72, dtype=dtype)
    r = random(100, 72, dtype=dtype)
    add("slices gelu + residual", lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, r)
    add("slices, two results", lambda x, w, b: ((y := F.linear(x, w, b)), y.float().relu()), x, w, b)
    add("slices bmm", torch.bmm, random(6, 64, 4096, dtype=dtype), random(6, 4096, 72, dtype=dtype, scale=1 / 64))
    for form in ("nt", "tn"):
        add(f"rows 1700x2600x4100 {form}", mm, laid((1700, 4104), form[0], dtype), laid((4104, 2600), form[1], dtype))
    add("slices odd", mm, random(77, 4099, dtype=dtype), random(4099, 33, dtype=dtype, scale=1 / 64))


def _few_rows(add: Callable[..., None], dtype: torch.dtype) -> None:
    for m in (1, 7, 64):
        w = random(1030, 2056, dtype=dtype, scale=2056**-0.5)
        add(f"{m} rows silu", lambda x, w: F.silu(x @ w.t()), random(m, 2056, dtype=dtype), w)
        add(f"{m} rows nn", mm, random(m, 2056, dtype=dtype), random(2056, 1032, dtype=dtype, scale=2056**-0.5))


def _single(add: Callable[..., None]) -> None:
    """Products of f32 where TF32 is allowed."""
    f32 = torch.float32
    for m, n, k in (
        (128, 128, 64), (333, 77, 132), (17, 40, 24), (1000, 1000, 1000), (64, 72, 9000), (2600, 1100, 200), (256, 256, 4096),
    ):  # fmt: skip
        add(f"tf32 {m}x{n}x{k}", mm, random(m, k, dtype=f32), laid((k, n), "t", f32))
    x, w, b = random(300, 256, dtype=f32), random(520, 256, dtype=f32), random(520, dtype=f32)
    add("tf32 gelu + residual", lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, w, b, random(300, 520, dtype=f32))
    add("tf32 bmm", lambda x, y: torch.bmm(x, y.mT), random(6, 200, 72, dtype=f32), random(6, 136, 72, dtype=f32))
    add("tf32 nn", mm, random(200, 72, dtype=f32), random(72, 136, dtype=f32))


# ---------------------------------------------------------------- times


def products(dtype: torch.dtype) -> dict[str, Product]:
    """What is timed.  All is made at once: about 6 GB."""
    found: dict[str, Product] = {}

    def linear(m: int, n: int, k: int, kind: torch.dtype = dtype) -> tuple[Tensor, Tensor, Tensor]:
        return random(m, k, dtype=kind), random(n, k, dtype=kind, scale=k**-0.5), random(n, dtype=kind)

    def add(name: str, function: Callable[..., Any], args: tuple[Tensor, ...], flops: float, **given: Any) -> None:
        found[name] = Product(function, (args,), flops, **given)

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x @ w.t()

    for m, n, k in [
        (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 1024), (16384, 1024, 4096),
        (8192, 11008, 4096), (512, 4096, 4096), (128, 4096, 4096), (5000, 3000, 2000), (2048, 4096, 4096), (16384, 768, 3072),
        (2560, 2560, 10240), (1536, 3072, 4096),
    ]:  # fmt: skip
        add(f"mm {m}x{n}x{k}", plain, linear(m, n, k), 2.0 * m * n * k)
    args, flops = linear(4096, 4096, 4096), 2.0 * 4096**3
    add("nn 4096", lambda x, w, b: x @ w, args, flops)
    add("tn 4096", lambda x, w, b: x.t() @ w, args, flops)
    add("tt 4096", lambda x, w, b: x.t() @ w.t(), args, flops)
    add("bias 4096", F.linear, args, flops, followed=True)
    add("bias silu 4096", lambda x, w, b: F.silu(F.linear(x, w, b)), args, flops, followed=True)
    r = random(4096, 4096, dtype=dtype)
    add("bias gelu residual 4096", lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, (*args, r), flops, followed=True)
    up, down, flops = linear(16384, 3072, 768), linear(16384, 768, 3072), 2.0 * 16384 * 3072 * 768
    add("gpt2 up gelu", lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), up, flops, followed=True)
    r = random(16384, 768, dtype=dtype)
    add("gpt2 down residual", lambda x, w, b, r: F.linear(x, w, b) + r, (*down, r), flops, followed=True)
    add("odd depth 4096x4096x4097", plain, linear(4096, 4096, 4097), 2.0 * 4096 * 4096 * 4097)

    for n in (64, 128, 256, 512):
        add(f"small {n}", plain, linear(n, n, n), 2.0 * n**3)
    add("small bias gelu 256", lambda x, w, b: F.gelu(F.linear(x, w, b)), linear(256, 256, 256), 2.0 * 256**3, followed=True)
    for m, n, k in (
        (1, 4096, 4096), (8, 4096, 4096), (64, 4096, 4096), (1, 11008, 4096), (16, 11008, 4096), (8, 4096, 11008),
        (64, 4096, 11008),
    ):  # fmt: skip
        sets = tuple([linear(m, n, k) for _ in range(CALLS)])
        found[f"skinny {m}x{n}x{k}"] = Product(plain, sets, 2.0 * m * n * k)
    sets = tuple([linear(16, 11008, 4096) for _ in range(CALLS)])
    found["skinny bias silu 16x11008x4096"] = Product(
        lambda x, w, b: F.silu(F.linear(x, w, b)), sets, 2.0 * 16 * 11008 * 4096, True
    )
    for m, n, k in ((768, 3072, 16384), (256, 256, 16384), (768, 768, 16384), (1024, 4096, 4096), (1536, 3072, 16384)):
        x, y = random(k, m, dtype=dtype), random(k, n, dtype=dtype, scale=k**-0.5)
        add(f"wgrad {m}x{n}x{k}", lambda x, y: x.t() @ y, (x, y), 2.0 * m * n * k)
    for b, m, n, k, form in (
        (32, 1024, 1024, 64, "nt"), (128, 512, 512, 64, "nt"), (64, 512, 512, 128, "nn"), (32, 1024, 64, 1024, "nn"),
        (16, 1024, 1024, 1024, "nn"), (12, 64, 64, 4096, "nn"), (256, 128, 128, 64, "nt"),
    ):  # fmt: skip
        x, y = laid((b, m, k), form[0], dtype), laid((b, k, n), form[1], dtype)
        add(f"bmm {b}x{m}x{n}x{k} {form}", torch.bmm, (x, y), 2.0 * b * m * n * k)
    x, y = random(32, 1024, 64, dtype=dtype), random(32, 1024, 64, dtype=dtype)
    flops = 2.0 * 32 * 1024 * 1024 * 64
    add("bmm scaled 32x1024x1024x64 nt", lambda x, y: torch.bmm(x, y.mT) * 0.125, (x, y), flops, followed=True)

    tf32 = {"precision": "high"}
    for m, n, k in ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 4096, 1024), (16384, 768, 3072)):
        add(f"tf32 {m}x{n}x{k}", plain, linear(m, n, k, torch.float32), 2.0 * m * n * k, **tf32)
    args = linear(4096, 4096, 4096, torch.float32)
    add("tf32 bias gelu 4096", lambda x, w, b: F.gelu(F.linear(x, w, b)), args, 2.0 * 4096**3, followed=True, **tf32)
    return found
