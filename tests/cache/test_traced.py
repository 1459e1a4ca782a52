"""What AOTAutograd traced in another process is used only where it would trace the same again; and then it traces nothing."""

import copy
import gc
import importlib
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

from lowc import machine, traces
from lowc.cache import entry, sources
from lowc.frontend import aot, aten_graphs, kept
from lowc.frontend.ambient import text_of_settings, text_of_thread
from tests.cache import graphs

Make = Callable[[], Callable[..., Any]]
CACHES: Any = torch.compiler.config
dynamo: Any = importlib.import_module("torch._dynamo.config")
functorch: Any = importlib.import_module("torch._functorch.config")
inductor: Any = importlib.import_module("torch._inductor.config")
symbolic: Any = importlib.import_module("torch.fx.experimental._config")
BACKENDS: Any = torch.backends


@pytest.fixture(autouse=True)
def tracings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the graphs that AOTAutograd has made."""
    found: list[str] = []
    real = aten_graphs.compile_fx_graph

    def counted(gm: Any, name: str, *rest: Any, **named: Any) -> Any:
        found.append(name)
        return real(gm, name, *rest, **named)

    monkeypatch.setattr(aten_graphs, "compile_fx_graph", counted)
    yield found


def run(make: Make, args: tuple[Any, ...], path: Path, dynamic: bool | None = False, **options: Any) -> list[Any]:
    """As a new process would: results, gradients and what has become of the inputs."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    fn = make()
    options = {"cache": True, "cache_dir": str(path), **options}
    return outcome(torch.compile(fn, backend="lowc", options=options, dynamic=dynamic), fn, args)


def outcome(call: Callable[..., Any], fn: Any, args: tuple[Any, ...]) -> list[Any]:
    given = copy.deepcopy(args)  # as they lie, and with what they share
    torch.manual_seed(5)
    out = call(*given)
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if isinstance(o, Tensor)]
    found = [o.detach().clone() for o in outs]
    if any(o.requires_grad for o in outs):
        torch.stack([(o.float() ** 2).sum() for o in outs if o.requires_grad]).sum().backward()
        leaves = [*given, *(fn.parameters() if isinstance(fn, nn.Module) else ())]
        found += [t.grad.clone() for t in leaves if isinstance(t, Tensor) and t.grad is not None]
    return found + [a.detach().clone() for a in given if isinstance(a, Tensor)]


def same(found: list[Any], want: list[Any], **near: float) -> None:
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **(near or {"rtol": 0, "atol": 0}))


X = torch.linspace(-2, 2, 40).view(8, 5)
G = torch.linspace(-1, 3, 40).view(8, 5).requires_grad_()
IMAGES = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(0))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def drops() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.4))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


def writes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y.mul_(2)
    y[0] += x[0]
    return x + y, y.view(-1), y


def views(x: Tensor) -> tuple[Tensor, ...]:
    a = x.t()
    return a, a[1:], x, (x * 2).view(-1)[3:], x.detach()


def holds(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]) + torch.tensor(2.0)


def attention(x: Tensor) -> Tensor:
    q = x.view(1, 2, 4, 5)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def mapped(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: torch.func.grad(lambda r: (r.sin() * r).sum())(row))(x)


def cast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x.t()).float().exp()


