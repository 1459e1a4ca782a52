"""The program in float64: as it is, with noise, and with some of its calls written another way (``otherwise``)."""

import random
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tests.property.graphs.otherwise import OTHERWISE
from tests.property.graphs.program import FLOATS, Noise, Program, make_inputs, trace
from tests.property.graphs.ran import Ran, ran


@dataclass(frozen=True)
class Wide:
    """``exact``: without noise; ``noisy``: each with other noise; ``otherwise``: written another way, with noise or without."""

    exact: Ran
    noisy: list[Ran]
    otherwise: list[Ran]


@contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@dataclass(frozen=True)
class Own:
    """Of a program in its own dtypes: that of each tensor that a line assigns, and the lines that assign new memory."""

    dtypes: Mapping[int, torch.dtype]
    fresh: Set[int]


@lru_cache(maxsize=1)
def own(program: Program) -> Own:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.no_grad():
            space = trace(program, make_inputs(program.inputs, grad=False))
    finally:
        torch.set_default_dtype(before)
    return Own(space["dtypes"], space["fresh"])


def wide_runs(program: Program, count: int) -> Wide:
    """The program in float64, ``count`` times with noise, and half as often written another way."""
    rng, dtypes = random.Random(program.seed), own(program).dtypes
    exact = wide_run(program)
    noisy = [wide_run(program, Noise(rng, dtypes)) for _ in range(count)]
    if not any(name in line.text for line in program.lines for name in OTHERWISE):
        return Wide(exact, noisy, [])
    return Wide(exact, noisy, [wide_run(program, Noise(rng, dtypes) if n else None, True) for n in range(count // 2)])


def wide_run(program: Program, noise: Noise | None = None, otherwise: bool = False, factor: float = 1.0) -> Ran:
    """``factor``: what the program's floats, in their own dtypes, are multiplied by before."""
    made: dict[str, Tensor] = {}
    for spec, x in zip(program.inputs, make_inputs(program.inputs, grad=False, factor=factor), strict=True):
        if spec.base:
            made[spec.name] = made[spec.base].as_strided(spec.shape, spec.strides, spec.offset)
        elif x.dtype in FLOATS:
            whole = x.as_strided((spec.count,), (1,), 0).double()
            made[spec.name] = whole.as_strided(spec.shape, spec.strides, spec.offset).requires_grad_(spec.grad)
        else:
            made[spec.name] = x
    given = list(made.values())
    with torch.set_grad_enabled(program.grad):
        space = trace(program, given, wide=True, noise=noise, otherwise=otherwise, fresh=own(program).fresh)
    return ran([space[name] for name in program.outputs], given)


def coarsest(program: Program) -> float:
    """The rounding of the least precise dtype in the program: gradients may be sums in it, of which noise knows nothing."""
    found = [*own(program).dtypes.values(), *(getattr(torch, i.dtype) for i in program.inputs)]
    return max(FLOATS.get(dtype, 0.0) for dtype in found)
