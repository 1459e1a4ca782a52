"""Whether a compiled program is right.

Compiled through AOTAutograd, as Dynamo's backend does, or (``dynamo``) through ``torch.compile`` itself.  Compared with eager
are the dtypes, shapes and strides of results, which of them are windows of an input, values, and what the inputs hold afterwards;
with gradients, these too.

Values that depend on exact lines alone are eager's bit for bit.  Others may differ from eager's by no more than

* a few units in the last place, or
* twice eager's own distance from the program in float64, or
* what the program in float64 does when each of its results is moved by its rounding (``Noise``), which says how much a small
  error may grow in this program, and which comparisons and choices it may turn over.
"""

import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode

from lowc.compiler import compile_graph
from lowc.errors import Unsupported
from lowc.frontend.aot import compile_module
from lowc.lowering.table import TABLE
from lowc.options import parse
from tests.property.graphs.program import FLOATS, Noise, Program, function, make_inputs, trace

RUNS = 8  # in float64, each with other noise


@dataclass(frozen=True)
class Verdict:
    """``status``:

    * right, wrong; error: lowc raises; torch: lowc cannot import the graph, so that torch would run it;
    * refused: AOTAutograd raises without lowc, too; inherited: not as in eager, but as AOTAutograd makes it without lowc;
    * eager: eager raises.
    """

    status: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.status in ("wrong", "error", "crash", "timeout")


@dataclass(frozen=True)
class Ran:
    """Results, then the inputs as they are afterwards, then gradients.  ``windows``: for each result, the number of the input
    whose storage it has."""

    values: list[Tensor | None]
    windows: list[int | None]
    results: int
    forward: int


def judge(program: Program, dynamo: bool = False, knobs: Sequence[tuple[Any, str, Any]] = (), check: bool = False) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = function(program)
        try:
            eager = run(program, call)
        except Exception as error:
            return Verdict("eager", _say(error))
        with ExitStack() as stack:
            for module, name, value in knobs:
                stack.enter_context(patch.object(module, name, value))
            try:
                ours = run(program, _through_dynamo(call) if dynamo else _compiled(program, call, check))
            except Unsupported as error:
                return Verdict("torch", error.message)
            except Exception as error:
                return _blamed(program, call, error)
        found = compare(program, ours, eager)
        if found.bad and (plain := _without_lowc(program, call)) is not None and not compare(program, ours, plain).bad:
            return Verdict("inherited", found.detail)
        return found


def run(program: Program, call: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor] | None = None) -> Ran:
    given = list(inputs) if inputs is not None else make_inputs(program.inputs)
    with torch.set_grad_enabled(program.grad):
        results = list(call(*given))
    return _ran(results, given)


def _ran(results: list[Tensor], given: list[Tensor]) -> Ran:
    places = [x.untyped_storage().data_ptr() if x.numel() else None for x in given]
    windows = [_find(places, r.untyped_storage().data_ptr()) if r.numel() else None for r in results]
    found: list[Tensor | None] = [*results, *(x.detach() for x in given)]
    forward = len(found)
    wanted = [x for x in given if x.is_leaf and x.requires_grad]
    ends = [r for r in results if r.requires_grad]
    if wanted and ends:
        found += torch.autograd.grad(ends, wanted, [_cotangent(e) for e in ends], allow_unused=True)
    return Ran(found, windows, len(results), forward)


def _find(places: list[int | None], place: int) -> int | None:
    return places.index(place) if place in places else None


def _cotangent(end: Tensor) -> Tensor:
    return torch.linspace(0.5, 1.5, end.numel(), dtype=torch.float64).reshape(end.shape).to(end.dtype)


# ---------------------------------------------------------------- compiled


def _compiled(program: Program, call: Callable[..., Any], check: bool) -> Callable[..., Any]:
    options = parse(None, {"strict_errors": True, "check": check})
    graph = fx.Graph()
    graph.output(graph.call_function(call, tuple(graph.placeholder(i.name) for i in program.inputs)))
    module = fx.GraphModule({}, graph)
    inputs = make_inputs(program.inputs)
    with torch.set_grad_enabled(program.grad):
        return compile_module(
            module, inputs, lambda g, constants: compile_graph(g, constants, options), keep=TABLE.keys(), strict=True
        )


