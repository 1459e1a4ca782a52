"""Small models, inference and training, against eager and float64."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A transformer block of odd sizes."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(x.mean((2, 3)))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 11)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.out(torch.tanh(self.table(words).sum(1))), labels)


def rope(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


@pytest.mark.parametrize("train", [False, True])
def test_transformer_block(compiler: Any, train: bool) -> None:
    compiler.check(Block(), torch.randn(2, 5, 12), train=train)


@pytest.mark.parametrize("train", [False, True])
def test_convolution_and_batch_norm(compiler: Any, train: bool) -> None:
    compiler.check(ConvNet().train(train), torch.randn(2, 3, 9, 11), train=train)


def test_embedding_and_cross_entropy(compiler: Any) -> None:
    compiler.check(Classifier(), torch.tensor([[1, 2, 0], [5, 10, 1]]), torch.tensor([3, -100]), train=True)


def test_rope_and_rms_norm(compiler: Any) -> None:
    compiler.check(rope, torch.randn(3, 5, 8, requires_grad=True), torch.randn(5, 4), train=True)
    compiler.check(rms, torch.randn(3, 17, requires_grad=True), torch.randn(17, requires_grad=True), train=True)


def test_an_optimizer_step(compiler: Any) -> None:
    def run(compile_it: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Linear(5, 3)
        adam = torch.optim.AdamW(model.parameters(), lr=0.1)
        x = torch.randn(7, 5)

        def step() -> None:
            adam.step()

        stepped = torch.compile(step, backend=compiler) if compile_it else step
        for _ in range(3):
            model(x).square().sum().backward()
            stepped()
            adam.zero_grad()
        return [p.detach() for p in model.parameters()]

    for ours, eager in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(ours, eager)
    assert compiler.programs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats(compiler: Any, dtype: torch.dtype) -> None:
    compiler.check(lambda x, y: F.gelu(x * y + 1).sum(-1), torch.randn(3, 33, dtype=dtype), torch.randn(33, dtype=dtype))


def test_empty_and_scalar_tensors(compiler: Any) -> None:
    compiler.check(lambda x, y: (x.exp().sum(0), y.cos() * 2, x + y), torch.randn(0, 3), torch.randn(()))


def test_special_values(compiler: Any) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -3e38])
    out = compiler.check(lambda x: (x + 0, x * 2, x.relu(), x.abs(), x.softmax(0), x.max(), x.sigmoid(), torch.where(x > 0, x, -x)), x)
    assert torch.equal(out[0].signbit(), (x + 0).signbit()) and torch.equal(out[1].signbit(), (x * 2).signbit())


def test_integers_and_booleans(compiler: Any) -> None:
    x = torch.arange(-7, 8)
    compiler.check(lambda x: (x // 3, x % 3, x.bitwise_and(6), (x > 2) | (x < -2), x.sum(), x.argmax(), x.cumsum(0)), x)
    compiler.check(lambda x: (x.to(torch.int8) * 100, x.to(torch.uint8), x.bool(), x.to(torch.float32) / 3), x)


def test_sizes_that_change(compiler: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) * x.shape[0]).transpose(0, 1)

    compiled = compiler.compile(f, dynamic=True)
    for shape in ((3, 5), (4, 7), (1000, 3), (2, 33)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), f(x))
        assert compiled(x).stride() == f(x).stride()
    assert len(compiler.programs) == 1


def test_kernels_that_look_alike_but_for_names(compiler: Any) -> None:
    x = torch.randn(7)
    compiler.check(lambda x: (x.max(), x.min(), x.sum(), x.prod(), x.abs(), x.sigmoid(), x.neg(), x.relu()), x)
