"""What becomes one kernel: counts of kernels, loops and temps after the pipeline, which renaming and reordering do not
disturb."""

import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from lowc import compiler, dynamo
from lowc.artifact import Artifact, Native
from lowc.ir.nodes import Extern, For, Kernel, Launch
from lowc.ir.walk import loads, statements, stores


def compiled(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., object], *args: torch.Tensor) -> list[Artifact]:
    """The artifacts of the graphs that ``fn`` on ``args`` makes; the results must be eager's."""
    made: list[Artifact] = []
    original = compiler.compile_artifact

    def keep(*a: object, **k: object) -> object:
        artifact, load = original(*a, **k)  # type: ignore[arg-type]
        made.append(artifact)
        return artifact, load

    monkeypatch.setattr(compiler, "compile_artifact", keep)
    torch._dynamo.reset()
    copies = [a.clone() for a in args]
    out = torch.compile(fn, backend=dynamo.lowc_backend, fullgraph=True, dynamic=False, options=STRICT)(*args)
    torch.testing.assert_close(out, fn(*copies), rtol=1e-4, atol=1e-5)
    return made


def kernels(artifact: Artifact) -> list[Kernel]:
    return [s.kernel for s in artifact.module.steps if isinstance(s, Launch)]


def externs(artifact: Artifact) -> list[str]:
    return [s.target for s in artifact.module.steps if isinstance(s, Extern)]


def residual_rms_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + r
    return h, h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def ten_ops(x: torch.Tensor) -> torch.Tensor:
    y = (x + 1).relu() * 2
    y = (y.tanh() - x).sigmoid() * x
    return y.exp().sqrt().abs() + 3


X = torch.randn(33, 65)
STRICT = {"strict_errors": True, "check": True}
ONE_KERNEL: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "softmax": (lambda x: F.softmax(x, -1), (X,)),
    "log_softmax": (lambda x: F.log_softmax(x * 2, -1), (X,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (65,), w, b), (X, torch.randn(65), torch.randn(65))),
    "rms_norm_and_residual": (residual_rms_norm, (X, torch.randn(33, 65), torch.randn(65))),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), (X, torch.arange(33))),
    "ten_pointwise_ops": (ten_ops, (X,)),
    "batch_norm_in_training": (lambda x: F.batch_norm(x, None, None, training=True), (torch.randn(4, 17, 6, 7),)),
    "masked_softmax": (lambda x, m: F.softmax(x.masked_fill(m, -1e9), -1), (X, X > 0.5)),
    "rotary": (
        lambda x, c, s: x * c + torch.cat([-x[..., 8:], x[..., :8]], -1) * s,
        (torch.randn(2, 3, 5, 16), torch.randn(5, 16), torch.randn(5, 16)),
    ),
    "transpose_and_add": (lambda x, z: x + z.t(), (torch.randn(70, 50), torch.randn(50, 70))),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fn, args = ONE_KERNEL[name]
    (artifact,) = compiled(monkeypatch, fn, *args)
    assert externs(artifact) == []
    assert len(kernels(artifact)) == 1


def test_softmax_reads_its_row_twice_and_computes_each_power_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (artifact,) = compiled(monkeypatch, lambda x: F.softmax(x, -1), X)
    (kernel,) = kernels(artifact)
    source = kernel.params[0]
    assert sum(load.buffer is source for load in loads(kernel.body)) == 2
    assert sum(s.buffer.space == "local" for s in stores(kernel.body)) == 1


def test_cross_entropy_stores_only_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    (artifact,) = compiled(monkeypatch, *ONE_KERNEL["cross_entropy"][:1], *ONE_KERNEL["cross_entropy"][1])
    (kernel,) = kernels(artifact)
    assert sum(s.buffer.space == "global" for s in stores(kernel.body)) == 1


