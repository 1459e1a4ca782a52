"""Small models of the kinds that people compile, each with inputs: all shapes are odd or uneven where a model allows it.

``ZOO`` holds those that need only torch, ``TRANSFORMERS`` those built from configs of the transformers library with random
weights (nothing is downloaded).  Each entry makes ``(model, args, loss)``, where ``loss`` turns the model's output into a
scalar.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Any, ...], Callable[[Any], Tensor]]


def weighted(out: Any) -> Tensor:
    """A scalar that depends on every element of every floating-point tensor in ``out``, each with a weight of its own."""
    leaves = [t for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point()]
    total = leaves[0].new_zeros(())
    for t in leaves:
        total = total + (t * torch.arange(t.numel(), dtype=t.dtype, device=t.device).reshape(t.shape).mul(0.37).cos()).sum()
    return total


def tokens(*shape: int, below: int, seed: int = 0) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- GPT-style decoder


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 97, width: int = 48, layers: int = 2, heads: int = 3, context: int = 31) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt() -> Made:
    return GPT(), (tokens(3, 31, below=97), tokens(3, 31, below=97, seed=1)), lambda out: out[1]


# ---------------------------------------------------------------- ResNet, batch norm in training mode


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.skip = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            if stride > 1 or before != after
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.body = nn.Sequential(Residual(12, 12, 1), Residual(12, 20, 2), Residual(20, 20, 1))
        self.head = nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def resnet() -> Made:
    return ResNet().train(), (normal(3, 3, 27, 29),), weighted


# ---------------------------------------------------------------- ViT


class Attention(nn.Module):
    """Attention written out, as many models have it: softmax and mask are lowc's to fuse."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class ViT(nn.Module):
    def __init__(self, width: int = 36, heads: int = 3, layers: int = 2, classes: int = 7) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 5, 5)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.position = nn.Parameter(torch.randn(1, 26, width) * 0.1)
        self.norms1 = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.norms2 = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.attentions = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        for norm1, attention, norm2, mlp in zip(self.norms1, self.attentions, self.norms2, self.mlps):
            x = x + attention(norm1(x))
            x = x + mlp(norm2(x))
        return self.head(self.norm(x)[:, 0]).log_softmax(-1)


def vit() -> Made:
    return ViT(), (normal(3, 3, 25, 25),), weighted


# ---------------------------------------------------------------- U-Net


def _double(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(2, after),
        nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.GroupNorm(2, after),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """A diffusion-style U-Net: group norm, SiLU, a sinusoidal time embedding, skips by cat."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, 2 * width))
        self.enter, self.down = _double(3, width), _double(width, 2 * width)
        self.middle = _double(2 * width, 2 * width)
        self.up, self.leave = _double(4 * width, width), _double(2 * width, width)
        self.transposed = nn.ConvTranspose2d(width, width, 2, 2)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        half = self.width // 2
        angles = step[:, None] * torch.exp(torch.arange(half, device=x.device, dtype=x.dtype) * (-math.log(1e4) / half))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        a = self.enter(x)
        b = self.down(F.avg_pool2d(a, 2))
        c = self.middle(b + time)
        d = self.up(torch.cat([c, b], 1))
        return self.out(self.leave(torch.cat([self.transposed(d), a], 1)))


def unet() -> Made:
    return UNet(), (normal(2, 3, 14, 18), torch.tensor([3.0, 250.0])), weighted


# ---------------------------------------------------------------- LSTM cell in a loop


class LSTM(nn.Module):
    def __init__(self, inputs: int = 11, hidden: int = 23) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(inputs, hidden), nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.cell.hidden_size)
        out = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            out.append(self.head(h))
        return torch.stack(out, 1)


class HandWrittenLSTM(nn.Module):
    """The same recurrence with its gates written out, so that no op hides it."""

    def __init__(self, inputs: int = 11, hidden: int = 23) -> None:
        super().__init__()
        self.hidden = hidden
        self.x, self.h = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.hidden)
        out = []
        for step in self.x(x).unbind(1):
            i, f, g, o = (step + self.h(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            out.append(h)
        return torch.stack(out, 1)


def lstm() -> Made:
    return LSTM(), (normal(5, 6, 11),), weighted


def lstm_gates() -> Made:
    return HandWrittenLSTM(), (normal(5, 6, 11),), weighted


# ---------------------------------------------------------------- Llama-style decoder


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, c = x.shape
        y = self.norm1(x)
        q = rotate(self.q(y).view(b, t, self.heads, self.size).transpose(1, 2), cos, sin)
        k = rotate(self.k(y).view(b, t, self.kv_heads, self.size).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        k, v = (z.repeat_interleave(self.heads // self.kv_heads, 1) for z in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary: int = 89, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, 4, 2, 101) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids)
        frequencies = 10000.0 ** (-torch.arange(0, 12, 2, dtype=x.dtype, device=x.device) / 12)
        angles = torch.arange(ids.shape[1], dtype=x.dtype, device=x.device)[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))


def llama() -> Made:
    return Llama(), (tokens(2, 19, below=89),), weighted


ZOO: dict[str, Callable[[], Made]] = {
    "gpt": gpt,
    "resnet": resnet,
    "vit": vit,
    "unet": unet,
    "lstm": lstm,
    "lstm_gates": lstm_gates,
    "llama": llama,
}

# ---------------------------------------------------------------- transformers


def bert_config() -> Made:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=64,
    )  # fmt: skip
    mask = torch.ones(3, 17, dtype=torch.int64)
    mask[1, 11:] = 0
    return BertModel(config), (tokens(3, 17, below=99), mask), lambda out: weighted((out[0], out[1]))


def gpt2_config() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config), (tokens(3, 17, below=99),), lambda out: weighted(out[0])


def llama_config() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=37, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), (tokens(3, 17, below=99),), lambda out: weighted(out[0])


class _T5(nn.Module):
    """T5 with positional arguments for encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5Model

        config = T5Config(
            vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_decoder_layers=2, num_heads=4, dropout_rate=0.0,
            use_cache=False,
        )  # fmt: skip
        self.t5 = T5Model(config)

    def forward(self, ids: Tensor, decoder_ids: Tensor) -> Tensor:
        return self.t5(input_ids=ids, decoder_input_ids=decoder_ids, return_dict=False)[0]


def t5_config() -> Made:
    return _T5(), (tokens(3, 17, below=99), tokens(3, 13, below=99, seed=1)), weighted


TRANSFORMERS: dict[str, Callable[[], Made]] = {
    "bert_config": bert_config,
    "gpt2_config": gpt2_config,
    "llama_config": llama_config,
    "t5_config": t5_config,
}


def make(name: str, seed: int = 0) -> Made:
    """The model called ``name`` with its weights drawn from ``seed``, its arguments and its loss."""
    torch.manual_seed(seed)
    return {**ZOO, **TRANSFORMERS}[name]()
