"""Whole programs on the fake device: slots and params, forks and joins, memory, calls of ATen, errors."""

import ctypes
import threading
import weakref

import fakes
import pytest
import torch
from fakes import CONTEXT, Ops, of, ordered
from hosts import at, buffer, whole
from programs import ADD, CALLER, S, X, Y, add, module, named

from lowc.artifact import Entry
from lowc.errors import CodegenError, LowcError
from lowc.ir import types
from lowc.ir.index import Symbol, ix
from lowc.ir.nodes import Extern, Module, View
from lowc.options import Options
from lowc.runtime.cuda import late


def test_a_call_forks_launches_and_joins() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, add=add)
    given = torch.randn(3, 4)
    args = [given]
    on[2].current = 0x77
    (out,) = program.call(args)
    assert args == [] and torch.equal(out, given + 1)
    log = on[1].log
    own = log[2][5]
    assert own == on[1].streams[0] != 0x77
    event = log[0][1]
    word = on[0].word.device
    assert log[0] == ("record", event, 0x77)
    assert log[1] == ("wait", own, event)
    assert log[2][:6] == ("launch", "add", 1, (32, 1), 0, own)
    assert log[2][6][:3] == (given.data_ptr(), out.data_ptr(), word)
    assert log[3:] == [("record", event, own), ("wait", 0x77, event)]
    assert program.gpu.stream == "own"
    assert on[1].context == CONTEXT


def test_on_the_callers_stream_there_are_no_events() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, options=CALLER, add=add)
    given = torch.randn(3, 4)
    on[2].current = 0x77
    assert torch.equal(program.call([given])[0], given + 1)
    assert [entry[0] for entry in on[1].log] == ["launch"] and on[1].log[0][5] == 0x77
    assert program.gpu.stream == "caller" and "finally" not in program.source
    assert on[1].streams == []


def test_the_lane_is_used_again() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, add=add)
    for _ in range(5):
        program.call([torch.randn(3, 4)])
    assert len(on[1].streams) == 1


def test_memory_is_allocated_before_the_fork_and_let_go_after_the_join() -> None:
    on = fakes.device()
    x, a, y = buffer("x", 4, 4), buffer("a", 4, 4), buffer("y", 4, 4)
    program = fakes.load(
        module(
            [x],
            [a, y],
            [whole(y)],
            [named("one", [x], [a]), named("two", [a], [y])],
            placed=[("a", ix(64))],
            workspace=128,
        ),
        on,
    )
    source = program.source
    assert (
        source.index("empty(") < source.index("workspace(") < source.index("enter()") < source.index("leave(")
    )
    assert "del " not in source
    program.call([torch.randn(4, 4)])
    assert {stream for stream, _ in on[2].allocated} == {0}
    first, second = (on[1].log[n] for n in of(on[1].log, "launch"))
    ws = next(t for _, t in on[2].allocated if t.dtype is torch.uint8)
    assert first[6][1] == second[6][0] == ws.data_ptr() + 64


@pytest.mark.parametrize(("options", "alive_then"), [(None, True), (CALLER, False)])
def test_inputs_live_until_the_join(options, alive_then) -> None:
    on = fakes.device()
    x, a, b = buffer("x", 3, 3), buffer("a", 3, 3), buffer("b", 3, 3)
    seen: list[bool] = []
    relu = Extern("aten.relu.default", (whole(x),), (), (a,))
    mod = module([x], [a, b], [whole(b)], [relu, named("k", [a], [b])])
    program = fakes.load(mod, on, options=options, k=lambda *_: seen.append(alive() is not None))
    given = torch.randn(3, 3)
    alive = weakref.ref(given)
    args = [given]
    del given
    program.call(args)
    assert seen == [alive_then]


def mixed() -> Module:
    """k1, mm, k2: a call of ATen between native calls, and one whose result is returned."""
    x, a, b, c, d = (buffer(n, 3, 3) for n in "xabcd")
    mm = Extern("aten.mm.default", (whole(a), whole(a)), (), (b,))
    neg = Extern("aten.neg.default", (whole(b),), (), (d,))
    return module(
        [x], [a, b, c, d], [whole(c), whole(d)], [named("k1", [x], [a]), mm, neg, named("k2", [b], [c])]
    )


