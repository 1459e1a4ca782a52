"""Arrays in a GPU's memory as arguments and results of artifacts, on a GPU that is not there."""

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeDriver, OnFake, compiled, fetched, launches, load

from lowc import package
from lowc.errors import LowcError
from lowc.runtime.cuda.direct import LEGACY
from lowc.runtime.cuda.driver import DriverError
from lowc.standalone import dlpack, gpu_choice


def test_arrays_there_stay_there(mlp: package.Package, eager: Any) -> None:
    model, driver = load(mlp)
    driver.log.clear()
    x = np.random.default_rng(0).standard_normal((7, 19), np.float32)
    given = OnFake(driver, x, stream=0x42)
    result = model(given)
    assert {stream for *_, stream in launches(driver)} == {0x42}
    assert not [entry for entry in driver.log if entry[0] in ("in", "out", "sync", "copy")]
    shown = result.__cuda_array_interface__
    assert shown["stream"] == 0x42 and shown["shape"] == (7, 7) and shown["typestr"] == "<f4"
    with torch.no_grad():
        np.testing.assert_allclose(fetched(driver, result), eager(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result.numpy(), fetched(driver, result))
    before = len(driver.live)
    address = result.address
    del result
    assert address not in driver.live and len(driver.live) == before - 1


@pytest.mark.parametrize("capture", [False, True])
def test_weights_that_a_captured_graph_reads_outlive_the_model(mlp: package.Package, capture: bool) -> None:
    model, driver = load(mlp)
    device = model._on
    weights = set(driver.live)
    driver.in_capture |= {0x42} if capture else set()
    x = np.random.default_rng(0).standard_normal((7, 19), np.float32)
    for stream in (LEGACY, 0x42, 0x42):
        result = model(OnFake(driver, x, stream=stream))
    del model, result
    gc.collect()
    assert (weights <= set(driver.live)) == capture and len(device.held) == int(capture)


def test_a_result_is_an_argument() -> None:
    model, driver = load(compiled(lambda x: x * 2, (torch.randn(4, 3),)))
    first = model(OnFake(driver, np.ones((4, 3), np.float32)))
    np.testing.assert_array_equal(model(model(first)).numpy(), np.full((4, 3), 8, np.float32))
    assert {stream for *_, stream in launches(driver)} == {LEGACY}


def test_streams_wait_for_one_another() -> None:
    model, driver = load(compiled(lambda x, y: x + y, (torch.randn(4), torch.randn(4))))
    one = np.ones(4, np.float32)
    driver.log.clear()
    model(OnFake(driver, one, stream=0x42), OnFake(driver, one, stream=0x43))
    kinds = [(entry[0], *entry[-1:]) for entry in driver.log]
    assert kinds == [("record", 0x43), ("wait", driver.log[0][1]), ("launch", 0x42), ("record", 0x42), ("wait", driver.log[3][1])]
    assert driver.log[1][1] == 0x42 and driver.log[4][1] == 0x43 and not driver.events


def test_misaligned_mixed_and_strided_arguments() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).softmax(-1) + y

    inputs = (torch.randn(16, 512), torch.randn(16, 512))
    model, driver = load(compiled(fn, inputs))
    assert model._aligned == {0, 1}
    x, y = (each.numpy() for each in inputs)
    for given in ((OnFake(driver, x, shift=4), OnFake(driver, y)), (x, OnFake(driver, y))):
        np.testing.assert_allclose(model(*given).numpy(), fn(*inputs).numpy(), rtol=1e-5, atol=1e-6)
    assert ("copy", x.nbytes, LEGACY) in driver.log and ("in", x.nbytes, LEGACY) in driver.log
    with pytest.raises(LowcError, match="is not aligned in memory"):
        model(OnFake(driver, x, shift=2), OnFake(driver, y))


class Capsule:
    """An array of the fake's memory that speaks DLPack alone; ``device``: as if it were there."""

    def __init__(self, array: Any, device: tuple[int, int] = (2, 0)) -> None:
        self.array, self.device, self.asked = array, device, list[Any]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: Any = None) -> Any:
        self.asked.append(stream)
        return self.array.__dlpack__()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "bool", "float16"])
def test_dlpack(dtype: str) -> None:
    x = (np.arange(12).reshape(3, 4) % 2).astype(dtype)
    given = torch.from_numpy(x)
    model, driver = load(compiled(lambda x: x.logical_not(), (given.clone(),)))
    place = driver.allocate(x.nbytes)
    driver.at(place, x.nbytes)[:] = x.reshape(-1).view(np.uint8)
    there = driver.at(place, x.nbytes).view(dtype).reshape(3, 4)
    far = Capsule(there)
    result = model(far)
    assert far.asked == [LEGACY] and driver.log[-1] == ("sync", LEGACY)  # it is lent for the call alone
    np.testing.assert_array_equal(result.numpy(), ~x.astype(bool))
    again = dlpack.read(result, LEGACY)
    assert (again.dtype, again.shape, again.address) == (np.dtype(bool), (3, 4), result.address)
    assert again.strides == (4, 1)


def test_a_capsule_keeps_its_array_until_it_is_dropped() -> None:
    model, driver = load(compiled(lambda x: x + 1, (torch.randn(5),)))
    result = model(OnFake(driver, np.zeros(5, np.float32)))
    address, capsule = result.address, result.__dlpack__()
    del result
    assert address in driver.live
    del capsule
    assert address not in driver.live


def test_another_gpus_memory(mlp: package.Package) -> None:
    model, driver = load(mlp, FakeDriver(holder=1))
    with pytest.raises(LowcError, match=r'input input is on cuda:1, and the model on cuda:0\n.*device="cuda:1"'):
        model(OnFake(driver, np.ones((2, 19), np.float32)))


