"""Code of products on tensor cores: ptxas takes every way of doing one without spills and without serialising it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lowc.backends import nvptx
from lowc.ir.nodes import For, Kernel, Launch
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import choose_mma, choose_tensor_cores
from lowc.scheduler.choose_tensor_cores import APART, FINER, NARROW, WAYS, Way
from tests.scheduler.products import TARGET, machine, product

SILU = "({s} + f32(bias[j])) * rcp(1.0 + ex2(-1.4426950408889634 * ({s} + f32(bias[j]))))"
IN_FORMS = [(w, f) for w in WAYS for f in ("nt", "nn", "tn") if w.tile[1] % 64 == 0 or f == "nt"]  # columns that lie side by side
EIGHTHS = [*[(w, True) for w in WAYS], *[(w, False) for w in APART]]  # and whether sums may be loose
COPYING = [w for w in WAYS if w.teams == 1 and w.groups > 1 and w.tile[1] <= NARROW]


def by(kernel: Kernel, way: Way, monkeypatch: pytest.MonkeyPatch, key: str = "wgmma") -> str:
    """The PTX of ``kernel`` done that way."""
    monkeypatch.setattr(choose_tensor_cores, "ways_of", lambda size: (way,))
    module = machine(kernel)
    (step,) = module.steps
    assert isinstance(step, Launch)
    assert any(s.kind.key == key for s in statements(step.kernel.body) if isinstance(s, For))
    return nvptx.compile_module(module, TARGET, Options()).code.decode()


def assembled(ptx: str, folder: Path) -> str:
    """What ptxas says."""
    source = folder / "code.ptx"
    source.write_text(ptx)
    command = ["ptxas", "-v", "-arch=sm_90a", str(source), "-o", str(folder / "code.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def clean(said: str) -> None:
    assert not re.search(r"C75\d\d|[Ww]arning", said), said  # C7504, C7509: registers not given, multiply-adds serialised
    assert re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said) == [("0", "0")], said


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(("way", "form"), IN_FORMS, ids=lambda x: getattr(x, "name", x))
def test_ptxas_takes_every_way(way: Way, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = product(64 if way.tile[1] < 64 else 4096, 4096, 4096, form, result=SILU)
    ptx = by(kernel, way, monkeypatch)
    assert "wgmma.mma_async" in ptx
    assert ("cp.async.bulk.tensor.2d.global.shared" in ptx) == (way.tile[1] >= 64)  # narrower than a strip
    assert ("setmaxnreg" in ptx) == (way.groups * way.teams == 2)
    clean(assembled(ptx, tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("way", FINER[::4], ids=lambda w: w.name)
def test_columns_behind_the_last_whole_strip(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads store them."""
    ptx = by(product(4096, 4096, 4096, result=SILU), way, monkeypatch)
    assert f"wgmma.mma_async.sync.aligned.m64n{way.tile[1]}k16" in ptx
    assert "cp.async.bulk.tensor.2d.global.shared" in ptx and "st.global" in ptx
    clean(assembled(ptx, tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("way", COPYING, ids=lambda w: w.name)
def test_where_threads_copy(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_mma, "as_they_lie", lambda *_: False)  # which is faster
    ptx = by(product(1000, 1001, 999, "nn"), way, monkeypatch)
    assert "cp.async.bulk.tensor" not in ptx
    clean(assembled(ptx, tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=lambda w: w.name)
def test_sizes_of_the_call_and_batches(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean(assembled(by(product("m", 4096, 4096), way, monkeypatch), tmp_path))
    clean(assembled(by(product(4000, 4096, 512, "nn", batch=12), way, monkeypatch), tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(("way", "form"), [p for p in IN_FORMS if p[1] != "nn"], ids=lambda x: getattr(x, "name", x))
def test_slices_of_the_depth(form: str, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way with sums of f32 stored; of 11008 the last of five slices ends beyond the depth."""
    monkeypatch.setattr(choose_tensor_cores, "ways_of", lambda size: (way,))
    monkeypatch.setattr(choose_tensor_cores, "slices", lambda found, target: 5)
    rows, depth = 64 if way.tile[1] < 64 else 2048, 11008 if form == "nt" else 16384
    module = machine(product(rows, 4096, depth, form, result=SILU))
    assert len(module.steps) == 2
    ptx = nvptx.compile_module(module, TARGET, Options()).code.decode()
    said = assembled(ptx, tmp_path)
    assert not re.search(r"C75\d\d|[Ww]arning", said), said
    assert set(re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)) == {("0", "0")}, said


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.name)
def test_tf32(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silu = SILU.replace("f32(bias[j])", "bias[j]")
    ptx = by(product(64 if way.tile[1] < 64 else 4096, 4096, 1024, dtype="f32", result=silu), way, monkeypatch)
    each = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k8)\.f32\.tf32\.tf32", ptx)
    assert each == [f"m64n{way.tile[1]}k8"] * (4 * way.tile[0] // (64 * way.groups))
    clean(assembled(ptx, tmp_path))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(("way", "loose"), EIGHTHS, ids=lambda x: getattr(x, "name", x))
def test_float8(way: Way, loose: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each instruction multiplies 32 bytes of the depth; spans that are added up by themselves set their sums first."""
    rows = 64 if way.tile[1] < 64 else 4096
    kernel = product(rows, 4096, 1024, dtype="f8e4m3", other="f8e5m2", loose=loose, result=SILU)
    ptx = by(kernel, way, monkeypatch, "wgmma" if loose else "wgmma_apart")
    each = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+) \{.*?\}, \w+, \w+, (\w+), 1, 1;", ptx)
    names, flags = zip(*each, strict=True)
    assert set(names) == {f"m64n{way.tile[1]}k32.f32.e4m3.e5m2"}
    blocks = way.tile[0] // (64 * way.groups)
    assert flags == (("p",) * blocks + ("1",) * 3 * blocks if loose else ("0", "1", "1", "1") * blocks)
    clean(assembled(ptx, tmp_path))


def test_teams_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each team waits before a tile at a barrier of its own, to which the one before it comes at the end of its multiply-adds."""
    teams = next(w for w in WAYS if w.teams == 2)
    ptx = by(product(4096, 4096, 4096), teams, monkeypatch)
    arrivals, waits = (re.findall(rf"\tbar\.{word}\s+%r\d+, (\d+)", ptx) for word in ("arrive", "sync"))
    assert arrivals == ["256", "256"]  # before the first tile, and at the end of each
    assert waits.count("256") == 1
    assert set(waits) == {"128", "256"}
    alone = by(product(4096, 4096, 4096), WAYS[0], monkeypatch)
    assert "arrive" not in alone.replace("mbarrier.arrive", "")


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
def test_waits_that_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Option ``check``: a wait that never ends traps."""
    teams = next(w for w in WAYS if w.teams == 2)
    monkeypatch.setattr(choose_tensor_cores, "ways_of", lambda size: (teams,))
    code = nvptx.compile_module(machine(product(4096, 4096, 4096)), TARGET, Options(check=True)).code.decode()
    assert "trap" in code
    clean(assembled(code, tmp_path))