def test_calls_of_aten_run_on_the_own_stream() -> None:
    on = fakes.device()
    program = fakes.load(mixed(), on)
    on[2].current = 0x77
    with Ops(on[2]):
        outputs = program.call([torch.randn(3, 3)])
    log, own = on[1].log, on[1].streams[0]
    ops = of(log, "op", "aten.mm.default") + of(log, "op", "aten.neg.default")
    assert len(ops) == 2 and {log[n][2] for n in ops} == {own}
    first, last = of(log, "launch")
    assert ordered(log, first, ops[0]) and ordered(log, ops[0], last)
    assert on[2].current == 0x77
    # what an op has made on the own stream, and the caller gets: the allocator hears of the caller's stream
    assert [t.data_ptr() for t in on[2].kept] == [outputs[1].data_ptr()]
    assert [entry for entry in log if entry[0] == "keep"] == [("keep", 0x77)]


def test_calls_of_aten_on_the_callers_stream() -> None:
    on = fakes.device()
    program = fakes.load(mixed(), on, options=CALLER)
    on[2].current = 0x77
    with Ops(on[2]):
        program.call([torch.randn(3, 3)])
    assert {entry[2] for entry in on[1].log if entry[0] == "op"} == {0x77}
    assert on[2].kept == []


@pytest.mark.parametrize("make", [lambda: ADD, mixed])
def test_work_of_the_caller_before_and_after_is_in_order(make) -> None:
    on = fakes.device()
    program = fakes.load(make(), on)
    on[2].current = 0x77
    log = on[1].log
    log.append(("user", 0x77))
    shape = (3, 4) if make() is ADD else (3, 3)
    program.call([torch.randn(shape)])
    log.append(("user", 0x77))
    before, after = of(log, "user")
    for place in of(log, "launch"):
        assert ordered(log, before, place) and ordered(log, place, after)


def test_the_order_check_would_see_a_missing_event() -> None:
    log = [("user", 1), ("record", 9, 1), ("wait", 2, 9), ("launch", "k", 1, (1, 1), 0, 2, ())]
    assert ordered(log, 0, 3)
    assert not ordered([e for e in log if e[0] != "wait"], 0, 2)
    assert not ordered([e for e in log if e[0] != "record"], 0, 2)


def test_an_exception_joins_too() -> None:
    on = fakes.device()
    x, a, b = buffer("x", 3, 3), buffer("a", 3, 3), buffer("b", 2, 3)
    bad = Extern(
        "aten.mm.default", (whole(a), View(a, types.f32, (ix(2), ix(3)), (ix(3), ix(1)), ix(0))), (), (b,)
    )
    program = fakes.load(module([x], [a, b], [whole(b)], [named("k", [x], [a]), bad]), on)
    on[2].current = 0x77
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        program.call([torch.randn(3, 3)])
    log = on[1].log
    assert on[2].current == 0x77
    log.append(("user", 0x77))
    assert ordered(log, of(log, "launch")[0], len(log) - 1)
    with pytest.raises(RuntimeError):
        program.call([torch.randn(3, 3)])
    assert len(on[1].streams) == 1  # the lane came back


def test_a_failed_launch_names_the_kernel_and_joins() -> None:
    on = fakes.device()
    x, a, b = buffer("x", 3), buffer("a", 3), buffer("b", 3)
    steps = [named("good", [x], [a]), named("bad", [a], [b], "add = aten.add.Tensor  # model.py:3")]
    program = fakes.load(module([x], [a, b], [whole(b)], steps), on)
    on[1].fail["cuLaunchKernel"] = (1, 700)
    with pytest.raises(
        LowcError, match=r"launching kernel bad \(record 1\) failed: CUDA_ERROR_700"
    ) as caught:
        program.call([torch.randn(3)])
    assert "model.py:3" in str(caught.value)
    assert on[1].log[-1][0] == "wait"


