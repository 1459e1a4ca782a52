"""The C interface: shared libraries made of artifacts, called from C and through ctypes."""

import re
import shutil
import subprocess
from pathlib import Path

import alone
import models
import numpy as np
import pytest
import torch
from capi import Library, tensors

from lowc import package
from lowc.backends.x86.entry import MESSAGES
from lowc.cli import main
from lowc.errors import CodegenError, LowcError, OptionError
from lowc.frontend.exported import export
from lowc.standalone import shared
from lowc.standalone.library import write_library

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture(scope="module")
def library(mlp_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    path = tmp_path_factory.mktemp("library") / "libmlp.so"
    assert main(["link", str(mlp_file), "-o", str(path), "--header", str(path.with_name("mlp.h")), "--prefix", "mlp"]) == 0
    return Library(path, "mlp")


def good(batch: int) -> np.ndarray:
    return np.arange(batch * 19, dtype=np.float32).reshape(batch, 19) / 50


def test_the_same_bits_as_from_python(library: Library, mlp_package: package.Package) -> None:
    model = mlp_package.load()
    for batch in (0, 1, 5, 64):
        x, y = good(batch), np.full((batch, 7), np.nan, np.float32)
        sizes = np.zeros(2, np.int64)
        pointers = np.array([sizes.ctypes.data], np.uint64)
        assert library.functions["sizes"](*tensors(x), pointers.ctypes.data) == 0
        assert tuple(sizes) == (batch, 7)
        assert library.run(tensors(x, strided=True), tensors(y)) == 0
        np.testing.assert_array_equal(y, model(x))


def test_a_workspace_of_the_callers(library: Library, mlp_package: package.Package) -> None:
    x, y = good(5), np.zeros((5, 7), np.float32)
    needed = library.functions["workspace"](*tensors(x))
    assert needed > 0
    memory = np.empty(needed + 128, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % 64
    assert library.run(tensors(x), tensors(y), start, needed) == 0
    np.testing.assert_array_equal(y, mlp_package.load()(x))
    assert library.run(tensors(x), tensors(y), start, needed - 1) == -8
    assert library.run(tensors(x), tensors(y), start + 8, needed) == -8


def test_refused(library: Library) -> None:
    x, y = good(5), np.zeros((5, 7), np.float32)
    nowhere = tensors(x)
    nowhere[0][0].data = None
    sizeless = tensors(x)
    sizeless[0][0].sizes = None
    for inputs, outputs, code in [
        (tensors(), tensors(y), -1),
        (tensors(x, x), tensors(y), -1),
        (tensors(x), tensors(), -2),
        (nowhere, tensors(y), -3),
        (sizeless, tensors(y), -3),
        (tensors(x.astype(np.float64)), tensors(y), -4),
        (tensors(x[0]), tensors(y), -5),
        (tensors(good(65)), tensors(y), -6),
        (tensors(x[:, :18].copy()), tensors(y), -6),
        (tensors(np.asfortranarray(x), strided=True), tensors(y), -7),
        (tensors(x), tensors(y.astype(np.float64)), -4 - 256),
        (tensors(x), tensors(y[:4]), -6 - 256),
        (tensors(x), tensors(np.asfortranarray(y), strided=True), -7 - 256),
    ]:
        assert library.run(inputs, outputs) == code
        assert library.message(code) == MESSAGES[-(-code % 256)]
    assert not y.any()
    assert library.message(0) == "no error" and library.message(99) == "unknown code"
    assert library.functions["workspace"](*tensors(x[0])) == -5
    assert library.run(tensors(x), tensors(y)) == 0 and y.any()


PROGRAM = """
#include "net.h"
#include <stdio.h>
#include <stdlib.h>

/* sizes, then the data of the input, from a file; the output to another */
int main(int argc, char **argv) {
  FILE *file = fopen(argv[1], "rb");
  int64_t rank, sizes[8], out_sizes[8], count = 1;
  int64_t *all_sizes[] = {out_sizes};
  if (argc != 3 || !file || fread(&rank, 8, 1, file) != 1 || fread(sizes, 8, rank, file) != (size_t)rank) return 10;
  for (int64_t i = 0; i < rank; i++) count *= sizes[i];
  void *data = malloc(count * WIDTH);
  if (fread(data, WIDTH, count, file) != (size_t)count) return 11;
  lowc_tensor input = {data, sizes, NULL, (int32_t)rank, DTYPE};
  int64_t code = net_sizes(&input, NET_INPUTS, all_sizes);
  if (code) { puts(net_message(code)); return 12; }
  count = 1;
  for (int i = 0; i < OUT_RANK; i++) count *= out_sizes[i];
  float *result = malloc(count * sizeof(float));
  lowc_tensor output = {result, out_sizes, NULL, OUT_RANK, LOWC_F32};
  code = net_run(&input, NET_INPUTS, &output, NET_OUTPUTS, NULL, 0);
  if (code) { puts(net_message(code)); return 13; }
  FILE *out = fopen(argv[2], "wb");
  return fwrite(result, sizeof(float), count, out) == (size_t)count && !fclose(out) ? 0 : 14;
}
"""


@pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc, gcc, clang) on the PATH")
@pytest.mark.parametrize("name", ["mlp", "resnet", "gpt"])
def test_a_c_program(name: str, tmp_path: Path) -> None:
    assert COMPILER is not None
    model, example = getattr(models, name)()
    dynamic = ({1: torch.export.Dim("time", max=31)},) if name == "gpt" else None
    package.compile_program(export(model, example, dynamic=dynamic)).save(tmp_path / "m.lowc")
    write_library(tmp_path / "m.lowc", tmp_path / "libnet.so", prefix="net", header_path=str(tmp_path / "net.h"))
    rank = 3 if name == "gpt" else 2
    width, dtype = (8, "LOWC_I64") if name == "gpt" else (4, "LOWC_F32")
    (tmp_path / "program.c").write_text(PROGRAM)
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-DWIDTH={width}", f"-DDTYPE={dtype}", f"-DOUT_RANK={rank}"]
    command = [COMPILER, *flags, "program.c", "-o", "program", "-L.", "-lnet", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(command, cwd=tmp_path, check=True)
    shapes = [tuple(example[0].shape)] + ([(2, 1), (2, 31)] if name == "gpt" else [])
    for shape in shapes:
        x = example[0] if shape == tuple(example[0].shape) else models.zoo.tokens(*shape, below=97)
        head = np.array([len(shape), *shape], np.int64).tobytes()
        (tmp_path / "in").write_bytes(head + x.numpy().tobytes())
        subprocess.run([str(tmp_path / "program"), "in", "out"], cwd=tmp_path, check=True, env={})
        with torch.no_grad():
            wanted = model(x)
        found = torch.from_numpy(np.fromfile(tmp_path / "out", np.float32)).reshape(wanted.shape)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)


BARE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.lowc_run.restype = ctypes.c_int64
class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("rank", ctypes.c_int32), ("dtype", ctypes.c_int32)]
def tensor(data, *sizes):
    sizes = (ctypes.c_int64 * len(sizes))(*sizes)
    kept.append(sizes)
    return Tensor(ctypes.addressof(data), ctypes.addressof(sizes), None, len(sizes), 11)
