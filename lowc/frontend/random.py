"""Random numbers of lowc's own: a pure op of a seed, which fuses with what uses it, and which a backward pass can compute again.

An op that draws (``rand``, ``randn``, ``randint``, ``bernoulli``, their kin and what decomposes to them, as dropout) becomes
``lowc::random(seed, number, ...)``.  ``seed``: one i64 that each call of the graph draws from torch's generator of the device, so
that ``torch.manual_seed`` reproduces the numbers; ``number`` tells the ops of a graph apart.  The numbers are not those of eager;
with the option ``fallback_random`` nothing is replaced, and they are.

The generator is Philox (``ir/philox.py``).  ``draw`` is the op's meaning in terms of torch, for graphs that torch runs;
``lowering/random.py`` makes kernels of it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch.utils.checkpoint import CheckpointPolicy

from lowc.frontend.source import inherited
from lowc.ir.philox import FRACTION_BITS, MULTIPLIERS, ROUNDS, WEYL, WORD, needs_two
from lowc.once import once

NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}


def replace_random_ops(graph: fx.Graph) -> int:
    """Replaces the ops of ``graph`` that draw; returns how many there were."""
    found = [(n, made) for n in graph.nodes if n.op == "call_function" and (made := _replacement(n.target)) is not None]
    found = [(n, made) for n, made in found if n.kwargs.get("generator") is None]
    if not found:
        return 0
    mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    if mode is None:
        return 0
    register()
    seeds: dict[torch.device, fx.Node] = {}
    number = 0
    with mode:
        for node, make in found:
            device = node.meta["val"].device
            drawing = _Drawing(graph, node, number, seeds, device)
            new = make(drawing, *node.args, **node.kwargs)
            if new is None:
                continue
            number += 1
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    return number


class _Drawing:
    """Where the replacement of ``node`` is made: after it."""

    def __init__(
        self, graph: fx.Graph, node: fx.Node, number: int, seeds: dict[torch.device, fx.Node], device: torch.device
    ) -> None:
        self.graph, self.node, self.number, self.seeds, self.device = graph, node, number, seeds, device
        self.value: Tensor = node.meta["val"]

    def seed(self) -> fx.Node:
        """The draw from torch's generator, at the start of the graph."""
        if self.device not in self.seeds:
            first = next(n for n in self.graph.nodes if n.op != "placeholder")
            with self.graph.inserting_before(first):
                seed = self.graph.call_function(
                    torch.ops.aten.randint.low, (-(2**63), 2**63 - 1, [1]), {"dtype": torch.int64, "device": self.device}
                )
            seed.meta.update(inherited(self.node))
            seed.meta["val"] = torch.empty((1,), dtype=torch.int64, device=self.device)
            seed.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            self.seeds[self.device] = seed
        return self.seeds[self.device]

    def draw(self, kind: str, low: Any, high: Any, dtype: torch.dtype | None = None) -> fx.Node | None:
        """Numbers of the shape and strides of the node."""
        dtype = dtype or self.value.dtype
        if dtype.is_complex or self.value.layout != torch.strided or (kind in ("uniform", "normal") and dtype not in NAMES):
            return None
        sizes = self._numbers(self.value.shape), self._numbers(self.value.stride())
        if any(n is None for size in sizes for n in size):
            return None
        args = (self.seed(), self.number, kind, *map(list, sizes), dtype, low, high)
        value = torch.empty_strided(self.value.shape, self.value.stride(), dtype=dtype, device=self.device)
        return self.call(torch.ops.lowc.random.default, args, value)

    def call(self, op: Any, args: tuple[Any, ...], value: Tensor) -> fx.Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(op, args)
        made.meta.update({k: v for k, v in self.node.meta.items() if k != "val"})
        made.meta["val"] = value
        return made

    def _numbers(self, sizes: Sequence[Any]) -> list[Any]:
        """``sizes`` as a node can take them: symbolic ones as nodes of the graph; None for those that it does not have."""
        return [n if isinstance(n, int) else self._size(n) for n in sizes]

    def _size(self, size: torch.SymInt) -> fx.Node | None:
        for node in self.graph.nodes:
            if node is self.node:
                return None
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
                return node
        return None


def _uniform(d: _Drawing, *_: Any, **__: Any) -> fx.Node | None:
    return d.draw("uniform", 0.0, 1.0)


def _uniform_between(d: _Drawing, self: Any, low: Any = 0.0, high: Any = 1.0, **_: Any) -> fx.Node | None:
    return d.draw("uniform", float(low), float(high)) if _are_numbers(low, high) else None


def _normal(d: _Drawing, *_: Any, **__: Any) -> fx.Node | None:
    return d.draw("normal", 0.0, 1.0)


def _normal_of(d: _Drawing, self: Any, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> fx.Node | None:
    return d.draw("normal", float(mean), float(std)) if _are_numbers(mean, std) else None


def _integers(d: _Drawing, low: Any, high: Any) -> fx.Node | None:
    if not (isinstance(low, int) and isinstance(high, int) and 0 < high - low < 2**31):
        return None
    return d.draw("integers", low, high)


def _bernoulli(d: _Drawing, self: Any, p: Any, **_: Any) -> fx.Node | None:
    return d.draw("bernoulli", float(p), 0.0) if _are_numbers(p) and 0.0 <= p <= 1.0 else None


def _bernoulli_of(d: _Drawing, self: Any, **_: Any) -> fx.Node | None:
    """With the probabilities in a tensor."""
    value = self.meta["val"]
    if value.dtype not in NAMES or value.stride() != d.value.stride():
        return None
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    drawn = d.draw("uniform", 0.0, 1.0, wide)
    if drawn is None:
        return None
    below = d.call(torch.ops.aten.lt.Tensor, (drawn, self), torch.empty_like(d.value, dtype=torch.bool))
    with d.graph.inserting_before(d.node):
        made = d.graph.call_function(torch.ops.aten._to_copy.default, (below,), {"dtype": d.value.dtype})
    made.meta.update(d.node.meta)
    return made


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, int | float) for v in values)


