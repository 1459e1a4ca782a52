"""Floats and bools as inputs of artifacts, random numbers from a seed, and sizes that data tells."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import load
from test_damage import changed, refused

import lowc
from lowc import package
from lowc.cli import main
from lowc.errors import LowcError
from lowc.frontend.exported import export
from lowc.options import Options
from lowc.standalone import header

ANY = torch.export.Dim.DYNAMIC
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Scaled(torch.nn.Module):
    """A float as a factor, a bound, a divisor and a filling; a bool as a mask; an integer; a float that stays a constant."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float, flag: bool = True, times: int = 3, slope: float = 0.1) -> Any:
        y = torch.nn.functional.leaky_relu(self.inner(x), slope) * scale
        chosen = torch.where(torch.as_tensor(flag), y.clamp(max=scale), -y)
        return chosen * times, x.abs() / (scale + 3) + (scale + 1) / 2, x.new_full((2,), scale)


DYNAMIC: list[Any] = [({0: ANY}, ANY, ANY, ANY, None), {"x": {0: ANY}, "scale": ANY, "flag": ANY, "times": ANY, "slope": None}]


@pytest.mark.parametrize("dynamic", DYNAMIC, ids=["in order", "by name"])
def test_floats_and_bools(dynamic: Any) -> None:
    eager = Scaled()
    program = export(eager, (X, 0.5, True, 3, 0.1), dynamic=dynamic)
    made = package.compile_program(program, levels=("x86-64-v3", "sm_80"), emit=("ir",))
    assert [w.key for w in made.manifest.weights] == ["inner.weight", "inner.bias"]
    assert [(t.name, t.dtype, t.shape) for t in made.manifest.inputs[1:]] == [
        ("scale", "f64", ()), ("flag", "bool", ()), ("times", "i64", ()),
    ]  # fmt: skip
    for model in (made.load(), load(made, level="sm_80")[0]):
        for scale, flag, times in ((0.5, True, 3), (1.75, False, 0), (2, True, 5)):
            for x in (X, X[:2]):
                with torch.no_grad():
                    wanted = eager(x, scale, flag, times)
                torch.testing.assert_close(model(x, scale, flag=flag, times=times), wanted, rtol=1e-5, atol=1e-6)
    again = model(X.numpy(), np.array(0.5), np.array(True), 3)
    np.testing.assert_array_equal(again[0], model(X.numpy(), 0.5, True, 3)[0])
    for bad, message in [
        ("x", "input scale is a str"), (True, "input scale is a bool, and takes float64"), (None, "input scale is a NoneType"),
        (np.float32(1), "has dtype float32, not float64"), (np.ones(1), "has 1 dimensions, not 0"),
    ]:  # fmt: skip
        with pytest.raises(LowcError, match=message):
            model(X, bad, True, 3)
    with pytest.raises(LowcError, match="input flag is a int, and takes bool"):
        model(X, 1.0, 1, 3)


def test_numbers_for_any_input_without_dimensions() -> None:
    kinds = (torch.int8, torch.uint8, torch.float16, torch.float32, torch.bool)
    inputs = tuple(torch.tensor(1, dtype=kind) for kind in kinds)
    model = package.compile_program(export(lambda *a: torch.stack([x.double() for x in a]), inputs), levels=("x86-64",)).load()
    np.testing.assert_array_equal(model(-3, 200, 0.5, 7, False), [-3, 200, 0.5, 7, 0])
    for place, number in ((0, 200), (1, -1), (0, 1.5), (4, 1), (3, "1")):
        given: list[Any] = [1, 1, 1, 1, True]
        given[place] = number
        with pytest.raises(LowcError, match=f"input a_{place} is"):
            model(*given)


def test_names_that_are_no_arguments_are_refused() -> None:
    with pytest.raises(LowcError, match="torch.export cannot export it"):
        export(lambda x, scale: x * scale, (X, 0.5), dynamic={"x": None, "scale": ANY, "scael": ANY})


def test_a_bool_that_chooses_is_refused() -> None:
    with pytest.raises(LowcError, match="data-dependent.*\n.*torch.where computes both"):
        export(lambda x, flag: x if flag else -x, (X, True), dynamic=(None, ANY))
    made = package.compile_program(export(lambda x, flag: x if flag else -x, (X, True)), levels=("x86-64",))
    assert [t.name for t in made.manifest.inputs] == ["x"]  # a constant


def drawn(x: torch.Tensor) -> Any:
    dropped = torch.nn.functional.dropout(x, 0.25, True)
    return dropped, torch.rand_like(x), torch.randn(x.shape[0], 30), torch.randint(3, 9, (50,))