def test_a_failed_fork_raises() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, add=add)
    on[1].fail["cuEventRecord"] = (0, 400)
    with pytest.raises(LowcError, match="CUDA_ERROR_400"):
        program.call([torch.randn(3, 4)])
    assert of(on[1].log, "launch") == []


# ---------------------------------------------------------------- sizes


def test_sizes_grids_and_offsets_that_depend_on_the_inputs() -> None:
    on = fakes.device()
    x, a, y = buffer("x", S, 2), buffer("a", S, 2), buffer("y", S, 2)
    program = fakes.load(
        module(
            [x],
            [a, y],
            [whole(y)],
            [named("one", [x], [a], sizes=[S]), named("two", [a], [y], sizes=[S])],
            [S],
            placed=[("a", ix(S) * 8)],
            workspace=ix(S) * 16 + 64,
        ),
        on,
        {"one": fakes.entry("one", ix(S) * 2 + 1), "two": fakes.entry("two", S)},
    )
    for size in (3, 5, 0, 1):
        on[1].log.clear()
        on[2].allocated.clear()
        program.call([torch.randn(size, 2)])
        found = [on[1].log[n] for n in of(on[1].log, "launch")]
        ws = next(t for _, t in on[2].allocated if t.dtype is torch.uint8)
        assert found[0][2] == size * 2 + 1
        assert found[0][6][1] == ws.data_ptr() + 8 * size and found[0][6][2] == size
        assert [entry[2] for entry in found[1:]] == ([size] if size else [])


def test_a_size_that_an_op_finds_out() -> None:
    on = fakes.device()
    u0 = Symbol("u0", 0, None)
    x, n, y = buffer("x", 6), buffer("n", u0, 1, dtype=types.i64), buffer("y", u0, 1, dtype=types.i64)
    nonzero = Extern("aten.nonzero.default", (whole(x),), (), (n,))
    program = fakes.load(
        module([x], [n, y], [whole(y)], [nonzero, named("k", [n], [y], sizes=[u0])], [u0]),
        on,
        {"k": fakes.entry("k", u0)},
    )
    (out,) = program.call([torch.tensor([1.0, 0, 2, 0, 3, 0])])
    found = on[1].log[of(on[1].log, "launch")[0]]
    assert out.shape == (3, 1) and found[2] == 3 and found[6][2] == 3
    # memory of the own stream, which the caller gets
    assert on[2].allocated[0][0] == on[1].streams[0]
    assert [t.data_ptr() for t in on[2].kept] == [out.data_ptr()]


def test_constants() -> None:
    on = fakes.device()
    c = buffer("c", 3, 4)
    program = fakes.load(
        module([X, c], [Y], [whole(Y)], [named("k", [X, c], [Y])]),
        on,
        constants=[torch.full((3, 4), 2.0)],
        k=lambda p, _: at(p[2], Y).copy_(at(p[0], X) * at(p[1], X)),
    )
    given = torch.randn(3, 4)
    assert torch.equal(program.call([given])[0], given * 2)


# ---------------------------------------------------------------- alignment

MUST_ALIGN = {"add": Entry("add", ix(1), (32, 1), 0, (0,))}


def off_by(elements: int, *shape: int) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    return torch.randn(count + elements)[elements:].view(shape)


def test_misaligned_inputs_are_copied() -> None:
    on = fakes.device()
    seen: list[int] = []
    program = fakes.load(ADD, on, MUST_ALIGN, add=lambda p, b: (seen.append(p[0]), add(p, b))[1])
    given = off_by(1, 3, 4)
    assert given.data_ptr() % 16 and torch.equal(program.call([given])[0], given + 1)
    assert seen[0] % 16 == 0
    given = torch.randn(3, 4)
    program.call([given])
    assert seen[1] == given.data_ptr()


def test_misaligned_inputs_that_need_no_alignment_are_not() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, add=add)
    given = off_by(1, 3, 4)
    program.call([given])
    assert on[1].log[of(on[1].log, "launch")[0]][6][0] == given.data_ptr()


