"""``mode="reduce-overhead"``: when calls are captured, what replays read and return, what is refused."""

import logging
from typing import Any

import fakes
import pytest
import torch
from hosts import at, buffer, whole
from programs import ADD, S, X, Y, add, module, named

from lowc.ir import types
from lowc.ir.index import ix
from lowc.ir.nodes import Extern, View
from lowc.options import Options
from lowc.runtime.cuda import graphs
from lowc.runtime.cuda.graphs import Captured, Graphs, memory_for, refusal


class Replayed:
    """A captured call on the CPU: replaying runs it again on the same memory."""

    def __init__(self, call: Any, inside: list[Any]) -> None:
        self.call, self.inside = call, inside
        self.outputs = call(list(inside))
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for mine, new in zip(self.outputs, self.call(list(self.inside)), strict=True):
            if mine.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                mine.untyped_storage().copy_(new.untyped_storage())


def capture(call: Any, device: Any, args: list[Any], stay: frozenset[int]) -> Captured:
    fixed, copies, inside = memory_for(args, stay)
    graph = Replayed(call, inside)
    return Captured(device, graph, fixed, copies, inside, graph.outputs)


def total(params: list[int], blocks: int) -> None:
    at(params[2], Y).copy_(at(params[0], X) + at(params[1], X))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(graphs, "capture_with_torch", capture)
    return fakes.device()


FAST = Options(mode="reduce-overhead")
A = buffer("a", 3, 4)


def summed(on: Any) -> tuple[Any, Graphs]:
    x, w = buffer("x", 3, 4), buffer("w", 3, 4)
    program = fakes.load(
        module([x, w], [Y], [whole(Y)], [named("sum", [x, w], [Y])]), on, options=FAST, sum=total
    )
    return program, program.gpu.graphs


def test_the_second_call_is_captured_and_later_ones_replayed(on) -> None:
    program, captured = summed(on)
    weight = torch.randn(3, 4)
    kept = []
    for n in range(5):
        given = torch.full((3, 4), float(n))
        (out,) = program.call([given, weight])
        kept.append((out, given + weight))
        assert captured.captures == (n > 0)
    for out, expected in kept:  # nothing was overwritten
        assert torch.equal(out, expected)
    assert captured.reason == ""


def test_inputs_that_stay_are_read_in_place(on) -> None:
    program, captured = summed(on)
    weight = torch.zeros(3, 4)
    held = [torch.randn(3, 4) for _ in range(4)]
    for given in held:
        weight += 1
        assert torch.equal(program.call([given, weight])[0], given + weight)
    (made,) = captured._sets.values()
    assert [n for n, _ in made.graph._fixed] == [1] and [n for n, _ in made.graph._copies] == [0]
    assert captured.captures == 1


def test_an_input_that_moves_is_captured_anew_and_then_copied(on) -> None:
    program, captured = summed(on)
    weight = torch.randn(3, 4)
    held = [torch.randn(3, 4) for _ in range(8)]
    for given in held[:3]:
        program.call([given, weight])
    for given in held[3:]:
        moved = torch.randn(3, 4)
        held.append(moved)
        assert torch.equal(program.call([given, moved])[0], given + moved)
    assert captured.captures == 2


def test_each_size_has_its_graph_up_to_a_bound(on, monkeypatch, caplog) -> None:
    monkeypatch.setattr(graphs, "MOST", 3)
    x, y = buffer("x", S), buffer("y", S)
    program = fakes.load(
        module([x], [y], [whole(y)], [named("k", [x], [y], sizes=[S])], [S]),
        on,
        options=FAST,
        k=lambda p, _: at(p[1], buffer("b", p[2])).copy_(at(p[0], buffer("b", p[2])) * 2),
    )
    for _ in range(3):
        for size in range(1, 6):
            given = torch.randn(size)
            assert torch.equal(program.call([given])[0], given * 2)
    assert program.gpu.graphs.captures == 3
    assert "3 CUDA graphs have been captured already" in caplog.text


def test_a_call_inside_a_capture_is_no_replay(on) -> None:
    program, captured = summed(on)
    on[2].current, on[2].is_capturing = 0x77, True
    for _ in range(3):
        program.call([torch.randn(3, 4), torch.randn(3, 4)])
    assert captured.captures == 0


def test_replays_on_different_streams_wait_for_one_another(on) -> None:
    program, captured = summed(on)
    weight, log = torch.randn(3, 4), on[1].log
    for _ in range(2):
        program.call([torch.randn(3, 4), weight])
    log.clear()
    program.call([torch.randn(3, 4), weight])
    done = [entry for entry in log if entry[0] == "record" and entry[2] == 0][-1][1]
    assert ("wait", 0, done) not in log
    on[2].current = 0x77
    program.call([torch.randn(3, 4), weight])
    assert ("wait", 0x77, done) in log and ("record", done, 0x77) in log


