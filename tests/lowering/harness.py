"""Runs a function twice, in eager and as lowered kernels in the interpreter, and compares."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lowc.frontend.dtypes import TORCH_OF
from lowc.frontend.importer import import_graph
from lowc.ir.graph import Graph
from lowc.ir.index import Index, Symbol, evaluate
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Buffer, Extern, Launch, Module, View
from lowc.ir.types import DType
from lowc.ir.verify import verify_module
from lowc.lowering import lower

_BITS = {torch.bfloat16: torch.uint16}

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)


# ---------------------------------------------------------------- inputs

_SPECIALS = (
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    float("-inf"),
    1.0,
    -1.0,
    0.5,
    2.5,
    -2.5,
    1e30,
    1e-41,
    20.5,
    -3.5,
)


def data(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, special: bool = True) -> torch.Tensor:
    """Values with every special one among them: NaN, infinities, both zeros, halves, extremes."""
    rng = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=rng).bool()
    if dtype.is_floating_point:
        flat = torch.randn(shape, generator=rng, dtype=torch.float64) * 2
        if special and flat.numel():
            where = torch.randperm(flat.numel(), generator=rng)[: flat.numel() // 2]
            picks = torch.randint(0, len(_SPECIALS), where.shape, generator=rng)
            flat.view(-1)[where] = torch.tensor(_SPECIALS, dtype=torch.float64)[picks]
        return flat.to(dtype)
    info = torch.iinfo(dtype)
    flat = torch.randint(max(info.min, -9), 10, shape, generator=rng)
    if special and flat.numel() > 4:
        where = torch.randperm(flat.numel(), generator=rng)[:4]
        flat.view(-1)[where] = torch.tensor([info.min, info.max, 0, 1])
    return flat.to(dtype)


# ---------------------------------------------------------------- running a module


def trace(function: Callable[..., Any], args: tuple[Any, ...], dynamic: bool = False) -> Graph:
    gm = make_fx(lambda *a: function(*a), tracing_mode="symbolic" if dynamic else "fake")(*args)
    graph, constants = import_graph(gm, "f")
    assert not constants
    return graph


def run(module: Module, args: list[Any]) -> list[Any]:
    """The outputs of ``module``; inputs that it mutates are changed."""
    env: dict[str, int] = {}
    memory: dict[str, torch.Tensor] = {}
    for given, value in zip(module.inputs, args, strict=True):
        if isinstance(given, Buffer):
            bind(given.shape, value.shape, env)
            bind(given.strides, value.stride(), env)
            memory[given.name] = flat(value)
        elif given is not None:
            env[given.name] = int(value)
    for step in module.steps:
        if isinstance(step, Launch):
            arrays = {}
            for param, arg in zip(step.kernel.params, step.args, strict=True):
                held = memory[arg.name] if arg.name in memory else poisoned(arg, env)
                memory[arg.name] = held
                arrays[param.name] = held.view(_BITS.get(held.dtype, held.dtype)).numpy()
            run_kernel(step.kernel, arrays, {s.name: env[s.name] for s in step.kernel.sizes})
        else:
            call(step, memory, env)
    return [window(out, memory, env) for out in module.outputs]


def poisoned(temp: Buffer, env: dict[str, int]) -> torch.Tensor:
    """Memory for ``temp`` that shows where nothing was written."""
    span = 1 + sum(
        (evaluate(n, env) - 1) * evaluate(s, env) for n, s in zip(temp.shape, temp.strides, strict=True)
    )
    empty = any(evaluate(n, env) == 0 for n in temp.shape)
    fresh = torch.empty(0 if empty else span, dtype=TORCH_OF[temp.dtype])
    return fresh.fill_(float("nan") if fresh.is_floating_point() or fresh.is_complex() else 77)


def bind(indices: tuple[Index, ...], numbers: Any, env: dict[str, int]) -> None:
    for index, number in zip(indices, numbers, strict=True):
        if len(index.terms) == 1 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
            env.setdefault(index.terms[0][0][0].name, int(number))


def flat(value: torch.Tensor) -> torch.Tensor:
    span = (
        0
        if value.numel() == 0
        else 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    )
    return torch.as_strided(value.detach(), (span,), (1,), value.storage_offset())


def window(arg: Any, memory: dict[str, torch.Tensor], env: dict[str, int]) -> Any:
    """What an argument or output of a module is as a torch object."""
    if isinstance(arg, View):
        held = memory[arg.buffer.name] if arg.buffer.name in memory else poisoned(arg.buffer, env)
        size = TORCH_OF[arg.dtype].itemsize
        start = held.storage_offset() * held.element_size() // size + evaluate(arg.offset, env)
        shape, strides = (tuple(evaluate(n, env) for n in x) for x in (arg.shape, arg.strides))
        return torch.empty(0, dtype=TORCH_OF[arg.dtype]).set_(held.untyped_storage(), start, shape, strides)
    if isinstance(arg, Index):
        return evaluate(arg, env)
    if isinstance(arg, tuple):
        return [window(a, memory, env) for a in arg]
    if isinstance(arg, DType):
        return TORCH_OF[arg]
    if isinstance(arg, str) and ":" in arg:
        kind, _, name = arg.partition(":")
        return torch.device(name) if kind == "device" else getattr(torch, name)
    return arg


def call(step: Extern, memory: dict[str, torch.Tensor], env: dict[str, int]) -> None:
    namespace, name, overload = step.target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    found = op(
        *(window(a, memory, env) for a in step.args), **{k: window(v, memory, env) for k, v in step.kwargs}
    )
    if not step.results:
        return
    for buffer, value in zip(
        step.results, found if isinstance(found, tuple | list) else (found,), strict=True
    ):
        if isinstance(buffer, Buffer):
            bind(buffer.shape, value.shape, env)
            strides = tuple(evaluate(s, env) for s in buffer.strides)
            agree = all(a == b for a, b, n in zip(strides, value.stride(), value.shape, strict=True) if n > 1)
            if not agree:
                value = torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)
            memory[buffer.name] = flat(value)
        elif isinstance(buffer, Symbol):
            env[buffer.name] = int(value)


# ---------------------------------------------------------------- comparing


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where both are equal with the sign of zero; any NaN equals any NaN."""
    if not a.is_floating_point():
        return a == b
    nan = a.isnan() & b.isnan()
    return (a == b) & (a.signbit() == b.signbit()) | nan


