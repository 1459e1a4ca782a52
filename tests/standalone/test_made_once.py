"""What artifacts make of their weights as they are loaded: the same results by every level, from Python and C, on threads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import alone
import numpy as np
import pytest
import torch
from capi import Library, tensors
from torch import nn
from torch.nn import functional as F

import lowc
from lowc import package
from lowc.frontend.exported import export
from lowc.machine import processor_flags
from lowc.options import Options
from lowc.standalone.container import ArtifactError
from lowc.standalone.library import write_library

LEVELS = ("native", "x86-64-v3")


class Quantised(nn.Module):
    """A layer whose weights are bytes, by a product of bytes (``dynamic``) or widened."""

    def __init__(self, dynamic: bool) -> None:
        super().__init__()
        self.dynamic = dynamic
        self.register_buffer("w", torch.randint(-128, 128, (200, 288), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(200) / 99)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w: Any = self.w
        if not self.dynamic:
            return F.linear(x, w.to(x.dtype)) * self.scale
        own = x.abs().amax(-1, keepdim=True) / 127
        q = torch.clamp(torch.round(x / own), -128, 127).to(torch.int8)
        return torch._int_mm(q, w.T).float() * own * self.scale


def layers(rows: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(rows)
    return nn.Sequential(nn.Linear(300, 500), nn.GELU(), nn.Linear(500, 30)).eval(), torch.randn(rows, 300)


def kept(made: package.Package) -> list[int]:
    return [size for code in made.manifest.code for size in (code.once.sizes if code.once is not None else ())]


def functions(made: package.Package, path: Path) -> list[Any]:
    """The function in ``made`` by each of its levels that this processor runs."""
    made.save(path)
    codes = [c for c in made.manifest.code if processor_flags().issuperset(c.needs)]
    return [lowc.load(path, level=code.level) for code in codes]


@pytest.mark.parametrize("rows", [2, 130])
def test_layers(rows: int, tmp_path: Path) -> None:
    model, x = layers(rows)
    made = package.compile_program(export(model, (x,)), levels=LEVELS)
    assert len(kept(made)) >= len(LEVELS) and max(kept(made)) >= 4 * 500 * 300
    with torch.no_grad():
        wanted = model(x)
    for function in functions(made, tmp_path / "m.lowc"):
        for _ in range(2):
            torch.testing.assert_close(function(x), wanted, rtol=1e-5, atol=1e-5)


def test_without_it() -> None:
    model, x = layers(9)
    made = package.compile_program(export(model, (x,)), levels=LEVELS[:1], options=Options(off="once"))
    assert not kept(made)
    with torch.no_grad():
        torch.testing.assert_close(made.load()(x), model(x), rtol=1e-5, atol=1e-5)


def test_sizes_of_the_call() -> None:
    model, x = layers(40)
    sizes = {"input": {0: torch.export.Dim("rows", min=0, max=500)}}
    made = package.compile_program(export(model, (x,), dynamic=sizes), levels=LEVELS[:1])
    assert kept(made)
    function = made.load()
    for rows in (0, 1, 40, 97):
        x = torch.randn(rows, 300)
        with torch.no_grad():
            torch.testing.assert_close(function(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [True, False])
def test_bytes(dynamic: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Quantised(dynamic), torch.randn(20, 288)
    made = package.compile_program(export(model, (x,)), levels=LEVELS)
    assert max(kept(made), default=0) < 2 * 200 * 288  # never four times the memory
    assert bool(kept(made)) is dynamic
    for function in functions(made, tmp_path / "m.lowc"):
        torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-4)


def test_what_the_manifest_says_of_it_is_checked(tmp_path: Path) -> None:
    model, x = layers(17)
    made = package.compile_program(export(model, (x,)), levels=("x86-64",))
    (code,) = made.manifest.code
    assert code.once is not None
    for wrong in (None, replace(code.once, sizes=code.once.sizes[:1]), replace(code.once, sizes=(4, 4))):
        changed = replace(made, manifest=replace(made.manifest, code=(replace(code, once=wrong),)))
        changed.save(tmp_path / "m.lowc")
        with pytest.raises(ArtifactError, match="manifest"):
            lowc.load(tmp_path / "m.lowc")


THREADS = """
import sys, threading
import numpy as np
sys.path.insert(0, sys.argv[2])
from capi import Library, tensors
library = Library(sys.argv[1])
x, wanted = np.load("in.npy"), np.load("out.npy")
start = threading.Barrier(6)

def call():
    start.wait()
    for _ in range(3):
        y = np.zeros_like(wanted)
        assert library.run(tensors(x), tensors(y)) == 0
        np.testing.assert_array_equal(y, wanted)
    done.append(1)

done = []
threads = [threading.Thread(target=call) for _ in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(done))
"""


def test_from_c_and_by_several_threads_at_once(tmp_path: Path) -> None:
    model, x = layers(17)
    package.compile_program(export(model, (x,)), levels=("x86-64-v3", "x86-64")).save(tmp_path / "m.lowc")
    write_library(tmp_path / "m.lowc", tmp_path / "lib.so")
    wanted = lowc.load(tmp_path / "m.lowc")(x.numpy())
    y = np.zeros_like(wanted)
    library = Library(tmp_path / "lib.so")
    for _ in range(2):
        assert library.run(tensors(x.numpy()), tensors(y)) == 0
        np.testing.assert_array_equal(y, wanted)
    np.save(tmp_path / "in.npy", x.numpy())
    np.save(tmp_path / "out.npy", wanted)
    done = alone.python(tmp_path, "-c", THREADS, str(tmp_path / "lib.so"), str(Path(__file__).parent))
    assert done.stdout.split() == ["6"]
