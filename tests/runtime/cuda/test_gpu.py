"""The runtime on a GPU: hand-written PTX through launch tables, streams, captures, threads.

python -m pytest -m gpu tests/runtime/cuda
"""

import threading
from collections.abc import Callable
from typing import Any

import fakes
import pytest
import torch
from hosts import buffer, whole
from programs import S, module, named

import lowc
from lowc.artifact import Artifact, Entry
from lowc.backends.nvptx import walker
from lowc.errors import CodegenError
from lowc.ir.index import floordiv, ix
from lowc.ir.nodes import Extern, Module
from lowc.options import Options
from lowc.runtime.cuda import device as devices
from lowc.runtime.cuda.calls import Calls
from lowc.runtime.cuda.program import bind
from lowc.runtime.cuda.streams import Lane
from lowc.runtime.program import Program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]

HEAD = """.version 7.8
.target sm_75
.address_size 64
"""


def add_one(name: str, cycles: int = 0, vector: bool = False) -> str:
    """y[i] = x[i] + 1 for i < n, after ``cycles`` of waiting; ``vector``: four at a time (n is a multiple of four)."""
    load, store = ("ld.global.v4.f32", "st.global.v4.f32") if vector else ("ld.global.f32", "st.global.f32")
    regs = "{%f1, %f2, %f3, %f4}" if vector else "%f1"
    adds = "".join(f"    add.f32 %f{n}, %f{n}, 0f3F800000;\n" for n in range(1, 5 if vector else 2))
    shift = 4 if vector else 2
    count = "    shr.s64 %rd2, %rd2, 2;\n" if vector else ""
    wait = f"""\
    mov.u64 %rd6, %clock64;
again:
    mov.u64 %rd7, %clock64;
    sub.s64 %rd7, %rd7, %rd6;
    setp.lt.s64 %p2, %rd7, {cycles};
    @%p2 bra again;
"""
    params = ", ".join(f".param .u64 {name}_{p}" for p in "xynws")
    return f"""
.visible .entry {name}({params})
{{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<9>;
{wait if cycles else ""}\
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd1, %r1, %r2;
    cvt.u64.u32 %rd8, %r3;
    add.s64 %rd1, %rd1, %rd8;
    ld.param.u64 %rd2, [{name}_n];
{count}\
    setp.ge.s64 %p1, %rd1, %rd2;
    @%p1 bra done;
    ld.param.u64 %rd3, [{name}_x];
    ld.param.u64 %rd4, [{name}_y];
    cvta.to.global.u64 %rd3, %rd3;
    cvta.to.global.u64 %rd4, %rd4;
    shl.b64 %rd5, %rd1, {shift};
    add.s64 %rd3, %rd3, %rd5;
    add.s64 %rd4, %rd4, %rd5;
    {load} {regs}, [%rd3];
{adds}\
    {store} [%rd4], {regs};
done:
    ret;
}}
"""


REPORT = """
.visible .entry report(.param .u64 report_y, .param .u64 report_w, .param .u64 report_s)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [report_w];
    ld.param.u64 %rd2, [report_s];
    shl.b64 %rd2, %rd2, 4;
    add.s64 %rd2, %rd2, 1;
    st.volatile.u64 [%rd1], %rd2;
    ret;
}
"""

X, A, Y = (buffer(name, S) for name in "xay")
N = ix(S)
BLOCKS = floordiv(N + 127, ix(128))
ENTRY = Entry("add_one", BLOCKS, (128, 1), 0, ())


def made(mod: Module, ptx: str, **entries: Entry) -> Artifact:
    found = fakes.artifact(mod, entries)
    return Artifact("nvptx", (HEAD + ptx).encode(), found.slots, found.program, mod, found.entries)


def load(mod: Module, ptx: str, options: Options | None = None, index: int = 0, **entries: Entry) -> Program:
    return bind(made(mod, ptx, **entries), walker.address(), index, options=options)


def simple(options: Options | None = None, index: int = 0, cycles: int = 0) -> Program:
    """y = x + 1"""
    mod = module([X], [Y], [whole(Y)], [named("add_one", [X], [Y], sizes=[S])], [S])
    return load(mod, add_one("add_one", cycles), options, index, add_one=ENTRY)


def twice(options: Options | None = None, cycles: int = 0) -> Program:
    """y = x + 2, by way of the workspace"""
    steps = [named("one", [X], [A], sizes=[S]), named("two", [A], [Y], sizes=[S])]
    mod = module([X], [A, Y], [whole(Y)], steps, [S], placed=[("a", ix(0))], workspace=N * 4)
    ptx = add_one("one", cycles) + add_one("two")
    one, two = (Entry(n, BLOCKS, (128, 1), 0, ()) for n in ("one", "two"))
    return load(mod, ptx, options, one=one, two=two)


