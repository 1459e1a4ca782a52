"""What artifacts are for: torch.export, lowc compile, and a run in a process that has numpy alone."""

from pathlib import Path
from typing import Any

import alone
import models
import numpy as np
import pytest
import torch

import lowc
from lowc import package
from lowc.cli import main
from lowc.errors import LowcError
from lowc.frontend.exported import export
from lowc.standalone.container import Container
from lowc.standalone.files import read_file
from lowc.standalone.loader import read_manifest

RUN = """
import sys, time
import numpy as np
begin = time.process_time()  # not the clock on the wall, which other processes delay
import lowc
model = lowc.load(sys.argv[1])
seconds = time.process_time() - begin
calls = np.load("calls.npz")
results = {name: model(calls[name]) for name in calls.files}
np.savez("results.npz", **results)
assert not {"torch", "llvmlite", "sympy"} & {name.split(".")[0] for name in sys.modules}
try:
    import torch
except ImportError:
    print(seconds)
"""

SHOWS = {
    "mlp": (models.mlp, None, [(5, 19)]),
    "mlp_any_batch": (models.mlp, {0: torch.export.Dim("batch", max=512)}, [(0, 19), (1, 19), (2, 19), (77, 19), (512, 19)]),
    "resnet": (models.resnet, None, [(3, 3, 27, 29)]),
    "gpt": (models.gpt, {1: torch.export.Dim("time", min=1, max=31)}, [(2, 1), (2, 2), (2, 17), (2, 31)]),
}


