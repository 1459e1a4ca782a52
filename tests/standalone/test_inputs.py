"""Arguments that an artifact does not take: each a LowcError that says which and why."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from capi import Library, tensors

import lowc
from lowc import package
from lowc.cli import main
from lowc.errors import LowcError
from lowc.frontend.exported import export
from lowc.frontend.guards import conditions
from lowc.ir.graph import TensorMeta
from lowc.ir.index import Symbol, contiguous_strides, ix
from lowc.ir.types import f32
from lowc.standalone.call import Model
from lowc.standalone.library import write_library


@pytest.fixture(scope="module")
def model(mlp_file: Path) -> Model:
    return lowc.load(mlp_file)


def good(batch: int = 5) -> np.ndarray:
    return np.arange(batch * 19, dtype=np.float32).reshape(batch, 19) / 50


def misaligned() -> np.ndarray:
    return np.frombuffer(bytes(5 * 19 * 4 + 1), np.uint8)[1:].view(np.float32).reshape(5, 19)


@pytest.mark.parametrize(
    "given,message",
    [
        (good().astype(np.float64), "has dtype float64, not float32"),
        (good().astype(">f4"), "has dtype >f4, not float32"),
        (good().astype(np.int32), "has dtype int32, not float32"),
        (good()[0], "has 1 dimensions, not 2"),
        (good()[None], "has 3 dimensions, not 2"),
        (good()[:, :18], r"has shape \(5, 18\), not \(5, 19\)"),
        (good(65), "has size 65 in dimension 0; it takes 0 to 64"),
        (np.asfortranarray(good()), "has strides"),
        (good(10)[::2], "has strides"),
        (good()[::-1], "has strides"),
        (misaligned(), "is not aligned"),
        (np.ma.masked_array(good(), good() > 1), "has a mask"),
        (np.zeros((5, 19), [("a", np.float32), ("b", np.float32)])["a"], r"has strides \(152, 8\) in bytes, not \(76, 4\)"),
        ([[1.0] * 19], "is a list, no array"),
        (None, "is a NoneType, no array"),
        (torch.zeros(5, 19, dtype=torch.float64), "has dtype float64, not float32"),
        (torch.zeros(5, 19, dtype=torch.bfloat16), "has dtype torch.bfloat16, not float32"),
        (torch.zeros(5, 19, device="meta"), "is on meta"),
        (torch.zeros(5, 19).to_sparse(), "not a dense tensor"),
        (torch.zeros(19, 5).t(), "has strides"),
    ],
)
def test_refused(model: Model, given: Any, message: str) -> None:
    with pytest.raises(LowcError, match=message):
        model(given)
    assert model(good()).shape == (5, 7)


class Far:
    """An array in a GPU's memory."""

    __cuda_array_interface__ = {"shape": (5, 19), "typestr": "<f4", "data": (0x1000, False), "version": 3}


def test_an_array_of_a_gpu_is_named_as_such(model: Model) -> None:
    with pytest.raises(LowcError, match='is a Far in a GPU\'s memory, and the model is on the CPU\n.*device="cuda:0"'):
        model(Far())


def test_what_a_model_says_of_itself(model: Model) -> None:
    assert repr(model) == f"<lowc model mlp(input: f32[{model.manifest.symbols[0].name}, 19]), {model.level}>"


def test_number_and_names_of_arguments(model: Model) -> None:
    for args, named, message in [
        ((), {}, "no input"),
        ((good(), good()), {}, "2 arguments are too many"),
        ((good(),), {"input": good()}, "input is given twice"),
        ((), {"x": good()}, "x is unknown"),
    ]:
        with pytest.raises(LowcError, match=message):
            model(*args, **named)


def test_tensors_and_arrays_give_the_same(model: Model) -> None:
    array = good()
    tensor = torch.from_numpy(array).requires_grad_()
    found = model(tensor)
    assert isinstance(found, torch.Tensor) and not found.requires_grad
    np.testing.assert_array_equal(found.numpy(), model(array))
    one = np.ones((1, 19), np.float32)
    np.testing.assert_array_equal(model(np.broadcast_to(one, (1, 19))), model(one))  # strides of one row tell nothing


def test_results_that_no_memory_can_hold() -> None:
    dim = torch.export.Dim.AUTO

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape[0], x.shape[0], x.shape[0], x.shape[0])

    made = package.compile_program(export(fn, (torch.randn(5, 0),), dynamic=({0: dim},)), levels=("x86-64",)).load()
    with pytest.raises(LowcError, match="output cannot have shape"):
        made(np.empty((1 << 20, 0), np.float32))
    with pytest.raises(MemoryError):
        made(np.empty((1 << 14, 0), np.float32))
    assert made(np.empty((3, 0), np.float32)).shape == (3, 3, 3, 3)


def test_an_unknown_level(mlp_file: Path) -> None:
    with pytest.raises(LowcError, match="no code for x86-64-v9"):
        lowc.load(mlp_file, level="x86-64-v9")


