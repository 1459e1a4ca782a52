"""The kernels of this folder on a GPU, against the interpreter.

Also a program: ``python tests/backends/nvptx/test_on_device.py [NAME…]`` prints a line for each kernel.
Needs cuda.bindings, llvmlite and numpy; PTX goes to the driver's own compiler.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from lowc.artifact import Entry  # noqa: E402
from lowc.ir.index import evaluate  # noqa: E402
from lowc.ir.nodes import Kernel  # noqa: E402
from lowc.ir.parser import parse_kernel  # noqa: E402
from lowc.options import Options  # noqa: E402
from lowc.target import Target  # noqa: E402
from tests.backends.nvptx.harness import check, kernel_of, module_of  # noqa: E402
from tests.backends.nvptx.kernels import CASES  # noqa: E402

pytestmark = pytest.mark.gpu
GUARD = 1024  # bytes before and after each buffer
STEP = 5
LOG = 8192


def done(cuda: Any, answer: tuple[Any, ...], what: str) -> Any:
    """The results of a driver call; RuntimeError if it failed."""
    code, *rest = answer
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{what}: {code}")
    return rest[0] if len(rest) == 1 else rest


class Device:
    """The first GPU, its primary context current."""

    def __init__(self) -> None:
        from cuda.bindings import driver as cuda

        from lowc.backends import nvptx

        self.cuda = cuda
        self.ok("cuInit", 0)
        self.device = self.ok("cuDeviceGet", 0)
        context = self.ok("cuDevicePrimaryCtxRetain", self.device)
        self.ok("cuCtxSetCurrent", context)
        attribute = cuda.CUdevice_attribute
        of = (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
        major, minor = (self.ok("cuDeviceGetAttribute", a, self.device) for a in of)
        sms, l2 = (
            self.ok("cuDeviceGetAttribute", a, self.device)
            for a in (
                attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
            )
        )
        version = self.ok("cuDriverGetVersion")
        self.target: Target = nvptx.target((major, minor), sms, version, l2)
        self.error = self.ok("cuMemHostAlloc", 8, cuda.CU_MEMHOSTALLOC_DEVICEMAP)
        self.error_device = self.ok("cuMemHostGetDevicePointer", self.error, 0)

    def ok(self, function: str, *args: Any) -> Any:
        return done(self.cuda, getattr(self.cuda, function)(*args), function)

    def load(self, ptx: bytes) -> Any:
        """A module; RuntimeError with the log of the driver's compiler, if it can be had."""
        cuda = self.cuda
        image = ptx + b"\0"
        code, module = cuda.cuModuleLoadData(image)
        if code == cuda.CUresult.CUDA_SUCCESS:
            return module
        log = bytearray(LOG)
        option = cuda.CUjit_option
        options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        try:
            cuda.cuModuleLoadDataEx(image, len(options), options, [log, LOG])
        except Exception as error:
            log += repr(error).encode()
        raise RuntimeError(f"cuModuleLoadData: {code}\n{log.replace(bytes(1), b'').decode(errors='replace')}")

    @contextmanager
    def memory(self, size: int) -> Iterator[int]:
        pointer = self.ok("cuMemAlloc", size)
        try:
            yield int(pointer)
        finally:
            self.ok("cuMemFree", pointer)

    def error_word(self) -> np.ndarray[Any, Any]:
        import ctypes

        return np.frombuffer((ctypes.c_int64 * 1).from_address(int(self.error)), np.int64)


class Loaded:
    """A kernel on the device; call it with memory and sizes."""

    def __init__(self, device: Device, kernel: Kernel) -> None:
        from lowc.backends import nvptx

        self.device, self.kernel = device, kernel
        artifact = nvptx.compile_module(module_of(kernel), device.target, Options())
        self.entry: Entry = artifact.entries[kernel.name]
        self.module = device.load(artifact.code)
        self.function = device.ok("cuModuleGetFunction", self.module, self.entry.symbol.encode())
        if self.entry.shared:
            attribute = device.cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device.ok("cuFuncSetAttribute", self.function, attribute, self.entry.shared)

    def close(self) -> None:
        self.device.ok("cuModuleUnload", self.module)

    def __call__(self, memory: dict[str, Any], sizes: Mapping[str, int]) -> int:
        import ctypes
        from contextlib import ExitStack

        device = self.device
        with ExitStack() as stack:
            places: list[tuple[str, int, int, Any]] = []
            for number, param in enumerate(self.kernel.params):
                data = memory[param.name]
                # as a view of the user's may lie: aligned to an element only, where the kernel does not ask for more
                start = GUARD + (0 if number in self.entry.aligned else data.itemsize)
                host = np.full(start + data.nbytes + GUARD, 0xA5, np.uint8)
                host[start : start + data.nbytes] = data.view(np.uint8)
                base = stack.enter_context(device.memory(host.nbytes))
                device.ok("cuMemcpyHtoD", base, host.ctypes.data, host.nbytes)
                places.append((param.name, base, start, host))
            word = device.error_word()
            word[0] = 0
            values = [base + start for _, base, start, _ in places]
            values += [sizes[s.name] for s in self.kernel.sizes] + [int(device.error_device), STEP]
            grid = int(evaluate(self.entry.grid, sizes))
            params = (tuple(values), (ctypes.c_int64,) * len(values))
            x, y = self.entry.threads
            device.ok("cuLaunchKernel", self.function, grid, 1, 1, x, y, 1, self.entry.shared, 0, params, 0)
            device.ok("cuCtxSynchronize")
            for name, base, start, host in places:
                before = host.copy()
                device.ok("cuMemcpyDtoH", host.ctypes.data, base, host.nbytes)
                end = start + memory[name].nbytes
                assert (host[:start] == before[:start]).all() and (host[end:] == before[end:]).all(), (
                    f"{name} was overrun"
                )
                memory[name].view(np.uint8)[...] = host[start:end]
            return int(word[0])


