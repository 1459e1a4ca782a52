"""Calls of torch written another way: equal in exact arithmetic, but not beside NaN and infinities, nor in their rounding.

What is NaN and what is infinite follows from an order of operations that nobody has promised; eager's own kernels differ among
themselves (vectors and single elements, CPU and GPU, float16 and float32).  lowc may do as eager does, or as these do:

* ``layer_norm``: (x - mean) * rstd * weight + bias, where eager has x * rstd + (-mean * rstd) before weight and bias; with x
  equal to the mean and an infinite weight the first is NaN, the second infinite.  In the gradient an infinite weight meets other
  terms first.
* the mean of ``var_mean`` and ``std_mean``: a sum divided, where eager updates a running mean, which is NaN after an infinity
  unless that comes last.
* ``var`` and ``std``: two passes, which are right to a few units in the last place, where eager's running variance is off by as
  many as a hundred for thousands of elements.  (In float32 it is the program in float64 that shows it.)
* the gradients of ``elu`` and its like, and of ``hardswish``, at NaN: NaN, as in eager's vector code, or passed on, as in its
  code for single elements.
* the gradients of ``relu6`` and ``hardtanh`` at NaN: 0, as in eager's vector code, where its code for single elements passes what
  comes on.
* ``maximum`` and ``minimum`` of zeros of two signs: the second, where eager's vector code and that for single elements differ;
  log makes it visible in gradients.
* ``gelu`` with tanh: 1 / (1 + exp(-2 u)) for (1 + tanh(u)) / 2, which cancels for negative u.
"""

import math
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        rstd = ((x - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
        normal = (x - mean) * rstd
        ctx.save_for_backward(normal, rstd, weight)
        return normal * weight + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (grad,) = grads
        normal, rstd, weight = ctx.saved_tensors
        g = grad * weight
        d_x = rstd * (g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True))
        outer = list(range(grad.dim() - 1))
        return d_x, (grad * normal).sum(outer) if outer else grad * normal, grad.sum(outer) if outer else grad, None


def layer_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor) -> Any:
    """Over the last dimension."""
    assert tuple(x.shape[-1:]) == tuple(shape)
    return _LayerNorm.apply(x, weight, bias, 1e-5)


def var(x: Tensor, dims: list[int] | None = None, correction: int = 1, keepdim: bool = False) -> Tensor:
    dims = list(range(x.dim())) if dims is None else dims
    away = x - torch.mean(x, dims, keepdim=True)
    count = x.numel() // max(1, torch.sum(x, dims).numel())
    return torch.sum(away * away, dims, keepdim=keepdim) / max(0, count - correction)


def std(x: Tensor, dims: list[int] | None = None, correction: int = 1, keepdim: bool = False) -> Tensor:
    return torch.sqrt(var(x, dims, correction, keepdim))


def var_mean(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    return var(x, dims), torch.mean(x, dims)


def std_mean(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    return std(x, dims), torch.mean(x, dims)


def _bent(x: Tensor, alpha: float, scale: float, steep: float) -> Tensor:
    return torch.where(x > 0, x * scale, torch.expm1(x * steep) * (alpha * scale))


def elu(x: Tensor) -> Tensor:
    return _bent(x, 1.0, 1.0, 1.0)


def selu(x: Tensor) -> Tensor:
    return _bent(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


def celu(x: Tensor, alpha: float) -> Tensor:
    return _bent(x, alpha, 1.0, 1 / alpha)


def hardswish(x: Tensor) -> Tensor:
    return x * (x + 3).clamp(0, 6) / 6


class _Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return F.hardtanh(x, low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return torch.where((x > ctx.low) & (x < ctx.high), grads[0], 0.0), None, None


def hardtanh(x: Tensor, low: float, high: float) -> Any:
    return _Clamped.apply(x, low, high)


def relu6(x: Tensor) -> Any:
    return _Clamped.apply(x, 0.0, 6.0)


class _Second(torch.autograd.Function):
    """Zeros that are those of ``y``, if that has them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.where((x == 0) & (y == 0), y.to(x.dtype), x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def maximum(x: Tensor, y: Tensor) -> Any:
    return _Second.apply(torch.maximum(x, y), y)


def minimum(x: Tensor, y: Tensor) -> Any:
    return _Second.apply(torch.minimum(x, y), y)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate != "tanh":
        return F.gelu(x)
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


class _Instead:
    def __init__(self, module: ModuleType, *functions: Any) -> None:
        self.module = module
        self.functions = {f.__name__: f for f in functions}

    def __getattr__(self, name: str) -> Any:
        return self.functions[name] if name in self.functions else getattr(self.module, name)


class _Prod(torch.autograd.Function):
    """A product in another order; its gradient is ATen's formula, fed with what was made of that product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Any, order: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.call = call
        narrow = call(x)
        over, kept = call.keywords.get("dim"), call.keywords.get("keepdim", False)
        wide = (x.flatten() if over is None or x.dim() == 0 else x).to(torch.promote_types(narrow.dtype, torch.float32))
        total = _ordered(wide, over or 0, order)
        return (total.unsqueeze(over) if kept and over is not None and x.dim() else total).to(narrow.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(ctx.call(x), x, grads[0])[0], None, None


def _ordered(wide: Tensor, over: int, order: str) -> Tensor:
    factors = wide.gather(over, wide.abs().argsort(over))
    if order == "apart":
        small = factors.abs() < 1
        return _chained(torch.where(small, factors, 1.0), over) * _chained(torch.where(small, 1.0, factors), over)
    return _chained(factors if order == "up" else factors.flip(over), over)


def _prod(order: str) -> Any:
    def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        given = {} if dim is None else {"dim": dim, "keepdim": keepdim}
        call = partial(torch.prod, dtype=dtype, **given)
        return _Prod.apply(x, call, order) if (dtype or x.dtype).is_floating_point else call(x)

    return prod


def _chained(factors: Tensor, dim: int) -> Tensor:
    total = torch.ones_like(factors.sum(dim))
    for factor in factors.unbind(dim):
        total = total * factor
    return total


SPACE: dict[str, Any] = {
    "torch": _Instead(torch, var, std, var_mean, std_mean, maximum, minimum),
    "F": _Instead(F, layer_norm, elu, selu, celu, hardswish, hardtanh, relu6, gelu),
}
OTHERWISE = (
    *("layer_norm(", "_mean(", ".var(", ".std(", "elu(", "hardswish(", "hardtanh(", "relu6(", "approximate='tanh'"),
    *("maximum(", "minimum("),
)
"""What is in the text of a line that is written another way."""

PRODUCTS: list[dict[str, Any]] = [{"torch": _Instead(torch, _prod(order)), "F": F} for order in ("up", "down", "apart")]
"""``prod`` in orders that tell whether its partial products can leave the range of its dtype: small factors first, large ones
first, and the two apart, to be multiplied in the end."""
