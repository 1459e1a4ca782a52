"""Small models through Dynamo, AOTAutograd and the importer, run by the reference executor: results must be eager's."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowc.ir.graph import Ref, TensorMeta
from lowc.ir.index import Symbol, constant


def assert_same(ours: Any, eager: Any) -> None:
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6, equal_nan=True)
    for a, b in zip(
        torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(eager), strict=True
    ):
        if isinstance(a, torch.Tensor):
            assert a.stride() == b.stride() and a.dtype == b.dtype and a.requires_grad == b.requires_grad


def compare(
    recorder: Any, fn: Callable[..., Any], *args: Any, dynamic: bool | None = None, train: bool = False
) -> None:
    """``fn`` (a module is copied) on ``args``, compiled and eager: outputs, gradients and module state agree."""
    compiled_fn, compiled_args = copy.deepcopy((fn, args))
    compiled = torch.compile(compiled_fn, backend=recorder, fullgraph=True, dynamic=dynamic)
    ours, eager = compiled(*compiled_args), fn(*args)
    assert_same(ours, eager)
    assert_same(compiled_args, args)
    if train:
        for out, inputs in ((ours, compiled_args), (eager, args)):
            leaves = [
                t
                for t in torch.utils._pytree.tree_leaves(out)
                if isinstance(t, torch.Tensor) and t.requires_grad
            ]
            sum((t * t.detach().cos()).sum() for t in leaves).backward()
            del inputs
        grads = [[a.grad for a in g if isinstance(a, torch.Tensor)] for g in (compiled_args, args)]
        assert_same(grads[0], grads[1])
        if isinstance(fn, nn.Module):
            assert_same([p.grad for p in compiled_fn.parameters()], [p.grad for p in fn.parameters()])
    if isinstance(fn, nn.Module):
        assert_same(compiled_fn.state_dict(), fn.state_dict())


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.norm(self.first(x)))).softmax(-1)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(x.mean((2, 3)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(11, 6, padding_idx=0), nn.LSTMCell(6, 4)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = None
        for x in self.table(words).unbind(1):
            state = self.cell(x, state)
        assert state is not None
        return state


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("model", "shape"),
    [(MLP, (5, 7)), (ConvNet, (2, 3, 11, 13)), (Attention, (2, 5, 8))],
    ids=["mlp", "conv", "attention"],
)
def test_training(
    recorder: Any, model: Callable[[], nn.Module], shape: tuple[int, ...], dynamic: bool
) -> None:
    compare(recorder, model(), torch.randn(shape, requires_grad=True), dynamic=dynamic, train=True)
    assert [g.name for g in recorder.graphs] == ["forward", "backward"]


def test_words(recorder: Any) -> None:
    compare(recorder, Words(), torch.randint(0, 11, (3, 5)), train=True)


def test_inference_is_one_graph(recorder: Any) -> None:
    model = MLP().eval()
    with torch.no_grad():
        compare(recorder, model, torch.randn(4, 7))
    with torch.inference_mode():
        torch._dynamo.reset()
        compare(recorder, model, torch.randn(4, 7))
    assert [g.name for g in recorder.graphs] == ["inference"] * 2


def test_dynamic_sizes_are_symbols(recorder: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        n = x.shape[0] * 3 + y.shape[1]
        return x.reshape(-1)[: n // 2].sum() + y.new_full((n, x.shape[1] // 2), 2.0), n

    compiled = torch.compile(f, backend=recorder, dynamic=True, fullgraph=True)
    for rows, columns in ((5, 9), (6, 4), (31, 7)):
        x, y = torch.randn(rows, columns), torch.randn(2, rows + 3)
        ours, eager = compiled(x, y), f(x, y)
        torch.testing.assert_close(ours[0], eager[0])
        assert ours[1] == eager[1]
    assert len(recorder.graphs) == 1
    (graph,) = recorder.graphs
    assert graph.symbols and all(isinstance(s, Symbol) and s.lo >= 0 for s in graph.symbols)
    assert not any("sym_size" in node.target or "operator" in node.target for node in graph.nodes)


def test_data_dependent_sizes(recorder: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero()
        return found.sum(1) * found.shape[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compare(recorder, f, torch.tensor([0, 3, 0, 5, 6]))


def test_norms_of_data_dependent_sizes(recorder: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > 0]
        return F.layer_norm(rows, (4,)).exp().sum(0) + rows.log_softmax(1).sum(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(f, backend=recorder, fullgraph=True)
        for x in (torch.randn(9, 4), -torch.rand(3, 4)):
            torch.testing.assert_close(compiled(x), f(x))


def test_item_becomes_a_size(recorder: Any) -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size >= 0)
        torch._check(size <= x.shape[0])
        return x[:size] * 2 + torch.zeros(size)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compare(recorder, f, torch.randn(6), torch.tensor(4))


def test_mutated_inputs(recorder: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        y[1:].mul_(2)
        return x * 2

    compare(recorder, f, torch.randn(4, 3), torch.randn(4, 3))
    (graph,) = recorder.graphs
    assert [i.mutated for i in graph.inputs] == [True, True]
    assert sum(node.target == "aten.copy_.default" for node in graph.nodes) == 2


def test_buffers_are_mutated_in_training(recorder: Any) -> None:
    compare(recorder, nn.BatchNorm1d(3), torch.randn(5, 3, requires_grad=True), train=True)
    assert any(i.mutated for i in recorder.graphs[0].inputs)


def test_views_and_inputs_as_outputs(recorder: Any) -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        return x, x.t(), y[1:], y.view(-1), y, None, 3

    x = torch.randn(3, 4)
    compiled = torch.compile(f, backend=recorder, fullgraph=True)
    ours, eager = compiled(x), f(x)
    assert ours[0] is x and ours[1].data_ptr() == x.data_ptr()
    assert ours[2].data_ptr() == ours[4][1:].data_ptr()
    assert_same(ours[:5], eager[:5])
    assert ours[5] is None and ours[6] == 3


def test_equal_outputs_stay_apart(recorder: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x + 1, x + 1, (x + 2) * (x + 2)

    x = torch.randn(3)
    first, second, _ = torch.compile(f, backend=recorder, fullgraph=True)(x)
    assert first.data_ptr() != second.data_ptr()
    assert recorder.targets("inference").count("aten.add.Tensor") == 3


def test_zeros_of_both_signs_stay_apart(recorder: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, 0.0).copysign(x * -0.0) + x * 0.0 + (x * -0.0) + (x * 1) + (x * 1.0)

    compare(recorder, f, torch.randn(3))


def test_tensor_constants_become_inputs(recorder: Any) -> None:
    table = torch.arange(5.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0]) + table[:3]

    compare(recorder, f, torch.randn(2, 3))


def test_arguments_with_types_of_their_own(recorder: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.to(torch.float64, memory_format=torch.channels_last),
            torch.empty(2, 0, dtype=torch.bfloat16, device="cpu"),
            x.clone(memory_format=torch.contiguous_format),
            torch.full((2,), float("-inf"), layout=torch.strided),
        )

    compare(recorder, f, torch.randn(2, 3, 4, 5))
    args = [a for node in recorder.graphs[0].nodes for a in (*node.args, *(v for _, v in node.kwargs))]
    assert "memory_format:channels_last" in args and "device:cpu" in args


def test_several_results(recorder: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        values, index = x.topk(2, dim=1)
        mean = torch.var_mean(x, dim=0)
        a, b = x.split([1, 3], dim=1)
        return values.sum() + index.sum() + mean[0].sum() + a.sum() - b.mean()

    compare(recorder, f, torch.randn(3, 4))
    refs = [a for node in recorder.graphs[0].nodes for a in node.args if isinstance(a, Ref)]
    assert {r.number for r in refs} >= {0, 1}


def test_random_numbers_stay_calls(recorder: Any) -> None:
    recorder.fallback_random = True

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x) - torch.rand_like(x)

    compiled = torch.compile(f, backend=recorder, fullgraph=True)
    x = torch.randn(8, 8)
    torch.manual_seed(3)
    ours = compiled(x)
    torch.manual_seed(3)
    assert_same(ours, f(x))


def test_optimizer_step(recorder: Any) -> None:
    def train(step: Callable[[torch.optim.Optimizer], None]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Linear(5, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 5)).square().sum().backward()
            step(optimizer)
        return list(model.parameters())

    eager = train(lambda o: o.step())
    compiled = torch.compile(lambda o: o.step(), backend=recorder)
    assert_same(train(compiled), eager)
    assert recorder.graphs and not any("_foreach" in node.target for g in recorder.graphs for node in g.nodes)


def test_where_names_the_users_line(recorder: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y.cos().sum()

    compare(recorder, f, torch.randn(4, requires_grad=True), train=True)
    for graph in recorder.graphs:
        for node in graph.nodes:
            assert "test_models.py:" in node.where and " in f: " in node.where, (node.target, node.where)
    assert any(node.where.endswith(": y = x.sin()") for node in recorder.graphs[0].nodes)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 0)])
def test_empty_and_single(recorder: Any, shape: tuple[int, ...]) -> None:
    compare(recorder, lambda x: (x * 2 + 1).sum(0), torch.randn(shape))


def test_metas_are_those_of_non_contiguous_inputs(recorder: Any) -> None:
    x = torch.randn(6, 8)[1::2, 2:7].t()
    compare(recorder, lambda a: a + 1, x)
    meta = recorder.graphs[0].inputs[0].meta
    assert isinstance(meta, TensorMeta)
    assert [constant(n) for n in meta.strides] == [1, 16] and constant(meta.offset) == 10


def test_saved_sizes_reach_the_backward(recorder: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(2, 1).reshape(-1).sin()[: x.shape[0]]

    compare(recorder, f, torch.randn(5, 3, requires_grad=True), dynamic=True, train=True)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x / math.sqrt(x.shape[0]) + x * (1.0 / x.shape[1]),
        lambda x: torch.full_like(x, x.shape[0] / 3) + torch.pow(x.abs() + 1, x.shape[1] / 7),
        lambda x: (x.double() * (x.shape[0] / 3)).where(x > x.shape[0] / 50, -1.0),
        lambda x: (
            x.var(1)
            + x.std()
            + F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1], label_smoothing=0.1)
        ),
        lambda x: (x.bfloat16() * (x.shape[0] / 3)).float(),
        lambda x: F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear"),
    ],
)
def test_floats_computed_from_sizes(recorder: Any, f: Callable[..., Any]) -> None:
    compare(recorder, f, torch.randn(4, 5, requires_grad=True), dynamic=True, train=True)


def test_assertions_on_sizes_stay(recorder: Any) -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size > 3)
        return x * size

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, backend=recorder, fullgraph=True)
        x = torch.randn(2)
        assert torch.equal(compiled(x, torch.tensor(5)), x * 5)
        with pytest.raises(RuntimeError):
            compiled(x, torch.tensor(2))
    assert len(recorder.graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_language_model(recorder: Any, dynamic: bool | None) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    config = transformers.LlamaConfig(
        **sizes, num_key_value_heads=2, use_cache=False, bos_token_id=1, eos_token_id=2
    )
    model = transformers.LlamaForCausalLM(config)
    words = torch.randint(0, 99, (2, 16))
    compiled = torch.compile(model, backend=recorder, dynamic=dynamic)
    ours, eager = compiled(words, labels=words), model(words, labels=words)
    assert_same(ours.logits, eager.logits)
    parameters = list(model.parameters())
    assert_same(torch.autograd.grad(ours.loss, parameters), torch.autograd.grad(eager.loss, parameters))
    assert [g.name for g in recorder.graphs] == ["forward", "backward"]