def _through_dynamo(call: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(call, backend="lowc", options={"strict_errors": True}, dynamic=False)


def _blamed(program: Program, call: Callable[..., Any], error: Exception) -> Verdict:
    """Refused if AOTAutograd, or what it makes of the program, raises without lowc as well."""
    torch._dynamo.reset()
    plain = (aot_function(call, fw_compiler=lambda gm, _: gm), torch.compile(call, backend="aot_eager", dynamic=False))
    for compiled in plain:
        try:
            run(program, compiled)
        except Exception as other:
            return Verdict("refused", _say(other))
    return Verdict("error", _say(error))


def _without_lowc(program: Program, call: Callable[..., Any]) -> Ran | None:
    try:
        return run(program, aot_function(call, fw_compiler=lambda gm, _: gm))
    except Exception:
        return None


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# ---------------------------------------------------------------- compared


def compare(program: Program, ours: Ran, eager: Ran) -> Verdict:
    for number, (a, b) in enumerate(zip(ours.values, eager.values, strict=True)):
        if found := _types(a, b, number < eager.forward):
            if found.startswith("strides") and number < eager.results and _as_faked(program, number, a):
                continue
            return Verdict("wrong", f"{describe(program, eager, number)}: {found}")
    for number in range(eager.results):
        if ours.windows[number] != eager.windows[number] and not program.grad:
            return Verdict("wrong", f"{describe(program, eager, number)}: a window of input {eager.windows[number]} in eager, "
                                    f"of {ours.windows[number]} here")  # fmt: skip
    suspects = [n for n in range(len(eager.values)) if not _same(ours.values[n], eager.values[n])]
    if not suspects:
        return Verdict("right")
    tainted = taint(program)
    for number in suspects:
        name = name_of(program, eager, number)
        if number < eager.forward and name not in tainted:
            if _as_in_double(program, ours, number):
                continue
            detail = _shown(ours.values[number], eager.values[number], _differs(ours.values[number], eager.values[number]))
            return Verdict("wrong", f"{describe(program, eager, number)}: exact, but {detail}")
    suspects = [n for n in suspects if n >= eager.forward or name_of(program, eager, n) in tainted]
    with _double():
        try:
            exact, noisy = wide_runs(program, RUNS)
            found = _judged(program, ours, eager, suspects, exact, noisy)
            if found:  # a choice that turns over seldom may have escaped a few runs
                exact, noisy = wide_runs(program, 5 * RUNS)
                found = _judged(program, ours, eager, suspects, exact, noisy)
        except Exception as error:
            return Verdict("right", f"not judged: {_say(error)}")
    return Verdict("wrong", found) if found else Verdict("right")


def _as_in_double(program: Program, ours: Ran, number: int) -> bool:
    """Whether a result of exact ops is what float64 gives, so that eager's own code is what differs.

    Its fmod by a denormal number is NaN on some processors.
    """
    with _double():
        try:
            exact, _ = wide_runs(program, 1)
        except Exception:
            return False
    value, mine = exact.values[number], ours.values[number]
    return value is not None and mine is not None and mine.is_floating_point() and _same(mine, value.to(mine.dtype))


def _judged(program: Program, ours: Ran, eager: Ran, suspects: list[int], exact: Ran, noisy: list[Ran]) -> str:
    for number in suspects:
        a, b = ours.values[number], eager.values[number]
        assert a is not None and b is not None
        gradient = number >= eager.forward
        step = coarsest(program) if gradient else FLOATS.get(b.dtype, 0.0)
        wrong = excess(a, b, exact.values[number], [n.values[number] for n in noisy], gradient, step)
        if wrong.any():
            c = exact.values[number]
            exactly = f", in float64 {c[wrong][:3].tolist()}" if c is not None else ""
            return f"{describe(program, eager, number)}: {_shown(a, b, wrong)}{exactly}"
    return ""


def _types(a: Tensor | None, b: Tensor | None, forward: bool) -> str:
    if a is None or b is None:
        return "" if a is b else f"{a if a is None else 'a tensor'}, not {b if b is None else 'a tensor'}"
    if (a.dtype, a.shape, a.requires_grad) != (b.dtype, b.shape, b.requires_grad):
        return f"{_type(a)}, not {_type(b)}"
    if forward and b.numel() and _steps(a) != _steps(b):
        return f"strides {a.stride()}, not {b.stride()} for shape {tuple(b.shape)}"
    return ""


def _as_faked(program: Program, number: int, ours: Tensor | None) -> bool:
    """Whether a result has the strides that torch's fake tensors give it: all is compiled with them, and for some ops they are
    not eager's."""
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(x) for x in make_inputs(program.inputs)]
        result = function(program)(*given)[number]
    return ours is not None and _steps(result) == _steps(ours)


def _type(x: Tensor) -> str:
    return f"{x.dtype}{list(x.shape)}" + (" with gradient" if x.requires_grad else "")


def _steps(x: Tensor) -> list[int]:
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]


def _differs(a: Tensor | None, b: Tensor | None) -> Tensor:
    """Where two tensors are not the same bits; one NaN is as good as another."""
    assert a is not None and b is not None
    a, b = a.detach(), b.detach()
    if not a.is_floating_point():
        return a != b
    return ((a != b) | (a.signbit() != b.signbit())) & ~(a.isnan() & b.isnan())


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is None or not bool(_differs(a, b).any())


def _shown(a: Tensor | None, b: Tensor | None, wrong: Tensor) -> str:
    assert a is not None and b is not None
    return f"{int(wrong.sum())} of {wrong.numel()} values: {a[wrong][:3].tolist()}, not {b[wrong][:3].tolist()}"


def name_of(program: Program, ran: Ran, number: int) -> str:
    if number < ran.results:
        return program.outputs[number]
    if number < ran.forward:
        return program.inputs[number - ran.results].name
    return [i.name for i in program.inputs if i.grad][number - ran.forward]


