"""Random products, attention and convolutions of lowc's own; more: ``python -m tests.property.contractions``."""

import pytest
import torch
from torch import Tensor

from tests.property.contractions.__main__ import KINDS, chunk, made, parser
from tests.property.contractions.case import Case, results, wrong

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_random_contractions(kind: str) -> None:
    for seed in range(900, 905):
        assert not wrong(made(seed, kind, False), CPU, seed), (kind, seed)


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_a_seed_makes_the_same_program(kind: str) -> None:
    first, second = made(7, kind, False), made(7, kind, False)
    assert first.text == second.text
    values = []
    for case in (first, second):
        torch.manual_seed(7)
        values.append(results(case.function, case.args(CPU), case.gradients))
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))


def test_a_small_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(a: Tensor) -> Tensor:
        return a @ a + (2e-4 if torch.compiler.is_compiling() else 0.0)

    case = Case("", function, lambda device: [torch.rand(16, 16, device=device)])
    assert "off by" in wrong(case, CPU, 0)


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.chdir("/")
    lines = chunk(parser().parse_args([]), 3, 1, float("inf"))
    assert lines[-1].startswith("bad 3: the process ended with 1")
