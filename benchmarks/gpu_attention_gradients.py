"""Gradients of attention on a GPU: lowc's own kernels beside cuDNN's and flash attention's (ATen), in turn in one process.

    python -m benchmarks.gpu_attention --gradients [--check] [--ways] [--only D128,T4096] [--rounds 5] [--name h200_gradients]

All are given the result of flash attention and the logarithms of its sums (cuDNN its own), and the gradient of the result: what
is timed is the backward pass alone, in CUDA graphs of some calls each, sides in turn; the median of the rounds counts.  TFLOP/s
are of 10 * B * H * T * T * D operations, half of that where it is causal.

``--check`` compares with float64 first, and times nothing if something is wrong: the errors of the gradients of queries, keys and
values may each be twice those of flash attention.  ``--ways`` times ways of doing it beside the one that is chosen.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_attention import LIBRARIES, OPTIONS, Ways, attend, qkv
from benchmarks.gpu_matmul import RESULTS, Graph, error, in_turn, random, replayed
from benchmarks.report import table
from lowc.scheduler import choose_attention, contract

Gradients = tuple[Tensor, Tensor, Tensor]
Size = tuple[int, int, int, int]
NAMES = ("dq", "dk", "dv")
ROWS = 4096  # of queries up to which results are compared with float64, of one head


def flash(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> tuple[Callable[..., Gradients], tuple[Tensor, ...]]:
    """The backward pass of flash attention, and its arguments."""
    out, sums, _, _, rows, keys, seed, offset, _ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)

    def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, seed: Tensor, offset: Tensor) -> Any:
        op = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
        return op(grad, q, k, v, out, sums, None, None, rows, keys, 0.0, causal, seed, offset)

    return backward, (grad, q, k, v, out, sums, seed, offset)


def cudnn(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> tuple[Callable[..., Gradients], tuple[Tensor, ...]]:
    """The backward pass of cuDNN's attention, and its arguments."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    out, sums, _, _, rows, keys, seed, offset, _ = found

    def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, seed: Tensor, offset: Tensor) -> Any:
        op = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
        return op(grad, q, k, v, out, sums, seed, offset, None, None, None, rows, keys, 0.0, causal)

    return backward, (grad, q, k, v, out, sums, seed, offset)


def own(backward: Callable[..., Gradients], args: tuple[Tensor, ...], **given: Any) -> Callable[[], Gradients]:
    """The backward pass by lowc's own kernels; nothing is dropped, so that the state of the generator is not read."""
    compiled = torch.compile(backward, backend="lowc", fullgraph=True, options={**OPTIONS, **given}, dynamic=False)
    state = torch.zeros(2, dtype=torch.int64, device="cuda")
    return lambda: compiled(*args[:6], state, state)


# ---------------------------------------------------------------- values


def exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> Gradients:
    """In float64."""
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    with torch.enable_grad():
        keys, values = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in wide[1:])
        scores = wide[0] @ keys.mT * q.shape[-1] ** -0.5
        if causal:
            hidden = torch.ones(scores.shape[-2:], device="cuda", dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        result = scores.softmax(-1) @ values
    found = torch.autograd.grad(result, wide, grad.double())
    return found[0], found[1], found[2]


def compared(ours: Gradients, theirs: Gradients, right: Gradients) -> tuple[str, bool]:
    """Errors as text, and whether each of ours is at most twice theirs."""
    mine, other = ([error(a, b) for a, b in zip(found, right, strict=True)] for found in (ours, theirs))
    pairs = " ".join(f"{n} {a:.1e} ({b:.1e})" for n, a, b in zip(NAMES, mine, other, strict=True))
    least = torch.finfo(ours[0].dtype).eps / 4
    return pairs, all(a <= 2 * max(b, least) for a, b in zip(mine, other, strict=True))


def last(found: Gradients) -> Gradients:
    return found[0][-1:, -1:], found[1][-1:, -1:], found[2][-1:, -1:]


def checks(dtype: torch.dtype) -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor], bool]]:
    """Name, queries, keys, values, whether causal."""
    for deep in (64, 128, 32, 96) if dtype == torch.bfloat16 else (64, 128):
        for rows in (1000,) if dtype == torch.float16 or deep in (32, 96) else (63, 129, 1000, 2048):
            for causal in (False, True) if rows > 63 else (True,):
                name = f"D{deep} T{rows} {'causal' if causal else 'full'}"
                yield name, qkv(2, 3, rows, deep, dtype, scale=3.0 if rows == 1000 else 1.0), causal
    if dtype == torch.bfloat16:
        yield "two rows", qkv(2, 3, 2, 64, dtype), True
        yield "more keys than queries", qkv(1, 2, 100, 64, dtype, keys=777), False
        yield "fewer keys than queries", qkv(1, 2, 777, 128, dtype, keys=100), False
        q, k, v = (t * 0.1 + shift for t, shift in zip(qkv(1, 2, 200, 64, dtype), (4, -4, 0), strict=True))
        yield "small sums", (q, k, v), False  # without masks behind the last key weights would be infinite
        heads = random(2, 500, 3, 4, 64, dtype=dtype)
        q, k, v = (heads[:, :, n].transpose(1, 2) for n in range(3))
        yield "one tensor of all", (q, k, v), True
        yield "4 heads of queries, 2 of keys", qkv(2, 4, 300, 128, dtype, shared=2), True