def test_a_misaligned_input_that_is_written_and_returned() -> None:
    on = fakes.device()
    x = buffer("x", 3, 4, strides=(5, 1))
    part = View(x, types.f32, (ix(4),), (ix(1),), ix(5))
    program = fakes.load(
        module([x], [], [whole(x), part], [named("add", [x], [x])]),
        on,
        MUST_ALIGN,
        add=lambda p, _: torch.as_strided(at(p[0], buffer("b", 15)), (3, 4), (5, 1)).add_(1),
    )
    memory = torch.arange(16.0)
    given = torch.as_strided(memory, (3, 4), (5, 1), 1)
    assert given.data_ptr() % 16
    whole_out, part_out = program.call([given])
    expected = torch.arange(16.0)
    torch.as_strided(expected, (3, 4), (5, 1), 1).add_(1)
    assert torch.equal(memory, expected)
    assert whole_out is given
    assert part_out.data_ptr() == given[1].data_ptr() and torch.equal(part_out, given[1])


# ---------------------------------------------------------------- devices, captures, threads


def test_the_graphs_device_is_current_meanwhile() -> None:
    on = fakes.device(1)
    seen: list[int] = []
    program = fakes.load(ADD, on, add=lambda p, b: (seen.append(on[2].here), add(p, b))[1])
    on[2].here = 0
    program.call([torch.randn(3, 4)])
    assert seen == [1] and on[2].here == 0
    assert on[1].context == CONTEXT + 1
    on[1].fail["cuLaunchKernel"] = (1, 700)
    with pytest.raises(LowcError):
        program.call([torch.randn(3, 4)])
    assert on[2].here == 0


def test_inside_a_capture_a_stream_stays_with_it() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, add=add)
    program.call([torch.randn(3, 4)])
    normal = on[1].streams[0]
    on[2].current, on[2].is_capturing = 0x77, True
    program.call([torch.randn(3, 4)])
    captured = on[1].streams[1]
    on[1].in_capture.add(captured)
    program.call([torch.randn(3, 4)])
    assert len(on[1].streams) == 3  # the first stream is still in the capture, another thread's perhaps
    on[1].in_capture.add(on[1].streams[2])
    on[2].current, on[2].is_capturing = 0, False
    on[1].log.clear()
    program.call([torch.randn(3, 4)])
    assert {entry[5] for entry in on[1].log if entry[0] == "launch"} == {normal}
    on[1].in_capture.clear()
    on[2].current, on[2].is_capturing = 0x77, True
    program.call([torch.randn(3, 4)])
    assert len(on[1].streams) == 3


