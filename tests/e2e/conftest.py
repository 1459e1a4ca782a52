"""What the end-to-end tests share: a backend that never falls back silently, and a comparison with eager."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import lowc
from lowc.lowering.lower import lower
from lowc.options import Options, parse
from lowc.runtime import interpreted
from lowc.runtime.program import bind
from lowc.scheduler import pipeline
from lowc.target import Target


@dataclass
class Lowc:
    """``torch.compile`` with lowc; ``programs``: what it made, in order."""

    isa: str
    programs: list[Any] = field(default_factory=list)

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any], **_: Any) -> Callable[..., Any]:
        from lowc.frontend.aot import compile_module

        isa = self.isa.removesuffix("-machine")
        options = parse(None, {"isa": isa, "strict_errors": True, "check": CHECK})

        def compile_graph(graph: Any, constants: Any) -> Any:
            if self.isa == "interp-machine":
                call = _scheduled(graph, constants)
            else:
                call = lowc.compile_graph(graph, constants, options)
            self.programs.append(call.program)
            return call

        return compile_module(gm, inputs, compile_graph, strict=True)

    def compile(self, fn: Callable[..., Any], dynamic: bool | None = None) -> Callable[..., Any]:
        return torch.compile(fn, backend=self, fullgraph=True, dynamic=dynamic)

    def check(
        self,
        fn: Callable[..., Any],
        *args: Any,
        dynamic: bool | None = None,
        train: bool = False,
        times: int = 1,
    ) -> Any:
        """``fn`` (copied if it is a module) compiled, eager and in float64 on copies of ``args``; returns
        what compiled returned.

        Outputs, mutated arguments and gradients of ours must have eager's dtypes, shapes and strides, and be
        as close to float64 as eager's, give or take a few units in the last place.
        """
        compiled = self.compile(copy.deepcopy(fn), dynamic)
        double = tree_map(_double, copy.deepcopy(args))
        precise = copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn
        for _ in range(times):
            ours, eager, exact = (
                _run(f, a, train) for f, a in ((compiled, args), (fn, args), (precise, double))
            )
            _close(ours[1:], eager[1:], exact[1:])
        return ours[0]


def _scheduled(graph: Any, constants: Any) -> Any:
    """``graph`` through all passes for an AVX2 machine, then interpreted."""
    module = pipeline.run(lower(graph), AVX2, Options(check=CHECK))
    artifact = interpreted.artifact(module)
    return bind(artifact, interpreted.natives(artifact), constants).call


CHECK = True
AVX2 = Target(
    "x86",
    "haswell",
    "+avx2,+fma,+f16c",
    256,
    16,
    32 << 10,
    256 << 10,
    8 << 20,
    2,
    frozenset({"fma", "gather", "f16c", "masked"}),
)


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def _run(fn: Callable[..., Any], args: Any, train: bool) -> tuple[Any, list[Any]]:
    """(outputs, all tensors to compare: outputs, arguments after the call, gradients)."""
    given = copy.deepcopy(args)
    out = fn(*given)
    found = [
        t for t in (*tree_leaves(out), *tree_leaves(given)) if not callable(t) or isinstance(t, torch.Tensor)
    ]
    if train:
        weights = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
        sum(
            (w * torch.linspace(0.5, 1.5, w.numel(), dtype=w.dtype).view(w.shape)).sum() for w in weights
        ).backward()
        leaves = [a for a in tree_leaves(given) if isinstance(a, torch.Tensor)]
        if isinstance(fn, torch.nn.Module):
            leaves += list(fn.parameters())
        found += [a.grad for a in leaves]
        for a in leaves:
            a.grad = None
    return out, *found


def _close(ours: Any, eager: Any, exact: Any) -> None:
    assert len(ours) == len(eager) == len(exact)
    for a, b, c in zip(ours, eager, exact, strict=True):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b) and a == b
            continue
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (
            b.dtype,
            b.shape,
            b.stride(),
            b.requires_grad,
        )
        a, b, c = a.detach(), b.detach(), c.detach()
        if not b.is_floating_point():
            assert torch.equal(a, b)
            continue
        assert torch.equal(a.isnan(), b.isnan())
        finite = c.isfinite() & b.isfinite()
        assert torch.equal(a[~finite & ~b.isnan()], b[~finite & ~b.isnan()])
        if finite.any():
            scale = float(c[finite].abs().max()) * torch.finfo(b.dtype).eps
            worst = (a.double() - c)[finite].abs().max()
            assert worst <= 4 * (b.double() - c)[finite].abs().max() + 8 * scale


@pytest.fixture
def compiler_auto() -> Lowc:
    """lowc as users have it, but for falling back."""
    return Lowc("auto")


@pytest.fixture(params=["interp", "interp-machine", "auto"])
def compiler(request: pytest.FixtureRequest) -> Iterator[Lowc]:
    """lowc with its loops interpreted as lowered, interpreted after all passes, and as machine code."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield Lowc(request.param)
    torch._dynamo.reset()
