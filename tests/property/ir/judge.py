"""What becomes of a text: an error of lowc's family, or a program that every pass and backend keeps right.

A program that passes the verifier may still be without meaning: it reads memory that nobody wrote or that is not there, or its
iterations meet.  Such programs are not run; they must still not crash anything.

The status of an Outcome: refused (ParseError, VerifyError), no code (another LowcError), right, not run; or what is bad:
exception (of another type), wrong, broken (a pass makes an invalid program of a valid one), text (printed and parsed: another).
"""

import random
import warnings
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from lowc.backends import x86
from lowc.errors import LowcError, ParseError, VerifyError
from lowc.ir import interp, interp_kernel, walk
from lowc.ir.index import Index, evaluate
from lowc.ir.interp import run_module
from lowc.ir.nodes import LEVELS, Buffer, For, Launch, Module
from lowc.ir.numeric import from_storage, to_storage
from lowc.ir.parser import parse_module
from lowc.ir.printer import print_module
from lowc.ir.verify import verify_module
from lowc.ir.verify_gpu import verify_threads
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.target import Target
from tests.property.children import Outcome, said
from tests.property.programs import call_extern
from tests.property.test_passes import TARGETS

WORK = 10_000
"""Iterations of a program that is run."""


def judge(text: str, seed: int, emit: bool = True) -> Outcome:
    rng = random.Random(seed)
    try:
        module = parse_module(text)
        verify_module(module, module.level)
    except (ParseError, VerifyError):
        return Outcome("refused")
    except Exception as error:
        return Outcome("exception", f"parser or verifier: {said(error)}")
    again = print_module(module)
    try:
        if print_module(parse_module(again)) != again:
            return Outcome("text", "printed, parsed and printed it is another")
    except Exception as error:
        return Outcome("text", f"printed, it does not parse: {said(error)}")
    launches = [step for step in module.steps if isinstance(step, Launch)]
    bound = {s.kind.name for step in launches for s in walk.statements(step.kernel.body) if isinstance(s, For)}
    name = rng.choice(("avx512", "avx2", "sse2")) if not bound & {"block", "thread", "pipeline", "teams"} else "nvptx"
    if module.level == "LOOPS" and rng.random() < 0.4:
        name = "nvptx"
    return through(module, TARGETS[name], seed, emit)


def through(module: Module, target: Target, seed: int, emit: bool) -> Outcome:
    expected = meaning(module, seed)
    options = Options(check=True)
    takes = [row.takes for row in pipeline.PASSES]
    start = takes.index(module.level) if module.level in takes else len(takes)
    rows = [row for row in pipeline.PASSES[start:] if row.only in ("", target.kind)]
    if module.level == "SCHEDULED":
        rows = [row for row in rows if row.name in ("hoist", "memory", "legalise")]
    for row in rows:
        try:
            module = pipeline.apply(row, module, target, options)
        except VerifyError as error:
            if start or expected is None:  # it never was one that the target can run, or that means anything
                return Outcome("no code")
            return Outcome("broken", f"{row.name}: {said(error)}")
        except LowcError:
            return Outcome("no code")
        except Exception as error:
            return Outcome("exception", f"{row.name}: {said(error)}")
        if expected is not None and (found := differences(expected, run(module, seed), module)):
            return Outcome("wrong", f"after {row.name}: {found}")
    if emit and module.level == "MACHINE":
        try:
            emitted(module, target, options)
        except LowcError:
            return Outcome("no code")
        except Exception as error:
            return Outcome("exception", f"{target.kind} backend: {said(error)}")
    return Outcome("right" if expected is not None else "not run")


def emitted(module: Module, target: Target, options: Options) -> None:
    """To an object file, or to PTX.  Raises what the backend raises."""
    if target.kind == "nvptx":
        from lowc.backends import nvptx

        verify_threads(module)
        nvptx.compile_module(module, target, options)
    else:
        x86.compile_module(module, target, options)


# ---------------------------------------------------------------- meaning


def meaning(module: Module, seed: int) -> list[Any] | None:
    """What ``module`` gives; None if it has no meaning (see above), or is too much to run."""
    sizes = sizes_of(module, seed)
    if work(module, sizes) > WORK or overlapping(module, sizes):
        return None
    first = run(module, seed)
    if first is None:
        return None
    with patch.object(interp_kernel, "poisoned", _other_poison), patch.object(interp, "poisoned", _other_poison):
        unlike = differences(first, run(module, seed), module)
    shuffled = "" if LEVELS.index(module.level) == 0 else differences(first, run(module, seed, random.Random(seed)), module)
    return None if unlike or shuffled else first


