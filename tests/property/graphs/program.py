"""A program: inputs, lines of Python, and the names it returns.  It is data, so that it can be made smaller and printed.

Each line assigns one name, or changes what a name holds.  ``Line.noise`` says how its result may differ from eager's:

* move: not at all, and nothing is rounded (moves of data, integers, comparisons);
* exact: not at all (IEEE arithmetic, which rounds once);
* zero: the sign of a zero is open (minimum, maximum and what is made of them);
* round: some units in the last place (functions that are expanded, several roundings in one op);
* sum: as ``round``, and the order of a float sum is open, or there is cancellation within the op.
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.property.graphs.otherwise import SPACE


@dataclass(frozen=True)
class Input:
    """A tensor ``shape``/``strides``/``offset`` over ``count`` elements that ``values(kind, seed, dtype, count)`` gives; with
    ``base`` a window of that input's storage instead."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    count: int
    kind: str
    seed: int
    base: str = ""
    grad: bool = False


@dataclass(frozen=True)
class Line:
    """``target``: the name it assigns or changes; ``uses``: the other names in ``text``; ``writes``: it changes memory."""

    text: str
    target: str
    uses: tuple[str, ...]
    noise: str = "move"
    writes: bool = False


@dataclass(frozen=True)
class Program:
    seed: int
    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]

    @property
    def grad(self) -> bool:
        return any(i.grad for i in self.inputs)

    def source(self, name: str = "program") -> str:
        head = f"def {name}({', '.join(i.name for i in self.inputs)}):"
        body = [f"    {line.text}" for line in self.lines]
        returned = ", ".join(self.outputs) + ("," if len(self.outputs) == 1 else "")
        return "\n".join([head, *body, f"    return ({returned})"])


def function(program: Program, otherwise: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """``otherwise``: some calls are written another way, as in ``SPACE``."""
    plain = {"torch": torch, "F": torch.nn.functional}
    space: dict[str, Any] = {**(SPACE if otherwise else plain), "__name__": __name__}  # fx asks for its module
    exec(compile(program.source(), f"<graph {program.seed}>", "exec"), space)
    return space["program"]


SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e15, -1e-3, 1e-40, -1e-42, 1.0, -1.0, 65000.0)


def values(kind: str, seed: int, dtype: torch.dtype, count: int) -> Tensor:
    """``count`` numbers.  Kinds: normal, small (quarters), special (some NaN, infinities, zeros, denormals), positive; whole
    numbers in -9..9 (0..9 if unsigned); ``index N``: whole numbers in -N..N-1 (0..N-1 if the kind is ``place N``)."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    draw = torch.Generator().manual_seed(seed)
    word, _, bound = kind.partition(" ")
    if word in ("index", "place"):
        low = -int(bound) if word == "index" else 0
        return torch.randint(low, max(int(bound), low + 1), (count,), generator=draw).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=draw).to(dtype)
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -9
        return torch.randint(low, 10, (count,), generator=draw).to(dtype)
    x = torch.randn(count, generator=draw, dtype=torch.float64)
    if word == "small":
        x = (x * 8).round() / 4
    if word == "positive":
        x = x.abs() + 0.05
    x = x.to(dtype)
    if word == "special":
        places = torch.rand(count, generator=draw, dtype=torch.float32) < 0.15
        chosen = torch.randint(0, len(SPECIAL), (count,), generator=draw)
        x = torch.where(places, torch.tensor(SPECIAL, dtype=torch.float64)[chosen].to(dtype), x)
    return x


def make_inputs(inputs: Sequence[Input], grad: bool = True, factor: float = 1.0, device: str = "cpu") -> list[Tensor]:
    """``factor``: what floats are multiplied by.  The values are the same on each ``device``."""
    made: dict[str, Tensor] = {}
    for spec in inputs:
        if spec.base:
            made[spec.name] = made[spec.base].as_strided(spec.shape, spec.strides, spec.offset)
            continue
        with torch.device("cpu"):
            storage = values(spec.kind, spec.seed, getattr(torch, spec.dtype), spec.count)
        if factor != 1.0 and storage.is_floating_point():
            storage *= factor
        storage = storage.to(device)
        made[spec.name] = storage.as_strided(spec.shape, spec.strides, spec.offset).requires_grad_(spec.grad and grad)
    return list(made.values())


FLOATS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def widened(text: str) -> str:
    for narrow in ("float32", "bfloat16", "float16"):
        text = text.replace(f"torch.{narrow}", "torch.float64")
    return text.replace(".float()", ".double()")


@dataclass
class Noise:
    """Perturbs, in a run in float64, each value by what rounding in its own dtype may do to it."""

    rng: random.Random
    dtypes: Mapping[int, torch.dtype]  # of the value that line number N assigns, in the program as it is

    def spread(self, x: Any, dtype: torch.dtype | None, size: float) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point() or dtype not in FLOATS:
            return x
        draw = torch.Generator().manual_seed(self.rng.randrange(2**40))
        wave = torch.randint(-2, 3, x.shape, generator=draw).to(x.dtype)
        if self.rng.random() < 0.5:  # rounding moves denormal numbers by more, to zero perhaps, all of them the same way
            fixed = x.detach()
            x = torch.where(fixed.abs() < torch.finfo(dtype).tiny, fixed.to(dtype).to(x.dtype) - (fixed - x), x)
        return x * (1 + wave * (FLOATS[dtype] * size))

    def cancelled(self, x: Any, operand: Any, dtype: torch.dtype | None) -> Any:
        """``x`` moved by what rounding does to terms as large as ``operand``, of which it may be the small rest."""
        if not isinstance(x, Tensor) or not isinstance(operand, Tensor) or x.shape != operand.shape:
            return x
        if not x.is_floating_point() or not operand.is_floating_point() or dtype not in FLOATS:
            return x
        return x + self.spread(operand.detach(), dtype, 1.0) - operand.detach()

    def kept(self, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
        """What autograd keeps of a line for its backward pass is rounded, too: a softmax that it keeps does not add up to 1."""
        if dtype not in FLOATS:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(lambda x: self.spread(x, dtype, 0.5), lambda x: x)

    def signs(self, x: Any, zeros: bool) -> Any:
        """``x`` with the signs of NaN, and of ``zeros``, thrown."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        draw = torch.Generator().manual_seed(self.rng.randrange(2**40))
        flip = torch.randint(0, 2, x.shape, generator=draw).bool()
        return torch.where((x.isnan() | ((x == 0) & zeros)) & flip, -x, x)


