"""The torch.compile entry: options, what cannot be imported, and what is loaded."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lowc.dynamo import lowc_backend
from lowc.errors import OptionError, Unsupported
from lowc.ir.graph import Ref, TensorMeta
from lowc.ir.graph_printer import print_graph
from lowc.ir.index import ix
from lowc.ir.types import f32


@pytest.mark.parametrize(
    "keywords", [{"mode": "fastest"}, {"options": {"no_such": 1}}, {"options": {"threads": "many"}}], ids=str
)
def test_unknown_options_are_errors(keywords: dict[str, Any]) -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(OptionError, match="mode|option"):
        lowc_backend(gm, [torch.ones(2)], **keywords)


def test_strict_names_op_and_line(recorder: Any) -> None:
    with pytest.raises(Exception) as caught:
        torch.compile(lambda x: x * 2, backend=recorder, fullgraph=True)(torch.ones(3, dtype=torch.complex64).conj())
    cause = caught.value
    while cause is not None and not isinstance(cause, Unsupported):
        cause = cause.__cause__ or cause.__context__
    assert isinstance(cause, Unsupported)


def test_sparse_and_odd_dtypes_are_run_by_torch(recorder: Any) -> None:
    recorder.strict = False
    x = torch.eye(3).to_sparse()
    compiled = torch.compile(lambda a: torch.sparse.mm(x, a), backend=recorder)
    assert torch.equal(compiled(torch.ones(3, 2)), torch.ones(3, 2))


def test_custom_ops_keep_their_name(recorder: Any) -> None:
    @torch.library.custom_op("lowc_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    x = torch.randn(3)
    assert torch.equal(torch.compile(lambda a: twice(a) + 1, backend=recorder)(x), x * 2 + 1)
    assert recorder.targets("inference")[0] == "lowc_test.twice.default"


def test_custom_ops_that_change_arguments(recorder: Any) -> None:
    @torch.library.custom_op("lowc_test::bump", mutates_args=("x",))
    def bump(x: torch.Tensor, y: torch.Tensor, by: float, n: int) -> torch.Tensor:
        x.add_(by)
        return y * n

    @torch.library.custom_op("lowc_test::negate", mutates_args=("x",))
    def negate(x: torch.Tensor) -> None:
        x.neg_()

    bump.register_fake(lambda x, y, by, n: torch.empty_like(y))

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        out = bump(z, y, 0.1, x.shape[0])
        negate(x[1:])
        negate(y)
        return z + out + x

    compiled = torch.compile(f, backend=recorder, fullgraph=True, dynamic=True)
    for n in (3, 5):
        x, y = torch.randn(n), torch.randn(n)
        a, b = x.clone(), y.clone()
        assert torch.equal(compiled(a, b), f(x, y))
        assert torch.equal(a, x) and torch.equal(b, y)
    assert recorder.targets("inference").count("lowc.call.default") == 3


def test_checkpointed_random_ops_draw_the_same_again(recorder: Any) -> None:
    recorder.fallback_random = True

    def f(x: torch.Tensor) -> torch.Tensor:
        def part(y: torch.Tensor) -> torch.Tensor:
            return F.dropout(y.sin() @ y.cos().t(), 0.5).relu() + torch.randn(4, 4, dtype=torch.float64).to(
                y.dtype
            )

        return checkpoint(part, x, use_reentrant=False).exp()

    compiled = torch.compile(f, backend=recorder, fullgraph=True)
    results = []
    for g in (compiled, f):
        x = torch.linspace(0, 1, 24).view(4, 6).requires_grad_()
        torch.manual_seed(3)
        out = g(x)
        out.sum().backward()
        results.append((out, x.grad, torch.rand(1)))
    torch.testing.assert_close(results[0], results[1])
    assert "lowc.call.default" in recorder.targets("backward")


def test_compiled_autograd(recorder: Any) -> None:
    model, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    model(x).square().sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)

    def step() -> None:
        model(x).square().sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend=recorder)()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)


def test_changing_numbers_become_tensors(recorder: Any) -> None:
    compiled = torch.compile(lambda x, s: x * s + s, backend=recorder, fullgraph=True)
    x = torch.randn(3)
    for s in (1.5, 2.5, 3.5, -0.0):
        torch.testing.assert_close(compiled(x, s), x * s + s)
    assert len(recorder.graphs) == 2


def test_dtypes_in_arguments(recorder: Any) -> None:
    torch.compile(lambda x: x.to(torch.float32), backend=recorder)(torch.ones(2, dtype=torch.int32))
    (node,) = recorder.graphs[0].nodes
    assert f32 in (*node.args, *(v for _, v in node.kwargs))


LOADED = """
import sys
import torch
from lowc.frontend.aot import compile_module

def backend(gm, inputs):
    def compile_graph(graph, constants):
        raise RuntimeError("reached")
    return compile_module(gm, inputs, compile_graph)

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4), torch.nn.Dropout(0.1))
for dynamic in (False, True):
    try:
        torch.compile(model, backend=backend, dynamic=dynamic)(torch.randn(2, 3)).sum().backward()
    except Exception as error:
        assert "reached" in str(error), error
print(*(m.removeprefix("torch._inductor.") for m in sys.modules if m.startswith("torch._inductor.")))
"""


def test_inductor_stays_out() -> None:
    """Dynamo and AOTAutograd themselves import Inductor's configuration and caches; its compiler must not be loaded."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "config" in loaded
    assert not loaded & {
        "compile_fx",
        "graph",
        "lowering",
        "ir",
        "scheduler",
        "pattern_matcher",
        "decomposition",
        "debug",
    }
    assert not {
        m
        for m in loaded
        if m.startswith(("codegen.cpp", "codegen.triton", "codegen.simd", "codegen.wrapper"))
    }


