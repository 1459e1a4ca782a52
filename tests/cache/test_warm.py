"""What ``torch.compile`` finds in the cache: nothing is read, nothing compiled, and results and guards are as they were."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lowc.frontend import read, wrapped

Make = Callable[[], Callable[..., Any]]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the graphs that have been read."""
    found: list[str] = []
    real = read.import_graph

    def reads(gm: Any, name: str) -> Any:
        found.append(name)
        return real(gm, name)

    monkeypatch.setattr(read, "import_graph", reads)
    yield found


def process(make: Make, args: tuple[Any, ...], path: Path, **options: Any) -> tuple[Callable[..., Any], list[Tensor]]:
    """As a new process would: (the compiled function, its results and the gradients of what requires them)."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    fn = make()
    compiled = torch.compile(fn, backend="lowc", options={"cache": True, "cache_dir": str(path)}, **options)
    return compiled, results(compiled, fn, args)


def results(call: Callable[..., Any], fn: Any, args: tuple[Any, ...]) -> list[Tensor]:
    given = [a.clone().detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]
    torch.manual_seed(5)
    out = call(*given)
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if isinstance(o, Tensor)]
    found = [o.detach() for o in outs]
    if any(o.requires_grad for o in outs):
        torch.stack([(o * o).sum() for o in outs if o.requires_grad]).sum().backward()
        leaves = [*given, *(fn.parameters() if isinstance(fn, nn.Module) else ())]
        found += [t.grad for t in leaves if isinstance(t, Tensor) and t.grad is not None]
    return found + [a.detach() for a in given if isinstance(a, Tensor)]


def softmax() -> Callable[..., Any]:
    return lambda x: torch.softmax(x * 2, -1)


def mlp() -> Callable[..., Any]:
    return nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def convolutions() -> Callable[..., Any]:
    """Statistics of the batch norm are written."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


def writes() -> Callable[..., Any]:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        y.mul_(2)
        y[0] += x[0]
        return x + y

    return fn


def holds() -> Callable[..., Any]:
    return lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]) + torch.tensor(2.0)


def drops() -> Callable[..., Any]:
    return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.4))


def calls() -> Callable[..., Any]:
    return lambda x: torch.cond(x.sum() > -9, lambda x: x.sin() * 2, lambda x: x.cos() + 1, (x,)).exp()


def sizes() -> Callable[..., Any]:
    """Sizes through floats, and as results."""
    return lambda x: (x[: int(x.shape[0] * 0.7)].sin(), x.shape[0] * 2, x.reshape(-1, 5).sum(0) / x.shape[0])


def items() -> Callable[..., Any]:
    return lambda x, n: x * n + n


def narrow() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).bfloat16()