def around_mm(options: Options | None = None, cycles: int = 0) -> Program:
    """(mm(x + 1, x + 1) + 1, relu(mm(x + 1, x + 1))) for x of 64 x 64"""
    x, a, b, c, d = (buffer(n, 64, 64) for n in "xabcd")
    n = buffer("n", S)
    mm = Extern("aten.mm.default", (whole(a), whole(a)), (), (b,))
    relu = Extern("aten.relu.default", (whole(b),), (), (d,))
    steps = [named("one", [x], [a], sizes=[S]), mm, relu, named("two", [b], [c], sizes=[S])]
    mod = module([x, n], [a, b, c, d], [whole(c), whole(d)], steps, [S])
    one, two = (Entry(name, ix(32), (128, 1), 0, ()) for name in ("one", "two"))
    return load(mod, add_one("one", cycles) + add_one("two"), options, one=one, two=two)


def mm_expected(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = torch.mm(x + 1, x + 1)
    return product + 1, product.relu()


OWN, CALLER = Options(), Options(stream="caller")
BOTH = pytest.mark.parametrize("options", [OWN, CALLER], ids=["own", "caller"])
MANY = torch.empty(4096)  # its size is what n stands for in around_mm


@pytest.fixture(autouse=True)
def finished() -> Any:
    yield
    torch.cuda.synchronize()
    lowc.synchronize()


@BOTH
@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 1 << 20, (1 << 20) + 1])
def test_a_kernel(options: Options, size: int) -> None:
    program = simple(options)
    x = torch.randn(size, device="cuda")
    for _ in range(3):
        (y,) = program.call([x])
        assert torch.equal(y, x + 1) and y.device == x.device


@BOTH
def test_a_workspace(options: Options) -> None:
    program = twice(options, 20_000)
    for size in (1, 1000, 100_000):
        x = torch.randn(size, device="cuda")
        assert torch.equal(program.call([x])[0], x + 1 + 1)


@BOTH
def test_calls_of_aten_in_between(options: Options) -> None:
    program = around_mm(options, 50_000)
    n = MANY.cuda()
    for _ in range(50):
        x = torch.randn(64, 64, device="cuda")
        for got, want in zip(program.call([x, n]), mm_expected(x), strict=True):
            torch.testing.assert_close(got, want)


def test_the_facts() -> None:
    facts = devices.facts(0)
    assert facts.capability == torch.cuda.get_device_capability(0)
    assert facts.processors == torch.cuda.get_device_properties(0).multi_processor_count
    assert facts.driver >= 12000 and facts.l2 > 0 and facts.shared >= 48 << 10


# ---------------------------------------------------------------- order


def wrong_reads(program: Program, tries: int, stream: torch.cuda.Stream) -> int:
    """How often a call read its input before the caller's slow work had written it."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    with torch.cuda.stream(stream):
        x = torch.zeros(4096, device="cuda")
        for n in range(tries):
            torch.cuda._sleep(400_000)
            x.fill_(float(n + 1))
            (y,) = program.call([x])
            wrong += (y != n + 2).any()
            del y
        stream.synchronize()
    return int(wrong)


@BOTH
def test_a_call_waits_for_the_callers_work(options: Options) -> None:
    assert wrong_reads(simple(options), 1000, torch.cuda.Stream()) == 0


def test_without_the_events_wait_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    program, stream = simple(), torch.cuda.Stream()
    assert wrong_reads(program, 20, stream) == 0
    fork = Lane.fork

    def no_wait(lane: Lane, caller: int) -> int:
        fork(lane, lane.stream)  # the stream waits for itself; the join still knows the caller
        lane._slots[0] = caller
        return 0

    monkeypatch.setattr(Lane, "fork", no_wait)
    assert wrong_reads(program, 20, stream) > 0


def wrong_results(program: Program, tries: int, stream: torch.cuda.Stream) -> int:
    """How often the caller's work read an output before a slow call had written it."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    with torch.cuda.stream(stream):
        for n in range(tries):
            x = torch.full((4096,), float(n), device="cuda")
            (y,) = program.call([x])
            wrong += (y != n + 1).any()
        stream.synchronize()
    return int(wrong)


@BOTH
def test_the_callers_work_waits_for_a_call(options: Options) -> None:
    assert wrong_results(simple(options, cycles=400_000), 1000, torch.cuda.Stream()) == 0


def test_without_the_join_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "leave", lambda calls, lane: calls._give(lane))  # before the program binds it
    program, stream = simple(cycles=400_000), torch.cuda.Stream()
    found = wrong_results(program, 20, stream)
    torch.cuda.synchronize()
    assert found > 0


