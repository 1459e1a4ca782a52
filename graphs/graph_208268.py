"""Graph 208268: RuntimeError: The size of tensor a (8) must match the size of tensor b (33) at non-singleton dimension 1"""

import sys

import torch
import torch.nn.functional as F

SPECIAL = (float("nan"), float("inf"), float("-inf"), float("-0.0"), float("0.0"), float("1000000000000000.0"), float("-0.001"), float("1e-40"), float("-1e-42"), float("1.0"), float("-1.0"), float("65000.0"))


def values(kind: str, seed: int, dtype: torch.dtype, count: int) -> torch.Tensor:
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


def program(x0, x1, x2, x3, x4, x5):
    x1.add_(x5)
    v1 = x0.unsqueeze(-3)
    v1.mul_(v1)
    return (x0,)


def inputs():
    x0 = values('normal', 18435, torch.float64, 300).as_strided((3, 33, 3), (1, 9, 3), 3)
    x1 = values('small', 37516, torch.bfloat16, 24).as_strided((8, 3), (3, 1), 0)
    x2 = values('small', 894070, torch.float32, 64).as_strided((2, 4, 8), (32, 1, 4), 0).requires_grad_()
    x3 = values('small', 265616, torch.float16, 80).as_strided((5, 16), (1, 5), 0).requires_grad_()
    x4 = values('special', 693302, torch.float32, 135).as_strided((7, 9, 5, 3), (0, 1, 9, 45), 0).requires_grad_()
    x5 = values('normal', 960859, torch.float32, 3).as_strided((1, 3), (3, 1), 0).requires_grad_()
    return [x0, x1, x2, x3, x4, x5]


def run(f):
    x0, x1, x2, x3, x4, x5 = given = inputs()
    results = list(f(*given))
    results += given
    wanted = [x2, x3, x4, x5]
    ends = [r for r in results if r.requires_grad]
    weights = [torch.linspace(0.5, 1.5, e.numel(), dtype=torch.float64).reshape(e.shape).to(e.dtype) for e in ends]
    results += torch.autograd.grad(ends, wanted, weights, allow_unused=True) if ends else []
    return results


torch.set_grad_enabled(True)
eager = run(program)
ours = run(torch.compile(program, backend="lowc", dynamic=False))
different = False
for number, (a, b) in enumerate(zip(ours, eager)):
    if b is None:
        continue
    apart = 8 * torch.finfo(b.dtype).eps if b.is_floating_point() else 0.0
    signs = apart == 0.0 and bool(((a == 0) & (a.signbit() != b.signbit())).any())
    if signs or a.stride() != b.stride() or not torch.allclose(a.double(), b.double(), rtol=apart, atol=0.0, equal_nan=True):
        different = True
        print(f"number {number}: {a}\n  in eager: {b}")
sys.exit(different)