def test_a_replay_that_fails_is_waited_for(on, monkeypatch) -> None:
    program, captured = summed(on)
    weight = torch.randn(3, 4)
    for _ in range(3):
        program.call([torch.randn(3, 4), weight])
    (found,) = captured._sets.values()
    on[2].current = 0x77

    def full(args: Any) -> Any:
        raise torch.OutOfMemoryError("no room for the results")

    with monkeypatch.context() as patched:
        patched.setattr(found.graph, "_results", full)
        with pytest.raises(torch.OutOfMemoryError):
            program.call([torch.randn(3, 4), weight])
    on[1].log.clear()
    on[2].current = 0
    x = torch.randn(3, 4)
    assert torch.equal(program.call([x, weight])[0], x + weight)
    assert ("wait", 0, found.graph._done.handle) in on[1].log


def test_a_failed_capture_is_a_call_as_it_is(monkeypatch, caplog) -> None:
    def fails(*args: Any) -> Captured:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(graphs, "capture_with_torch", fails)
    on = fakes.device()
    program = fakes.load(ADD, on, options=FAST, add=add)
    for _ in range(3):
        given = torch.randn(3, 4)
        assert torch.equal(program.call([given])[0], given + 1)
    assert caplog.text.count("operation not permitted") == 1
    assert "operation not permitted" in program.gpu.graphs.reason


def test_inputs_elsewhere_are_refused(on, caplog) -> None:
    x, y = buffer("x", 3, dtype=types.f64), buffer("y", 3, dtype=types.f64)
    program = fakes.load(module([x], [y], [whole(y)], [named("k", [x], [y])]), on, options=FAST)
    for _ in range(3):
        program.call([torch.ones(3, dtype=torch.float64)])
    assert program.gpu.graphs.captures == 0 and "input 0 is on cpu" in caplog.text


def test_outputs_keep_their_aliases(on) -> None:
    part = View(X, types.f32, (ix(2), ix(2)), (ix(4), ix(1)), ix(5))
    bits = View(Y, types.i32, (ix(3),), (ix(4),), ix(1))
    spread = View(A, types.f32, (ix(5), ix(4)), (ix(0), ix(1)), ix(4))
    mod = module([X], [Y, A], [whole(X), part, whole(Y), bits, spread], [named("both", [X], [Y, A])])
    program = fakes.load(mod, on, options=FAST, both=lambda p, b: (add(p, b), add([p[0], p[2]], b))[0])
    kept = []
    for n in range(4):
        x = torch.randn(3, 4)
        if n > 1:
            x = torch.randn(2, 12)[1].view(3, 4)  # a storage offset
        kept.append((x, program.call([x])))
    for x, (same, window, y, number, wide) in kept:
        assert same is x
        assert window.data_ptr() == x[1, 1:].data_ptr() and torch.equal(window, x[1:, 1:3])
        assert torch.equal(y, x + 1)
        assert number.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        assert torch.equal(number, (x + 1).view(torch.int32)[:, 1])
        assert torch.equal(wide, (x + 1)[1].expand(5, 4)) and wide.stride() == (0, 1)
    assert program.gpu.graphs.captures == 1


@pytest.mark.parametrize(
    ("mod", "why"),
    [
        (ADD, ""),
        (module([X], [], [], [named("k", [X], [X])]), "it changes its input x"),
        (
            module([X], [], [], [Extern("aten.copy_.default", (whole(X), whole(X)), (), (None,), (X,))]),
            "it changes its input x",
        ),
        (
            module([X], [A], [whole(A)], [Extern("aten.nonzero.default", (whole(X),), (), (A,))]),
            "aten.nonzero.default waits",
        ),
        (
            module([X], [A], [whole(A)], [Extern("_c10d_functional.all_reduce.default", (whole(X), "sum", "0"), (), (A,))]),
            "_c10d_functional.all_reduce.default is a collective",
        ),
        (
            module(
                [X],
                [A],
                [whole(A)],
                [Extern("aten._to_copy.default", (whole(X),), (("device", "device:cpu"),), (A,))],
            ),
            "aten._to_copy.default touches another device",
        ),
        (
            module([X], [A], [whole(A)], [Extern("aten.item.default", (whole(X),), (), (S,))]),
            "aten.item.default waits",
        ),
        (module([X], [A], [whole(A)], [Extern("aten.relu.default", (whole(X),), (), (A,))]), ""),
    ],
)
def test_what_is_refused(mod, why) -> None:
    found = refusal(fakes.artifact(mod))
    assert found.startswith(why) and bool(found) == bool(why)


def test_a_refusal_is_logged_and_costs_nothing(on, caplog) -> None:
    with caplog.at_level(logging.WARNING, "lowc"):
        program = fakes.load(module([X], [], [], [named("k", [X], [X])]), on, options=FAST)
    assert "it changes its input x" in caplog.text
    program.call([torch.randn(3, 4)])
    assert program.gpu.graphs.captures == 0