def assert_same(ours: Any, eager: Any, reference: Any, ulps: float | None, floor: float = 0.0) -> None:
    """Same type; same bits if ``ulps`` is None, else within so many units of the last place of the float64 reference or eager."""
    if isinstance(eager, tuple | list):
        for parts in zip(ours, eager, reference or eager, strict=True):
            assert_same(*parts, ulps, floor)
        return
    if not isinstance(eager, torch.Tensor):
        assert ours == eager
        return
    assert ours.dtype == eager.dtype and ours.shape == eager.shape
    big = [d for d in range(eager.dim()) if eager.shape[d] > 1]
    if eager.numel():
        assert [ours.stride(d) for d in big] == [eager.stride(d) for d in big], (
            ours.stride(),
            eager.stride(),
        )
    if ulps is None or not eager.is_floating_point():
        same = bits_equal(ours, eager)
        assert bool(same.all()), (
            f"at {(~same).nonzero()[:4].tolist()}\nours  {ours[~same]}\neager {eager[~same]}"
        )
        return
    wide = (eager if reference is None else reference).double()
    eps = torch.finfo(eager.dtype).eps * ulps
    slack = eps * wide.abs().clamp(min=floor) + torch.finfo(eager.dtype).smallest_normal * eps * 4
    near = (ours.double() - wide).abs() <= slack
    near |= (ours.double() - eager.double()).abs() <= slack
    near |= (ours == eager) | (ours.isnan() & eager.isnan())
    assert bool(near.all()), (
        f"at {(~near).nonzero()[:4].tolist()}\nours  {ours[~near]}\neager {eager[~near]}\nwide  {wide[~near]}"
    )


def copied(arg: Any) -> Any:
    """A copy with the same strides, also where they overlap."""
    if not isinstance(arg, torch.Tensor):
        return arg
    storage = arg.untyped_storage().clone()
    return torch.empty(0, dtype=arg.dtype).set_(storage, arg.storage_offset(), arg.shape, arg.stride())


def check(
    function: Callable[..., Any],
    *args: torch.Tensor,
    ulps: float | None = None,
    extern: tuple[str, ...] | None = (),
    dynamic: bool = False,
    reference: bool = True,
    floor: float = 0.0,
) -> Module:
    """Compares ``function`` in eager and lowered.  ``extern``: the ops that must be calls of ATen, None if any may be.

    With ``ulps``, floats are compared with the function on float64 inputs (or with eager itself if not ``reference``); values
    smaller than ``floor`` are allowed the error of ``floor``, where cancellation leaves no relative accuracy.
    """
    graph = trace(function, tuple(copied(a) for a in args), dynamic)
    module = lower(graph)
    verify_module(module, "LOOPS")
    called = tuple(s.target for s in module.steps if isinstance(s, Extern))
    if extern is not None:
        reasons = [(s.target, s.because) for s in module.steps if isinstance(s, Extern)]
        assert called == extern, f"extern calls {reasons}"
    check_module(module, function, args, ulps, reference, floor)
    return module


def check_module(
    module: Module,
    function: Callable[..., Any],
    args: Any,
    ulps: float | None,
    reference: bool = True,
    floor: float = 0.0,
) -> None:
    mine, theirs = [copied(a) for a in args], [copied(a) for a in args]
    eager = function(*theirs)
    eager = list(eager) if isinstance(eager, tuple | list) else [eager]
    wide = None
    if ulps is not None and reference:
        wide = function(*(a.double() if a.is_floating_point() else a for a in args))
        wide = list(wide) if isinstance(wide, tuple | list) else [wide]
    assert_same(run(module, mine), eager, wide, ulps, floor)
    for a, b in zip(mine, theirs, strict=True):
        assert not isinstance(a, torch.Tensor) or bool(bits_equal(a, b).all())