_REPLACED: dict[str, Callable[..., fx.Node | None]] = {
    "aten.rand.default": _uniform,
    "aten.rand_like.default": _uniform,
    "aten.uniform.default": _uniform_between,
    "aten.randn.default": _normal,
    "aten.randn_like.default": _normal,
    "aten.normal_functional.default": _normal_of,
    "aten.randint.default": lambda d, high, *_, **__: _integers(d, 0, high),
    "aten.randint.low": lambda d, low, high, *_, **__: _integers(d, low, high),
    "aten.randint_like.default": lambda d, self, high, **_: _integers(d, 0, high),
    "aten.randint_like.low_dtype": lambda d, self, low, high, **_: _integers(d, low, high),
    "aten.bernoulli.p": _bernoulli,
    "aten.bernoulli.default": _bernoulli_of,
}


@lru_cache(1 << 10)
def _replacement(target: Any) -> Callable[..., fx.Node | None] | None:
    """What is made of calls of ``target``; None for one that does not draw."""
    return _REPLACED.get(str(target))


# ---------------------------------------------------------------- the op


@once
def register() -> torch.library.Library:
    """Makes the op known to torch (once); the library has to be kept.

    ``low`` and ``high``: the bounds of "uniform" and "integers" (below ``high``), mean and deviation of "normal", and for
    "bernoulli" the probability of 1.
    """
    library = torch.library.Library("lowc", "FRAGMENT")
    library.define(
        "random(Tensor seed, int number, str kind, SymInt[] size, SymInt[] stride, ScalarType dtype, "
        "Scalar low, Scalar high) -> Tensor",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    library.impl("random", draw, "CompositeExplicitAutograd")
    library.impl("random", _like, "Meta")
    return library


def _like(
    seed: Tensor, number: int, kind: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, low: float, high: float
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=seed.device)


def draw(
    seed: Tensor, number: int, kind: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, low: float, high: float
) -> Tensor:
    """Numbers of ``size`` and ``stride``: the element with row-major number i has word i % 4 of counter (i // 4, ``number``)."""
    out = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device=seed.device)
    position = torch.arange(out.numel(), device=seed.device).reshape(tuple(size))
    words = philox(position // 4, number, seed)
    x = y = _picked(words, position % 4)
    if needs_two(kind, low, high, dtype == torch.float64):
        y = _picked(philox(position // 4, ~number & WORD, seed), position % 4)
    if kind == "integers":
        value = low + below(int(high) - int(low), x, y)
    elif kind == "bernoulli":
        value = (x >> 8) * 2.0**-24 < low
    elif kind == "normal":
        value = low + high * gaussian(words, position, dtype)
    else:
        wide = fraction(x, y, dtype).to(torch.float64 if dtype == torch.float64 else torch.float32)
        value = (low + (high - low) * wide).to(dtype)
        value = torch.where(value < high, value, low)
    return out.copy_(value)


def _picked(words: Sequence[Tensor], place: Tensor) -> Tensor:
    return torch.stack(list(words)).gather(0, place[None])[0]


def philox(position: Tensor, number: int, seed: Tensor) -> tuple[Tensor, ...]:
    """Four random words (i64 from 0 to 2**32 - 1) for each ``position`` (i64)."""
    zero = torch.zeros_like(position)
    return philox_words(
        [position & WORD, (position >> 32) & WORD, zero + number, zero], [seed & WORD, (seed >> 32) & WORD]
    )


def philox_words(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10 of a counter of four words and a key of two, each an i64 from 0 to 2**32 - 1."""
    c = list(counter)
    for turn in range(ROUNDS):
        k0, k1 = ((k + turn * w) & WORD for k, w in zip(key, WEYL, strict=True))
        (high0, low0), (high1, low1) = (_product(m, c[n]) for m, n in zip(MULTIPLIERS, (0, 2), strict=True))
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
    return tuple(c)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The words of a * b."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)  # below 2**48 each
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def below(count: int, x: Tensor, y: Tensor) -> Tensor:
    """From 0 to ``count`` - 1 (``count`` < 2**32): the number of 64 bits that ``x`` and ``y`` make, times ``count`` / 2**64.

    Of 32 bits a remainder would favour small numbers, for a count of 1.5 * 2**30 by half.
    """
    (high, low), (added, _) = _product(count, x), _product(count, y)
    return high + ((low + added) >> 32)


def fraction(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """From 0 to 1, without 1, in f64."""
    bits = FRACTION_BITS[NAMES[dtype]]
    if bits > 32:
        return (((x >> 5) << 26) | (y >> 6)).double() * 2.0**-53
    return (x >> (32 - bits)).double() * 2.0**-bits


def gaussian(words: Sequence[Tensor], position: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers, two of each two words.

    G. Box and M. Muller, "A Note on the Generation of Random Normal Deviates", 1958.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    first = position % 4 < 2
    x, y = torch.where(first, words[0], words[2]), torch.where(first, words[1], words[3])
    radius = (-2.0 * ((x + 1).to(wide) * 2.0**-32).log()).sqrt()
    turned = y.to(wide) * 2.0**-32 * 2.0 * torch.pi
    return radius * torch.where(position % 2 == 0, turned.cos(), turned.sin())
