"""Artifacts on a GPU: the same values as eager's in f64, arrays of all kinds, streams, and a process without torch.

python -m pytest -m gpu tests/standalone/test_on_gpu.py
"""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import alone
import models
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lowc
from lowc import package
from lowc.errors import LowcError
from lowc.frontend.exported import export
from lowc.standalone.gpu import GpuModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]
DEVICE = "cuda:0"


def level() -> str:
    major, minor = torch.cuda.get_device_capability(0)
    return f"sm_{major}{minor}"


def compiled(fn: Any, inputs: tuple[Any, ...], dynamic: Any = None, **options: Any) -> package.Package:
    return package.compile_program(export(fn, inputs, dynamic=dynamic), levels=(level(),), **options)


def on_gpu(made: package.Package) -> GpuModel:
    model = made.load(device=DEVICE)
    assert isinstance(model, GpuModel)
    return model


def wide(fn: Any, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What ``fn`` gives in f64."""
    if isinstance(fn, nn.Module):
        dtype = next((p.dtype for p in fn.parameters()), torch.float32)
        fn = fn.double()
    else:
        dtype = torch.float32
    with torch.no_grad():
        found = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
    if isinstance(fn, nn.Module):
        fn.to(dtype)
    return found


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def bf16_linear() -> tuple[nn.Module, tuple[Any, ...]]:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 192))
    return model.bfloat16().eval(), (torch.randn(300, 256).bfloat16(),)


def rows(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(shape).to(dtype) for _ in range(3))


MODELS: dict[str, tuple[Any, float]] = {
    "mlp": (models.mlp, 2e-5),
    "resnet": (models.resnet, 2e-5),
    "gpt": (models.gpt, 2e-5),
    "attention": (lambda: (Attention(), rows((2, 4, 65, 32))), 2e-5),
    "attention_bf16": (lambda: (Attention(), rows((2, 4, 128, 64), torch.bfloat16)), 3e-2),
    "bf16_linear": (bf16_linear, 3e-2),
    "conv": (lambda: (nn.Conv2d(6, 12, 3, 2, 1, groups=2).eval(), (torch.randn(2, 6, 19, 23),)), 2e-5),
    "conv1d": (lambda: (nn.Conv1d(6, 12, 4, 3, 2, 2).eval(), (torch.randn(2, 6, 23),)), 2e-5),
    "conv3d": (lambda: (nn.Conv3d(4, 6, (2, 3, 1), padding=1).eval(), (torch.randn(1, 4, 5, 6, 4),)), 2e-5),
    "transposed": (lambda: (nn.ConvTranspose2d(6, 12, 3, 2, 1).eval(), (torch.randn(2, 6, 9, 7),)), 2e-5),
    "pools": (lambda: (nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)),
                       (torch.randn(2, 3, 37, 36),)), 2e-5),
    "encoder": (lambda: (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(), (torch.randn(2, 37, 64),)), 5e-5),
    "softmax": (lambda: (lambda x: x.softmax(-1), (torch.randn(33, 5000),)), 2e-5),
    "sums": (lambda: (lambda x: x.sum() + x.sum(0) + x.amax(1).mean(), (torch.randn(700, 900),)), 1e-3),
    "cumsum": (lambda: (lambda x: x.cumsum(-1), (torch.randn(9, 3000),)), 1e-3),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_values(name: str) -> None:
    torch.manual_seed(0)
    make, tolerance = MODELS[name]
    fn, inputs = make()
    made = compiled(fn, inputs)
    model = on_gpu(made)
    wanted = wide(fn, inputs)
    found = model(*inputs)  # from the host
    assert not found.is_cuda
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)
    there = model(*(x.cuda() for x in inputs))
    assert there.is_cuda and torch.equal(there.cpu(), found)
    model.synchronize()


def test_sizes_that_differ() -> None:
    fn, inputs = models.mlp()
    model = on_gpu(compiled(fn, inputs, dynamic=({0: torch.export.Dim("batch", max=5000)},)))
    for count in (0, 1, 2, 77, 5000):
        x = torch.randn(count, 19)
        with torch.no_grad():
            torch.testing.assert_close(model(x), fn(x), rtol=2e-5, atol=2e-5)
            torch.testing.assert_close(model(x.cuda()).cpu(), fn(x), rtol=2e-5, atol=2e-5)


def test_a_product_by_tensor_maps_in_sizes_that_differ() -> None:
    fn, inputs = bf16_linear()
    model = on_gpu(compiled(fn, inputs, dynamic=({0: torch.export.Dim("batch", min=2, max=5000)},)))
    for count in (2, 129, 1000):
        x = torch.randn(count, 256).bfloat16()
        torch.testing.assert_close(model(x).double(), wide(fn, (x,)), rtol=3e-2, atol=3e-2)


def test_streams_of_the_callers() -> None:
    """Work on a stream of torch's waits for what is before it there, and what follows there waits for it."""
    fn, inputs = models.mlp()
    model = on_gpu(compiled(fn, inputs, dynamic=({0: torch.export.Dim("batch", max=5000)},)))
    x = torch.randn(5000, 19)
    with torch.no_grad():
        wanted = fn(x)
    for _ in range(20):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(2_000_000)
            y = x.cuda(non_blocking=True) * 1
            found = model(y)
            y.fill_(float("nan"))
            del y
            result = found.clone()
        torch.cuda.current_stream().synchronize()
        torch.cuda.synchronize()
        torch.testing.assert_close(result.cpu(), wanted, rtol=2e-5, atol=2e-5)


def test_a_call_in_a_cuda_graph() -> None:
    fn, inputs = models.mlp()
    model = on_gpu(compiled(fn, inputs))
    x = torch.randn(5, 19, device=DEVICE)
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    x.copy_(torch.ones(5, 19))
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(y.cpu(), fn(torch.ones(5, 19)), rtol=2e-5, atol=2e-5)


class Interface:
    """A tensor of torch's that shows its ``__cuda_array_interface__`` alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


class Capsule:
    """A tensor of torch's that speaks DLPack alone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("kind", [Interface, Capsule])
def test_arrays_of_others(kind: Any) -> None:
    fn, inputs = models.mlp()
    model = on_gpu(compiled(fn, inputs))
    with torch.no_grad():
        wanted = fn(*inputs)
    found = model(kind(inputs[0].cuda()))
    torch.testing.assert_close(torch.from_numpy(found.numpy()), wanted, rtol=2e-5, atol=2e-5)
    for taken in (torch.as_tensor(found, device=DEVICE), torch.from_dlpack(found)):
        assert taken.is_cuda and taken.data_ptr() == found.address
        torch.testing.assert_close(taken.cpu(), wanted, rtol=2e-5, atol=2e-5)


def test_misaligned_and_mixed_arguments() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).softmax(-1) + y

    inputs = (torch.randn(16, 512), torch.randn(16, 512))
    model = on_gpu(compiled(fn, inputs))
    there = torch.empty(16 * 512 + 1, device=DEVICE)[1:].view(16, 512).copy_(inputs[0])
    assert there.data_ptr() % 16
    for given in ((there, inputs[1].cuda()), (there, inputs[1]), (inputs[0].numpy(), inputs[1].cuda())):
        found = model(*given)
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), fn(*inputs), rtol=2e-5, atol=2e-5)


