"""``numerics="strict"``: pointwise results on the CPU are eager's bit for bit."""

import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import lowc

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SPECIAL = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-40, 6e-8, 65504.0, 3.38e38, 0.1, 257.0)


def program(seed: int) -> tuple[str, Any]:
    """A random chain of exact ops over tensors of several dtypes, as text and as a function."""
    rng = random.Random(seed)
    lines, values = [], [(f"a{n}", d) for n, d in enumerate((*rng.sample(FLOATS, 2), rng.choice(INTS), rng.choice(FLOATS)))]
    given = list(values)
    for number in range(rng.randint(3, 12)):
        (x, kind), (y, other) = rng.choice(values), rng.choice(values)
        made = kind
        if kind.is_floating_point:
            ops = ["{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} / {y}", "-{x}", "{x}.to({d})", "{x} * 0.3 + {y}"]
            ops += ["torch.where({x} < {y}, {x}, {y})", "torch.floor({x})", "{x}.relu()", "({x} <= {y}).to({d})"]
            ops += ["torch.where({x} == {y}, 1.5, {x})", "torch.clamp({x}, -2.0, 7.5)"]
        else:
            ops = ["{x} + {x}", "{x} * 3", "{x} ^ 5", "{x} & {x}", "{x} << 1", "~{x}", "{x}.to({d})"]
            ops.append("torch.where({x} > 2, {x}, 1)")
        text = rng.choice(ops)
        target = rng.choice(FLOATS)
        if "{d}" in text:
            made = target
        elif "{y}" in text and "where" not in text:
            made = torch.promote_types(kind, other)
        elif "where({x} < {y}" in text:
            made = torch.promote_types(kind, other)
        values.append((f"v{number}", made))
        lines.append(f"    v{number} = " + text.format(x=x, y=y, d=target))
    last = ", ".join(name for name, _ in values[len(given) :])
    source = f"def f({', '.join(name for name, _ in given)}):\n" + "\n".join(lines) + f"\n    return ({last},)\n"
    names: dict[str, Any] = {"torch": torch}
    exec(source, names)
    return source, (names["f"], [d for _, d in given])


def inputs(dtypes: list[torch.dtype], seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    made = []
    for dtype in dtypes:
        x = torch.randn(300, generator=g, dtype=torch.float64) * 10 ** torch.randint(-3, 4, (300,), generator=g)
        if dtype.is_floating_point:
            x[torch.randperm(300, generator=g)[: len(SPECIAL)]] = torch.tensor(SPECIAL, dtype=torch.float64)
            made.append(x.to(dtype))
        else:
            made.append(torch.randint(0, 100, (300,), generator=g).to(dtype))
    return made


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaNs are alike whatever their bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("isa", ["auto", "sse2"])
@pytest.mark.parametrize("seed", range(12))
def test_pointwise_results_are_eagers_bits(seed: int, isa: str) -> None:
    source, (f, dtypes) = program(seed)
    args = inputs(dtypes, seed)
    torch._dynamo.reset()
    options = {"numerics": "strict", "strict_errors": True, "isa": isa}
    ours = torch.compile(f, backend=lowc.lowc_backend, fullgraph=True, options=options)(*args)
    for number, (got, want) in enumerate(zip(ours, f(*args), strict=True)):
        assert same_bits(got, want), f"v{number} of\n{source}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_square_roots_are_rounded_to_nearest(dtype: torch.dtype) -> None:
    """Which eager's are not always: MKL's are up to one unit off."""
    (x,) = inputs([dtype], 3)
    torch._dynamo.reset()
    ours = torch.compile(torch.sqrt, backend=lowc.lowc_backend, options={"numerics": "strict"})(x)
    with numpy.errstate(invalid="ignore"):
        assert same_bits(ours, torch.from_numpy(numpy.sqrt(x.numpy())))
