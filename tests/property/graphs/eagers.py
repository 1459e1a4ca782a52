"""What else eager answers in a program's own dtypes: each of these is eager's word as much as the first."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.property.graphs.otherwise import PRODUCTS
from tests.property.graphs.program import Program, make_inputs, trace
from tests.property.graphs.ran import Ran, ran, run
from tests.property.graphs.wide import coarsest, double, wide_run

STEPS = [sign * n / 2 for n in range(1, 9) for sign in (1, -1)]


def twins(program: Program) -> list[Ran]:
    """The program line by line, for lines that are exact

    * with operands apart in memory, which eager's code for single elements computes, not its vector code (whose ``fmod`` and
      ``remainder`` by a denormal number are NaN, as they are of quotients beyond 1e38);
    * with other signs of NaN, which ``signbit`` and ``copysign`` see, and which no code promises.
    """
    found: list[Ran] = []
    for apart, signs in ((True, False), (False, True), (True, True)):
        given = make_inputs(program.inputs)
        try:
            with torch.set_grad_enabled(program.grad):
                space = trace(program, given, apart=apart, signs=signs)
            found.append(ran([space[name] for name in program.outputs], given))
        except Exception:  # a view, say, of what is contiguous in eager alone
            continue
    return found


def products(program: Program) -> list[Ran]:
    """The program with each ``prod`` in other orders (``PRODUCTS``); none if it has no ``prod``.

    A product some of whose factors underflow to 0, or overflow, before they meet the rest has no value of its own: 1e-40 * 1e-42
    * inf is NaN from the left, and infinite from the right.  eager's order is that of its vectors, and promised by nobody.
    """
    if not any("prod(" in line.text for line in program.lines):
        return []
    found: list[Ran] = []
    for space in PRODUCTS:
        given = make_inputs(program.inputs)
        with torch.set_grad_enabled(program.grad):
            names = trace(program, given, otherwise=space)
        found.append(ran([names[name] for name in program.outputs], given))
    return found


def distances(program: Program, call: Callable[..., Sequence[Tensor]], eager: Ran) -> list[Tensor | None]:
    """For each of eager's values: how far eager is from the program in float64 when all floats that go in are a little larger or
    smaller, by about half of the digits that the coarsest dtype has; the second largest of a few.

    What is left of sums whose terms cancel, and of functions like the gradient of tanh, 1 - tanh(x)**2, is within a few roundings
    of the *terms*, of which the noise of a program's lines knows nothing.  How large they are shows in eager's own error, but not
    where that is nothing by chance, as it is for round numbers.  Both runs step over a threshold together; one factor for all
    inputs keeps equal what is equal; a choice that rounding decides (once, hence the second largest) is the noise's to turn over.

    Values of float64 have no wider program beside them: see ``shifts``.
    """
    step = coarsest(program) ** 0.5
    furthest: list[list[Tensor]] = [[] for _ in eager.values]
    for factor in [1 + n * step for n in STEPS]:
        torch.set_default_dtype(torch.float32)
        own = run(program, call, make_inputs(program.inputs, factor=factor))
        with double():
            wide = wide_run(program, factor=factor)
        for found, a, b in zip(furthest, own.values, wide.values, strict=True):
            if a is not None and b is not None and a.is_floating_point() and a.shape == b.shape:
                found.append((a.detach().double() - b.detach()).abs().nan_to_num(0.0, 0.0, 0.0))
    return [torch.stack(found).sort(0).values[-2] if len(found) == len(STEPS) else None for found in furthest]


def shifts(program: Program, call: Callable[..., Sequence[Tensor]], eager: Ran) -> list[Tensor | None]:
    """For each of eager's values: how far it moves when all floats that go in are larger, or smaller, by a few units in the last
    place; the smaller of the two, since a value that steps over a threshold (``floor``, ``hardshrink``) does so on one side."""
    unit = torch.finfo(torch.float64).eps
    factors = [[1 + sign * n * unit for n in (1, 2, 3, 4)] for sign in (1, -1)]
    sides = [[run(program, call, make_inputs(program.inputs, factor=f)) for f in side] for side in factors]
    return [_smaller(value, [[r.values[n] for r in side] for side in sides]) for n, value in enumerate(eager.values)]


def _smaller(value: Tensor | None, sides: list[list[Tensor | None]]) -> Tensor | None:
    if value is None or value.dtype != torch.float64:
        return None
    x = value.detach()
    furthest: list[Tensor] = []
    for side in sides:
        moved = torch.zeros_like(x)
        for other in side:
            if other is None or other.shape != x.shape:
                return None
            moved = torch.maximum(moved, (other.detach() - x).abs().nan_to_num(0.0, 0.0, 0.0))
        furthest.append(moved)
    return torch.minimum(*furthest)
