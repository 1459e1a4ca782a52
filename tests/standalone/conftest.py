"""An artifact that most tests share."""

from pathlib import Path
from typing import Any

import models
import pytest
import torch
from fake_gpu import compiled

from lowc import package
from lowc.frontend.exported import export


@pytest.fixture(scope="session")
def mlp_package() -> package.Package:
    """Of ``models.mlp`` for any batch up to 64, for two levels."""
    model, inputs = models.mlp()
    program = export(model, inputs, dynamic=({0: torch.export.Dim("batch", max=64)},))
    return package.compile_program(program, name="mlp", levels=("x86-64-v3", "x86-64"))


@pytest.fixture(scope="session")
def mlp_file(mlp_package: package.Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file, which is not to be changed."""
    path = tmp_path_factory.mktemp("mlp") / "mlp.lowc"
    mlp_package.save(path)
    return path


@pytest.fixture(scope="session")
def mlp() -> package.Package:
    """The same for a CPU and two GPUs, as ``fake_gpu`` runs it."""
    model, inputs = models.mlp()
    return compiled(model, inputs, ({0: torch.export.Dim("batch", max=64)},), ("x86-64-v3", "sm_90", "sm_80"))


@pytest.fixture(scope="session")
def eager() -> Any:
    """What ``mlp`` was made of."""
    return models.mlp()[0]
