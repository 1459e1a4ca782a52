"""Whether a compiled program is right.

Compiled through AOTAutograd, as Dynamo's backend does, or (``dynamo``) through ``torch.compile`` itself.  Compared with eager
are the dtypes, shapes and strides of results, which of them are windows of an input, values, and what the inputs hold afterwards;
with gradients, these too.

Values that depend on exact lines alone are eager's bit for bit.  Others may differ from eager's by no more than

* a few units in the last place, or
* twice eager's own distance from the program in float64, or
* what the program in float64 does when each of its results is moved by its rounding (``Noise``), which says how much a small
  error may grow in this program, and which comparisons and choices it may turn over, or
* for gradients, eager's distance from the program in float64 for inputs nearby (``eagers.distances``), and for what is float64
  itself, how eager's values move with the last bits of the inputs (``eagers.shifts``).

Where eager is NaN or infinite, but the program in float64 finite whatever the noise, and near, it is eager's own code that fails.
NaN and infinities may also be those of the program in float64 with some calls written another way (``otherwise``), and values
those of eager with the factors of a product in another order (``eagers.products``).
"""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode

from lowc.errors import Unsupported
from tests.property.graphs.compiled import refused, through_aot, through_dynamo, without_lowc
from tests.property.graphs.eagers import distances, products, shifts, twins
from tests.property.graphs.program import FLOATS, Line, Program, function, make_inputs
from tests.property.graphs.ran import Ran, differs, run, run_on, same
from tests.property.graphs.wide import Wide, coarsest, double, wide_runs

RUNS = 8  # in float64, each with other noise
ORDERED = ("torch.scatter(", "torch.index_copy(", "accumulate=False")


@dataclass(frozen=True)
class Verdict:
    """``status``:

    * right, wrong; error: lowc raises; torch: lowc cannot import the graph, so that torch would run it;
    * refused: AOTAutograd raises without lowc, too; inherited: not as in eager, but as AOTAutograd makes it without lowc, perhaps
      of calls that are written ``otherwise``;
    * eager: eager raises; unjudged: values are not eager's bits, and the program does not run in float64.
    """

    status: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.status in ("wrong", "error", "crash", "timeout")


