"""The C program of docs/standalone.md, on the library that the page makes, prints what the model computes."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from lowc import package
from lowc.standalone.library import write_library
from tests.test_docs_run import ROOT, blocks

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc, gcc, clang) on the PATH")
def test_the_c_program_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPILER is not None
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "docs" / "standalone.md")
    names: dict[str, object] = {}
    exec(next(block.text for block in found if block.word == "python"), names)
    package.compile_program(names["program"], name="mlp").save("mlp.lowc")
    write_library("mlp.lowc", "libmlp.so", prefix="mlp", header_path="mlp.h")
    (tmp_path / "program.c").write_text(next(block.text for block in found if block.word == "c"))
    subprocess.run([COMPILER, "-Wall", "-Werror", "program.c", "-L.", "-lmlp", "-Wl,-rpath,."], check=True)
    printed = subprocess.run(["./a.out"], check=True, capture_output=True, text=True).stdout
    x = torch.from_numpy(np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8))
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    with torch.no_grad():
        np.testing.assert_allclose(np.fromstring(printed, sep=" ").reshape(3, 2), model(x).numpy(), atol=1e-4)