def test_failed_checks() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] + 1

    inputs = (torch.randn(10, 4), torch.tensor([1, 2, 3]))
    model = on_gpu(compiled(fn, inputs))
    with pytest.raises(IndexError, match="out of range.*test_on_gpu.py"):
        model(inputs[0], torch.tensor([1, 99, 3]))
    torch.testing.assert_close(model(*inputs), fn(*inputs))
    model(inputs[0].cuda(), torch.tensor([1, 99, 3], device=DEVICE))
    with pytest.raises(IndexError, match="reported late"):
        model.synchronize()
    model.synchronize()


def test_cubin_and_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from lowc.backends.nvptx import assembler

    fn, inputs = models.mlp()
    dynamic = ({0: torch.export.Dim("batch", max=5000)},)
    model = on_gpu(compiled(fn, inputs, dynamic, cubin=bool(assembler.find("ptxas"))))
    xs = [torch.randn(n, 19) for n in (1, 50, 700, 5000)] * 8
    with torch.no_grad():
        wanted = [fn(x) for x in xs]
    with ThreadPoolExecutor(8) as pool:
        for found, want in zip(pool.map(model, xs), wanted, strict=True):
            torch.testing.assert_close(found, want, rtol=2e-5, atol=2e-5)


def test_refused() -> None:
    fn, inputs = models.mlp()
    made = compiled(fn, inputs)
    count = torch.cuda.device_count()
    with pytest.raises(LowcError, match=f"there is no cuda:{count}"):
        made.load(device=f"cuda:{count}")
    other = "sm_80" if level() == "sm_120" else "sm_120"
    if level() < other:
        with pytest.raises(LowcError, match=f"its code is for {other}"):
            package.compile_program(export(fn, inputs), levels=(other,)).load(device=DEVICE)
    model = on_gpu(made)
    with pytest.raises(LowcError, match="has dtype torch.float64"):
        model(inputs[0].double().cuda())


