"""Code of products by ``mma.sync``: what it computes, run on the CPU, and what ptxas says of it for every capability."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lowc.backends import nvptx
from lowc.backends.nvptx.occupancy import occupancy
from lowc.ir.nodes import Kernel, Launch, Module
from lowc.options import Options
from lowc.scheduler import choose_mma
from tests.scheduler.products import WARPS, by_warps, machine, product

pytest.importorskip("llvmlite")
from lowc.backends.nvptx import async_ring  # noqa: E402
from tests.backends.nvptx.test_tile_meaning import wrong  # noqa: E402

SMALL: dict[str, Any] = {"tile": (64, 64), "groups": 1, "shares": 2, "stages": 2}
SILU = "({s} + f32(bias[j])) * rcp(1.0 + ex2(-1.4426950408889634 * ({s} + f32(bias[j]))))"


def differs(kernel: Kernel, sizes: dict[str, int] | None = None, **changed: Any) -> int:
    return wrong(kernel, by_warps(kernel, **changed), WARPS[8, 0], sizes or {})


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
def test_every_layout(form: str) -> None:
    """Three stages of the depth in a ring of two; the last of them is cut off."""
    assert differs(product(40, 56, 136, form, dtype="f16"), **SMALL) == 0


@pytest.mark.parametrize(
    ("changed", "form"),
    [
        ({"tile": (128, 64)}, "nt"), ({"tile": (64, 128), "shares": 4}, "tn"), ({"shares": 1, "stages": 3}, "nn"),
        ({"tile": (128, 32), "shares": 1}, "nt"), ({"tile": (128, 64), "groups": 2, "shares": 1}, "tt"),
    ],
    ids=str,
)  # fmt: skip
def test_tiles(changed: dict[str, Any], form: str) -> None:
    assert differs(product(72, 56, 72, form, result="{s} * 2.0"), **SMALL | changed) == 0


@pytest.mark.parametrize(("shape", "form"), [((33, 38, 66), "nt"), ((36, 34, 35), "tn"), ((35, 33, 39), "nn")], ids=str)
def test_rows_that_begin_anywhere(shape: tuple[int, int, int], form: str) -> None:
    """Pieces of 4 and of 8 bytes, and element by element."""
    assert differs(product(*shape, form), **SMALL) == 0


@pytest.mark.parametrize(("dtype", "depth"), [("f32", 76), ("i8", 300)])
def test_tf32_and_integers(dtype: str, depth: int) -> None:
    assert differs(product(40, 56, depth, "nt", dtype=dtype), **SMALL) == 0


def test_batches_and_sizes_of_the_call() -> None:
    assert differs(product(24, 40, 40, "nn", batch=2, dtype="f16"), **SMALL) == 0
    assert differs(product("m", 40, 40, "nt", dtype="f16"), {"m": 65}, **SMALL) == 0


def test_a_stage_that_is_not_waited_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    called = async_ring.AsyncRing.call
    monkeypatch.setattr(
        async_ring.AsyncRing, "call", lambda self, what, number=None: called(self, what, None if number is None else number + 1)
    )
    with pytest.raises(AssertionError, match="what has not come is multiplied"):
        differs(product(40, 40, 136, "nt", dtype="f16"), **SMALL)


# ---------------------------------------------------------------- ptxas


def assembled(module: Module, capability: tuple[int, int], folder: Path) -> tuple[str, int]:
    """The PTX, and the most registers that a kernel takes; nothing may be spilled."""
    target = WARPS[capability]
    ptx = nvptx.compile_module(module, target, Options()).code.decode()
    source = folder / "code.ptx"
    source.write_text(ptx)
    command = ["ptxas", "-v", f"-arch={target.cpu}", str(source), "-o", str(folder / "code.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr)) == {("0", "0")}, done.stderr
    return ptx, max(map(int, re.findall(r"Used (\d+) registers", done.stderr)))


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("capability", WARPS, ids=str)
def test_ptxas_takes_it_for_every_capability(capability: tuple[int, int], tmp_path: Path) -> None:
    ptx, _ = assembled(machine(product(4096, 4096, 4096, "nn", result=SILU), WARPS[capability]), capability, tmp_path)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in ptx
    assert "wgmma" not in ptx and "mbarrier" not in ptx


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize(("dtype", "instruction"), [("f32", "m16n8k8.row.col.f32.tf32"), ("i8", "m16n8k32.row.col.s32.s8")])
def test_ptxas_takes_other_types(dtype: str, instruction: str, tmp_path: Path) -> None:
    for capability in ((8, 0), (9, 0)):
        ptx, _ = assembled(machine(product(4096, 4096, 4096, dtype=dtype), WARPS[capability]), capability, tmp_path)
        assert f"mma.sync.aligned.{instruction}" in ptx
        if dtype == "f32":
            assert f"cvt.{'rn' if capability == (9, 0) else 'rna'}.tf32.f32" in ptx


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("way", choose_mma.WAYS, ids=lambda w: w.name)
def test_ptxas_takes_every_way(way: choose_mma.Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many blocks as the way says have registers for whole tiles; what is cut off needs more, and is not to spill."""
    monkeypatch.setattr(choose_mma, "WAYS", (way,))
    forms = ("nn", "tt") if way.tile[1] >= 64 else ("nt", "nt")
    odd = product(1000, 1001, 999, forms[0]) if way.copies else product(1000, 1004, 996, forms[0])
    _, registers = assembled(machine(product(4096, 4096, 4096, "nt"), WARPS[8, 0]), (8, 0), tmp_path)
    found = occupancy((8, 0), way.groups * 128, registers, 0)
    assert found is not None and found.blocks >= way.blocks
    for kernel in (odd, product(1000, 1002, 998, forms[1], result=SILU)):
        assembled(machine(kernel, WARPS[8, 0]), (8, 0), tmp_path)


def test_what_a_turn_of_the_loop_is() -> None:
    """Products, reads of fragments and copies of 64 of the depth, by four warps that have 32 x 128 each."""
    module = machine(product(4096, 4096, 4096, "nt"), WARPS[8, 0])
    (step,) = module.steps
    assert isinstance(step, Launch)
    ptx = nvptx.compile_module(module, WARPS[8, 0], Options()).code.decode()
    assert ptx.count("mma.sync.aligned.m16n8k16") == 4 * 4 * 8
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4") == 4 * (2 + 8)
    assert ptx.count("cp.async.cg.shared.global") == 16 * step.kernel.body[0].body[3].kind.width  # type: ignore[union-attr]
    assert ptx.count("bar.sync") == 2  # before the ring is filled, and in the loop