X = torch.linspace(-2, 2, 40).view(8, 5)
IMAGES = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[Make, tuple[Any, ...], dict[str, Any]]] = {
    "training": (mlp, (X.clone().requires_grad_(),), {}),
    "convolutions": (convolutions, (IMAGES.clone().requires_grad_(),), {}),
    "bf16 convolution": (narrow, (IMAGES.bfloat16(),), {}),
    "written inputs": (writes, (X, X.flip(0).clone()), {}),
    "constants": (holds, (X,), {}),
    "random": (drops, (X.clone().requires_grad_(),), {}),
    "functions": (calls, (X,), {}),
    "dynamic": (mlp, (X.clone().requires_grad_(),), {"dynamic": True}),
    "sizes": (sizes, (X,), {"dynamic": True}),
    "infinite floats": (items, (X, float("inf")), {"dynamic": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_reads_and_compiles_nothing(
    case: str, tmp_path: Path, readings: list[str], compilations: list[str]
) -> None:
    make, args, options = CASES[case]
    _, first = process(make, args, tmp_path, **options)
    assert readings and compilations == readings
    readings.clear()
    compilations.clear()
    _, second = process(make, args, tmp_path, **options)
    assert (readings, compilations) == ([], [])
    torch.testing.assert_close(second, first, rtol=0, atol=0, equal_nan=True)
    if case != "random":
        torch.manual_seed(3)
        fn = make()
        for found, want in zip(second, results(fn, fn, args), strict=True):
            near = (2e-2 if "bf16" in case else 1e-5) * max(1.0, float(want.nan_to_num(0, 0, 0).abs().max()))
            torch.testing.assert_close(found, want, rtol=0, atol=near, equal_nan=True)


def test_constants_are_those_of_the_process(tmp_path: Path, readings: list[str]) -> None:
    """Their values are no part of the text."""
    for number in (2.0, 3.0):
        held = torch.full((5,), number)
        _, (found, _) = process(lambda held=held: lambda x: x * torch.tensor(held.tolist()), (X,), tmp_path)
        torch.testing.assert_close(found, X * number)


def test_guards_are_those_of_the_first_process(tmp_path: Path, readings: list[str]) -> None:
    """What a size decided while tracing is asked again, though nothing was read."""

    def make() -> Callable[..., Any]:
        return lambda x: x.sin() * 2 if x.shape[0] % 2 == 0 and x.shape[0] < 20 else x.cos()

    for turn in range(2):
        readings.clear()
        compiled, _ = process(make, (X,), tmp_path, dynamic=True)
        for rows in (8, 12, 7, 9, 30, 10):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(compiled(x), make()(x))
        assert bool(readings) == (turn == 0)


def test_what_reading_tells_torch_of_sizes_is_told_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: list[str]
) -> None:
    """A reader that asked about sizes would add guards; nobody who hits would."""
    real = read.import_graph

    def asks(gm: Any, name: str) -> Any:
        values = [node.meta.get("val") for node in gm.graph.nodes]
        assert any(bool(v.shape[0] < 100) for v in values if isinstance(v, Tensor) and v.dim())
        return real(gm, name)

    monkeypatch.setattr(read, "import_graph", asks)
    for _ in range(2):
        readings.clear()
        process(softmax, (X,), tmp_path, dynamic=True)
        assert readings


def test_damage_costs_a_warning_and_a_compilation(tmp_path: Path, readings: list[str], caplog: Any) -> None:
    args = (X.clone().requires_grad_(),)
    _, first = process(mlp, args, tmp_path)
    for path in tmp_path.glob("*.entry"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    readings.clear()
    caplog.clear()
    _, second = process(mlp, args, tmp_path)
    assert readings == ["forward", "backward"] and "checksum" in caplog.text
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    readings.clear()
    process(mlp, args, tmp_path)
    assert readings == []


def test_an_op_of_lowcs_own_is_known_to_a_process_that_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: list[str]
) -> None:
    """Reading makes it known to torch, as long as there is reading."""

    def change(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    op = torch.library.custom_op("lowc_test_warm::change", change, mutates_args=("x",))
    op.register_fake(lambda x: torch.empty_like(x))
    asked: list[int] = []
    real = wrapped.register
    monkeypatch.setattr(wrapped, "register", lambda: (asked.append(1), real())[1])
    for turn in range(2):
        readings.clear()
        asked.clear()
        _, found = process(lambda: lambda x: op(x).exp(), (X,), tmp_path)
        torch.testing.assert_close(found, [(X * 2 + 1).exp(), X * 2])
        assert asked and bool(readings) == (turn == 0)


def test_a_user_sees_the_line_of_an_error_after_a_hit(tmp_path: Path, readings: list[str]) -> None:
    for _ in range(2):
        readings.clear()
        compiled, _ = process(lambda: lambda x, i: x[i] * 2, (X, torch.tensor([1, 7])), tmp_path)
        with pytest.raises(IndexError, match=r"test_warm\.py:\d+"):
            compiled(X, torch.tensor([1, 8]))
    assert readings == []
