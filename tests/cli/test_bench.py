"""``lowc bench``: every side runs on copies of its own, what cannot run is named, and the chart is drawn where it can be."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lowc.cli import main
from lowc.cli.bench import shown
from lowc.dynamo import lowc_backend
from lowc.frontend.sides import run_sides

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(5.0))
    def forward(self, x):
        return (x * self.weight).tanh()
def inputs():
    return torch.ones(7, 5)

def add(x):
    return x.add_(1)
def raises(x):
    raise ValueError("no such luck")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_sides_are_timed_in_turn(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["bench", f"{program}:Net", "--sides", "lowc,eager,no_such_backend", "--rounds", "3"]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line for line in out.splitlines() if re.search(r"\d\.\d\dx", line)}
    assert set(rows) == {"lowc", "eager"} and all(re.search("[▏▎▍▌▋▊▉█]", row) for row in rows.values()), out
    assert "1.00x" in rows["eager"] and re.search(r"\d\.\de[-+]\d\d", rows["lowc"])
    assert "no_such_backend cannot run here: " in out


def test_what_a_side_changes_is_its_own() -> None:
    x = torch.arange(12.0).reshape(3, 4).t()[1:]  # not contiguous, and not from the start of its memory
    sides = run_sides(lambda x: x.add_(1).mul(2), [x], ["eager", "lowc"], {}, backends={"lowc": lowc_backend}, rounds=2)
    assert [len(side.times) for side in sides] == [2, 2] and sides[1].difference == 0
    assert all(side.first > 0 and min(side.times) > 0 for side in sides)
    assert x.flatten().tolist() == torch.arange(12.0).reshape(3, 4).t()[1:].flatten().tolist()


def test_the_backward_pass_is_part_of_a_call() -> None:
    calls: list[str] = []

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            calls.append("backward")
            return grad * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Counted.apply(x * self.weight)

    net = Net()
    run_sides(net, [torch.ones(3)], ["eager"], {}, backends={}, rounds=1)
    assert calls and net.weight.grad is None
    calls.clear()
    run_sides(net, [torch.ones(3)], ["eager"], {}, backends={}, rounds=1, backward=False)
    assert not calls


def test_a_wrong_result_is_seen() -> None:
    sides = run_sides(lambda x: x + torch.rand(()), [torch.ones(4)], ["eager"], {}, backends={}, rounds=1)
    assert sides[0].difference is not None and sides[0].difference > 0


def test_errors_say_what_to_do(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["bench", f"{program}:raises", "--rounds", "1"]) == 2
    assert "the function raises ValueError: no such luck" in capsys.readouterr().err
    assert main(["bench", f"{program}:add", "--sides", ","]) == 2
    assert "nothing to time" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", f"{program}:add", "--png", str(tmp_path / "chart.png")]) == 2
    assert "--png needs matplotlib" in (err := capsys.readouterr().err) and "pip install" in err


def test_the_chart_as_an_image(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib")
    chart = tmp_path / "chart.png"
    given = ["bench", f"{program}:add", "--sides", "eager", "--rounds", "2", "--png"]
    assert main([*given, str(chart)]) == 0 and chart.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main([*given, str(tmp_path / "missing" / "chart.png")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0001234, "123 us"), (0.01, "10.0 ms"), (0.9999, "1.00 s"), (12.345, "12.3 s"), (1e-8, "0.0100 us")]
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert shown(seconds) == text
