"""What the fuzzer of graphs found: zeros without memory, and a source of another dtype."""

import torch
from torch import Tensor

from lowc.dynamo import lowc_backend

STRICT = {"strict_errors": True}


def test_gradients_that_are_zeros_without_memory() -> None:
    """Regression: the gradient of ``sgn`` is a tensor that has no memory, and the kernel that added it read address 0."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        v = torch.var_mean(x, [-1])[0]
        return torch.sgn(v), torch.nn.functional.softsign(x)

    torch._dynamo.reset()
    x = torch.randn(3, 2, dtype=torch.float16)
    ours, eager = (x.clone().requires_grad_() for _ in range(2))
    for fn, given in ((torch.compile(f, backend=lowc_backend, options=STRICT), ours), (f, eager)):
        a, b = fn(given)
        (a.sum() + b.sum()).backward()
    assert ours.grad is not None and eager.grad is not None
    torch.testing.assert_close(ours.grad, eager.grad)


def test_diagonal_scatter_of_another_dtype() -> None:
    torch._dynamo.reset()
    x, y = torch.randn(4, 4), torch.randn(4).double()
    ours = torch.compile(torch.diagonal_scatter, backend=lowc_backend, options=STRICT)(x, y)
    assert torch.equal(ours, torch.diagonal_scatter(x, y)) and ours.dtype == torch.float32