def judge(
    program: Program,
    dynamo: bool = False,
    knobs: Sequence[tuple[Any, str, Any]] = (),
    check: bool = False,
    device: str = "cpu",
    numerics: str = "fast",
) -> Verdict:
    """Eager's word is that of the CPU; on another ``device`` eager's there counts as much.  Where approximate instructions may be
    taken (GPUs, unless ``numerics`` is strict), no line is exact."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if device != "cpu" and numerics != "strict":
            program = replace(program, lines=tuple(_rounded(line) for line in program.lines))
        call = function(program)
        try:
            eager = run(program, call)
        except Exception as error:
            return Verdict("eager", _say(error))
        with ExitStack() as stack:
            for module, name, value in knobs:
                stack.enter_context(patch.object(module, name, value))
            try:
                options = {"strict_errors": True, "check": check, "numerics": numerics}
                compiled = through_dynamo(call, options) if dynamo else through_aot(program, call, options, device)
                ours = run_on(device, program, compiled)
            except Unsupported as error:
                return Verdict("torch", error.message)
            except Exception as error:
                if device != "cpu" and "CUDA" in str(error):  # after a fault on a GPU all that follows would raise, too
                    return Verdict("error", _say(error))
                refusal = refused(program, call, device)
                return Verdict("error", _say(error)) if refusal is None else Verdict("refused", _say(refusal))
        found = compare(program, ours, eager)
        if found.bad and device != "cpu":
            if not compare(program, ours, run_on(device, program, call)).bad:
                return Verdict("right")
            if is_ordered(program):
                return Verdict("unjudged", "which of several writes to one element is the last is open on a GPU")
        for otherwise in (False, True) if found.bad else ():
            plain = without_lowc(program, function(program, otherwise) if otherwise else call, dynamo and not otherwise, device)
            if plain is None:
                break
            near = all(same(a, b) or _nearly(a, b) for a, b in zip(ours.values, plain.values, strict=True))
            if near or not compare(program, ours, plain, summed=any(line.writes for line in program.lines)).bad:
                return Verdict("inherited", found.detail)
        return found


def is_ordered(program: Program) -> bool:
    """Whether it writes to indexed places where equal indices overwrite each other: which is the last no GPU says."""
    return any(word in line.text for line in program.lines for word in ORDERED)


def _rounded(line: Line) -> Line:
    return replace(line, noise="round") if line.noise == "exact" else line


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# ---------------------------------------------------------------- compared


def compare(program: Program, ours: Ran, eager: Ran, summed: bool = False) -> Verdict:
    """``summed``: exact lines may hide a sum, as the graph does that AOTAutograd makes of a write to an expanded tensor."""
    for number, (a, b) in enumerate(zip(ours.values, eager.values, strict=True)):
        if found := _types(a, b, number < eager.forward):
            strided = found.startswith("strides") and number < eager.results
            if strided and (_as_faked(program, number, a) or _as_traced(program, a)):
                continue
            return Verdict("wrong", f"{describe(program, eager, number)}: {found}")
    for number in range(eager.results):
        if ours.windows[number] != eager.windows[number] and not program.grad:
            return Verdict("wrong", f"{describe(program, eager, number)}: a window of input {eager.windows[number]} in eager, "
                                    f"of {ours.windows[number]} here")  # fmt: skip
    suspects = [n for n in range(len(eager.values)) if not same(ours.values[n], eager.values[n])]
    if not suspects:
        return Verdict("right")
    tainted = taint(program)
    for number in suspects:
        name = name_of(program, eager, number)
        if number < eager.forward and name not in tainted:
            if _as_in_double(program, ours, number) or _as_a_twin(program, ours, eager, number):
                continue
            if summed and _nearly(ours.values[number], eager.values[number]):
                continue
            detail = _shown(ours.values[number], eager.values[number], differs(ours.values[number], eager.values[number]))
            return Verdict("wrong", f"{describe(program, eager, number)}: exact, but {detail}")
    suspects = [n for n in suspects if n >= eager.forward or name_of(program, eager, n) in tainted]
    with double():
        try:
            found = _judged(program, ours, eager, suspects, wide_runs(program, RUNS))
            if found:  # a choice that turns over seldom may have escaped a few runs
                torch.set_default_dtype(torch.float32)
                moved = (distances if coarsest(program) > FLOATS[torch.float64] else shifts)(program, function(program), eager)
                ordered = products(program)
                torch.set_default_dtype(torch.float64)
                found = _judged(program, ours, eager, suspects, wide_runs(program, 5 * RUNS), moved, ordered)
        except (RuntimeError, TypeError) as error:
            return Verdict("unjudged", _say(error))
    return Verdict("wrong", found) if found else Verdict("right")


def _as_in_double(program: Program, ours: Ran, number: int) -> bool:
    """Whether a result of exact ops is what float64 gives, so that eager's own code is what differs.

    Its fmod by a denormal number is NaN on some processors.
    """
    with double():
        try:
            exact = wide_runs(program, 0).exact
        except Exception:
            return False
    value, mine = exact.values[number], ours.values[number]
    return value is not None and mine is not None and mine.is_floating_point() and same(mine, value.to(mine.dtype))


def _as_a_twin(program: Program, ours: Ran, eager: Ran, number: int) -> bool:
    """Whether each element of a result of exact ops is one of the answers that eager has for it."""
    mine = ours.values[number]
    left = differs(mine, eager.values[number])
    for twin in twins(program):
        left &= differs(mine, twin.values[number])
    return not left.any()


def _nearly(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether sums of the same terms may be as far apart as ``a`` and ``b``."""
    if a is None or b is None or b.dtype not in FLOATS:
        return False
    x, y = a.detach().double(), b.detach().double()
    return bool((((x - y).abs() <= 8 * FLOATS[b.dtype] * y.abs()) | ~differs(a, b)).all())


def _judged(
    program: Program,
    ours: Ran,
    eager: Ran,
    suspects: list[int],
    wide: Wide,
    moved: Sequence[Tensor | None] | None = None,
    ordered: Sequence[Ran] = (),
) -> str:
    """``moved``: for each of eager's values, its ``distances``, or its ``shifts``; ``ordered``: see ``products``."""
    for number in suspects:
        a, b = ours.values[number], eager.values[number]
        assert a is not None and b is not None
        gradient = number >= eager.forward
        step = coarsest(program) if gradient else FLOATS.get(b.dtype, 0.0)
        noisy, otherwise = ([r.values[number] for r in runs] for runs in (wide.noisy, wide.otherwise))
        own = moved[number] if moved is not None and (gradient or b.dtype == torch.float64) else None
        c = wide.exact.values[number]
        orders = [v for r in ordered if c is not None and (v := r.values[number]) is not None]
        if orders and c is not None and b.is_floating_point() and not gradient:
            apart = [(v.double() - c).abs().nan_to_num(0.0, 0.0, 0.0) for v in orders]
            own = torch.stack([*apart, *([own] if own is not None else [])]).amax(0)
        wrong = excess(a, b, c, noisy, gradient, step, otherwise, own)
        for v in orders:
            wrong &= differs(a, v)
        if wrong.any():
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