def test_threads_have_lanes_of_their_own() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, add=add)
    barrier = threading.Barrier(4)
    program.call([torch.zeros(3, 4)])
    wrong: list[int] = []

    def many(number: int) -> None:
        barrier.wait()
        for n in range(50):
            if not torch.equal(program.call([torch.full((3, 4), float(n))])[0], torch.full((3, 4), n + 1.0)):
                wrong.append(number)

    threads = [threading.Thread(target=many, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(on[1].streams) <= 4


# ---------------------------------------------------------------- late errors, loading


def write(word: int, value: int) -> None:
    ctypes.c_int64.from_address(word).value = value


@pytest.mark.parametrize("options", [None, CALLER])
@pytest.mark.parametrize(
    ("kind", "error", "said"), [(1, IndexError, "index out of range"), (2, RuntimeError, "ZeroDivision")]
)
def test_a_failed_check_is_raised_by_the_next_call(options, kind, error, said) -> None:
    on = fakes.device()
    mod = module([X], [Y], [whole(Y)], [named("k", [X], [Y], "index = aten.index.Tensor  # model.py:7")])
    program = fakes.load(mod, on, options=options, k=lambda p, _: write(p[2], kind + 16 * p[3]))
    program.call([torch.randn(3, 4)])
    with pytest.raises(error, match=f"{said}.*model.py:7.*reported late"):
        program.call([torch.randn(3, 4)])
    assert len(of(on[1].log, "launch")) == 1
    program.call([torch.randn(3, 4)])  # said once


def test_never_inside_a_capture() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, add=add)
    write(on[0].word.device, 1)
    on[2].current, on[2].is_capturing = 0x77, True
    program.call([torch.randn(3, 4)])
    on[2].is_capturing = False
    with pytest.raises(IndexError):
        program.call([torch.randn(3, 4)])


def test_another_programs_error_is_told_apart() -> None:
    on = fakes.device()
    mod = module([X], [Y], [whole(Y)], [named("k", [X], [Y], "first.py")])
    one = fakes.load(mod, on, k=lambda p, _: write(p[2], 1 + 16 * p[3]))
    two = fakes.load(module([X], [Y], [whole(Y)], [named("other", [X], [Y], "second.py")]), on)
    one.call([torch.randn(3, 4)])
    with pytest.raises(IndexError, match=r"first\.py"):
        two.call([torch.randn(3, 4)])


def test_synchronising_through_lowc_tells(monkeypatch) -> None:
    import lowc
    from lowc.runtime.cuda import device as devices

    on = fakes.device()
    monkeypatch.setattr(devices, "_devices", {0: on[0]})
    lowc.synchronize(1)
    assert on[1].log == []
    write(on[0].word.device, 1)
    with pytest.raises(IndexError):
        lowc.synchronize()
    assert on[1].log == [("synchronize",)]
    lowc.synchronize(0)


def test_an_unknown_code() -> None:
    assert "code 16000000015" in str(late.late_failure(15 + 16 * 10**9))


PTX = b""".version 9.0
.visible .entry good(
{ ret; }
.visible .entry bad_kernel(
{
  bogus;
}
"""


def test_rejected_ptx_names_kernel_log_and_file(tmp_path) -> None:
    on = fakes.device()
    on[1].load_result = (
        0,
        "cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX",
        "ptxas input, line 6; error: Unknown opcode",
    )
    made = fakes.artifact(ADD)
    broken = type(made)(made.target, PTX, made.slots, made.program, made.module, made.entries)
    from lowc.runtime.cuda.program import bind

    with pytest.raises(CodegenError, match="of kernel bad_kernel: cuModuleLoadDataEx") as caught:
        bind(broken, 1, 0, options=Options(dump=str(tmp_path)), on=on[0])
    assert "Unknown opcode" in str(caught.value)
    assert (tmp_path / "rejected.ptx").read_bytes() == PTX
    assert str(tmp_path / "rejected.ptx") in caught.value.hint


def test_the_rejected_kernel_is_left_to_aten_alone(tmp_path) -> None:
    from lowc.runtime.cuda.modules import rejected

    log = "ptxas input, line 2; error: no such thing"
    origins = {"good": ("add = aten.add.Tensor",), "bad_kernel": ("mul = aten.mul.Tensor",)}
    error = rejected(PTX, "failed", log, str(tmp_path), origins)
    assert error.origin == ("add = aten.add.Tensor",)


def test_shared_memory_beyond_the_default_is_asked_for() -> None:
    on = fakes.device()
    fakes.load(ADD, on, {"add": fakes.entry("add", shared=100 * 1024)})
    assert on[1].shared == {"add": 100 * 1024}


def test_only_calls_of_aten_need_no_stream() -> None:
    on = fakes.device()
    program = fakes.load(
        module([X], [Y], [whole(Y)], [Extern("aten.relu.default", (whole(X),), (), (Y,))]), on
    )
    given = torch.randn(3, 4)
    assert torch.equal(program.call([given])[0], given.relu())
    assert on[1].streams == [] and program.gpu.stream == "caller"


def test_mutated_inputs_have_their_version_bumped() -> None:
    on = fakes.device()
    program = fakes.load(module([X], [], [], [named("k", [X], [X])]), on)
    given = torch.randn(3, 4)
    before = given._version
    program.call([given])
    assert given._version == before + 1