@pytest.fixture(scope="module")
def device() -> Device:
    pytest.importorskip("llvmlite")
    pytest.importorskip("cuda.bindings")
    return Device()


def problems(device: Device, name: str, seeds: range = range(2)) -> list[str]:
    """What is wrong with a kernel on the device."""
    kernel = kernel_of(CASES[name], device.target)
    loaded = Loaded(device, kernel)
    try:
        return [p for seed in seeds for p in check(CASES[name], kernel, loaded, seed)]
    finally:
        loaded.close()


@pytest.mark.parametrize("name", CASES)
def test_on_device(device: Device, name: str) -> None:
    assert problems(device, name) == []


def test_repeatable(device: Device) -> None:
    """Sums come out the same, bit for bit, each time."""
    for name in (
        "softmax", "layernorm", "clamped_rows", "column_sum", "narrow_columns", "loop_of_rows",
        "scan_rows", "scan_tail", "scan_warps",
    ):  # fmt: skip
        kernel = parse_kernel(CASES[name].text)
        loaded = Loaded(device, kernel)
        rng = np.random.default_rng(7)
        from tests.backends.nvptx.harness import sample

        first = {
            p.name: sample(rng, p.dtype, int(evaluate(p.shape[0], {})), CASES[name]) for p in kernel.params
        }
        outcomes: list[dict[str, Any]] = []
        for _ in range(5):
            memory = {n: d.copy() for n, d in first.items()}
            assert loaded(memory, {}) == 0
            outcomes.append(memory)
        for outcome in outcomes[1:]:
            assert all((outcome[n].view(np.uint8) == outcomes[0][n].view(np.uint8)).all() for n in outcome), (
                name
            )
        loaded.close()


def test_failed_check(device: Device) -> None:
    text = """kernel k(at: i64[4], y: f32[4]) {
  for t in 4 thread(4) {
    i: i64 = check_index(at[t], 4, true)
    y[i] = 1.0
  }
}"""
    kernel = parse_kernel(text)
    loaded = Loaded(device, kernel)
    memory = {"at": np.array([0, 9, 2, 3]), "y": np.zeros(4, np.float32)}
    assert loaded(memory, {}) == 1 + 16 * STEP
    assert memory["y"].tolist() == [1.0, 0.0, 1.0, 1.0]
    loaded.close()


def alive(device: Device) -> bool:
    try:
        device.ok("cuCtxSynchronize")
    except RuntimeError:
        return False
    return True


def main() -> int:
    """A line for each kernel; the number of those that failed."""
    device = Device()
    print(f"{device.target.cpu} {device.target.features}, {device.target.cores} multiprocessors")
    names = sys.argv[1:] or list(CASES)
    failed = 0
    for number, name in enumerate(names):
        start = perf_counter()
        try:
            found = problems(device, name)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        failed += bool(found)
        print(f"{'FAIL' if found else 'pass'} {name} ({1e3 * (perf_counter() - start):.0f} ms)", flush=True)
        for line in found:
            print(f"     {line}")
        if any("CUDA_ERROR" in line for line in found) and not alive(device):
            print("the context is lost; the rest runs in a new process", flush=True)
            rest = names[number + 1 :]
            return failed + (subprocess.call([sys.executable, __file__, *rest]) if rest else 0)
    for test in (test_repeatable, test_failed_check):
        try:
            test(device)
            print(f"pass {test.__name__}")
        except Exception as error:
            failed += 1
            print(f"FAIL {test.__name__}: {type(error).__name__}: {error}")
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(100, main()))