def inputs_of(example: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if example.is_floating_point():
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    return torch.randint(0, 97, shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", SHOWS)
def test_export_compile_run_without_torch(name: str, tmp_path: Path) -> None:
    make, dynamic, shapes = SHOWS[name]
    model, example = make()
    program = torch.export.export(model, example, dynamic_shapes=None if dynamic is None else (dynamic,))
    torch.export.save(program, tmp_path / "model.pt2")
    assert main(["compile", str(tmp_path / "model.pt2"), "-o", str(tmp_path / "model.lowc"), "--quiet"]) == 0
    calls = {str(n): inputs_of(example[0], shape) for n, shape in enumerate(shapes)}
    np.savez(tmp_path / "calls.npz", **{n: x.numpy() for n, x in calls.items()})
    done = alone.python(tmp_path, "-c", RUN, "model.lowc")
    assert float(done.stdout) < 0.3  # measured: 0.03 to 0.1
    results = np.load(tmp_path / "results.npz")
    with torch.no_grad():
        for n, x in calls.items():
            torch.testing.assert_close(torch.from_numpy(results[n]), model(x), rtol=1e-4, atol=2e-5)
    weights = sum(p.numel() * p.element_size() for p in model.state_dict().values())
    assert (tmp_path / "model.lowc").stat().st_size < weights + 5_000_000


@pytest.mark.parametrize("level", package.DEFAULT_LEVELS)
@pytest.mark.parametrize("name", ["mlp", "resnet", "gpt"])
def test_every_level(name: str, level: str, tmp_path: Path) -> None:
    from lowc.machine import processor_flags
    from lowc.standalone.cpu import LEVELS

    if not processor_flags().issuperset(LEVELS[level]):
        pytest.skip(f"this processor has no {level}")
    model, example = SHOWS[name][0]()
    package.compile_program(export(model, example), levels=(level,)).save(tmp_path / "m.lowc")
    loaded = lowc.load(tmp_path / "m.lowc", level=level)
    assert loaded.level == level
    with torch.no_grad():
        torch.testing.assert_close(loaded(*example), model(*example), rtol=1e-4, atol=2e-5)


def test_run_command(tmp_path: Path) -> None:
    model, example = models.mlp()
    torch.export.save(torch.export.export(model, example), tmp_path / "mlp.pt2")
    assert main(["compile", str(tmp_path / "mlp.pt2"), "-o", str(tmp_path / "mlp.lowc"), "--target", "x86-64", "--quiet"]) == 0
    np.savez(tmp_path / "in.npz", input=example[0].numpy())
    done = alone.python(tmp_path, "-m", "lowc", "run", "mlp.lowc", "-i", "in.npz", "-o", "out.npz", "--time", "3")
    assert done.stdout.endswith(" us\n")
    with torch.no_grad():
        np.testing.assert_allclose(np.load(tmp_path / "out.npz")["output"], model(*example).numpy(), rtol=1e-4, atol=1e-5)


def structured(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {"sum": x + y, "pair": (x, [y.t(), None]), "size": x.shape[0] * 2}


def test_structure_names_aliases_and_sizes() -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    shapes = {"x": {0: torch.export.Dim("n", max=9)}, "y": {0: torch.export.Dim("n", max=9)}}
    loaded = package.compile_program(export(structured, (x, y), dynamic=shapes), levels=("x86-64",)).load()
    x, y = x.repeat(2, 1), y.repeat(2, 1)
    found, wanted = loaded(y=y, x=x), structured(x, y)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert found["pair"][0].data_ptr() != x.data_ptr()  # results are memory of their own
    arrays = loaded.named({"x": x.numpy(), "y": y.numpy()})
    np.testing.assert_array_equal(arrays["sum"], wanted["sum"].numpy())


def test_compile_graph_of_an_fx_graph() -> None:
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()))
    x = torch.randn(2, 3)
    made = lowc.compile_graph(gm, (x,))
    torch.testing.assert_close(made.load()(x), gm(x).detach())


@pytest.mark.parametrize("target", ["native", "x86-64-v2"])
def test_other_targets(target: str, mlp_file: Path, tmp_path: Path) -> None:
    from lowc.standalone.library import write_library

    model, example = models.mlp()
    package.compile_program(export(model, example), levels=(target,)).save(tmp_path / "m.lowc")
    loaded = lowc.load(tmp_path / "m.lowc")
    assert loaded.level == target
    with torch.no_grad():
        torch.testing.assert_close(loaded(*example), model(*example), rtol=1e-4, atol=2e-5)
    write_library(tmp_path / "m.lowc", tmp_path / "lib.so")  # which asks cpuid for the same
    from capi import Library, tensors

    y = np.zeros((5, 7), np.float32)
    assert Library(tmp_path / "lib.so").run(tensors(example[0].numpy()), tensors(y)) == 0
    np.testing.assert_array_equal(y, loaded(example[0].numpy()))


def test_emitted_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, example = models.mlp()
    torch.export.save(torch.export.export(model, example), tmp_path / "m.pt2")
    command = ["compile", str(tmp_path / "m.pt2"), "-o", str(tmp_path / "m.lowc"), "--target", "x86-64-v3"]
    assert main([*command, "--emit", "ir,ll,asm,obj"]) == 0
    shown = capsys.readouterr().out
    assert "input: f32[5, 19]" in shown and "x86-64-v3" in shown and "4 tensors" not in shown
    assert "module @MACHINE" in (tmp_path / "m.x86-64-v3.loops").read_text()
    assert "define i64 @run_0" in (tmp_path / "m.x86-64-v3.ll").read_text()
    assert "vfmadd" in (tmp_path / "m.x86-64-v3.s").read_text()
    assert (tmp_path / "m.x86-64-v3.o").read_bytes().startswith(b"\x7fELF")


def test_ptx(tmp_path: Path) -> None:
    (tmp_path / "soft.py").write_text(
        "import torch\n\n\ndef soft(x):\n    return x.softmax(-1)\n\n\ndef inputs():\n    return torch.randn(8, 64)\n"
    )
    command = ["compile", f"{tmp_path / 'soft.py'}:soft", "-o", str(tmp_path / "s.lowc"), "--target", "sm_90", "--emit", "ptx"]
    assert main(command) == 0
    assert ".target sm_90" in (tmp_path / "s.sm_90.ptx").read_text()
    assert [c.level for c in read_manifest(Container(read_file(tmp_path / "s.lowc"), "")).code] == ["sm_90"]


def test_derived_sizes() -> None:
    half = torch.export.Dim("half", max=9)
    program = export(lambda x: x.reshape(2, -1) + 1, (torch.randn(6),), dynamic=({0: 2 * half},))
    model = package.compile_program(program, levels=("x86-64",)).load()
    for size in (4, 6, 18):  # torch promises nothing below, for a size that is computed from another
        assert model(np.ones(size, np.float32)).shape == (2, size // 2)
    for size in (3, 20):
        with pytest.raises(LowcError, match=f"has size {size} in dimension 0; it takes 4 to 18 in steps of 2"):
            model(np.ones(size, np.float32))


class Shared(torch.nn.Module):
    """Weights that two layers share, that lie the other way, that have no elements, and one that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(1000, 16)
        self.head = torch.nn.Linear(16, 1000, bias=False)
        self.head.weight = self.token.weight
        self.turned = torch.nn.Parameter(torch.randn(16, 8).t().contiguous().t())
        self.register_buffer("nothing", torch.zeros(0, 4))
        self.register_buffer("returned", torch.arange(5))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.token(ids)
        return self.head(x), x @ self.turned, torch.cat((self.nothing, x[:, :4])), self.returned


def test_weights_of_all_kinds(tmp_path: Path) -> None:
    model, ids = Shared().eval(), torch.tensor([3, 999, 0])
    made = package.compile_program(export(model, (ids,)), levels=("x86-64",))
    made.save(tmp_path / "m.lowc")
    with torch.no_grad():
        torch.testing.assert_close(lowc.load(tmp_path / "m.lowc")(ids), model(ids))
    assert (tmp_path / "m.lowc").stat().st_size < 1.5 * 1000 * 16 * 4  # what is shared is there once


def test_commands_that_need_more_say_what(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").touch()
    done = alone.python(tmp_path, "-m", "lowc", "compile", "m.pt2", check=False)
    assert done.returncode == 2 and done.stderr.startswith("lowc: this command needs torch, which is not installed\n")
    assert "Traceback" not in done.stderr