def describe(program: Program, ran: Ran, number: int) -> str:
    kind = "result" if number < ran.results else "input" if number < ran.forward else "gradient of"
    return f"{kind} {name_of(program, ran, number)}"


def taint(program: Program) -> set[str]:
    """Names that a line which is not exact has a part in; memory that is written to taints all that may share it."""
    found: set[str] = set()
    while True:
        before = len(found)
        for line in program.lines:
            if line.noise not in ("move", "exact") or found & {line.target, *line.uses}:
                found.add(line.target)
                if line.writes:  # whatever the target may be a view of, or what is a view of it
                    found |= {line.target, *(n for n in line.uses)} | _related(program, line.target)
        if len(found) == before:
            return found


def _related(program: Program, name: str) -> set[str]:
    """Names that may share memory with ``name``: by uses, in either direction."""
    family = {name}
    while True:
        before = len(family)
        for line in program.lines:
            if line.target in family or family & set(line.uses):
                family |= {line.target, *line.uses}
        bases = {i.base for i in program.inputs if i.name in family} - {""}
        family |= bases | {i.name for i in program.inputs if i.base in family and i.base}
        if len(family) == before:
            return family


# ---------------------------------------------------------------- in float64


@contextmanager
def _double() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def wide_runs(program: Program, count: int) -> tuple[Ran, list[Ran]]:
    """The program in float64, and ``count`` times with noise."""
    torch.set_default_dtype(torch.float32)
    dtypes = trace(program, make_inputs(program.inputs, grad=False))["dtypes"]
    torch.set_default_dtype(torch.float64)
    rng = random.Random(program.seed)
    runs = [_wide(program, Noise(rng, dtypes) if n else None) for n in range(count + 1)]
    return runs[0], runs[1:]


def _wide(program: Program, noise: Noise | None) -> Ran:
    made: dict[str, Tensor] = {}
    for spec, x in zip(program.inputs, make_inputs(program.inputs, grad=False), strict=True):
        if spec.base:
            made[spec.name] = made[spec.base].as_strided(spec.shape, spec.strides, spec.offset)
        elif x.dtype in FLOATS:
            whole = x.as_strided((spec.count,), (1,), 0).double()
            made[spec.name] = whole.as_strided(spec.shape, spec.strides, spec.offset).requires_grad_(spec.grad)
        else:
            made[spec.name] = x
    given = list(made.values())
    with torch.set_grad_enabled(program.grad):
        space = trace(program, given, wide=True, noise=noise)
    return _ran([space[name] for name in program.outputs], given)


def coarsest(program: Program) -> float:
    """The rounding of the least precise dtype in the program: gradients may be sums in it, of which noise knows nothing."""
    with torch.no_grad():
        dtypes = trace(program, make_inputs(program.inputs, grad=False))["dtypes"].values()
    found = [*dtypes, *(getattr(torch, i.dtype) for i in program.inputs)]
    return max(FLOATS.get(dtype, 0.0) for dtype in found)


def excess(
    a: Tensor, b: Tensor, exact: Tensor | None, noisy: Sequence[Tensor | None], gradient: bool, step: float
) -> Tensor:
    """Where ``a`` is further from eager's ``b`` than it may be; ``step``: what rounding does, as a part of the value."""
    a, b = a.detach(), b.detach()
    wrong = _differs(a, b)
    others = [n.detach() for n in noisy if n is not None and n.shape == b.shape]
    if exact is None or exact.shape != b.shape:
        return wrong & torch.zeros_like(wrong)
    exact = exact.detach()
    if not b.is_floating_point():
        for n in others:
            wrong &= n == exact
        return wrong
    x, y = a.double(), b.double()
    least = float(torch.finfo(b.dtype).tiny) * 4
    narrow = [n.to(b.dtype).double() for n in (exact, *others)]
    allowed = 8 * step * y.abs() + least
    distance = (y - exact).abs().nan_to_num(0.0, 0.0, 0.0)
    for n in others:
        same = (n == exact) | (n.isnan() & exact.isnan())
        spread = (n - exact).abs().nan_to_num(float("inf"))
        distance = torch.maximum(distance, torch.where(same, 0.0, spread))
    finite = x.isfinite() & y.isfinite()
    near = (x - y).abs() <= allowed
    near |= (x - exact).abs() <= 4 * distance + 8 * step * exact.abs() + least
    wrong &= ~(finite & near)
    for n in narrow:  # NaN, infinities and signs of zeros as in one of the runs
        wrong &= ~((x == n) & (x.signbit() == n.signbit()) | (x.isnan() & n.isnan()))
    zeros = (x == 0) & (y == 0)
    if gradient:
        wrong &= ~zeros
    wrong |= zeros & _differs(a, b) & _settled_sign(exact, others) & (not gradient)
    return wrong & ~distance.isinf()


def _settled_sign(exact: Tensor, others: Sequence[Tensor]) -> Tensor:
    settled = exact == 0
    for n in others:
        settled &= (n == 0) & (n.signbit() == exact.signbit())
    return settled
