"""Factors of products on a GPU: what does not begin at multiples of 16 bytes is copied so that it does, and stays a copy."""

from collections.abc import Callable

import pytest
import torch

from lowc.backends.nvptx import default
from lowc.ir.index import constant
from lowc.ir.nodes import Launch, Module
from lowc.ir.verify import verify_module
from lowc.lowering import lower as lowering
from lowc.lowering import matmul
from lowc.options import Options
from lowc.scheduler import inline, pipeline
from tests.lowering.harness import data, run, trace


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Module]:
    """Lowers products for a GPU with tensor cores, large or small."""
    monkeypatch.setitem(lowering.__globals__, "device_of", lambda graph: "cuda:0")

    def made(x: torch.Tensor, y: torch.Tensor, large: bool = True, dynamic: bool = False) -> Module:
        if large:
            monkeypatch.setattr(matmul, "LARGE", 1)
            monkeypatch.setattr(matmul, "REUSED", 1)
        graph = trace(torch.matmul, (x, y), dynamic)
        module = lowering(graph, Options(matmul="own"), library=lambda *asked: "")
        verify_module(module, "LOOPS")
        return module

    return made


def factor(shape: tuple[int, ...], layout: str) -> torch.Tensor:
    if layout == "t":
        return data((*shape[:-2], shape[-1], shape[-2]), torch.bfloat16, special=False).mT
    if layout == "offset":
        return data((*shape[:-1], shape[-1] + 8), torch.bfloat16, special=False)[..., 3 : 3 + shape[-1]]
    return data(shape, torch.bfloat16, special=False)


CASES = [
    ((6, 13), (13, 16), "nn", 1), ((6, 16), (16, 24), "nn", 0), ((8, 13), (13, 16), "tn", 0), ((7, 16), (16, 24), "tn", 1),
    ((6, 13), (13, 7), "nt", 2), ((3, 6, 13), (3, 13, 16), "nn", 1), ((3, 5, 16), (3, 16, 8), "tn", 1),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "form", "copies"), CASES, ids=str)
def test_copies_where_lines_are_broken(
    on_gpu: Callable[..., Module], left: tuple[int, ...], right: tuple[int, ...], form: str, copies: int
) -> None:
    x, y = factor(left, form[0]), factor(right, form[1])
    module = on_gpu(x, y)
    assert len(module.steps) == 1 + copies
    for step in module.steps[:-1]:
        assert isinstance(step, Launch)
        out = step.args[-1]
        assert [constant(n) for n in out.strides].count(1) == 1
        assert all((constant(n) or 0) % 8 == 0 for n in out.strides if constant(n) != 1)
    (found,) = run(module, [x, y])
    torch.testing.assert_close(found, torch.matmul(x, y), rtol=2e-2, atol=2e-2)


def test_where_a_view_begins_counts(on_gpu: Callable[..., Module]) -> None:
    assert len(on_gpu(factor((16, 16), "n")[:, 8:], factor((8, 16), "n")).steps) == 1
    x = torch.empty(16, 24, dtype=torch.bfloat16)
    graph = trace(lambda x, y: x[:, 3:19] @ y, (x, factor((16, 16), "n")))
    assert len(lowering(graph, Options(matmul="own"), library=lambda *asked: "").steps) == 2


def test_small_factors_are_left_alone(on_gpu: Callable[..., Module]) -> None:
    assert len(on_gpu(factor((6, 13), "n"), factor((13, 16), "n"), large=False).steps) == 1
    assert len(on_gpu(factor((700, 1001), "n"), factor((1001, 512), "n"), large=False).steps) == 2


def test_rows_of_a_call(on_gpu: Callable[..., Module]) -> None:
    module = on_gpu(factor((6, 13), "n"), factor((13, 16), "n"), dynamic=True)
    assert len(module.steps) == 1  # how long rows are only the call tells


def test_copies_are_not_inlined(on_gpu: Callable[..., Module]) -> None:
    module = on_gpu(factor((6, 13), "n"), factor((13, 16), "n"))
    target = default()
    assert len(inline.run(module, target, Options()).steps) == 2
    for each in pipeline.PASSES:
        if each.only in ("", "nvptx"):
            module = pipeline.apply(each, module, target, Options(check=True))
    assert len([s for s in module.steps if isinstance(s, Launch)]) == 2


@pytest.mark.parametrize(
    ("left", "right", "form", "pieces"),
    [
        ((48, 64), (64, 48), "nn", 16), ((48, 64), (64, 48), "tt", 16), ((48, 60), (60, 48), "nn", 8),
        ((48, 58), (58, 48), "nt", 4), ((48, 57), (57, 48), "nn", 2), ((48, 64), (64, 47), "nn", 2),
        ((48, 64), (64, 47), "nt", 16), ((46, 57), (57, 48), "tn", 4),
    ],
    ids=str,
)  # fmt: skip
def test_pieces_that_threads_would_copy(
    left: tuple[int, ...], right: tuple[int, ...], form: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice is told how many bytes lie together in both factors, as they lie or, where large, once they are copied."""
    monkeypatch.setitem(lowering.__globals__, "device_of", lambda graph: "cuda:0")
    graph = trace(torch.matmul, (factor(left, form[0]), factor(right, form[1])))
    told: list[int] = []

    def library(*asked: object) -> str:
        told.append(asked[6])  # type: ignore[arg-type]
        return ""

    lowering(graph, Options(matmul="auto"), library=library)
    monkeypatch.setattr(matmul, "LARGE", 1)
    monkeypatch.setattr(matmul, "REUSED", 1)
    lowering(graph, Options(matmul="auto"), library=library)
    assert told == [pieces, 16]