@BOTH
def test_memory_that_is_freed_at_once_is_not_overwritten(options: Options) -> None:
    """Inputs and outputs die while work is pending; what gets their memory must not disturb it."""
    program, n = around_mm(options, 50_000), MANY.cuda()
    results: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k in range(200):
        x = torch.full((64, 64), k / 64, device="cuda")
        want = mm_expected(x)[1]
        _, got = program.call([x, n])
        del x
        torch.full((64, 64), float("nan"), device="cuda")
        results.append((got, want))
        if k % 3 == 0:
            results.pop(0)
    for got, want in results:
        torch.testing.assert_close(got, want)


def test_two_user_streams() -> None:
    program = simple(cycles=50_000)
    streams = [torch.cuda.Stream() for _ in range(2)]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for n in range(200):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                x = torch.full((1000,), float(n + 1000 * number), device="cuda")
                (y,) = program.call([x])
                wrong[number] += (y != n + 1000 * number + 1).any()
    torch.cuda.synchronize()
    assert [int(w) for w in wrong] == [0, 0]


def test_kernels_side_by_side() -> None:
    from test_branches import kernel

    x, a, b, y, z = (buffer(name, 1024) for name in "xabyz")
    sizes = (S,)
    n = buffer("n", S)

    def step(name: str, reads: Any, writes: Any) -> Any:
        made = kernel(name, reads, writes)
        inner = type(made.kernel)(name, made.kernel.params, sizes, made.kernel.body)
        return type(made)(inner, made.args)

    steps = [step("k0", [x], [a]), step("k1", [x], [b]), step("k2", [a], [y]), step("k3", [b], [z])]
    mod = module([x, n], [a, b, y, z], [whole(y), whole(z)], steps, [S])
    names = ["k0", "k1", "k2", "k3"]
    entries = {name: Entry(name, ix(8), (128, 1), 0, ()) for name in names}
    program = load(mod, "".join(add_one(name, 200_000) for name in names), **entries)
    assert program.gpu.sides >= 1
    count = torch.empty(1024, device="cuda")
    for k in range(200):
        given = torch.full((1024,), float(k), device="cuda")
        for out in program.call([given, count]):
            assert bool((out == k + 2).all()), k


# ---------------------------------------------------------------- captures


@BOTH
@pytest.mark.parametrize("make", [simple, twice])
def test_inside_a_users_capture(options: Options, make: Callable[..., Program]) -> None:
    program, add = make(options), 1 if make is simple else 2
    x = torch.zeros(1000, device="cuda")
    program.call([x])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = program.call([x])
        (z,) = program.call([y])
    for n in range(5):
        x.fill_(float(n))
        program.call([x])  # other calls in between
        graph.replay()
        assert bool((z == n + 2 * add).all())
    graph.reset()
    assert torch.equal(program.call([x])[0], x + add)


@BOTH
def test_calls_of_aten_inside_a_users_capture(options: Options) -> None:
    program, n = around_mm(options), MANY.cuda()
    x = torch.zeros(64, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the libraries must have made their workspaces
        for _ in range(3):
            program.call([x, n])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        outputs = program.call([x, n])
    for _ in range(3):
        x.copy_(torch.randn(64, 64, device="cuda"))
        graph.replay()
        for got, want in zip(outputs, mm_expected(x), strict=True):
            torch.testing.assert_close(got, want)


FAST = Options(mode="reduce-overhead")


@pytest.mark.parametrize("stream", ["own", "caller"])
def test_captured_calls(stream: str) -> None:
    program = twice(Options(mode="reduce-overhead", stream=stream))
    kept = []
    for n in range(20):
        x = torch.full((1000,), float(n), device="cuda")  # moves, since the former ones are kept
        kept.append((x, program.call([x])[0]))
    for x, y in kept:
        assert torch.equal(y, x + 2)
    assert program.gpu.graphs.captures == 1 and not program.gpu.graphs.reason


def test_captured_calls_with_inputs_in_place() -> None:
    program, n = around_mm(FAST), MANY.cuda()
    weight = torch.zeros(64, 64, device="cuda")
    for _ in range(10):
        weight.copy_(torch.randn(64, 64, device="cuda"))
        for got, want in zip(program.call([weight, n]), mm_expected(weight), strict=True):
            torch.testing.assert_close(got, want)
    assert program.gpu.graphs.captures == 1, program.gpu.graphs.reason
    moved = torch.randn(64, 64, device="cuda")
    for got, want in zip(program.call([moved, n]), mm_expected(moved), strict=True):
        torch.testing.assert_close(got, want)
    assert program.gpu.graphs.captures == 2


def test_captured_calls_on_several_streams() -> None:
    program = simple(FAST)
    streams = [torch.cuda.Stream() for _ in range(3)]
    wrong = torch.zeros(3, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for n in range(100):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000 * number)
                x = torch.full((5000,), float(n * 3 + number), device="cuda")
                (y,) = program.call([x])
                wrong[number] += (y != n * 3 + number + 1).any()
    torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0, 0]


