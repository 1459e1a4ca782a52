"""The workloads of the GPU benchmark: memory-bound kernels of models, large enough to fill an H200.

Each entry makes ``(function, arguments, bytes)`` for a dtype: a call reads and writes at least ``bytes`` (each input once, each
output once), which over the time of a call gives the rate that is compared with a device-to-device copy.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Made = tuple[Callable[..., Any], tuple[Any, ...], int]


def _normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    return made.to(dtype)


def _integers(*shape: int, below: int) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator("cuda").manual_seed(0), device="cuda")


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _rows(width: int, dtype: torch.dtype) -> Tensor:
    """A matrix of 256 MB."""
    return _normal((1 << 28) // dtype.itemsize // width, width, dtype=dtype)


def copy(dtype: torch.dtype) -> Made:
    x = _rows(4096, dtype)
    return lambda x: x.clone(), (x,), 2 * _bytes(x)


def gelu_chain(dtype: torch.dtype) -> Made:
    x, y = _rows(4096, dtype), _rows(4096, dtype)
    return lambda x, y: F.gelu(x + 0.5) * torch.sigmoid(y), (x, y), 3 * _bytes(x)


def bias_relu_add(dtype: torch.dtype) -> Made:
    x, y, b = _rows(4096, dtype), _rows(4096, dtype), _normal(4096, dtype=dtype)
    return lambda x, y, b: torch.relu(x + b) + y, (x, y, b), 3 * _bytes(x)


def swiglu(dtype: torch.dtype) -> Made:
    x, y = _rows(11008, dtype), _rows(11008, dtype)
    return lambda a, b: F.silu(a) * b, (x, y), 3 * _bytes(x)


def softmax(width: int) -> Callable[[torch.dtype], Made]:
    def make(dtype: torch.dtype) -> Made:
        x = _rows(width, dtype)
        return lambda x: torch.softmax(x, -1), (x,), 2 * _bytes(x)

    return make


def layer_norm(width: int) -> Callable[[torch.dtype], Made]:
    def make(dtype: torch.dtype) -> Made:
        x, w, b = _rows(width, dtype), _normal(width, dtype=dtype), _normal(width, dtype=dtype)
        return lambda x, w, b: F.layer_norm(x, (width,), w, b), (x, w, b), 2 * _bytes(x)

    return make


def _with_gradients(forward: Callable[..., Tensor], count: int) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        loss = forward(*args)
        return torch.autograd.grad(loss, args[:count])

    return run


def layer_norm_train(dtype: torch.dtype) -> Made:
    x, g = _rows(4096, dtype), _rows(4096, dtype)
    w, b = _normal(4096, dtype=dtype), _normal(4096, dtype=dtype)
    leaves = tuple(t.requires_grad_() for t in (x, w, b))

    def run(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Any:
        return torch.autograd.grad(F.layer_norm(x, (4096,), w, b), (x, w, b), g)

    return run, (*leaves, g), 5 * _bytes(x)


def rms_norm_residual(dtype: torch.dtype) -> Made:
    def run(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        s = x + r
        wide = s.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(s.dtype) * w, s

    x, r, w = _rows(4096, dtype), _rows(4096, dtype), _normal(4096, dtype=dtype)
    return run, (x, r, w), 4 * _bytes(x)


def cross_entropy(dtype: torch.dtype) -> Made:
    x = _rows(32768, dtype)
    return F.cross_entropy, (x, _integers(x.shape[0], below=32768)), _bytes(x)


def cross_entropy_train(dtype: torch.dtype) -> Made:
    x = _rows(8192, dtype).requires_grad_()
    return _with_gradients(F.cross_entropy, 1), (x, _integers(x.shape[0], below=8192)), 3 * _bytes(x)


def column_sum(dtype: torch.dtype) -> Made:
    x = _rows(4096, dtype)
    return lambda x: x.sum(0), (x,), _bytes(x)


def row_sum(dtype: torch.dtype) -> Made:
    x = _rows(4096, dtype)
    return lambda x: x.sum(1), (x,), _bytes(x)


def full_sum(dtype: torch.dtype) -> Made:
    x = _rows(4096, dtype)
    return lambda x: (x.float() * x.float()).sum(), (x,), _bytes(x)


def transpose(dtype: torch.dtype) -> Made:
    x = _normal(8192, (1 << 28) // dtype.itemsize // 8192, dtype=dtype)
    return lambda x: x.t().contiguous(), (x,), 2 * _bytes(x)


def transpose_add(dtype: torch.dtype) -> Made:
    x, y = _normal(8192, 8192, dtype=dtype), _normal(8192, 8192, dtype=dtype)
    return lambda x, y: x + y.t(), (x, y), 3 * _bytes(x)


def permute_heads(dtype: torch.dtype) -> Made:
    x = _normal(16, 2048, 32, (1 << 28) // dtype.itemsize // (16 * 2048 * 32), dtype=dtype)
    return lambda x: x.transpose(1, 2).contiguous(), (x,), 2 * _bytes(x)


def embedding(dtype: torch.dtype) -> Made:
    table = _normal(50000, 1024, dtype=dtype)
    ids = _integers((1 << 28) // dtype.itemsize // 1024, below=50000)
    return lambda i, w: F.embedding(i, w) * 2, (ids, table), (1 << 28) + _bytes(ids) + _bytes(table)


def rope(dtype: torch.dtype) -> Made:
    def run(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat([-b, a], -1) * sin

    q = _normal((1 << 28) // dtype.itemsize // (32 * 2048 * 128), 32, 2048, 128, dtype=dtype)
    cos, sin = _normal(2048, 128, dtype=dtype), _normal(2048, 128, dtype=dtype)
    return run, (q, cos, sin), 2 * _bytes(q)


def cumsum(dtype: torch.dtype) -> Made:
    x = _rows(4096, dtype)
    return lambda x: x.cumsum(-1), (x,), 2 * _bytes(x)


def batch_norm_train(dtype: torch.dtype) -> Made:
    x = _normal((1 << 28) // dtype.itemsize // (256 * 28 * 28), 256, 28, 28, dtype=dtype)
    w, b = _normal(256, dtype=torch.float32), _normal(256, dtype=torch.float32)
    return lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)), (x, w, b), 3 * _bytes(x)


def adam(dtype: torch.dtype) -> Made:
    def run(p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor]) -> None:
        for a, b, c, d in zip(p, g, m, v):
            c.mul_(0.9).add_(b, alpha=0.1)
            d.mul_(0.999).addcmul_(b, b, value=0.001)
            a.addcdiv_(c / 0.651, (d / 0.00996).sqrt_().add_(1e-8), value=-1e-3)

    state = [[_normal(1 << 24, dtype=dtype) for _ in range(4)] for _ in range(4)]
    for each in state[3]:
        each.abs_()
    return run, tuple(state), 7 * sum(_bytes(t) for t in state[0])


GPU: dict[str, Callable[[torch.dtype], Made]] = {
    "copy": copy,
    "gelu_chain": gelu_chain,
    "bias_relu_add": bias_relu_add,
    "swiglu": swiglu,
    **{f"softmax_{n}": softmax(n) for n in (1024, 4096, 16384, 65536)},
    **{f"layer_norm_{n}": layer_norm(n) for n in (1024, 4096, 16384)},
    "layer_norm_train": layer_norm_train,
    "rms_norm_residual": rms_norm_residual,
    "cross_entropy": cross_entropy,
    "cross_entropy_train": cross_entropy_train,
    "column_sum": column_sum,
    "row_sum": row_sum,
    "full_sum": full_sum,
    "transpose": transpose,
    "transpose_add": transpose_add,
    "permute_heads": permute_heads,
    "embedding": embedding,
    "rope": rope,
    "cumsum": cumsum,
    "batch_norm_train": batch_norm_train,
    "adam": adam,
}