def test_dynamo_does_not_trace_lowc_when_a_compiled_frame_asks_for_gradients() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.gelu(x).square().sum()
        (gradient,) = torch.autograd.grad(loss, x)  # a graph break: the backward graph runs under Dynamo's eyes
        return gradient * 2

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = torch.randn(7, 5, requires_grad=True)
    got = torch.compile(step, backend=lowc_backend)(x)
    torch.testing.assert_close(got, step(x))
    assert torch._dynamo.utils.counters["lowc"]["graphs"] <= 4


SPD = torch.eye(4) * 2 + 0.1
CHECKED: dict[str, Any] = {
    "inv": lambda x: torch.linalg.inv(x) + 1,
    "cholesky": lambda x: torch.linalg.cholesky(x) * 2,
    "solve": lambda x: torch.linalg.solve(x, x + 1) + 1,
    "two": lambda x: torch.linalg.inv(torch.linalg.cholesky(x)).sum(0),
    "eigh": lambda x: torch.linalg.eigh(x)[0] + 1,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CHECKED)
def test_ops_that_check_their_results(name: str, grad: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(CHECKED[name], backend=lowc_backend, options={"strict_errors": True})
    ours, eager = (SPD.clone().requires_grad_(grad) for _ in range(2))
    for _ in range(2):
        got, want = compiled(ours), CHECKED[name](eager)
        torch.testing.assert_close(got, want)
        if grad:
            got.sum().backward()
            want.sum().backward()
            torch.testing.assert_close(ours.grad, eager.grad)
    # before 2.13 AOTAutograd itself drops the op that checks
    if name == "inv" and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            compiled(torch.zeros(4, 4, requires_grad=grad))


def test_effects_happen_in_order() -> None:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    seen: list[float] = []

    @torch.library.custom_op("lowc_tests::one", mutates_args=())
    def one(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.sum()))
        return x.clone()

    @torch.library.custom_op("lowc_tests::pair", mutates_args=())
    def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(-float(x.sum()))
        return x.clone(), x * 2

    @torch.library.custom_op("lowc_tests::many", mutates_args=())
    def many(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        seen.append(float(n))
        return [x + i for i in range(n)]

    one.register_fake(lambda x: torch.empty_like(x))
    pair.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    many.register_fake(lambda x, n: [torch.empty_like(x) for _ in range(n)])
    for name in ("one", "pair", "many"):
        _register_effectful_op(getattr(torch.ops.lowc_tests, name).default, _EffectType.ORDERED)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = one(x * 3)
        b, c = pair(a + 1)
        d = many(b, 2)
        one(x + 1)  # its result is not used
        return a + b * c + d[1], d[0]

    x = torch.arange(4.0)
    want = f(x)
    order, seen[:] = list(seen), []
    torch._dynamo.reset()
    got = torch.compile(f, backend=lowc_backend, options={"strict_errors": True})(x)
    torch.testing.assert_close(got, want)
    assert seen == order


def test_what_cannot_be_imported_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    torch.compile(lambda x: x * 2, backend=lowc_backend)(torch.ones(3, dtype=torch.complex64).conj())
    assert "an inference graph is run by torch, not lowc: " in caplog.text
    assert "graph_break" in caplog.text and "test_backend.py" in caplog.text


def test_cross_entropy_keeps_two_numbers_a_row_for_its_gradient(recorder: Any) -> None:
    """Not the logarithms of the probabilities in f32, which are twice the size of the logits."""

    def f(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((x @ w).float(), target)

    x, w = (torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((40, 8), (8, 300)))
    target = torch.randint(0, 300, (40,))
    torch.compile(f, backend=recorder, fullgraph=True)(x, w, target).backward()
    (graph,) = [g for g in recorder.graphs if g.name == "forward"]
    made = {node.name: node.outputs for node in graph.nodes}
    kept = [made[o.name][o.number] for o in graph.outputs if isinstance(o, Ref) and o.name in made]
    wide = [m for m in kept if isinstance(m, TensorMeta) and m.dtype.name == "f32"]
    assert all(len(m.shape) < 2 or m.shape[1] == ix(1) for m in wide)
    assert [m.dtype.name for m in kept if isinstance(m, TensorMeta) and m.shape == (ix(40), ix(300))] == ["bf16"]


def test_values_of_a_type_share_one_meta_and_its_text(recorder: Any) -> None:
    """The key of a large graph is mostly the text of few types.  Symbols are a graph's own, and so are sizes of them."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) + torch.cos(x)).sum(0) * torch.exp(x)

    x = torch.randn(5, 7)
    torch.compile(f, backend=recorder, dynamic=False)(x)
    torch.compile(f, backend=recorder, dynamic=True)(x)
    fixed, dynamic = recorder.graphs
    metas = [meta for node in fixed.nodes for meta in node.outputs]
    assert len(metas) == 6 and len({id(meta) for meta in metas}) == len(set(metas)) == 2
    shown = [line.split(": ")[1].split(" =")[0] for line in print_graph(fixed).splitlines() if " = " in line]
    assert shown == ["f32[5, 7] @cpu"] * 3 + ["f32[7] @cpu"] + ["f32[5, 7] @cpu"] * 2
    assert all(meta.shape[0] != fixed.inputs[0].meta.shape[0] for node in dynamic.nodes for meta in node.outputs)
