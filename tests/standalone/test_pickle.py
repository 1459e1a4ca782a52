"""A loaded artifact is pickled as the path of its file, with a checksum."""

import copy
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import models
import numpy as np
import pytest

import lowc
from lowc import package
from lowc.errors import LowcError
from lowc.frontend.exported import export

X = np.linspace(-1, 1, 3 * 19, dtype=np.float32).reshape(3, 19)
OTHER = """
import pickle, sys
import numpy as np
model = pickle.load(open("model.pkl", "rb"))
np.save("y.npy", model(np.load("x.npy")))
print(model.level, "torch" in sys.modules)
"""


def test_another_process_in_another_folder(mlp_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mlp_file.parent)
    model = lowc.load(mlp_file.name, level="x86-64")  # a relative path
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    assert len(pickle.dumps(model)) < 1000
    np.save(tmp_path / "x.npy", X)
    done = subprocess.run([sys.executable, "-c", OTHER], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["x86-64", "False"]
    assert np.array_equal(np.load(tmp_path / "y.npy"), model(X))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_any_way_to_say_the_cpu(mlp_file: Path, device: str | None) -> None:
    assert pickle.loads(pickle.dumps(lowc.load(mlp_file, device=device))).level == lowc.load(mlp_file).level


def test_a_copy_is_the_same_model(mlp_file: Path) -> None:
    model = lowc.load(mlp_file)
    for copied in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))):
        assert copied.level == model.level and np.array_equal(copied(X), model(X))


def test_a_file_that_is_gone_changed_or_damaged_is_an_error(mlp_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.lowc"
    shutil.copy(mlp_file, path)
    pickled = pickle.dumps(lowc.load(path))
    path.rename(tmp_path / "moved.lowc")
    with pytest.raises(LowcError, match=r"there is no .*model\.lowc\n  try: put the artifact there"):
        pickle.loads(pickled)
    model, inputs = models.mlp()
    package.compile_program(export(model, inputs), name="mlp", levels=("x86-64",)).save(path)
    with pytest.raises(LowcError, match=r"model\.lowc is not the artifact .* has been changed"):
        pickle.loads(pickled)
    content = bytearray(mlp_file.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(LowcError, match="checksum"):
        pickle.loads(pickled)
    (tmp_path / "moved.lowc").replace(path)
    assert np.array_equal(pickle.loads(pickled)(X), lowc.load(mlp_file)(X))


def test_weights_beside_it_must_be_there_too(mlp_package: package.Package, tmp_path: Path) -> None:
    mlp_package.save(tmp_path / "mlp.lowc", weights_path=tmp_path / "mlp.safetensors")
    pickled = pickle.dumps(lowc.load(tmp_path / "mlp.lowc"))
    assert pickle.loads(pickled)(X).shape[0] == 3
    (tmp_path / "mlp.safetensors").unlink()
    with pytest.raises(LowcError, match="weights of the artifact are missing"):
        pickle.loads(pickled)


def test_a_model_in_no_file_says_what_to_do(mlp_package: package.Package) -> None:
    with pytest.raises(TypeError, match="mlp is in no file.* save the package"):
        pickle.dumps(mlp_package.load())