def _as_traced(program: Program, ours: Tensor | None) -> bool:
    """Whether a result has the strides of one of its shape in the graph that AOTAutograd traces: an op of it that stands for a
    write (``out=``, ``index_add_``) may have been given others than the memory that was written to."""
    found: list[tuple[torch.Size, list[int]]] = []

    def look(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
        (output,) = gm.graph.find_nodes(op="output")
        kept = [n.meta.get("val") for n in output.args[0] if isinstance(n, fx.Node)]
        found.extend((x.shape, _steps(x)) for x in kept if isinstance(x, Tensor))
        return gm

    try:
        run(program, aot_function(function(program), fw_compiler=look))
    except Exception:
        pass  # what it traced counts
    return ours is not None and (ours.shape, _steps(ours)) in found


def _type(x: Tensor) -> str:
    return f"{x.dtype}{list(x.shape)}" + (" with gradient" if x.requires_grad else "")


def _steps(x: Tensor) -> list[int]:
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]


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


def excess(
    a: Tensor,
    b: Tensor,
    exact: Tensor | None,
    noisy: Sequence[Tensor | None],
    gradient: bool,
    step: float,
    otherwise: Sequence[Tensor | None] = (),
    moved: Tensor | None = None,
) -> Tensor:
    """Where ``a`` is further from eager's ``b`` than it may be; ``step``: what rounding does, as a part of the value; ``moved``:
    what it does to terms of which the value is what is left."""
    a, b = a.detach(), b.detach()
    wrong = differs(a, b)
    others, alike = ([n.detach() for n in runs if n is not None and n.shape == b.shape] for runs in (noisy, otherwise))
    if exact is None or exact.shape != b.shape:
        return wrong & torch.zeros_like(wrong)
    exact = exact.detach()
    if not b.is_floating_point():
        for n in others:
            wrong &= n == exact
        for n in (exact, *alike):  # what float64 says, too, is right: eager's rounding decides otherwise
            wrong &= a != n
        return wrong
    x, y = a.double(), b.double()
    least = float(torch.finfo(b.dtype).tiny) * 4
    narrow = [n.to(b.dtype).double() for n in (exact, *others, *alike)]
    distance = (y - exact).abs().nan_to_num(0.0, 0.0, 0.0)
    if moved is not None:
        distance = torch.maximum(distance, moved)
    settled = exact.isfinite()
    for n in others:
        same = (n == exact) | (n.isnan() & exact.isnan())
        spread = (n - exact).abs().nan_to_num(float("inf"))
        distance = torch.maximum(distance, torch.where(same, 0.0, spread))
        settled &= n.isfinite()
    near = y.isfinite() & ((x - y).abs() <= 8 * step * y.abs() + least)
    near |= (y.isfinite() | settled) & exact.isfinite() & ((x - exact).abs() <= 4 * distance + 8 * step * exact.abs() + least)
    if alike:
        first = alike[0]
        apart = torch.stack([(n - first).abs().nan_to_num(0.0, 0.0, 0.0) for n in alike]).amax(0)
        # Far below 1 they are exponentials, of arguments that are rounded, too.
        units = 8 + 2 * first.abs().log().abs().nan_to_num(0.0, 0.0, 0.0)
        near |= first.isfinite() & ((x - first).abs() <= 4 * apart + units * step * first.abs() + least)
    wrong &= ~(x.isfinite() & near)
    for n in narrow:  # NaN, infinities and signs of zeros as in one of the runs
        wrong &= ~((x == n) & (x.signbit() == n.signbit()) | (x.isnan() & n.isnan()))
    zeros = (x == 0) & (y == 0)
    if gradient:
        wrong &= ~zeros
    # the sign of float64's zero is right, even where eager's rounding (gelu of -6 is -0 in its f32) has the other one
    wrong |= zeros & (x.signbit() != exact.signbit()) & differs(a, b) & _settled_sign(exact, others) & (not gradient)
    return wrong & ~distance.isinf()


def _settled_sign(exact: Tensor, others: Sequence[Tensor]) -> Tensor:
    settled = exact == 0
    for n in others:
        settled &= (n == 0) & (n.signbit() == exact.signbit())
    return settled
