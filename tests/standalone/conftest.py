"""An artifact that most tests share."""

from pathlib import Path

import models
import pytest
import torch

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