def trace(
    program: Program,
    inputs: Sequence[Tensor],
    wide: bool = False,
    noise: Noise | None = None,
    otherwise: bool | Mapping[str, Any] = False,
    apart: bool = False,
    signs: bool = False,
    fresh: Set[int] = frozenset(),
) -> dict[str, Any]:
    """All names and what they hold after the program, line by line; with ``wide``, dtypes in the text are float64.

    ``otherwise``: some calls are written another way, as in ``SPACE`` or what is given; ``apart``: operands of exact lines lie
    apart in memory; ``signs``: what exact lines make has NaNs of the other sign; ``fresh``: lines that give new memory
    even where a conversion has nothing to convert.  The dtypes of the values that lines assign are in ``"dtypes"``, the lines
    that gave new memory in ``"fresh"``.
    """
    plain = {"torch": torch, "F": torch.nn.functional}
    space: dict[str, Any] = dict(otherwise if isinstance(otherwise, Mapping) else SPACE if otherwise else plain)
    space |= {spec.name: x for spec, x in zip(program.inputs, inputs, strict=True)}
    dtypes: dict[int, torch.dtype] = {}
    made: set[int] = set()
    for number, line in enumerate(program.lines):
        dtype = noise.dtypes.get(number) if noise is not None else None
        held: dict[str, Any] = {}
        if noise is not None and line.noise == "sum":
            for name in line.uses:
                held[name] = space[name]
                space[name] = noise.spread(space[name], dtype, 1.0)
        exact = line.noise == "exact" and not line.writes
        if apart and exact:
            for name in line.uses:
                held[name] = space[name]
                space[name] = _apart(space[name])
        text = widened(line.text) if wide else line.text
        if noise is not None and line.noise != "move" and not line.writes and number in fresh:
            text = _with_rounded_gradients(text, line.uses, space, held, noise, dtype)
        with noise.kept(dtype) if noise is not None and line.noise in ("round", "sum") else nullcontext():
            exec(text, space)
        space |= held
        result = space[line.target]
        if not line.writes and isinstance(result, Tensor):
            if not any(_share(result, space[name]) for name in line.uses):
                made.add(number)
            elif number in fresh:
                result = space[line.target] = result.clone()
        if signs and exact and isinstance(result, Tensor) and result.is_floating_point() and not _is_view(result):
            result = space[line.target] = torch.where(result.isnan(), -result, result)
        if isinstance(result, Tensor):
            dtypes[number] = result.dtype
        if noise is not None:
            with torch.no_grad() if line.writes else torch.enable_grad():
                changed = noise.spread(result, dtype, 1.0) if line.noise != "move" else result
                if line.noise == "sum":
                    for name in line.uses:
                        changed = noise.cancelled(changed, space[name], dtype)
                if line.noise != "move":
                    changed = noise.signs(changed, line.noise != "exact")
                if line.writes and isinstance(result, Tensor) and changed is not result:
                    result.copy_(changed)
                elif not line.writes and not _is_view(result):
                    space[line.target] = changed
    space |= {"dtypes": dtypes, "fresh": made}
    return space


class _Rounded(torch.autograd.Function):
    """``x`` itself; what flows back into it is rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: Noise, dtype: torch.dtype | None) -> Tensor:
        ctx.noise, ctx.dtype = noise, dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.noise.spread(grads[0], ctx.dtype, 1.0), None, None


def _with_rounded_gradients(
    text: str, uses: Iterable[str], space: dict[str, Any], held: dict[str, Any], noise: Noise, dtype: torch.dtype | None
) -> str:
    """``text`` where each use of a tensor has a name of its own, so that each of the gradients which meet in it has its noise."""
    target, _, call = text.partition(" = ")
    for name in {name for name in uses if isinstance(space[name], Tensor) and space[name].requires_grad}:
        x, parts = space[name], re.split(rf"\b{name}\b", call)
        for number in range(len(parts) - 1):
            held[f"{name}_{number}"] = space[f"{name}_{number}"] = _Rounded.apply(x, noise, dtype)
            parts[number] += f"{name}_{number}"
        call = "".join(parts)
    return f"{target} = {call}"


def _apart(x: Any) -> Any:
    """``x`` with a gap after each element, so that no vector can be loaded."""
    return torch.stack([x, x], -1)[..., 0] if isinstance(x, Tensor) else x


def _share(x: Tensor, y: Any) -> bool:
    return isinstance(y, Tensor) and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _is_view(x: Any) -> bool:
    return isinstance(x, Tensor) and x._is_view()