@pytest.fixture(scope="module")
def random() -> package.Package:
    program = export(drawn, (torch.ones(40, 50),), dynamic=({0: torch.export.Dim("n", max=99)},))
    return package.compile_program(program, name="random", levels=("x86-64-v3", "x86-64", "sm_80"), emit=("ir",))


def test_random_numbers(random: package.Package) -> None:
    model = random.load()
    assert "seed: int" in repr(model)
    x = np.ones((90, 50), np.float32)
    first, other = model(x, seed=7), model(x)
    for a, b, c in zip(first, model(x, 7), model(x), strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any()
    assert (other[1] != first[1]).mean() > 0.99  # the system's seed differs from call to call
    for seven in (np.array([7]), np.array(7), np.int32(7), np.uint64(7), torch.tensor(7)):
        np.testing.assert_array_equal(first[1], np.asarray(model(x, seed=seven)[1]))
    kept, uniform, normal, integers = first
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)} and abs((kept == 0).mean() - 0.25) < 0.03
    assert 0 <= uniform.min() < 0.01 and 0.99 < uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.02
    assert abs(normal.mean()) < 0.07 and abs(normal.std() - 1) < 0.05
    assert set(np.unique(integers)) == {3, 4, 5, 6, 7, 8}
    on_gpu, _ = load(random, level="sm_80")
    for a, b in zip(on_gpu(x, seed=7), first, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for bad, message in [
        ("x", "is a str, no integer"), (1.5, "is a float, no integer"), (None, "is a NoneType, no integer"), (X, "has dtype"),
        (1 << 63, "no integer of 64 bits"), (np.array(1.5), "no integer"), (np.ones(2, np.int64), "has shape"),
    ]:  # fmt: skip
        for loaded in (model, on_gpu):
            with pytest.raises(LowcError, match=message):
                loaded(x, seed=bad)
    with pytest.raises(LowcError, match="seed is given twice"):
        model(x, 7, seed=7)


def test_random_numbers_from_files_and_c(random: package.Package, tmp_path: Path) -> None:
    artifact = tmp_path / "random.lowc"
    random.save(artifact)
    x = np.ones((2, 50), np.float32)
    for name, extra in (("a", {"seed": np.array([5])}), ("b", {"seed": np.array(5)}), ("c", {}), ("d", {})):
        np.savez(tmp_path / f"{name}.npz", x=x, **extra)
        given, made = str(tmp_path / f"{name}.npz"), str(tmp_path / f"{name}out.npz")
        assert main(["run", str(artifact), "-i", given, "-o", made]) == 0
    a, b, c, d = (np.load(tmp_path / f"{name}out.npz")["output_1"] for name in "abcd")
    assert (a == b).all() and (a != c).any() and (c != d).any()
    assert "input 1: seed, LOWC_I64 [1]: the seed of random numbers" in header.text(lowc.load(artifact).manifest, "m")


def test_seeds_in_manifests_and_options(random: package.Package) -> None:
    good = b"".join(random.content())
    inputs = [dict(row) for row in package.manifest.to_json(random.manifest)["inputs"]]
    assert [row["drawn"] for row in inputs] == [False, True]
    refused(changed(good, inputs=[inputs[0] | {"drawn": True}, inputs[1]]), "x is no seed")
    with pytest.raises(LowcError, match="cannot draw eager's random numbers"):
        package.compile_program(export(drawn, (torch.ones(4, 5),)), options=Options(fallback_random=True))


def test_an_input_by_the_name_of_the_seed() -> None:
    def noisy(seed: torch.Tensor) -> torch.Tensor:
        return seed + torch.rand(3)

    model = package.compile_program(export(noisy, (torch.zeros(3),)), levels=("x86-64",)).load()
    names = [t.name for t in model.inputs]
    assert names[0] == "seed" and names[1] != "seed"
    zero = np.zeros(3, np.float32)
    np.testing.assert_array_equal(model(zero, 3), model(seed=zero, **{names[1]: 3}))


@pytest.mark.parametrize(
    "fn,op",
    [
        (lambda x: x.nonzero(), "aten.nonzero.default"),
        (lambda x: x.masked_select(x > 0), "aten.masked_select.default"),
        (lambda x: x[x > 0].sum(), "aten.index.Tensor|aten.nonzero.default"),
        (lambda x: x.unique(), "aten._unique2.default"),
    ],
    ids=["nonzero", "masked_select", "mask", "unique"],
)
@pytest.mark.parametrize("level", ["x86-64", "sm_90"])
def test_sizes_that_data_tells(fn: Any, op: str, level: str) -> None:
    with pytest.raises(LowcError, match=f"data tells how large the result of ({op}) is") as caught:
        package.compile_program(export(fn, (X,)), levels=(level,))
    assert "test_numbers.py" in caught.value.where
