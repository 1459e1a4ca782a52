"""Complex tensors: what lowc leaves to ATen, and gradients through Python's complex numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowc

X = torch.linspace(-2, 2, 20).reshape(4, 5)
Z = torch.complex(X, X.flip(0) + 0.1)
CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "times": (lambda x: x * 2j, Z),
    "over": (lambda x: x / (2 + 1j), Z),
    "under": (lambda x: 2j / x, Z),
    "minus": (lambda x: 2j - x, Z),
    "real times": (lambda x: x * 2j, X),
    "real over": (lambda x: x / (1 + 2j), X),
    "double times": (lambda x: x * (0.1 + 0.3j), Z.to(torch.complex128)),
    "double real times": (lambda x: x * (0.1 + 0.3j), X.double()),
    "made complex": (lambda x: torch.complex(x, x) / (2 + 1j), X),
    "angle": (lambda x: (x + 1j * x).angle(), X),
    "abs": (lambda x: (x + 1j * x).abs(), X + 0.05),
    "parts": (lambda x: (x * 1j).real + (x * 1j).imag * 2, Z),
    "fft": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j), X),
    "conj": (lambda x: x.conj() * x + x @ x.mH @ x, Z),
    "power": (lambda x: x ** (1 + 1j) + torch.exp(x * 1j), Z),
    "vdot": (lambda x: torch.vdot(x[0], x[1] * 1j), Z),
    "tensor": (lambda x: x * torch.tensor(2j), Z),
    "where": (lambda x: torch.where(x.real > 0, x, x * 1j), Z),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_like_eager(name: str, grad: bool) -> None:
    f, x = CASES[name]
    results: list[Any] = []
    for run in (f, torch.compile(f, backend=lowc.lowc_backend, options={"strict_errors": True})):
        torch._dynamo.reset()
        leaf = x.clone().requires_grad_(grad)
        out = run(leaf)
        if grad:
            (torch.view_as_real(out) if out.is_complex() else out).sum().backward()
        results.append((out.detach(), leaf.grad))
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-5)
