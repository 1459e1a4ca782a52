"""The workloads of the steady-state benchmark: f32 functions of the kinds that models are made of.

Each entry makes ``(function, arguments)``; a call of the function is one step.  Those that train return gradients as well.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _integers(*shape: int, below: int, seed: int = 0) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def gelu_chain() -> Made:
    def run(x: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.gelu(x + b) * 1.3 - 0.1) * x

    return run, (_normal(1024, 2048), _normal(2048, seed=1))


def trig_chain() -> Made:
    def run(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) * torch.cos(y) + torch.exp(-x * x) * torch.tanh(y)

    return run, (_normal(1024, 2048), _normal(1024, 2048, seed=1))


def layer_norm() -> Made:
    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (1024,), w, b)

    return run, (_normal(4096, 1024), _normal(1024, seed=1), _normal(1024, seed=2))


def _with_gradients(forward: Callable[..., Tensor], count: int) -> Callable[..., Any]:
    """``forward``'s scalar, and its gradients for the first ``count`` arguments."""

    def run(*args: Any) -> Any:
        loss = forward(*args)
        return loss.detach(), torch.autograd.grad(loss, args[:count])

    return run


def _leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.requires_grad_() for t in tensors)


def layer_norm_train() -> Made:
    def forward(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Tensor:
        return (F.layer_norm(x, (1024,), w, b) * g).sum()

    return (
        _with_gradients(forward, 3),
        (
            *_leaves(_normal(2048, 1024), _normal(1024, seed=1), _normal(1024, seed=2)),
            _normal(2048, 1024, seed=3),
        ),
    )


def rms_norm_residual() -> Made:
    def run(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        s = x + r
        return s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6) * w, s

    return run, (_normal(2048, 2048), _normal(2048, 2048, seed=1), _normal(2048, seed=2))


def softmax() -> Made:
    return lambda x: torch.softmax(x, -1), (_normal(2048, 2048),)


def cross_entropy_train() -> Made:
    return _with_gradients(F.cross_entropy, 1), (*_leaves(_normal(1024, 4096)), _integers(1024, below=4096))


def column_sum() -> Made:
    return lambda x: x.sum(0), (_normal(2048, 2048),)


def full_reduce() -> Made:
    return lambda x: ((x * x).sum(), x.amax(), x.mean()), (_normal(2048, 2048),)


def transpose_add() -> Made:
    return lambda x, z: x + z.t(), (_normal(2048, 2048), _normal(2048, 2048, seed=1))


def permute_4d() -> Made:
    def run(x: Tensor) -> Tensor:
        return (x.permute(0, 2, 3, 1) * 2 + 1).contiguous()

    return run, (_normal(16, 64, 56, 56),)


def embedding_layer_norm() -> Made:
    def run(ids: Tensor, table: Tensor, positions: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(F.embedding(ids, table) + positions, (768,), w, b)

    return run, (
        _integers(8, 512, below=30000), _normal(30000, 768, seed=1), _normal(512, 768, seed=2), _normal(768, seed=3),
        _normal(768, seed=4),
    )  # fmt: skip


def rope() -> Made:
    def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        def turn(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        return turn(q), turn(k)

    return run, (
        _normal(4, 16, 512, 64),
        _normal(4, 16, 512, 64, seed=1),
        _normal(512, 64, seed=2),
        _normal(512, 64, seed=3),
    )


def swiglu() -> Made:
    return lambda a, b: F.silu(a) * b, (_normal(2048, 2816), _normal(2048, 2816, seed=1))


def adam_24() -> Made:
    def run(
        parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor]
    ) -> None:
        for p, g, m, v in zip(parameters, gradients, means, squares):
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            p.addcdiv_(m / 0.651, (v / 0.00996).sqrt_().add_(1e-8), value=-1e-3)

    shapes = [(256, 256), (256,), (1024, 256), (1024,), (256, 1024), (256,)] * 4
    state = [[_normal(*s, seed=seed) for s in shapes] for seed in range(3)]
    return run, (*state, [v.abs() for v in state[2]])


def batch_norm_train() -> Made:
    def forward(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Tensor:
        return (F.relu(F.batch_norm(x, None, None, w, b, training=True)) * g).sum()

    return (
        _with_gradients(forward, 3),
        (
            *_leaves(_normal(16, 64, 56, 56), _normal(64, seed=1), _normal(64, seed=2)),
            _normal(16, 64, 56, 56, seed=3),
        ),
    )


def masked_softmax() -> Made:
    def run(scores: Tensor, mask: Tensor) -> Tensor:
        return (scores / 8.0).masked_fill(mask, -math.inf).softmax(-1)

    return run, (_normal(4, 8, 512, 512), torch.ones(512, 512, dtype=torch.bool).triu(1))


def log_softmax_backward() -> Made:
    def forward(x: Tensor, g: Tensor) -> Tensor:
        return (x.log_softmax(-1) * g).sum()

    return _with_gradients(forward, 1), (*_leaves(_normal(2048, 1024)), _normal(2048, 1024, seed=1))


def tiny() -> Made:
    return lambda x, y: torch.relu(x + y) * 2, (_normal(8, 16), _normal(8, 16, seed=1))


STEADY: dict[str, Callable[[], Made]] = {
    f.__name__: f
    for f in (
        gelu_chain, trig_chain, layer_norm, layer_norm_train, rms_norm_residual, softmax, cross_entropy_train, column_sum,
        full_reduce, transpose_add, permute_4d, embedding_layer_norm, rope, swiglu, adam_24, batch_norm_train, masked_softmax,
        log_softmax_backward, tiny,
    )
}  # fmt: skip

# ---------------------------------------------------------------- models


class _GPT(nn.Module):
    """A GPT-2-like decoder of 4 layers: the shapes of tests/e2e's, larger."""

    def __init__(
        self, width: int = 256, heads: int = 4, layers: int = 4, vocabulary: int = 2048, context: int = 128
    ) -> None:
        super().__init__()
        self.heads = heads
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        b, t, c = x.shape
        for n, (qkv, out, up, down) in enumerate(zip(self.qkv, self.out, self.up, self.down)):
            q, k, v = (
                z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                for z in qkv(self.norms[2 * n](x)).split(c, 2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(y.transpose(1, 2).reshape(b, t, c))
            x = x + down(F.gelu(up(self.norms[2 * n + 1](x)), approximate="tanh"))
        return self.head(self.norms[-1](x))


class _ResNet(nn.Module):
    """Eight residual convolution pairs with batch norm in training mode."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(8))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for n in range(0, 8, 2):
            y = F.relu(self.norms[n](self.convs[n](x)))
            x = F.relu(self.norms[n + 1](self.convs[n + 1](y)) + x)
        return self.head(x.mean((2, 3)))


def _training(model: nn.Module, x: Tensor, targets: Tensor) -> Made:
    """Forward, loss, backward."""
    parameters = list(model.parameters())

    def run(x: Tensor) -> Any:
        loss = F.cross_entropy(model(x).flatten(0, -2), targets)
        return loss.detach(), torch.autograd.grad(loss, parameters)

    return run, (x,)


def gpt_infer() -> Made:
    torch.manual_seed(0)
    model = _GPT().eval().requires_grad_(False)
    return lambda ids: model(ids), (_integers(4, 128, below=2048),)


def gpt_train() -> Made:
    torch.manual_seed(0)
    return _training(_GPT(), _integers(4, 128, below=2048), _integers(4 * 128, below=2048, seed=1))


def resnet_train() -> Made:
    torch.manual_seed(0)
    return _training(_ResNet().train(), _normal(8, 3, 32, 32), _integers(8, below=10))


MODELS: dict[str, Callable[[], Made]] = {f.__name__: f for f in (gpt_infer, gpt_train, resnet_train)}


def chain(layers: int) -> Made:
    """``layers`` different pointwise and norm layers in a row, for the scaling of compile time."""
    functions: tuple[Callable[[Tensor], Tensor], ...] = (
        torch.sin,
        torch.tanh,
        F.gelu,
        torch.sigmoid,
        F.silu,
        torch.cos,
    )

    def run(x: Tensor) -> Tensor:
        for n in range(layers):
            if n % 5 == 4:
                x = F.layer_norm(x, (x.shape[-1],), eps=1e-5 + 1e-7 * n)
            else:
                x = functions[n % len(functions)](x * (1 + n / 1000) + n / 100) + x * (0.5 - n / 2000)
        return x

    return run, (_normal(64, 256),)
