"""Programs that are gone while CUDA graphs captured of their calls are replayed.

python -m pytest -m gpu tests/runtime/cuda
"""

import gc
import weakref
from typing import Any

import fakes
import pytest
import torch
from hosts import at, buffer, whole
from programs import ADD, CALLER, X, Y, add, module, named

from lowc.artifact import Artifact
from lowc.backends.nvptx import walker
from lowc.ir.nodes import Extern, Module
from lowc.options import Options
from lowc.runtime.cuda import graphs
from lowc.runtime.cuda.program import bind
from tests.immortal import KEPT_FOR_EVER

C = buffer("c", 3, 4)
MULTIPLIED = module([X, C], [Y], [whole(Y)], [named("k", [X, C], [Y])])
OPTIONS = [Options(), CALLER, Options(mode="reduce-overhead")]


def multiplied(on: Any, options: Options, value: torch.Tensor) -> Any:
    def kernel(params: list[int], _: int) -> None:
        at(params[2], Y).copy_(at(params[0], X) * at(params[1], X))

    return fakes.load(MULTIPLIED, on, constants=[value], options=options, k=kernel)


@pytest.mark.parametrize("options", OPTIONS, ids=["own", "caller", "reduce-overhead"])
@pytest.mark.parametrize("capture", [False, True])
def test_constants_of_a_program_that_was_captured_outlive_it(options: Options, capture: bool) -> None:
    on = fakes.device()
    value = torch.full((3, 4), 2.0)
    alive, program = weakref.ref(value), multiplied(on, options, value)
    del value
    on[2].current, on[2].is_capturing = 0x77, capture
    for _ in range(3 if capture else 1):
        given = torch.randn(3, 4)
        assert torch.equal(program.call([given])[0], given * 2)
    del program
    gc.collect()
    assert (alive() is not None) == (capture or KEPT_FOR_EVER)
    assert len(on[0].held) == int(capture)  # once, however often it was called


def test_captures_of_lowcs_own_hold_nothing_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go with the program.  (``capture`` finds torch capturing, as a real one would.)"""
    on = fakes.device()

    def capture(call: Any, device: Any, args: list[Any], stay: frozenset[int]) -> Any:
        on[2].is_capturing = True
        call(list(args))
        on[2].is_capturing = False
        raise RuntimeError("no graphs here")

    monkeypatch.setattr(graphs, "capture_with_torch", capture)
    on[2].current = 0x77
    program = multiplied(on, OPTIONS[2], torch.full((3, 4), 2.0))
    for _ in range(3):
        program.call([torch.randn(3, 4)])
    assert program.gpu.graphs.captures == 1 and not on[0].held


def test_without_constants_there_is_nothing_to_hold() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, options=CALLER, add=add)
    on[2].current, on[2].is_capturing = 0x77, True
    program.call([torch.randn(3, 4)])
    assert on[0].held == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")
@pytest.mark.parametrize("options", [Options(), CALLER], ids=["own", "caller"])
def test_a_users_graph_outlives_the_program(options: Options) -> None:
    """What the program had is not given back: other tensors get no memory of it, and the allocator's free memory goes."""
    rows = 1 << 22
    x, c, y = (buffer(n, rows) for n in "xcy")
    product = Extern("aten.mul.Tensor", (whole(x), whole(c)), (), (y,))
    mod: Module = module([x, c], [y], [whole(y)], [product])
    found = fakes.artifact(mod)
    artifact = Artifact("nvptx", b"", found.slots, found.program, mod, found.entries)
    program: Any = bind(artifact, walker.address(), 0, [torch.full((rows,), 2.0, device="cuda")], options)
    given = torch.randn(rows, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        program.call([given])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        (out,) = program.call([given])
    del program
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(rows, device="cuda") for _ in range(4)]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, given * 2) and len(others) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")
def test_a_users_graph_outlives_the_compiled_function() -> None:
    """Its code as well, which is never unloaded."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum(1)

    given = torch.randn(4096, 1000, device="cuda")
    compiled = torch.compile(function, backend="lowc", options={"stream": "caller", "cache": False})
    for _ in range(2):
        compiled(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(given)
    torch._dynamo.reset()
    del compiled
    gc.collect()
    torch.cuda.empty_cache()
    given.copy_(torch.randn_like(given))
    graph.replay()
    torch.testing.assert_close(out, function(given))