def doubled() -> package.Package:
    return compiled(lambda x: x * 2, (torch.randn(4, 3),))


@pytest.mark.parametrize(
    "fields,message",
    [
        ({"strides": (14, 4)}, r"has strides \(14, 4\) in bytes, not \(12, 4\)"),
        ({"strides": (12,)}, "cannot be read: typestr <f4, shape"),
        ({"typestr": "|V0"}, "cannot be read: typestr"),
        ({"typestr": ">f4"}, "has dtype >f4, not float32"),
        ({"typestr": 3}, "cannot be read"),
        ({"shape": None}, "cannot be read"),
        ({"shape": (4,)}, "has 1 dimensions, not 2"),
        ({"data": None}, "cannot be read"),
        ({"stream": 0}, "was made on stream 0"),
        ({"stream": "main"}, "was made on stream 'main'"),
    ],
)
def test_interfaces_that_are_none(fields: dict[str, Any], message: str) -> None:
    model, driver = load(doubled())
    given = OnFake(driver, np.ones((4, 3), np.float32))
    given.__cuda_array_interface__ |= fields
    with pytest.raises(LowcError, match=message):
        model(given)
    given.__cuda_array_interface__ = "none"  # type: ignore[assignment]
    with pytest.raises(LowcError, match="is a str, no dictionary"):
        model(given)
    assert not launches(driver)


class Half:
    """Says where it is, and not what."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_dlpack_that_cannot_be_had() -> None:
    model, driver = load(doubled())
    with pytest.raises(LowcError, match="input x cannot be read by DLPack"):
        model(Half())
    result = model(OnFake(driver, np.ones((4, 3), np.float32)))
    live = set(driver.live)
    for asked in ({"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}):
        with pytest.raises(BufferError, match=r"on cuda:0 is handed over where it is: numpy\(\)"):
            result.__dlpack__(**asked)
    result.__dlpack__(copy=False, dl_device=(2, 0), max_version=(1, 0))
    assert set(driver.live) == live


def test_a_result_outlives_its_model(mlp: package.Package) -> None:
    model, driver = load(mlp)
    x = np.ones((2, 19), np.float32)
    wanted, result = model(x), model(OnFake(driver, x))
    before = len(driver.live), len(driver.pins)
    del model
    gc.collect()
    assert (len(driver.live), len(driver.pins)) == (before[0] - 1, before[1] - 1), "the weights, the word for checks"
    assert len(driver.modules) == 1, "what a CUDA graph may still launch"
    with pytest.raises(TypeError, match=r"on cuda:0 is no numpy array: its numpy\(\) copies"):
        np.asarray(result)
    np.testing.assert_array_equal(result.numpy(), wanted)


def test_a_call_that_fails_ends_what_it_began(mlp: package.Package) -> None:
    """The stream, which is used again, has done all that reads the arguments."""
    model, driver = load(mlp)
    x = np.ones((3, 19), np.float32)
    wanted = model(x)
    driver.fail = gpu_choice.gpu_of(model.code).launches[1].kernel
    for given, stream in ((x, driver.log[-1][1]), (OnFake(driver, x, stream=0x42), 0x42)):
        with pytest.raises(LowcError, match="launching kernel"):
            model(given)
        assert driver.log[-1] == ("sync", stream)
    driver.fail = ""
    driver.log.clear()
    np.testing.assert_array_equal(model(x), wanted)
    assert {stream for *_, stream in launches(driver)} == {stream for kind, stream in driver.log[-1:] if kind == "sync"}
    assert len(model._on._spare) == 1


def test_calls_from_many_threads(mlp: package.Package) -> None:
    """Each has a stream and memory of its own."""
    model, driver = load(mlp)
    given = [np.full((n, 19), n, np.float32) for n in range(1, 5)]
    wanted = [model(x) for x in given]
    driver.log.clear()
    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(model, given * 5), wanted * 5, strict=True):
            np.testing.assert_array_equal(found, right)
    assert len(driver.live) == 1 and len(model._on._spare) == len({stream for *_, stream in launches(driver)}) <= 4


def test_a_map_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    model, driver = load(compiled(torch.nn.Linear(256, 512).bfloat16(), (torch.randn(300, 256).bfloat16(),)))

    def refuse(*_: Any) -> None:
        raise DriverError("cuTensorMapEncodeTiled failed", "CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(driver, "tensor_map", refuse)
    with pytest.raises(LowcError, match=r"kernel k_\w+ cannot copy boxes of a tensor of sizes \(256, 300\), strides \(512,\)"):
        model(torch.randn(300, 256).bfloat16())


def test_sizes_that_no_memory_can_hold() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        held = (x.new_ones(n) * x.sum()).cumsum(0)
        return (held * held.flip(0)).sum() + x

    inputs, dynamic = (torch.ones(2), 5), (None, torch.export.Dim.DYNAMIC)
    model, driver = load(compiled(fn, inputs, dynamic))
    for x in (np.ones(2, np.float32), OnFake(driver, np.ones(2, np.float32))):
        with pytest.raises(MemoryError, match="no room for 18446744073709551680 bytes"):
            model(x, 1 << 62)
    model, driver = load(compiled(lambda x, n: x.new_ones(n), inputs, dynamic))
    live = set(driver.live)
    for x in (np.ones(2, np.float32), OnFake(driver, np.ones(2, np.float32))):
        with pytest.raises(LowcError, match="output output cannot have shape"):
            model(x, 1 << 62)
    assert not launches(driver) and len(driver.live) == len(live) + 1  # the argument
