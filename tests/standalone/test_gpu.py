"""Artifacts for GPUs where there is none: what is in the file, which code is chosen, what a call asks of the driver."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from fake_gpu import FakeDriver, OnFake, compiled, launches, load, sections
from test_damage import changed

import lowc
from lowc import package
from lowc.backends.nvptx import assembler
from lowc.cli import main
from lowc.errors import LowcError
from lowc.frontend.exported import export
from lowc.standalone import gpu_choice, launcher, manifest
from lowc.standalone.gpu_device import GpuDevice
from lowc.standalone.library import write_library
from lowc.standalone.loader import load_content
from lowc.standalone.trees import value

# ---------------------------------------------------------------- values


@pytest.mark.parametrize("name,level", [("mlp", "sm_70"), ("resnet", "sm_90"), ("gpt", "sm_80")])
def test_models(name: str, level: str) -> None:
    model, inputs = getattr(models, name)()
    made, driver = load(compiled(model, inputs, levels=(level,)), level=level)
    with torch.no_grad():
        torch.testing.assert_close(made(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    assert made.level == level and made.device == "cuda:0"
    assert all(stream == driver.log[-1][1] for *_, stream in launches(driver))  # the one that is waited for
    assert len(driver.live) == 1, "weights alone stay"


def test_products_of_integers() -> None:
    """Loop nests there: of bytes into 32 bits, of 32 bits, and of bytes that become bf16."""

    def function(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = torch._int_mm(x, w.T)
        return wide, wide @ wide.T, torch.ops.aten._weight_int8pack_mm(y, w, torch.ones(40, dtype=y.dtype))

    x, w = (torch.randint(-128, 128, (n, 64), dtype=torch.int8) for n in (24, 40))
    y = torch.randn(24, 64).bfloat16()
    for level in ("sm_70", "sm_90"):
        made, _ = load(compiled(function, (x, w, y), levels=(level,)), level=level)
        found, wanted = made(x, w, y), function(x, w, y)
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
        torch.testing.assert_close(found[2], wanted[2], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("count", [0, 1, 5, 64])
def test_sizes_that_differ(mlp: package.Package, eager: Any, count: int) -> None:
    model, driver = load(mlp)
    x = torch.randn(count, 19)
    with torch.no_grad():
        torch.testing.assert_close(model(x), eager(x), rtol=1e-5, atol=1e-5)
    assert [(kernel, blocks) for kernel, blocks, *_ in launches(driver)] == [
        (launch.kernel, blocks)
        for launch in gpu_choice.gpu_of(model.code).launches
        if (blocks := value(launch.grid, {mlp.manifest.symbols[0].name: count})) > 0
    ]


def test_a_product_with_tensor_maps() -> None:
    linear = torch.nn.Linear(256, 512).bfloat16()
    rows = torch.export.Dim("rows", min=2, max=999)
    model, driver = load(compiled(linear, (torch.randn(300, 256).bfloat16(),), ({0: rows},)))
    x = torch.randn(130, 256).bfloat16()
    found = model(x)
    with torch.no_grad():
        torch.testing.assert_close(found, linear(x), rtol=2e-2, atol=2e-2)
    maps = [entry[1:] for entry in driver.log if entry[0] == "map"]
    assert [(dtype, sizes, strides) for dtype, _, sizes, strides, _ in maps] == [
        (9, (256, 130), (512,)), (9, (256, 512), (512,)), (9, (512, 130), (1024,)),
    ]  # fmt: skip
    assert any(shared > 100_000 for _, _, _, shared, _ in launches(driver))


# ---------------------------------------------------------------- errors of a call


def picked(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i] + 1


def test_failed_checks() -> None:
    inputs = (torch.randn(10, 4), torch.tensor([1, 2, 3]))
    model, driver = load(compiled(picked, inputs))
    x, bad = inputs[0].numpy(), np.array([1, 99, 3])
    with pytest.raises(IndexError, match=r"out of range.*x\[i\]|out of range.*test_gpu.py"):
        model(x, bad)
    np.testing.assert_array_equal(model(x, inputs[1].numpy()), picked(*inputs).numpy())
    model(OnFake(driver, x), OnFake(driver, bad))
    with pytest.raises(IndexError, match="reported late"):
        model(OnFake(driver, x), OnFake(driver, inputs[1].numpy()))
    model(OnFake(driver, x), OnFake(driver, bad))
    with pytest.raises(IndexError, match="reported late"):
        model.synchronize()
    model.synchronize()


def test_arguments_are_checked_before_anything_is_launched(mlp: package.Package) -> None:
    model, driver = load(mlp)
    good = np.ones((3, 19), np.float32)
    before = len(driver.log)
    for bad, message in [
        (good.astype(np.float64), "has dtype float64, not float32"),
        (good[:, :3], "has shape"),
        (np.ones((65, 19), np.float32), "it takes 0 to 64"),
        (np.asfortranarray(good), "has strides"),
        ("x", "is a str, no array"),
    ]:
        for given in (bad, OnFake(driver, bad)) if isinstance(bad, np.ndarray) and "strides" not in message else (bad,):
            with pytest.raises(LowcError, match=message):
                model(given)
    assert driver.log[before:] == []
    masked = OnFake(driver, good)
    masked.__cuda_array_interface__["mask"] = masked
    with pytest.raises(LowcError, match="has a mask"):
        model(masked)


def test_a_launch_that_fails(mlp: package.Package) -> None:
    model, driver = load(mlp)
    driver.fail = gpu_choice.gpu_of(model.code).launches[1].kernel
    live = set(driver.live)
    with pytest.raises(LowcError, match="launching kernel k_var_mean_0__add_1: .*CUDA_ERROR_LAUNCH"):
        model(np.ones((3, 19), np.float32))
    assert set(driver.live) == live


# ---------------------------------------------------------------- which code, which GPU


def test_the_code_for_a_gpu(mlp: package.Package) -> None:
    codes = mlp.manifest.code

    def level(capability: int, driver: int = 13000) -> str:
        return gpu_choice.best(codes, "GPU", capability, driver).level

    # sm_90's code has instructions of that capability alone
    assert [level(c) for c in (80, 86, 89, 90, 100, 120)] == ["sm_80", "sm_80", "sm_80", "sm_90", "sm_80", "sm_80"]
    with pytest.raises(LowcError, match=r"GPU \(compute capability 7.5\) cannot run .*: its code is for sm_90, sm_80\n.*sm_75"):
        level(75)
    with pytest.raises(LowcError, match=r"is for CUDA 11.8, and the artifact's code needs one for 12.0"):
        level(90, 11080)
    with pytest.raises(LowcError, match="has no code for a GPU, but for x86-64-v3\n.*--target sm_90"):
        gpu_choice.best(codes[:1], "GPU", 90, 13000)
    with pytest.raises(LowcError, match='for sm_90\n.*device="cuda:0"'):
        load_content(memoryview(changed(b"".join(mlp.content()), code=[rows(mlp)[1]])), "m")


def rows(made: package.Package) -> list[dict[str, Any]]:
    return json.loads(bytes(sections(made).section("manifest")))["code"]


def test_devices() -> None:
    assert [gpu_choice.index_of(d) for d in (None, "cpu", "cuda", "cuda:3", torch.device("cuda", 1))] == [None, None, 0, 3, 1]
    for wrong in ("cuda:", "cuda:-1", "xpu", 0):
        with pytest.raises(LowcError, match="artifacts do not run on device"):
            gpu_choice.index_of(wrong)
    with pytest.raises(LowcError, match="there is no cuda:2: this process has 2 GPUs"):
        GpuDevice(2, FakeDriver())  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVIDIA GPU")
def test_no_driver(mlp: package.Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LowcError, match="cuInit: |cuda.bindings cannot be imported"):
        mlp.load(device="cuda:0")
    mlp.save(tmp_path / "m.lowc")
    np.savez(tmp_path / "in.npz", input=np.ones((2, 19), np.float32))
    command = ["run", str(tmp_path / "m.lowc"), "-i", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    assert main([*command, "--device", "cuda"]) == 2
    assert "is the NVIDIA driver installed?" in capsys.readouterr().err
    assert main([*command, "--device", "tpu"]) == 2 and main(command) == 0


@pytest.mark.skipif(not assembler.find("ptxas"), reason="there is no ptxas")
def test_cubins() -> None:
    model, inputs = models.mlp()
    made = package.compile_program(export(model, inputs), levels=("sm_90",), emit=("ir",), cubin=True)
    cubin = bytes(sections(made).section("sm_90.cubin"))
    assert cubin.startswith(b"\x7fELF")
    _, driver = load(made)
    assert driver.images == [cubin]
    driver = FakeDriver()
    driver.rejects = {cubin}
    _, driver = load(made, driver)
    assert driver.images[0] == cubin and b".target sm_90a" in driver.images[1]
    driver = FakeDriver()
    driver.rejects = {cubin, driver_ptx := bytes(sections(made).section("sm_90.ptx")[:-32])}
    assert driver_ptx.rstrip().endswith(b"}")
    with pytest.raises(LowcError, match="the driver rejects the PTX: CUDA_ERROR_INVALID_PTX"):
        load(made, driver)


def test_code_without_a_kernel_is_refused(mlp: package.Package) -> None:
    driver = FakeDriver()
    driver.missing = gpu_choice.gpu_of(mlp.manifest.code[1]).launches[1].kernel
    with pytest.raises(LowcError, match="code for this GPU cannot be used: cuModuleGetFunction failed"):
        load(mlp, driver)
    assert len(driver.images) == 1 and not driver.modules and not driver.live


def test_launches_of_other_numbers_of_params_are_refused(mlp: package.Package) -> None:
    """The driver would read addresses beyond those that it is given."""
    ptx, gpu = bytes(sections(mlp).section("sm_90.ptx")), gpu_choice.gpu_of(mlp.manifest.code[1])
    first, *others = gpu.launches
    changes = {
        "has [23] params": replace(first, params=()),
        "is not in the code": replace(first, kernel="k_other"),
    }
    for match, launch in changes.items():
        driver: Any = FakeDriver()
        with pytest.raises(LowcError, match=match):
            launcher.loaded(driver, ptx, b"", replace(gpu, launches=(launch, *others)))
        assert not driver.images
    assert launcher.loaded(FakeDriver(), ptx, b"", gpu)  # type: ignore[arg-type]


def test_ptx_is_for_drivers_from_cuda_12_on(mlp: package.Package) -> None:
    for level, cpu in (("sm_90", "sm_90a"), ("sm_80", "sm_80")):
        text = bytes(sections(mlp).section(f"{level}.ptx"))
        assert b".version 8.0\n" in text and f".target {cpu}\n".encode() in text


# ---------------------------------------------------------------- the file


def test_manifests_that_say_something_else(mlp: package.Package) -> None:
    good = b"".join(mlp.content())
    cpu, gpu = rows(mlp)[:2]
    first = gpu["gpu"]["launches"][0]
    load_content(memoryview(changed(good, code=[cpu, gpu])), "m")
    symbol = mlp.manifest.symbols[0].name

    def refused(change: dict[str, Any], launch: dict[str, Any], match: str) -> None:
        launches = [first | launch, *gpu["gpu"]["launches"][1:]]
        row = gpu | {"gpu": gpu["gpu"] | {"launches": launches} | change}
        with pytest.raises(LowcError, match=match):
            load_content(memoryview(changed(good, code=[cpu, row])), "m")

    other = "was compiled for other sizes"
    one = {"param": 0, "dtype": "f32", "offset": 0, "sizes": [1], "strides": [], "box": [1]}
    for launch, match in [
        ({"grid": 1 << 20}, other), ({"grid": ["*", symbol, 100]}, other), ({"threads": [32, 1]}, other), ({"shared": 64}, other),
        ({"params": first["params"][::-1]}, other), ({"step": 3}, other), ({"aligned": [0]}, other),
        ({"kernel": "k_other"}, other),
        ({"threads": [2048, 1]}, "number of threads 2048"), ({"threads": [1024, 2]}, "number of threads 2048"),
        ({"threads": [128]}, "cannot be read"), ({"shared": 1 << 30}, "shared memory"), ({"step": -1}, "the step -1"),
        ({"grid": "other"}, "'other' is no size"), ({"params": [["weight", 99, 0]]}, "weight 99, which is not there"),
        ({"params": [["input", 0, 4]]}, "is input 0 and 4 bytes"), ({"aligned": [99]}, "param 99"),
        ({"aligned": [4]}, "a size is used as an address"), ({"kernel": 3}, "is no text"),
        ({"maps": [one | {"dtype": "f64"}]}, "tensor map of dtype 'f64'"), ({"maps": [one | {"strides": [1]}]}, "no rank"),
        ({"maps": [one | {"box": [512]}]}, "size of a box 512"), ({"maps": [one]}, other),
    ]:  # fmt: skip
        refused({}, launch, match)
    for change, match in [
        ({"capability": 0}, "the capability 0"), ({"exact": False}, other), ({"driver": 1}, other), ({"launches": {}}, other),
        ({"launches": 3}, "cannot be read"), ({"cubin": "x"}, other),
    ]:  # fmt: skip
        refused(change, {}, match)


def test_damage_is_found_for_both_kinds_of_code(mlp: package.Package) -> None:
    good = b"".join(mlp.content())
    section = sections(mlp).sections["sm_80.ptx"]
    for place in range(section.start, section.start + section.size, 97):
        bad = bytearray(good)
        bad[place] ^= 4
        for on in (None, GpuDevice(0, FakeDriver())):  # type: ignore[arg-type]
            with pytest.raises(LowcError, match="checksum of its section sm_80.ptx is wrong"):
                load_content(memoryview(bytes(bad)), "m", on=on)


def test_pickles_name_the_device(mlp: package.Package, tmp_path: Path) -> None:
    mlp.save(tmp_path / "m.lowc")
    model = lowc.load(tmp_path / "m.lowc")
    file, level, digest, device = model.__reduce__()[1]
    assert (file, level, device) == (str(tmp_path / "m.lowc"), None, "cpu") and len(digest) == 64
    assert pickle.loads(pickle.dumps(model)).level == "x86-64-v3"


def test_code_for_gpus_alone_is_no_library(tmp_path: Path) -> None:
    made = compiled(lambda x: x + 1, (torch.randn(3),))
    assert set(made.sections) == {"sm_90.ptx"}
    made.save(tmp_path / "m.lowc")
    with pytest.raises(LowcError, match="has no code for a CPU"):
        write_library(tmp_path / "m.lowc", tmp_path / "libm.so")


def test_the_header_says_that_gpus_are_not_for_c(mlp: package.Package, tmp_path: Path) -> None:
    mlp.save(tmp_path / "m.lowc")
    write_library(tmp_path / "m.lowc", tmp_path / "libm.so", header_path=str(tmp_path / "m.h"))
    assert "sm_90, sm_80" in (tmp_path / "m.h").read_text()


# ---------------------------------------------------------------- compile time


def sorted_rows(x: torch.Tensor) -> torch.Tensor:
    return x.cummax(-1).values


def test_an_op_that_gpus_have_no_kernel_for_is_refused() -> None:
    program = export(sorted_rows, (torch.randn(3, 40),))
    package.compile_program(program, levels=("x86-64",))
    with pytest.raises(LowcError, match="aten.cummax.default exists only in ATen for sm_90a") as caught:
        package.compile_program(program, levels=("x86-64", "sm_90"))
    assert "test_gpu.py" in caught.value.where and "x.cummax(-1)" in caught.value.where


def test_targets() -> None:
    assert package.ordered(("sm_80", "x86-64", "sm_90a", "native", "sm_90")) == (("native", "x86-64"), ("sm_90", "sm_80"))
    for wrong in ("sm_60", "sm_x", "gfx90a"):
        with pytest.raises(LowcError, match="unknown"):
            package.ordered((wrong,))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "soft.py").write_text(
        "import torch\n\n\ndef soft(x):\n    return x.softmax(-1)\n\n\ndef inputs():\n    return torch.randn(8, 64)\n"
    )
    command = ["compile", f"{tmp_path / 'soft.py'}:soft", "-o", str(tmp_path / "s.lowc"), "--target", "sm_90"]
    assert main([*command, "--target", "sm_75", "--target", "x86-64-v3", "--emit", "ir,ptx,ll,asm"]) == 0
    shown = capsys.readouterr().out.split()
    assert shown.index("x86-64-v3") < shown.index("sm_90") < shown.index("sm_75")
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {
        "soft.py", "s.lowc", "s.sm_90.ptx", "s.sm_75.ptx", "s.sm_90.ll", "s.sm_75.ll", "s.sm_90.loops", "s.sm_75.loops",
        "s.x86-64-v3.loops", "s.x86-64-v3.ll", "s.x86-64-v3.s",
    }  # fmt: skip
    assert main([*command, "--emit", "asm"]) == 2 and "is for CPUs" in capsys.readouterr().err
    assert main([*command[:-2], "--cubin"]) == 2 and "--cubin is for GPUs" in capsys.readouterr().err
    assert [code.level for code in lowc.load(tmp_path / "s.lowc").manifest.code] == ["x86-64-v3", "sm_90", "sm_75"]


def test_code_that_is_for_gpus_says_how(mlp: package.Package) -> None:
    code = manifest.from_json(json.loads(json.dumps(manifest.to_json(mlp.manifest)))).code[1]
    assert code == mlp.manifest.code[1]


class Stem(torch.nn.Module):
    """What a convolution reads under a mask, in windows, a pooling made just before; a normalisation beside an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 16, 3, 1, 1), torch.nn.Conv2d(16, 16, 3, 1, 1)
        self.norm, self.third = torch.nn.BatchNorm2d(16), torch.nn.Conv2d(16, 16, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(self.first(x).relu(), 3, 2, 1)
        return self.third((self.norm(self.second(x)) + x).relu())


def test_convolutions_leave_work_for_all_threads() -> None:
    """No kernel with much to do has one thread, or one block."""
    model = Stem().eval()
    made = compiled(model, (torch.randn(4, 3, 112, 112),))
    launches = gpu_choice.gpu_of(made.manifest.code[0]).launches
    large = [each for each in launches if "rsqrt" not in each.kernel or "__" in each.kernel]
    threads = {each.kernel: value(each.grid, {}) * each.threads[0] * each.threads[1] for each in large}
    assert len(large) >= 5 and min(threads.values()) >= 4096, threads
    small = compiled(model, (torch.randn(1, 3, 12, 12),))
    x = torch.randn(1, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(load(small)[0](x), model(x), rtol=1e-4, atol=1e-5)


def test_a_convolution_in_channels_last_by_places() -> None:
    """Of many channels and taps on tensor cores, of one channel in a group as a map; neither by columns in memory."""
    first, second = torch.nn.Conv2d(16, 24, 3, 2, 1), torch.nn.Conv2d(24, 24, 3, padding=1, groups=24)
    layers = torch.nn.Sequential(first, torch.nn.ReLU(), second).eval().to(torch.bfloat16, memory_format=torch.channels_last)
    x = torch.randn(2, 16, 9, 10).bfloat16().to(memory_format=torch.channels_last)
    made = compiled(layers, (x,))
    model, driver = load(made)
    with torch.no_grad():
        torch.testing.assert_close(model(x), layers(x), rtol=2e-2, atol=2e-2)
    (places,) = [entry for entry in driver.log if entry[0] == "places"]
    assert places[3:] == ((16, 10, 9, 2), (32, 320, 2880), (64, 64), (-1, -1), (-2, -1), (2, 2))
    assert not any("column" in name for name in driver.kernels)
    code = manifest.from_json(json.loads(json.dumps(manifest.to_json(made.manifest)))).code
    assert code == made.manifest.code


def test_launches_of_the_same_addresses_are_prepared_once() -> None:
    linear = torch.nn.Linear(256, 512).bfloat16()
    model, driver = load(compiled(linear, (torch.randn(300, 256).bfloat16(),)))
    x = torch.randn(300, 256).bfloat16()
    places: dict[int, int] = {}
    fresh, gone = driver.allocate, driver.free

    def allocate(size: int, pool: int = 0, stream: int = 0) -> int:  # as a pool does: the same memory again
        return places.pop(size, 0) or fresh(size, pool, stream)

    def free(address: int, stream: int) -> None:
        places[driver.live[address][1]] = address

    driver.allocate, driver.free = allocate, free  # type: ignore[method-assign]
    results = [model(x) for _ in range(3)]
    assert len([entry for entry in driver.log if entry[0] == "map"]) == 3 and len(launches(driver)) == len(results)
    with torch.no_grad():
        for found in results:
            torch.testing.assert_close(found, linear(x), rtol=2e-2, atol=2e-2)
    for address in places.values():
        gone(address, 0)


def test_the_context_of_the_caller_is_left_as_it_is(mlp: package.Package) -> None:
    model, driver = load(mlp)
    x = np.ones((2, 19), np.float32)
    for before in (0, 0x7000, 0x1234):
        driver.context = before
        np.testing.assert_array_equal(model(OnFake(driver, x)).numpy(), model(x))
        assert driver.context == before


def test_code_for_later_gpus_too_takes_no_more_shared_memory_than_they_have() -> None:
    """PTX for 8.0, whose blocks may have 163 KB, runs on 8.6 as well; that for 9.0a on no other."""
    from lowc.package.for_gpu import target

    assert [target(name)[0].shared >> 10 for name in ("sm_80", "sm_86", "sm_90")] == [99, 99, 227]