kept = []
x, y = (ctypes.c_float * (5 * 19))(*range(5 * 19)), (ctypes.c_float * (5 * 7))()
print(library.lowc_run(ctypes.byref(tensor(x, 5, 19)), 1, ctypes.byref(tensor(y, 5, 7)), 1, None, 0))
print(*y)
assert "numpy" not in sys.modules
"""


def test_ctypes_without_numpy(mlp_file: Path, mlp_package: package.Package, tmp_path: Path) -> None:
    write_library(mlp_file, tmp_path / "lib.so")
    done = alone.python(tmp_path, "-c", BARE, str(tmp_path / "lib.so"))
    code, values = done.stdout.splitlines()
    assert code == "0"
    found = np.array(values.split(), np.float32).reshape(5, 7)
    np.testing.assert_allclose(found, mlp_package.load()(np.arange(95, dtype=np.float32).reshape(5, 19)), rtol=1e-6)


def test_symbols(mlp_file: Path, tmp_path: Path) -> None:
    write_library(mlp_file, tmp_path / "lib.so")
    if shutil.which("nm") is None:
        pytest.skip("no nm on the PATH")
    shown = subprocess.run(["nm", "-D", "lib.so"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    defined = re.findall(r"^\w+ T (\w+)$", shown, re.MULTILINE)
    outside = re.findall(r"^\s+U (\w+)$", shown, re.MULTILINE)
    assert sorted(defined) == ["lowc_message", "lowc_run", "lowc_sizes", "lowc_workspace"]
    assert "posix_memalign" in outside and not [name for name in outside if name.startswith("_Z") or "torch" in name.lower()]
    content = (tmp_path / "lib.so").read_bytes()
    assert b"libtorch" not in content and b"libstdc++" not in content


def test_errors(mlp_file: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot begin the names"):
        write_library(mlp_file, tmp_path / "lib.so", prefix="2mlp")
    with pytest.raises(LowcError, match="No such file"):
        write_library(mlp_file, tmp_path / "none" / "lib.so")
    with pytest.raises(LowcError, match="No such file"):
        write_library(mlp_file, tmp_path / "lib.so", header_path=str(tmp_path / "none" / "lib.h"))
    assert not list(tmp_path.iterdir())  # no library without its header
    with pytest.raises(CodegenError, match="no object file"):
        shared.link([shared.Input(b"nothing", {})], (), "lib.so")
    assert not list(tmp_path.iterdir())


def rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table[index]


def test_checks_of_the_model(tmp_path: Path) -> None:
    package.compile_program(export(rows, (torch.randn(4, 3), torch.tensor([0, 3])))).save(tmp_path / "m.lowc")
    write_library(tmp_path / "m.lowc", tmp_path / "lib.so")
    library, table, out = Library(tmp_path / "lib.so"), good(4)[:, :3].copy(), np.zeros((2, 3), np.float32)
    assert library.run(tensors(table, np.array([3, 1])), tensors(out)) == 0
    np.testing.assert_array_equal(out, table[[3, 1]])
    assert library.run(tensors(table, np.array([3, 4])), tensors(out)) == 1
    assert library.message(1) == "index out of range"


def large(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1)


TOGETHER = """
callers = [threading.Thread(target=lambda: [call() for _ in range(50)]) for _ in range(4)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
child = os.fork()
if not child:
    call()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""

TASKS = """
def tasks():  # a thread that was joined may be there for a moment
    for _ in range(500):
        if (count := len(os.listdir("/proc/self/task"))) <= int(os.environ["OMP_NUM_THREADS"]):
            break
        time.sleep(0.01)
    return count
"""

THREADS = (
    """
import ctypes, os, sys, threading, time
import numpy as np
sys.path.insert(0, sys.argv[2])
from capi import Library, tensors
library = Library(sys.argv[1])
x, w = np.load("in.npz").values()
wanted = np.load("out.npy")

def call():
    y = np.zeros((x.shape[0], w.shape[1]), np.float32)
    assert library.run(tensors(x, w), tensors(y)) == 0
    assert np.array_equal(y, wanted)

for _ in range(50):
    call()
"""
    + TASKS
    + """
print(tasks())
"""
    + TOGETHER
    + """call()
"""
)


PYTHON = (
    """
import os, threading, time
import numpy as np
import lowc
model = lowc.load("m.lowc")
inputs = list(np.load("in.npz").values())
wanted = np.load("out.npy")

def call():
    assert np.array_equal(model(*inputs), wanted)

call()
"""
    + TASKS
    + """
print(tasks())
"""
    + TOGETHER
    + """again = lowc.load("m.lowc")
call()
assert "gomp" not in open("/proc/self/maps").read()
print(tasks())
"""
)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_the_pool_of_threads(threads: str, tmp_path: Path) -> None:
    """The same bits on any number of threads, from several callers at once, and after a fork."""
    torch.manual_seed(0)
    inputs = torch.randn(193, 64), torch.randn(64, 512)
    made = package.compile_program(export(large, inputs), levels=("x86-64",))
    made.save(tmp_path / "m.lowc")
    write_library(tmp_path / "m.lowc", tmp_path / "lib.so")
    np.savez(tmp_path / "in.npz", *(x.numpy() for x in inputs))
    np.save(tmp_path / "out.npy", made.load()(*inputs).numpy())
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "out.npy")), large(*inputs))
    here = str(Path(__file__).parent)
    count = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
    done = alone.python(tmp_path, "-c", THREADS, str(tmp_path / "lib.so"), here, **count)
    assert int(done.stdout) == int(threads)
    done = alone.python(tmp_path, "-c", PYTHON, **count)
    assert done.stdout.split() == [threads, threads]
