"""A program with one contraction, and what is wrong with lowc's results: beside float64, no further off than twice eager's."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Tensor]
OWN = {"matmul": "own", "attention": "own", "convolution": "own", "strict_errors": True, "cache": False}
LIMIT = 2.0  # times eager's own error …
UNITS = 2.0  # … and so many units of the dtype, of the largest value
ORDER = {torch.float32: 2.0**-19, torch.float64: 2.0**-44}  # of results whose sums have another order, beside the largest value


@dataclass(frozen=True)
class Case:
    """``function`` of ``args``, which a seed and a device make; ``text`` says what it is; ``gradients``: of inputs as well."""

    text: str
    function: Function
    args: Callable[[torch.device], list[Any]]
    gradients: bool = False
    dynamic: bool = False


class Draw:
    """Draws of one seed, for a CPU or a GPU."""

    def __init__(self, seed: int, cuda: bool) -> None:
        self.random, self.cuda = random.Random(seed), cuda

    def one(self, *of: Any) -> Any:
        return self.random.choice(of)

    def floats(self) -> torch.dtype:
        """Of 16 bits mostly on a GPU, of 32 mostly on a CPU."""
        narrow = (torch.bfloat16, torch.float16) if self.cuda else (torch.float32, torch.bfloat16)
        return self.one(*narrow, torch.float32)

    def chance(self, of: float) -> bool:
        return self.random.random() < of

    def size(self, most: int) -> int:
        """From 1 to ``most``, small ones as often as large ones; half of them multiples of 8 or of 64."""
        value = max(1, round(2 ** self.random.uniform(0, math.log2(most))))
        kind = self.random.random()
        if kind < 0.3:
            return min(most, -(-value // 8) * 8)
        if kind < 0.5:
            return min(most, -(-value // 64) * 64)
        return value


def laid(shape: tuple[int, ...], form: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random values: as they are "plain", else with the last two dimensions "turned", "off" a line, every second "apart"."""
    if form == "turned":
        return laid((*shape[:-2], shape[-1], shape[-2]), "plain", dtype, device).transpose(-1, -2)
    *before, columns = shape
    if form == "off":
        return laid((*before, columns + 1), "plain", dtype, device)[..., 1:]
    if form == "apart":
        return laid((*before, columns * 2), "plain", dtype, device)[..., ::2]
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.randint(-20, 20, shape, device=device).to(dtype)


def results(function: Function, args: list[Any], gradients: bool) -> list[Tensor]:
    if not gradients:
        with torch.no_grad():
            return [function(*args)]
    leaves = [a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    out = function(*leaves)
    wanted = [a for a in leaves if isinstance(a, Tensor) and a.requires_grad]
    weight = torch.linspace(-1, 1, max(1, out.numel()), device=out.device)[: out.numel()].to(out.dtype).view(out.shape)
    found = torch.autograd.grad(out, wanted, weight, allow_unused=True)
    return [out.detach(), *(g for g in found if g is not None)]


def wrong(case: Case, device: torch.device, seed: int) -> str:
    """What is wrong with lowc's results; "" if nothing is.  Errors of lowc are raised."""
    torch.manual_seed(seed)
    args = case.args(device)
    eager = results(case.function, args, case.gradients)
    exact = results(case.function, [_wide(a) for a in args], case.gradients)
    torch._dynamo.reset()
    compiled = torch.compile(case.function, backend="lowc", options=OWN, dynamic=case.dynamic, fullgraph=True)
    for turn in range(2):
        ours = results(compiled, args, case.gradients)
        if len(ours) != len(eager):
            return f"{len(ours)} results, {len(eager)} of eager"
        for number, (mine, theirs, right) in enumerate(zip(ours, eager, exact, strict=True)):
            said = _differs(mine, theirs, right, number == 0)
            if said:
                return f"result {number} of call {turn}: {said}"
    return ""


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def steps(tensor: Tensor) -> list[int]:
    """Strides of dimensions in which there is a step."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1] if tensor.numel() else []


def _differs(mine: Tensor, theirs: Tensor, exact: Tensor, result: bool) -> str:
    """``result``: of the function itself; strides of gradients are AOTAutograd's."""
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype) or (result and steps(mine) != steps(theirs)):
        return f"{mine.dtype} {tuple(mine.shape)} {mine.stride()}, eager's {theirs.dtype} {tuple(theirs.shape)} {theirs.stride()}"
    if not mine.numel():
        return ""
    if not mine.dtype.is_floating_point:
        return "" if torch.equal(mine, theirs) else f"integers differ in {int((mine != theirs).sum())} places"
    if not bool(torch.equal(mine.isfinite(), theirs.isfinite())):
        return "other places are NaN or infinite"
    there = theirs.isfinite() & exact.isfinite()
    if not bool(there.any()):
        return ""
    largest = float(exact[there].abs().max())
    off, off_eager = (float((r.double() - exact)[there].abs().max()) for r in (mine, theirs))
    room = LIMIT * off_eager + ORDER.get(mine.dtype, torch.finfo(mine.dtype).eps * UNITS) * largest
    return "" if off <= room else f"off by {off:.3e}, eager by {off_eager:.3e}, largest {largest:.3e}"