def check(dtype: torch.dtype) -> int:
    """How many checks fail; prints those."""
    failed = total = 0
    for name, (q, k, v), causal in checks(dtype):
        torch._dynamo.reset()
        total += 1
        grad = random(*q.shape[:3], v.shape[3], dtype=dtype)
        backward, args = flash(q, k, v, grad, causal)
        right, theirs = exact(q, k, v, grad, causal), backward(*args)
        try:
            with Ways("gradients") as ways:
                ours = own(backward, args, check=True)
                text, good = compared(ours(), theirs, right)
                for _ in range(3):  # what another run left in memory is none of this one's
                    good = good and compared(ours(), theirs, right)[1]
            torch.cuda.synchronize()
        except Exception as problem:
            print(f"FAIL {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            failed += 1
            if "CUDA" in str(problem):
                break  # the context is gone
            continue
        if not good or not ways.found:
            print(f"FAIL {name}: errors, and those of flash: {text}{'' if ways.found else ', not our own'}", flush=True)
            failed += 1
    print(f"{dtype}: {total - failed} of {total} checks of gradients pass", flush=True)
    return failed + trained(dtype) + beside_cudnn(dtype)


def beside_cudnn(dtype: torch.dtype) -> int:
    """How many gradients from results and sums of cuDNN's are wrong."""
    failed = 0
    for causal in (False, True):
        torch._dynamo.reset()
        q, k, v = qkv(2, 3, 640, 64, dtype)
        grad = random(2, 3, 640, 64, dtype=dtype)
        backward, args = cudnn(q, k, v, grad, causal)
        with Ways("gradients") as ways:
            text, good = compared(own(backward, args)(), backward(*args), exact(q, k, v, grad, causal))
        if not good or not ways.found:
            print(f"FAIL after cuDNN's forward pass: {text}{'' if ways.found else ', not our own'}", flush=True)
            failed += 1
    return failed


def trained(dtype: torch.dtype) -> int:
    """How often gradients are wrong by autograd, or what is chosen by default beside either library is not lowc's own."""
    failed = 0
    args = [t.requires_grad_() for t in qkv(2, 16, 4096, 64, dtype)]
    grad = random(2, 16, 4096, 64, dtype=dtype)
    default = SDPBackend(torch._fused_sdp_choice(args[0], args[1], args[2], is_causal=True))
    print(f"torch's own choice of a library: {default.name}", flush=True)
    for name, backend in LIBRARIES.items():
        torch._dynamo.reset()
        function, options = attend(is_causal=True), {**OPTIONS, "attention": "auto"}
        with torch.enable_grad(), sdpa_kernel(backend), Ways() as forward, Ways("gradients") as back:
            compiled = torch.compile(function, backend="lowc", fullgraph=True, options=options, dynamic=False)
            found = [torch.autograd.grad(f(*args), args, grad) for f in (compiled, function)]
        ours, theirs = (last((a, b, c)) for a, b, c in found)
        q, k, v = (a.detach()[-1:, -1:] for a in args)
        text, good = compared(ours, theirs, exact(q, k, v, grad[-1:, -1:], True))
        if not (good and forward.found and back.found):
            print(f"FAIL by autograd beside {name}: {text}; own: {bool(forward.found)}, {bool(back.found)}", flush=True)
            failed += 1
    return failed


# ---------------------------------------------------------------- times


def cases() -> dict[str, tuple[Size, bool]]:
    """(batch, heads, length, width of a head), whether causal, by name."""
    found: dict[str, tuple[Size, bool]] = {}
    for batch, heads, rows in ((2, 16, 4096), (1, 16, 16384), (4, 16, 2048), (4, 16, 1024)):
        for deep in (128, 64):
            for causal in (False, True):
                found[f"B{batch} H{heads} T{rows} D{deep} {'causal' if causal else 'full'}"] = (batch, heads, rows, deep), causal
    found["B4 H48 T8192 D128 causal"] = (4, 48, 8192, 128), True
    return found


def operations(size: Size, causal: bool) -> float:
    return 10.0 * math.prod(size) * size[2] * (0.5 if causal else 1.0)


def given_tensors(size: Size, causal: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch._dynamo.reset()
    q, k, v = qkv(*size, dtype)
    return q, k, v, random(*size, dtype=dtype)


def measure(size: Size, causal: bool, dtype: torch.dtype, rounds: int) -> tuple[dict[str, float], str, bool]:
    """Milliseconds by side; errors as text; whether they are good."""
    q, k, v, grad = given_tensors(size, causal, dtype)
    backward, args = flash(q, k, v, grad, causal)
    theirs = backward(*args)
    by_cudnn, given = cudnn(q, k, v, grad, causal)
    calls = {"own": own(backward, args), "cuDNN": lambda: by_cudnn(*given), "flash": lambda: backward(*args)}
    ours = calls["own"]()
    if size[2] <= ROWS:
        heads = [t[-1:, -1:] for t in (q, k, v, grad)]
        text, good = compared(last(ours), last(theirs), exact(heads[0], heads[1], heads[2], heads[3], causal))
    else:
        apart = [error(a, b.double()) for a, b in zip(ours, theirs, strict=True)]
        text, good = "apart from flash " + " ".join(f"{a:.1e}" for a in apart), max(apart) < 1e-2
    many = 1 if size[2] > ROWS else 2
    return in_turn({side: replayed(call, many) for side, call in calls.items()}, rounds), text, good


@contextmanager
def changed(**fields: Any) -> Iterator[None]:
    """Chooses ways that have other values in ``fields``."""
    chosen = choose_attention.gradients

    def other(*args: Any) -> Any:
        found = [dataclasses.replace(w, **{f: x for f, x in fields.items() if hasattr(w, f)}) for w in chosen(*args)[:1]]
        for way in found:
            contract.apply(args[0], way)  # raises where it is not legal: what comes instead takes minutes
        return tuple(found)

    choose_attention.gradients = other
    try:
        yield
    finally:
        choose_attention.gradients = chosen


def variants(causal: bool) -> dict[str, dict[str, Any]]:
    """Fields of ways that are timed beside those chosen.  ``apart``: gradients of queries by a kernel of their own, as where
    deterministic algorithms are asked for."""
    found: dict[str, dict[str, Any]] = {"chosen": {}, "apart": {}, "threads store": {"strips": 0}}
    found.update({f"{n} heads": {"heads": n} for n in ((1, 2, 4, 16) if causal else (2, 8))})
    return found if causal else {**found, "no stagger": {"stagger": False}}


def ways(names: list[str], dtype: torch.dtype, rounds: int) -> None:
    """TFLOP/s of variants of the chosen way."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    for name, (size, causal) in cases().items():
        if not all(part in name for part in names):
            continue
        q, k, v, grad = given_tensors(size, causal, dtype)
        backward, args = flash(q, k, v, grad, causal)
        by_cudnn, given = cudnn(q, k, v, grad, causal)
        graphs: dict[str, Graph] = {"cuDNN": replayed(partial(by_cudnn, *given), 1)}
        for variant, fields in variants(causal).items():
            torch._dynamo.reset()
            torch.use_deterministic_algorithms(variant == "apart")
            try:
                with changed(**fields):
                    graphs[variant] = replayed(own(backward, args), 1)
            except Exception as problem:
                print(f"{name}, {variant}: {type(problem).__name__}: {str(problem)[:150]}", flush=True)
            finally:
                torch.use_deterministic_algorithms(False)
        times = in_turn(graphs, rounds)
        work = operations(size, causal)
        print(f"{name}: " + " · ".join(f"{side} {work / ms / 1e9:.0f}" for side, ms in times.items()), flush=True)


def run(given: argparse.Namespace, dtype: torch.dtype) -> None:
    names = [part for part in given.only.split(",") if part]
    with torch.no_grad():
        if given.check and sum(check(d) for d in (torch.bfloat16, torch.float16)):
            sys.exit(1)
        if given.ways:
            ways(names, dtype, given.rounds)
            return
        lines: list[list[str]] = []
        wrong = False
        for name, (size, causal) in cases().items():
            if not all(part in name for part in names):
                continue
            try:
                found, text, good = measure(size, causal, dtype, given.rounds)
            except Exception as problem:
                print(f"{name}: {type(problem).__name__}: {str(problem)[:200]}", flush=True)
                continue
            wrong = wrong or not good
            work = operations(size, causal)
            rates = [f"{work / found[side] / 1e9:.0f}" for side in ("own", *LIBRARIES)]
            line = [name, f"{found['own'] * 1e3:.1f}", *rates, f"{found['cuDNN'] / found['own']:.3f}"]
            print("  ".join(line), f" {'errors (of flash)' if good else 'WRONG'} {text}", flush=True)
            lines.append(line)
    written = table(["gradients", "own us", "own TFLOP/s", *LIBRARIES, "own / cuDNN"], lines)
    print(written)
    if given.name:
        heading = f"# Gradients of attention on {torch.cuda.get_device_name()}, {given.dtype}"
        (RESULTS / f"{given.name}.md").write_text(f"{heading}\n\n{written}\n")
    if wrong:
        sys.exit("some gradients are wrong")