RUN = """
import sys, time
import numpy as np
import lowc
begin = time.perf_counter()
model = lowc.load(sys.argv[1], device="cuda:0")
print("load", time.perf_counter() - begin)
given = np.load("in.npz")["input"]
found = model(given)
for _ in range(20):
    begin = time.perf_counter(); model(given); last = time.perf_counter() - begin
print("call", last)
assert not {"torch", "llvmlite"} & {name.split(".")[0] for name in sys.modules}
np.save("out.npy", found)
"""


def test_without_torch(tmp_path: Path) -> None:
    fn, inputs = models.mlp()
    compiled(fn, inputs).save(tmp_path / "mlp.lowc")
    np.savez(tmp_path / "in.npz", input=inputs[0].numpy())
    import cuda.bindings

    folder = Path(cuda.bindings.__file__).resolve().parent.parent
    environment = alone.environment(tmp_path)
    (tmp_path / "packages" / "cuda").symlink_to(folder)
    for command in (
        [sys.executable, "-S", "-s", "-c", RUN, "mlp.lowc"],
        [sys.executable, "-S", "-s", "-m", "lowc", "run", "mlp.lowc", "-i", "in.npz", "-o", "out.npz", "--device", "cuda:0"],
    ):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        print(done.stdout)
    with torch.no_grad():
        wanted = fn(*inputs).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["output"], wanted, rtol=2e-5, atol=2e-5)
    assert lowc.load(tmp_path / "mlp.lowc", device=DEVICE).level == level()


def test_random_numbers_and_floats() -> None:
    def fn(x: torch.Tensor, scale: float) -> Any:
        return F.dropout(x, 0.25, True) * scale, torch.randn(x.shape[0], 30), torch.randint(3, 9, (50,))

    x = torch.ones(40, 50)
    program = export(fn, (x, 0.5), dynamic=(None, torch.export.Dim.DYNAMIC))
    made = package.compile_program(program, levels=("x86-64", level()))
    here, model = made.load(), on_gpu(made)
    for given in (x, x.cuda()):
        for a, b in zip(model(given, 1.5, seed=7), here(x, 1.5, seed=7), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)
    assert not torch.equal(model(x, 1.5)[1], model(x, 1.5)[1])


def test_a_captured_graph_outlives_the_model() -> None:
    """Its weights stay."""
    module, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)), torch.randn(5, 64)
    model, given = on_gpu(compiled(module, (x,))), x.to(DEVICE)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = model(given)
    del model
    gc.collect()
    given.copy_(other := torch.randn(5, 64))
    others = [torch.zeros(1 << 20, device=DEVICE) for _ in range(4)]
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out.cpu().double(), wide(module, (other,)), rtol=1e-5, atol=1e-5)
    assert len(others) == 4