def work(module: Module, sizes: dict[str, int]) -> float:
    """Iterations of all loops and elements of all buffers, roughly."""
    total = 0.0
    for buffer in (b for b in (*module.inputs, *module.temps) if isinstance(b, Buffer)):
        elements = 1.0
        for size in buffer.shape:
            elements *= max(_number(size, sizes), 0)
        total += elements
    return total + sum(_iterations(step.kernel.body, sizes) for step in module.steps if isinstance(step, Launch))


def _number(index: Index, sizes: dict[str, int]) -> float:
    try:
        return float(evaluate(index, sizes))
    except KeyError:  # it depends on axes: no more than what they run over
        return 16.0


def _iterations(body: Sequence[Any], sizes: dict[str, int]) -> float:
    total = 0.0
    for stmt in body:
        inner = getattr(stmt, "body", None)
        inside = _iterations(inner, sizes) if isinstance(inner, tuple) else 0.0
        total += max(_number(stmt.axis.extent, sizes), 0) * (1 + inside) if isinstance(stmt, For) else 1 + inside
    return total


def run(module: Module, seed: int, shuffle: random.Random | None = None) -> list[Any] | None:
    """Results, then what the inputs hold; None where the interpreter finds that there is no meaning, or a check fails."""
    sizes = sizes_of(module, seed)
    rng = np.random.default_rng(seed)
    if any(n > 64 for n in sizes.values()):
        return None
    try:
        inputs = [_input(item, sizes, rng) for item in module.inputs]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = run_module(module, inputs, call_extern, sizes, shuffle)
    except Exception:
        return None
    return [*found, *(i for i in inputs if hasattr(i, "dtype"))]


def sizes_of(module: Module, seed: int) -> dict[str, int]:
    rng = np.random.default_rng(seed)
    return {s.name: int(min(max(s.lo, rng.integers(1, 9)), s.hi if s.hi is not None else 1 << 30)) for s in module.symbols}


def overlapping(module: Module, sizes: dict[str, int]) -> bool:
    """Whether a buffer's elements may share memory with one another."""
    for buffer in (b for b in (*module.inputs, *module.temps) if isinstance(b, Buffer)):
        shape, strides = ([int(evaluate(n, sizes)) for n in part] for part in (buffer.shape, buffer.strides))
        reach = 0
        for stride, size in sorted(zip(strides, shape, strict=True)):
            if size > 1 and stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _input(item: Any, sizes: dict[str, int], rng: np.random.Generator) -> Any:
    """Small whole numbers: their sums are exact in any order."""
    if not isinstance(item, Buffer):
        return None if item is None else sizes[item.name]
    shape, strides = ([int(evaluate(n, sizes)) for n in part] for part in (item.shape, item.strides))
    count = interp.storage_size(shape, strides)
    if not 0 <= count <= 1 << 20:
        raise ValueError("too much memory")
    values = rng.integers(0, 2 if item.dtype.kind == "b" else 4, count)
    return to_storage(values, item.dtype)


def _other_poison(size: int, dtype: np.dtype[Any]) -> Any:
    return np.frombuffer(bytes([0x35]) * (size * dtype.itemsize), dtype).copy()


def differences(a: list[Any] | None, b: list[Any] | None, module: Module) -> str:
    """Where two runs differ by more than maths functions may; what is none of the two has no difference."""
    if a is None:
        return ""
    if b is None:
        return "the interpreter does not run it any more"
    dtypes = [getattr(o, "dtype", None) for o in module.outputs] + [i.dtype for i in module.inputs if isinstance(i, Buffer)]
    for number, (x, y, dtype) in enumerate(zip(a, b, dtypes, strict=True)):
        if not hasattr(x, "dtype"):
            if x != y:
                return f"value {number}: {x} and {y}"
            continue
        if x.shape != y.shape:
            return f"value {number}: {x.shape} and {y.shape}"
        if dtype is None or dtype.kind == "b" or x.dtype.kind in "biuc" and dtype.name != "bf16":
            if not np.array_equal(x, y):
                return f"value {number}: {x.ravel()[:4]} and {y.ravel()[:4]}"
            continue
        with np.errstate(all="ignore"):
            u, v = (from_storage(t, dtype).astype(np.float64) for t in (x, y))
            rough = 3e-2 if dtype.name in ("f16", "bf16") else 1e-4
            if not np.allclose(u, v, rtol=rough, atol=rough, equal_nan=True):
                return f"value {number}: {u.ravel()[:4]} and {v.ravel()[:4]}"
    return ""