def parts(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return x[1:6:2, ..., None] / scale + torch.einsum("ij,kj->ik", x, x).sum()


def sizes(x: Tensor) -> tuple[Any, ...]:
    return x[: x.shape[0] // 2].sin(), x.shape[0] * 2, x.reshape(-1, 5).sum(0) / x.shape[0]


def conjugates(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.view_as_complex(x).conj()
    return y, y.imag, torch.view_as_real((y * 2j).resolve_conj())


HITS: dict[str, tuple[Make, tuple[Any, ...], bool]] = {
    "training": (mlp, (G,), False),
    "inference": (mlp, (X,), False),
    "convolutions": (convolutions, (IMAGES,), False),
    "random": (drops, (G,), False),
    "written inputs": (lambda: writes, (X, X.flip(0).clone()), False),
    "views": (lambda: views, (X,), False),
    "views of what needs gradients": (lambda: views, (G,), False),
    "constants": (lambda: holds, (G,), False),
    "attention": (lambda: attention, (G,), False),
    "transforms": (lambda: mapped, (X,), False),
    "autocast": (lambda: cast, (G,), False),
    "parts": (lambda: parts, (G,), False),
    "conjugates": (lambda: conjugates, (X.view(20, 2),), False),
    "dynamic training": (mlp, (G,), True),
    "sizes": (lambda: sizes, (X,), True),
}


@pytest.mark.parametrize("case", HITS)
def test_a_second_process_traces_nothing(case: str, tmp_path: Path, tracings: list[str], compilations: list[str]) -> None:
    make, args, dynamic = HITS[case]
    first = run(make, args, tmp_path, dynamic)
    assert tracings
    tracings.clear()
    compilations.clear()
    second = run(make, args, tmp_path, dynamic)
    assert (tracings, compilations) == ([], [])
    same(second, first)
    if case != "random":
        torch.manual_seed(3)
        fn = make()
        same(second, outcome(fn, fn, args), rtol=1e-4, atol=1e-4)


def test_what_is_counted_is_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for turn in range(2):
        counters.clear()
        run(mlp, (G,), tmp_path, time=True)
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lowc:")]
        end = "cache hit, not traced" if turn else "cache miss"
        assert said == [f"lowc: {name} ({end})" for name in ("forward", "backward")]
        assert counters["lowc"] == {"graphs": 2} and counters["aot_autograd"]["autograd_cache_hit"] == turn


@contextmanager
def setting(setter: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


def flag(home: Any, name: str, value: Any) -> AbstractContextManager[None]:
    return setting(lambda v: setattr(home, name, v), value, getattr(home, name))


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "threads": lambda: setting(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()),
    "precision of products": lambda: setting(torch.set_float32_matmul_precision, "high", "highest"),
    "TF32": lambda: flag(torch.backends.cuda.matmul, "allow_tf32", True),
    # a context, as torch's own tests, once imported, forbid to set it in another way
    "TF32 of convolutions": lambda: torch.backends.cudnn.flags(enabled=True, allow_tf32=not torch.backends.cudnn.allow_tf32),
    "oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "oneDNN's precision": lambda: flag(BACKENDS.mkldnn.matmul, "fp32_precision", "bf16"),
    "reduced precision": lambda: flag(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "determinism": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "attention": lambda: setting(torch.backends.cuda.enable_flash_sdp, False, True),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "another autocast": lambda: torch.autocast("cpu", torch.float16),
    "budget of activations": lambda: functorch.patch(activation_memory_budget=0.5),
    "ATen's random numbers": lambda: inductor.patch(fallback_random=True),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "symbolic shapes": lambda: symbolic.patch(backed_size_oblivious=True),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_process_are_in_the_key(name: str) -> None:
    before = text_of_thread(), text_of_settings()
    with SETTINGS[name]():
        assert (text_of_thread(), text_of_settings()) != before


def test_another_setting_or_option_or_machine_is_no_hit(
    tmp_path: Path, tracings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Callable[..., Any]:
        return lambda x: F.dropout(torch.full((5,), 0.3) * x.sin(), 0.5)

    def traced(**options: Any) -> bool:
        tracings.clear()
        run(make, (X,), tmp_path, **options)
        return bool(tracings)

    assert traced() and not traced()
    for name in ("default dtype", "threads", "TF32", "determinism"):
        with SETTINGS[name]():
            assert traced() and not traced()
    several: tuple[dict[str, Any], ...] = ({"isa": "sse2"}, {"threads": False}, {"numerics": "strict"}, {"fallback_random": True})
    for options in several:
        assert traced(**options) and not traced(**options)
    assert not traced()
    from lowc.runtime import tensors

    for home, what in ((sources, "known"), (machine, "processor"), (tensors, "torch_version")):
        with monkeypatch.context() as patch:
            patch.setattr(home, what, lambda *_: "another")
            assert traced() and not traced()
    assert not traced()


def put_at(x: Tensor, index: Any) -> Tensor:
    """One element, or two rows."""
    x[index] = 5.0
    return x


GRAPHS: dict[str, tuple[tuple[Callable[..., Any], tuple[Any, ...]], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "numbers": ((lambda x: x * 2.0, (X,)), (lambda x: x * 2.5, (X,))),
    "signs of zero": ((lambda x: x * 0.0, (X,)), (lambda x: x * -0.0, (X,))),
    "kinds of numbers": ((lambda x: x * 1, (X.int(),)), (lambda x: x * 1.0, (X.int(),))),
    "constants": ((lambda x: x * torch.tensor([2.0]), (X,)), (lambda x: x * torch.tensor([3.0]), (X,))),
    "functions": ((lambda x: F.gelu(x), (X,)), (lambda x: F.gelu(x, approximate="tanh"), (X,))),
    "methods": ((lambda x: x.sin(), (X,)), (lambda x: x.cos(), (X,))),
    "slices": ((lambda x: x[1:5] + 1, (X,)), (lambda x: x[2:6] + 1, (X,))),
    "strides": ((lambda x: x.exp(), (torch.randn(5, 8).t(),)), (lambda x: x.exp(), (X,))),
    "offsets": ((lambda x: x.view(-1) + 1, (torch.zeros(41)[1:].view(8, 5),)), (lambda x: x.view(-1) + 1, (X,))),
    "dtypes": ((lambda x: x.exp(), (X.double(),)), (lambda x: x.exp(), (X,))),
    "gradients": ((lambda x: x.exp(), (G,)), (lambda x: x.exp(), (X,))),
    "results": ((lambda x: (x.exp(), x.sin()), (X,)), (lambda x: (x.sin(), x.exp()), (X,))),
    "lists and tuples": ((put_at, (X.clone(), [0, 1])), (put_at, (X.clone(), (0, 1)))),
    "none and none at all": ((put_at, (X.clone(), (0, None))), (put_at, (X.clone(), 0))),
    "writing": ((lambda x: x.add_(1), (X.clone(),)), (lambda x: x.add(1), (X.clone(),))),
}


def text_of(fn: Callable[..., Any], args: tuple[Any, ...], dynamic: bool = False) -> str:
    """The text of what Dynamo makes of ``fn``; what there is instead of it, if it has none."""
    found: list[str] = []

    class Looks:
        def get(self, text: str, devices: list[str]) -> list[bytes]:
            found.append(text)
            return []

        def put(self, *_: Any) -> None: ...
        def bind(self, *_: Any) -> None: ...

    def backend(gm: Any, inputs: Any) -> Any:
        counters["aot_autograd"].clear()
        place: Any = Looks()
        compiler: Any = lambda *_: None  # noqa: E731
        call = aot.compile_module(gm, inputs, compiler, place=place)
        found.extend(["untold"] * counters["aot_autograd"]["autograd_cache_bypass"])
        return lambda *args: (call, gm(*args))[1]

    torch._dynamo.reset()
    torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    return "\n".join(found)


@pytest.mark.parametrize("case", GRAPHS)
def test_another_graph_has_another_key(case: str) -> None:
    first, second = (text_of(*case) for case in GRAPHS[case])
    assert "untold" not in first + second and re.sub("line .*", "", first) != re.sub("line .*", "", second)


def test_lines_of_the_program_are_in_the_key(tmp_path: Path, tracings: list[str]) -> None:
    """Errors and dumps name them."""
    functions = [
        lambda x, i: x[i] * 2,
        lambda x, i: x[i] * 2,
    ]
    for fn in functions:
        tracings.clear()
        with pytest.raises(IndexError, match=rf"test_traced\.py:{fn.__code__.co_firstlineno}"):
            run(lambda fn=fn: fn, (X, torch.tensor([1, 8])), tmp_path)
        assert tracings


# ------------------------------------------------------------ what is not kept


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 3


@torch.library.custom_op("lowc_test_traced::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x[1:].detach()


def checkpointed(x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False)


def flexible(x: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    q = x.view(1, 2, 4, 5)
    return flex_attention(q, q, q, lambda s, b, h, i, j: s * 2)  # type: ignore[return-value]


def numbered(x: Tensor) -> Tensor:
    return torch.utils._pytree.tree_map(torch.sin, [x])[0].mine()  # type: ignore[attr-defined]


@contextmanager
def mine() -> Iterator[None]:
    """A method that a user has given to tensors, and that Dynamo does not look into."""
    Tensor.mine = torch._dynamo.allow_in_graph(lambda x: x * 2)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del Tensor.mine  # type: ignore[attr-defined]


def nothing(_: Tensor) -> Tensor:
    return _


NOT_KEPT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Callable[[], AbstractContextManager[Any]]]] = {
    "ops of users": (lambda x: twice(x) + 1, (X,), nullcontext),
    "autograd functions": (lambda x: Own.apply(x), (G,), nullcontext),
    "functions in graphs": (lambda x: torch.cond(x.sum() > -9, torch.sin, torch.cos, (x,)), (X,), nullcontext),
    "checkpoints": (checkpointed, (G,), nullcontext),
    "flex_attention": (flexible, (X,), nullcontext),
    "methods of users": (numbered, (X,), mine),
    "inputs that share memory": (lambda x, y: x[1:].add_(1) + y, pair(X.clone()), nullcontext),
    "hooks of saved tensors": (lambda x: x.sin().exp(), (G,), lambda: torch.autograd.graph.saved_tensors_hooks(nothing, nothing)),
    "anomalies": (lambda x: x.sin().exp(), (G,), torch.autograd.detect_anomaly),
    "no torch caches": (lambda x: x.sin(), (X,), lambda: CACHES.patch(force_disable_caches=True)),
    "no torch cache of these": (lambda x: x.sin(), (X,), lambda: functorch.patch(enable_autograd_cache=False)),
    "another torch cache": (lambda x: x.sin(), (X,), lambda: functorch.patch(bundled_autograd_cache=True)),
    "sizes from data": (lambda x: x.nonzero() + 1, (X,), lambda: dynamo.patch(capture_dynamic_output_shape_ops=True)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("case", NOT_KEPT)
def test_what_cannot_be_told_by_its_text_has_no_key(case: str) -> None:
    fn, args, around = NOT_KEPT[case]
    with around():
        assert text_of(fn, copy.deepcopy(args)) == ("" if "torch" in case else "untold")


def test_what_has_no_key_is_traced_in_each_process(tmp_path: Path, tracings: list[str]) -> None:
    def fn(x: Tensor) -> Tensor:
        return Own.apply(x) + twice(x.detach())

    for _ in range(2):
        tracings.clear()
        same(run(lambda: fn, (G,), tmp_path), outcome(fn, fn, (G,)), rtol=1e-5, atol=1e-5)
        assert tracings == ["forward", "backward"]


def test_nothing_is_kept_without_a_cache(tmp_path: Path, tracings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces.Traces, "put", lambda *_: pytest.fail("kept"))
    several: tuple[dict[str, Any], ...] = ({"cache": False}, {"cache_limit_mb": 0}, {"check": True}, {"isa": "interp"})
    for options in several:
        tracings.clear()
        run(lambda: torch.sin, (X,), tmp_path / "none", **options)
        assert tracings


def test_what_torch_runs_itself_is_not_kept(
    tmp_path: Path, tracings: list[str], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from lowc.errors import Unsupported
    from lowc.frontend import read

    def refuses(gm: Any, name: str) -> Any:
        raise Unsupported("not this one")

    monkeypatch.setattr(read, "import_graph", refuses)
    run(lambda: torch.sin, (G,), tmp_path)
    assert tracings == ["forward", "backward"] and "is run by torch" in caplog.text and not entries(tmp_path)[True]


# ------------------------------------------------------------ damage


def sine(x: Tensor) -> Tensor:
    return x.sin() * x


def entries(path: Path) -> dict[bool, list[Path]]:
    """The files of what was traced, and the others."""
    found: dict[bool, list[Path]] = {True: [], False: []}
    for file in path.glob("*.entry"):
        _, sections = entry.read(file.read_bytes())
        found[any(name.startswith("traced") for name in sections)].append(file)
    return found


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_damage_costs_a_tracing(traced: bool, gone: bool, tmp_path: Path, tracings: list[str], caplog: Any) -> None:
    want = run(lambda: sine, (G,), tmp_path)
    for file in entries(tmp_path)[traced]:
        content = bytearray(file.read_bytes())
        content[len(content) * 3 // 4] ^= 4
        file.unlink() if gone else file.write_bytes(content)
    tracings.clear()
    caplog.clear()
    same(run(lambda: sine, (G,), tmp_path), want)
    assert tracings == ["forward", "backward"] and ("checksum" in caplog.text) != gone
    tracings.clear()
    same(run(lambda: sine, (G,), tmp_path), want)
    assert not tracings


@pytest.mark.parametrize("content", [b"no pickle", pickle.dumps(3)])
def test_a_pickle_of_something_else_is_no_hit(content: bytes, tmp_path: Path, tracings: list[str]) -> None:
    want = run(lambda: torch.sin, (X,), tmp_path)
    (file,) = entries(tmp_path)[True]
    key, sections = entry.read(file.read_bytes())
    file.write_bytes(entry.write(key, dict.fromkeys(sections, content)))
    tracings.clear()
    same(run(lambda: torch.sin, (X,), tmp_path), want)
    assert tracings


def test_a_folder_that_cannot_be_written_to_is_read(tmp_path: Path, tracings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from lowc.cache.folder import Folder

    want = run(lambda: sine, (G,), tmp_path)
    monkeypatch.setattr(Folder, "put", lambda *_: False)
    tracings.clear()
    same(run(lambda: sine, (G,), tmp_path), want)
    assert not tracings


def test_a_backward_pass_that_is_asked_for_twice(tmp_path: Path, tracings: list[str]) -> None:
    """The first process asked once, and torch then says of saved tensors that they may be overwritten."""
    for again in (False, True, True):
        tracings.clear()
        torch._dynamo.reset()
        x = X.clone().requires_grad_()
        options = {"cache": True, "cache_dir": str(tmp_path)}
        call = torch.compile(lambda x: (x.sin().exp() * x).sum(), backend="lowc", options=options)
        y = call(x)
        y.backward(retain_graph=again)
        if again:
            y.backward()
        z = X.clone().requires_grad_()
        ((z.sin().exp() * z).sum() * (1 + again)).backward()
        torch.testing.assert_close(x.grad, z.grad)
        assert bool(tracings) != again


def test_another_thread_finds_what_was_traced(tmp_path: Path, tracings: list[str]) -> None:
    functions = [lambda x: x.sin() * 2, lambda x: x.cos().cumsum(0), lambda x: (x @ x.t()).softmax(0)]
    for fn in functions:
        run(lambda fn=fn: fn, (G,), tmp_path)
    tracings.clear()
    torch._dynamo.reset()
    options = {"cache": True, "cache_dir": str(tmp_path)}
    with ThreadPoolExecutor(1) as pool:
        calls = [torch.compile(fn, backend="lowc", options=options, dynamic=False) for fn in functions]
        found = list(pool.map(lambda call: outcome(call, call, (G,)), calls))
    assert not tracings
    for each, fn in zip(found, functions, strict=True):
        same(each, outcome(fn, fn, (G,)), rtol=1e-5, atol=1e-5)


def test_eviction_and_clear_know_it(tmp_path: Path) -> None:
    run(lambda: torch.sin, (X,), tmp_path)
    folder = graphs.folder(tmp_path)
    assert len(entries(tmp_path)[True]) == 1 and len(folder.items()) == len(list(tmp_path.glob("*.entry")))
    assert folder.clear() and not list(tmp_path.glob("*.entry"))


def test_a_version_of_torch_that_nobody_has_read_is_left_alone(
    tmp_path: Path, tracings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "VERSIONS", ("1.0",))
    run(lambda: torch.sin, (X,), tmp_path)
    assert tracings and not entries(tmp_path)[True]


def test_torchs_own_cache_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For other compilers, whoever comes first."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    run(lambda: torch.sin, (X,), tmp_path / "lowc")
    AOTAutogradCache._write_to_local_cache("akey", b"content")
    assert [file.read_bytes() for file in (tmp_path / "torch").rglob("*") if file.is_file()] == [b"content"]
    assert list(AOTAutogradCache.iterate_over_candidates(True, None, "bkey")) == []
    gc.collect()