def test_adam_over_24_tensors_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(7, 5), (3,), (65,), (2, 3, 4)] * 6

    def step(params: list[torch.Tensor], grads: list[torch.Tensor], m: list[torch.Tensor], v: list[torch.Tensor]) -> None:
        for p, g, a, b in zip(params, grads, m, v, strict=True):
            a.lerp_(g, 0.1)
            b.mul_(0.999).addcmul_(g, g, value=0.001)
            p.addcdiv_(a, b.sqrt().add_(1e-8), value=-1e-3)

    def tensors() -> list[list[torch.Tensor]]:
        torch.manual_seed(0)
        return [[torch.randn(s).abs() for s in shapes] for _ in range(4)]

    made: list[Artifact] = []
    original = compiler.compile_artifact

    def keep(*a: object, **k: object) -> object:
        artifact, load = original(*a, **k)  # type: ignore[arg-type]
        made.append(artifact)
        return artifact, load

    monkeypatch.setattr(compiler, "compile_artifact", keep)
    torch._dynamo.reset()
    got, wanted = tensors(), tensors()
    torch.compile(step, backend=dynamo.lowc_backend, fullgraph=True, dynamic=False, options=STRICT)(*got)
    step(*wanted)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    (artifact,) = made
    assert externs(artifact) == []
    assert len([s for s in artifact.program if isinstance(s, Native)]) == 1
    launches = [s for s in artifact.module.steps if isinstance(s, Launch)]
    assert len(launches) <= 24
    assert len({id(s.kernel) for s in launches}) <= 4, "launches of equal kernels share them"
    assert artifact.module.temps == ()


def test_large_loops_run_on_cores_and_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    (artifact,) = compiled(monkeypatch, lambda x: F.softmax(x, -1), torch.randn(512, 768))
    kinds = [s.kind.name for k in kernels(artifact) for s in statements(k.body) if isinstance(s, For)]
    assert kinds == ["parallel", "vector", "vector", "vector"]


def test_a_small_graph_stays_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    (artifact,) = compiled(monkeypatch, lambda x: x * 2 + 1, torch.randn(8, 16))
    kinds = [s.kind.name for k in kernels(artifact) for s in statements(k.body) if isinstance(s, For)]
    assert kinds == ["vector"]


def test_a_long_chain_is_cut_into_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for n in range(60):
            x = x * (1 + n / 100) + 0.25
        return x

    (artifact,) = compiled(monkeypatch, chain, torch.randn(40, 50))
    assert len(kernels(artifact)) <= 2


def tiles(artifact: Artifact) -> list[For]:
    return [s for s in statements(kernels(artifact)[0].body) if isinstance(s, For) and s.kind.key == "transpose"]


TRANSPOSED: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "matrix": (lambda x: x.t().contiguous(), (torch.randn(1000, 300),)),
    "matrix_plus_matrix": (lambda x, y: x + y.t() * 2, (torch.randn(333, 444), torch.randn(444, 333))),
    "batch": (lambda x: x.transpose(1, 2) * 2 + 1, (torch.randn(9, 70, 130),)),
    "channels_last": (lambda x: (x.permute(0, 2, 3, 1) * 2).contiguous(), (torch.randn(8, 40, 28, 28),)),
    "channels_first": (lambda x: (x.permute(0, 3, 1, 2) * 2).contiguous(), (torch.randn(8, 28, 28, 40),)),
    "narrow": (lambda x: x.t().contiguous() + 1, (torch.randn(500, 400).bfloat16(),)),
    "wide": (lambda x: x.t().contiguous() + 1, (torch.randn(500, 400, dtype=torch.float64),)),
    "bytes": (lambda x: x.t().contiguous() + 1, (torch.arange(200_000).reshape(500, 400).to(torch.int8),)),
    "costly": (lambda x: x.t().contiguous().exp().sin(), (torch.randn(300, 400),)),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_transpose_goes_in_tiles_on_all_cores(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fn, args = TRANSPOSED[name]
    (artifact,) = compiled(monkeypatch, lambda *a: torch.as_tensor(fn(*a)).contiguous(), *args)
    (kernel,) = kernels(artifact)
    assert len(tiles(artifact)) == 1
    parallel = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "parallel"]
    assert len(parallel) == (1 if (os.cpu_count() or 1) > 1 else 0)


def test_rows_and_columns_are_walked_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many rows as columns: loops over pairs of rows are as many as columns, but share nothing with them."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x - x.mean(-1, keepdim=True), x.sum(0)

    (artifact,) = compiled(monkeypatch, f, torch.randn(512, 256))
    for kernel in kernels(artifact):
        for loop in (s for s in kernel.body if isinstance(s, For)):
            written = {s.buffer.name for s in stores([loop]) if s.buffer.space == "global"}
            assert not {"sub", "sum"} <= written and not {"sub", "sum_1"} <= written, written
