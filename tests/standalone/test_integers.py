"""Integers as inputs of artifacts: from Python, from files of arrays, from C."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from capi import Library, tensors
from test_damage import changed, refused

import lowc
from lowc import package
from lowc.cli import main
from lowc.errors import LowcError
from lowc.frontend.exported import export
from lowc.standalone.call import Model
from lowc.standalone.container import Container
from lowc.standalone.library import write_library

ANY = torch.export.Dim.DYNAMIC
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Repeats(torch.nn.Module):
    """A value, a size and a result that come from integers."""

    def forward(self, x: torch.Tensor, times: int, rows: int) -> Any:
        return x * times + x.new_ones(rows, 1, 4), times + rows


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("integers") / "repeats.lowc"
    program = export(Repeats(), (X, 3, 5), dynamic=({0: torch.export.Dim("n", max=64)}, ANY, ANY))
    package.compile_program(program, name="repeats", levels=("x86-64",)).save(path)
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Model:
    return lowc.load(file)


@pytest.mark.parametrize("times,rows", [(3, 5), (0, 2), (1, 3), (1 << 40, 7)])
def test_as_in_eager(model: Model, times: int, rows: int) -> None:
    for given in (X, X[:1]):
        wanted, total = Repeats()(given, times, rows)
        result, number = model(given, times, rows)
        torch.testing.assert_close(result, wanted)
        assert number == total and result.shape == (rows, len(given), 4)


def test_all_that_is_an_integer_is_taken(model: Model) -> None:
    wanted = model(X.numpy(), 3, 5)[0]
    for three in (np.int64(3), np.uint8(3), np.array(3), np.array(3, np.int16), torch.tensor(3)):
        np.testing.assert_array_equal(np.asarray(model(X.numpy(), three, rows=5)[0]), wanted)
    assert "times: int, rows: int" in repr(model)


@pytest.mark.parametrize(
    "times,rows,message",
    [
        (2.0, 5, "input times is a float, no integer"),
        (None, 5, "input times is a NoneType, no integer"),
        (np.zeros(3, np.int64), 5, "input times is a ndarray, no integer"),
        (1 << 63, 5, "no integer of 64 bits"),
        (-7, 5, "input times is -7; it takes 0 to any"),  # torch.export takes every integer for a size
        (3, -1, "input rows is -1; it takes 0 to any"),
        (3, 1, r"for inputs with rows != 1 only, not for x\[3, 4\], times 3, rows 1"),
    ],
)
def test_what_is_none_is_refused(model: Model, times: Any, rows: Any, message: str) -> None:
    with pytest.raises(LowcError, match=message):
        model(X.numpy(), times, rows)


def test_from_a_file_of_arrays(file: Path, model: Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=X.numpy(), times=2, rows=4)
    assert main(["run", str(file), "-i", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["output_0"], model(X.numpy(), 2, 4)[0])
        assert found["output_1"] == 6


def test_from_c(file: Path, model: Model, tmp_path: Path) -> None:
    write_library(file, tmp_path / "librepeats.so", header_path=str(tmp_path / "repeats.h"))
    text = (tmp_path / "repeats.h").read_text()
    assert "input 1: times, LOWC_I64 of rank 0: an integer, " in text
    library = Library(tmp_path / "librepeats.so")
    x, total = X.numpy(), np.zeros((), np.int64)

    def run(times: Any, rows: Any, y: np.ndarray) -> int:
        return library.run(tensors(x, np.array(times), np.array(rows)), tensors(y, total))

    for times, rows in ((3, 5), (0, 2), (1 << 40, 3)):
        y = np.full((rows, 3, 4), np.nan, np.float32)
        assert run(times, rows, y) == 0
        np.testing.assert_array_equal(y, model(x, times, rows)[0])
        assert total == times + rows
    y = np.zeros((5, 3, 4), np.float32)
    assert "wrong size, or an integer" in library.message(run(3, 4, y)) and -run(3, 4, y) >> 8 == 3  # the output's rows
    assert -run(3, -1, y) & 255 == 6 and -run(3, -1, y) >> 8 == 2  # the integer itself
    assert -run(3.0, 5, y) & 255 == 4 and -run(3, [5], y) & 255 == 5  # dtype, rank
    inputs, count = tensors(x, np.array(3), np.array(5))
    inputs[1].data = None
    code = library.run((inputs, count), tensors(y, total))
    assert -code & 255 == 3 and -code >> 8 == 1


def test_an_integer_that_must_be_a_size(tmp_path: Path) -> None:
    """torch knows the two to be one where the model makes sure of it; a call with others must not read what is not there."""

    def same(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + torch.arange(n)

    program = export(same, (torch.randn(6), 6), dynamic=({0: ANY}, ANY))
    made = package.compile_program(program, name="same", levels=("x86-64",))
    made.save(tmp_path / "same.lowc")
    model = made.load()
    x = np.ones(6, np.float32)
    np.testing.assert_array_equal(model(x, 6), x + np.arange(6))
    with pytest.raises(LowcError, match=r"n is 5, not 6|has shape \(6,\), not \(5,\)|only, not for x\[6\], n 5"):
        model(x, 5)
    write_library(tmp_path / "same.lowc", tmp_path / "libsame.so")
    library = Library(tmp_path / "libsame.so")
    assert library.run(tensors(x, np.array(6)), tensors(x.copy())) == 0
    assert -library.run(tensors(x, np.array(5)), tensors(x.copy())) & 255 in (6, 10)


def test_a_number_that_the_export_fixed_is_none_of_the_inputs() -> None:
    """Floats always are."""
    model = package.compile_program(export(lambda x, by: x * by, (X, 0.5)), levels=("x86-64",)).load()
    torch.testing.assert_close(model(X), X * 0.5)


def test_manifests_that_say_something_else_of_an_integer(file: Path) -> None:
    good = file.read_bytes()
    data = json.loads(bytes(Container(memoryview(good), "").section("manifest")))
    x, times, rows = data["inputs"]
    for inputs, message in [
        ([x, times | {"value": 3}, rows], "compiled for other sizes"),
        ([x, times | {"value": None}, rows], "is not where it should be"),
        ([x, times | {"dtype": "f64"}, rows], "times is no integer"),
        ([x, times | {"value": "nothing"}, rows], "is no size"),
        ([x | {"value": 3}, times, rows], "x is no integer"),
    ]:
        refused(changed(good, inputs=inputs), message)