# ---------------------------------------------------------------- threads, devices, errors, alignment


@BOTH
@pytest.mark.parametrize("private", [False, True], ids=["default stream", "a stream each"])
def test_eight_threads(options: Options, private: bool) -> None:
    program = twice(options, 5_000)
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream() if private else torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                for n in range(100):
                    size = 100 + 37 * ((n + number) % 11)
                    x = torch.full((size,), float(n + number), device="cuda")
                    (y,) = program.call([x])
                    del x
                    if n % 10 == 0 and not bool((y == n + number + 2).all()):
                        wrong.append((number, n))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_thread_that_has_no_context_yet() -> None:
    program = simple()
    x = torch.randn(100, device="cuda")
    program.call([x])  # its memory is in the allocator's cache from now on
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(program.call([x])[0])
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(found[0], x + 1)


@BOTH
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_the_second_gpu(options: Options) -> None:
    program = simple(options, 1)
    x = torch.randn(1000, device="cuda:1")
    assert torch.cuda.current_device() == 0
    for _ in range(3):
        (y,) = program.call([x])
        assert y.device == x.device and torch.equal(y, x + 1)
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        assert torch.equal(program.call([x])[0], x + 1)
    first = simple(options, 0)
    with torch.cuda.device(1):
        z = torch.randn(1000, device="cuda:0")
        assert torch.equal(first.call([z])[0], z + 1)
    if options is OWN:
        captured = simple(FAST, 1)
        for n in range(4):
            given = torch.full((10,), float(n), device="cuda:1")
            assert bool((captured.call([given])[0] == n + 1).all())
        assert captured.gpu.graphs.captures == 1, captured.gpu.graphs.reason


def reporting(options: Options) -> Program:
    y = buffer("y", 4)
    step = named("report", [], [y], "index = aten.index.Tensor  # model.py:7")
    return load(module([], [y], [whole(y)], [step]), REPORT, options)


@BOTH
def test_a_failed_check_comes_late(options: Options) -> None:
    program, other = reporting(options), simple(options)
    program.call([])
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match=r"model\.py:7.*reported late"):
        other.call([torch.zeros(3, device="cuda")])
    other.call([torch.zeros(3, device="cuda")])
    program.call([])
    with pytest.raises(IndexError, match=r"model\.py:7"):
        lowc.synchronize()
    lowc.synchronize()


@BOTH
def test_a_misaligned_input(options: Options) -> None:
    mod = module([X], [Y], [whole(Y)], [named("add_one", [X], [Y], sizes=[S])], [S])
    entry = Entry("add_one", BLOCKS, (128, 1), 0, (0, 1))
    program = load(mod, add_one("add_one", vector=True), options, add_one=entry)
    memory = torch.randn(4097, device="cuda")
    for x in (memory[1:], memory[:4096], memory[1:]):
        assert torch.equal(program.call([x])[0], x + 1)


@BOTH
def test_a_misaligned_input_that_is_changed(options: Options) -> None:
    mod = module([X], [], [whole(X)], [named("add_one", [X], [X], sizes=[S])], [S])
    ptx = add_one("add_one", vector=True)
    ptx = ptx.replace(".param .u64 add_one_y, ", "").replace("[add_one_y]", "[add_one_x]")
    program = load(mod, ptx, options, add_one=Entry("add_one", BLOCKS, (128, 1), 0, (0,)))
    memory = torch.arange(4100.0, device="cuda")
    x = memory[1:4097]
    (out,) = program.call([x])
    expected = torch.arange(4100.0)
    expected[1:4097] += 1
    assert out is x and torch.equal(memory.cpu(), expected)


def test_ptx_that_is_rejected(tmp_path: Any) -> None:
    mod = module([X], [Y], [whole(Y)], [named("add_one", [X], [Y], sizes=[S])], [S])
    ptx = add_one("fine") + add_one("add_one").replace("add.f32", "bogus.f32")
    with pytest.raises(CodegenError, match="of kernel add_one") as caught:
        load(mod, ptx, Options(dump=str(tmp_path)), add_one=ENTRY)
    assert "bogus" in str(caught.value)
    assert (tmp_path / "rejected.ptx").exists()
    torch.zeros(1, device="cuda").add_(1)  # the context is well


@BOTH
def test_nothing_leaks(options: Options) -> None:
    program, x = twice(options), torch.randn(1 << 20, device="cuda")
    program.call([x])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        program.call([x])
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
