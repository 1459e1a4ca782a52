"""Random numbers of lowc's own: the generator, what is made of its words, and that passes of one call agree on them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lowc
from lowc.frontend import aten_graphs, random
from lowc.ir.philox import WORD

COUNT = 40_000
STRICT = {"strict_errors": True}


def compiled(f: Callable[..., Any], dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend=lowc.lowc_backend, fullgraph=True, dynamic=dynamic, options=STRICT | options)


@pytest.mark.parametrize(
    "counter, key, wanted",  # the known answers of Random123, the authors' implementation
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    words = [torch.tensor([c]) for c in counter]
    assert tuple(int(w) for w in random.philox_words(words, [torch.tensor([k]) for k in key])) == wanted


def test_what_draws_is_known_by_its_tag() -> None:
    """By which a process knows whether it has to load what replaces it."""
    for name in random._REPLACED:
        _, packet, overload = name.split(".")
        assert aten_graphs._draws(getattr(getattr(torch.ops.aten, packet), overload)), name
    assert not aten_graphs._draws(torch.ops.aten.exp.default)


KINDS: dict[str, Callable[[int], Tensor]] = {
    "rand": lambda n: torch.rand(n),
    "rand_f64": lambda n: torch.rand(n, dtype=torch.float64),
    "rand_bf16": lambda n: torch.rand(n, dtype=torch.bfloat16),
    "rand_f16": lambda n: torch.rand(n, dtype=torch.float16),
    "uniform": lambda n: torch.empty(n).uniform_(2, 5),
    "randn": lambda n: torch.randn(n),
    "randn_f64": lambda n: torch.randn(n, dtype=torch.float64),
    "normal": lambda n: torch.empty(n).normal_(3, 2),
    "randint": lambda n: torch.randint(-3, 6, (n,)),
    "many_integers": lambda n: torch.randint(-5, 3 << 29, (n,)),  # more than a third of what 32 bits can say
    "bernoulli": lambda n: torch.empty(n).bernoulli_(0.3),
    "probabilities": lambda n: torch.bernoulli(torch.full((n,), 0.3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_distributions(kind: str) -> None:
    """Mean, deviation and the share below each quartile of what eager draws, within five standard errors."""
    torch.manual_seed(1)
    run = compiled(KINDS[kind])
    ours, eager = run(COUNT), KINDS[kind](COUNT)
    assert ours.dtype == eager.dtype
    a, b = ours.double(), eager.double()
    spread = float(b.std())
    assert abs(float(a.mean() - b.mean())) < 5 * spread * math.sqrt(2 / COUNT)
    assert abs(float(a.std()) / spread - 1) < 0.05
    for quantile in (0.25, 0.5, 0.75):
        edge = b.quantile(quantile)
        below, expected = float((a <= edge).double().mean()), float((b <= edge).double().mean())
        assert abs(below - expected) < 5 * math.sqrt(0.5 / COUNT)
    if "rand" in kind and "n" != kind[4:5] and kind != "randint":
        assert 0 <= float(a.min()) and float(a.max()) < 1
    if kind in ("randint", "bernoulli", "probabilities"):
        assert set(ours.unique().tolist()) == set(eager.unique().tolist())
    neighbours = torch.stack([a[1:], a[:-1]]).corrcoef()[0, 1]
    assert abs(float(neighbours)) < 5 / math.sqrt(COUNT)


@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_draw_what_the_definition_says(dynamic: bool) -> None:
    random.register()
    for kind, low, high, dtype in (
        ("uniform", 0.0, 1.0, torch.float32),
        ("uniform", 0.0, 1.0, torch.float64),
        ("uniform", -2.0, 3.0, torch.bfloat16),
        ("normal", 1.0, 2.0, torch.float32),
        ("integers", -5, 100, torch.int32),
        ("integers", -7, 2**31 - 8, torch.int64),
        ("bernoulli", 0.7, 0.0, torch.bool),
    ):

        def f(seed: Tensor, n: int, m: int) -> Tensor:
            return torch.ops.lowc.random(seed, 3, kind, [n, m], [1, n], dtype, low, high)  # noqa: B023

        seed = torch.tensor([-(2**61) + 12345])
        run = compiled(f, dynamic)
        for n, m in ((5, 333), (7, 40)) if dynamic else ((5, 333),):
            ours, wanted = run(seed, n, m), f(seed, n, m)
            assert ours.stride() == wanted.stride() == (1, n)
            tolerance = 1e-5 if kind == "normal" else 0.0
            torch.testing.assert_close(ours, wanted, rtol=tolerance, atol=tolerance)


def test_seeds_reproduce_and_calls_differ() -> None:
    run = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))
    x = torch.empty(100)
    torch.manual_seed(7)
    first, second = run(x), run(x)
    torch.manual_seed(7)
    again = run(x)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    drawn = [*first, *second]
    assert all(not torch.equal(a, b) for n, a in enumerate(drawn) for b in drawn[:n])


def dropout(x: Tensor) -> Tensor:
    return F.dropout(x * 3, 0.4)


@pytest.mark.parametrize("saved", [True, False])
def test_forward_and_backward_see_one_mask(saved: bool) -> None:
    def f(x: Tensor) -> Tensor:
        return dropout(x) if saved else checkpoint(dropout, x, use_reentrant=False)

    run = compiled(f)
    for _ in range(3):
        x = torch.rand(50, 60).add(1).requires_grad_()
        y = run(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.allclose(x.grad, torch.where(y != 0, 3 / 0.6, 0.0))
        assert 0.5 < float((y != 0).float().mean()) < 0.7


def test_fallback_draws_what_eager_draws() -> None:
    def f(x: Tensor) -> Tensor:
        return F.dropout(x, 0.4) + torch.rand_like(x) + torch.randn(x.shape)

    x = torch.rand(30, 40)
    run = compiled(f, fallback_random=True)
    torch.manual_seed(3)
    ours = run(x)
    torch.manual_seed(3)
    torch.testing.assert_close(ours, f(x))


def test_a_generator_of_the_users_is_drawn_from() -> None:
    def f(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.rand(x.shape, generator=generator)

    x = torch.zeros(9)
    made = torch.compile(f, backend=lowc.lowc_backend)(x, torch.Generator().manual_seed(4))
    assert torch.equal(made, f(x, torch.Generator().manual_seed(4)))