def test_calls_from_many_threads(model: Model) -> None:
    wanted = [model(good(n)) for n in range(1, 9)]
    wrong: list[int] = []

    def call(n: int) -> None:
        for _ in range(200):
            if not np.array_equal(model(good(n)), wanted[n - 1]):
                wrong.append(n)

    workers = [threading.Thread(target=call, args=(n,)) for n in range(1, 9)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table[index]


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    made = package.compile_program(export(rows, (torch.randn(4, 3), torch.tensor([0, 3]))), levels=("x86-64",)).load()
    table = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_array_equal(made(table, np.array([3, -1])), table[[3, -1]])
    with pytest.raises(IndexError, match="index out of range.*table\\[index\\]"):
        made(table, np.array([0, 4]))


class Decides(torch.nn.Module):
    """By sizes, in ways that no range says."""

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> torch.Tensor:
        if x.shape[0] % 2 == 0 and x.shape[0] != x.shape[1]:
            x = x + 1
        if max(x.shape[0], 3) < 10 and more["a"].shape[0] // 3 < x.shape[1]:
            x = x * 2
        return x * more["a"].sum()


def test_conditions_on_sizes(tmp_path: Path) -> None:
    auto = torch.export.Dim.AUTO
    shapes = {"x": {0: auto, 1: auto}, "more": {"a": {0: auto}}}
    program = torch.export.export(Decides(), (torch.randn(4, 6), {"a": torch.randn(5)}), dynamic_shapes=shapes)
    package.compile_program(program, levels=("x86-64",)).save(tmp_path / "m.lowc")
    model = lowc.load(tmp_path / "m.lowc")
    write_library(tmp_path / "m.lowc", tmp_path / "lib.so")
    library = Library(tmp_path / "lib.so")
    for rows_, columns, length, right in [
        (4, 6, 5, True),
        (8, 3, 8, True),
        (5, 6, 5, False),
        (6, 6, 5, False),
        (10, 6, 5, False),
        (4, 3, 9, False),
    ]:
        x, a = np.ones((rows_, columns), np.float32), np.ones(length, np.float32)
        y = np.zeros_like(x)
        if right:
            wanted = Decides()(torch.from_numpy(x), {"a": torch.from_numpy(a)})
            np.testing.assert_array_equal(model(x, a), wanted.numpy())
            assert library.run(tensors(x, a), tensors(y)) == 0
            np.testing.assert_array_equal(y, wanted.numpy())
        else:
            with pytest.raises(LowcError, match="is for inputs with .* only"):
                model(x, a)
            assert library.run(tensors(x, a), tensors(y)) == -10


@pytest.mark.parametrize("name", ["max", "min"])
def test_conditions_are_written_in_two_ways(name: str) -> None:
    """The second is that of torch 2.15."""
    shape = (ix(Symbol("s", 0)), ix(3))
    inputs = {"x": TensorMeta(f32, shape, contiguous_strides(shape), ix(0), "cpu")}
    first, second = (conditions([f"{function}(3, L['x'].size()[0]) < 10"], inputs) for function in (name, f"torch.sym_{name}"))
    assert first == second and first[0][0] == f"{name}(3, x.shape[0]) < 10"


def test_narrow_dtypes() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a * 2, b + 1, ~c

    inputs = (torch.randn(3).bfloat16(), torch.randn(3).half(), torch.tensor([True, False]))
    made = package.compile_program(export(fn, inputs), levels=("x86-64",)).load()
    torch.testing.assert_close(made(*inputs), fn(*inputs), rtol=0, atol=0)
    bits = inputs[0].view(torch.uint16).numpy()
    found = made(bits, inputs[1].numpy(), inputs[2].numpy())
    np.testing.assert_array_equal(found[0], fn(*inputs)[0].view(torch.uint16).numpy())


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


def by_a_number(x: torch.Tensor, times: int) -> torch.Tensor:
    return x * times


def writes(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


def test_models_that_no_artifact_can_be() -> None:
    x = torch.randn(3)
    for fn, inputs, dynamic, message in [
        (Counts(), (x,), None, "changes its buffer calls"),
        (writes, (x,), None, "changes its input x"),
        (lambda x: x if x.sum() > 0 else -x, (x,), None, "torch.export cannot export it"),
    ]:
        with pytest.raises(LowcError, match=message):
            package.compile_program(export(fn, inputs, dynamic=dynamic), levels=("x86-64",))
    with pytest.raises(LowcError, match=r"(?s)Constraints violated.*Not all values of batch"):  # which size, and why
        export(lambda x: x.reshape(-1, 4), (torch.randn(4, 3),), dynamic=({0: torch.export.Dim("batch")},))
    made = package.compile_program(export(by_a_number, (x, 3)), levels=("x86-64",)).load()
    torch.testing.assert_close(made(x), x * 3)


def test_commands_report_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str], mlp_file: Path) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"PK\3\4nothing")
    np.savez(tmp_path / "in.npz", input=good().astype(np.float64))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    out = str(tmp_path / "out.npz")
    for command, message in [
        (["compile", str(tmp_path / "none.pt2")], "there is no file"),
        (["compile", str(tmp_path / "bad.pt2")], "cannot be read"),
        (["compile", "model.pt2", "--emit", "exe"], "does not know 'exe'"),
        (["compile", "model.pt2", "--emit", "ptx"], "is for GPUs"),
        (["run", str(tmp_path / "bad.pt2"), "-i", str(tmp_path / "in.npz"), "-o", out], "no artifact of lowc"),
        (["run", str(mlp_file), "-i", str(tmp_path / "none.npz"), "-o", out], "cannot be read: No such file"),
        (["run", str(mlp_file), "-i", str(tmp_path / "bad.pt2"), "-o", out], "cannot be read"),
        (["run", str(mlp_file), "-i", str(tmp_path / "objects.npy"), "-o", out], "cannot be read"),
        (["run", str(mlp_file), "-i", str(tmp_path / "in.npz"), "-o", out], "has dtype float64"),
    ]:
        assert main(command) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()
