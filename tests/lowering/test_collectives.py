"""Collectives in a module: when they start, when they are waited for, and what their memory is used for meanwhile."""

from lowc.ir import types
from lowc.ir.collective import WAIT
from lowc.ir.graph import Graph, GraphArg, Input, Node, Ref, TensorMeta
from lowc.ir.index import ZERO, ix
from lowc.ir.nodes import Extern, Launch, Module
from lowc.ir.verify import verify_module
from lowc.lowering.lower import lower
from lowc.options import Options
from lowc.scheduler import memory, pipeline
from lowc.scheduler.nest import step_reads, step_writes
from lowc.target import Target

TARGET = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 8 << 20, 2, frozenset())
GATHER, SUM = "_c10d_functional.all_gather_into_tensor.default", "_c10d_functional.all_reduce.default"


def meta(*shape: int, strides: tuple[int, ...] | None = None) -> TensorMeta:
    steps = strides or tuple(ix(64**n) for n in range(len(shape) - 1, -1, -1))
    return TensorMeta(types.f32, tuple(map(ix, shape)), tuple(map(ix, steps)), ZERO, "cpu")


def node(name: str, target: str, out: TensorMeta, *args: GraphArg) -> Node:
    return Node(name, target, args, (), (out,))


SQUARE = meta(64, 64)


def graph(*nodes: Node, returns: str = "out") -> Graph:
    return Graph("forward", (), (Input("x", SQUARE),), nodes, (Ref(returns),))


def scheduled(given: Graph) -> Module:
    options = Options(check=True)
    module = pipeline.run(lower(given, options), TARGET, options)
    verify_module(module)
    return module


def externs(module: Module, target: str) -> list[int]:
    return [n for n, step in enumerate(module.steps) if isinstance(step, Extern) and step.target == target]


def overlap(module: Module, a: str, b: str) -> bool:
    places, sizes = dict(module.placed), {t.name: 64 * 64 * 4 for t in module.temps}
    if a not in places or b not in places:
        return False
    start, other = int(str(places[a])), int(str(places[b]))
    return start < other + sizes[b] and other < start + sizes[a]


def gathered(*, late: bool) -> Graph:
    """A temp is gathered; work in temps of the same size follows, and the wait comes after it, or at once."""
    start = [node("s", "aten.sin.default", SQUARE, Ref("x")), node("r", GATHER, meta(128, 64), Ref("s"), 2, "0")]
    wait = [node("w", WAIT, meta(128, 64), Ref("r"))]
    work = [node("a", "aten.cos.default", SQUARE, Ref("x")), node("b", "aten.mm.default", SQUARE, Ref("a"), Ref("a"))]
    work += [node("c", "aten.exp.default", SQUARE, Ref("b")), node("d", "aten.mm.default", SQUARE, Ref("c"), Ref("c"))]
    end = [node("e", "aten.mm.default", meta(128, 64), Ref("w"), Ref("d"))]
    end += [node("out", "aten.neg.default", meta(128, 64), Ref("e"))]
    return graph(*start, *((*work, *wait) if late else (*wait, *work)), *end)


def test_the_memory_of_an_operand_is_not_used_again_before_the_wait() -> None:
    module = scheduled(gathered(late=True))
    (start,), (wait,) = externs(module, GATHER), externs(module, WAIT)
    (operand,) = step_reads(module.steps[start])
    between = module.steps[start + 1 : wait]
    assert any(isinstance(step, Launch) for step in between), "there is work meanwhile"
    written = {b.name for step in between for b in step_writes(step)} - {operand.name}
    assert operand.name in dict(module.placed) and written & dict(module.placed).keys()
    assert not any(overlap(module, operand.name, name) for name in written)


def test_after_the_wait_it_is() -> None:
    module = scheduled(gathered(late=False))
    (start,) = externs(module, GATHER)
    (operand,) = step_reads(module.steps[start])
    assert any(overlap(module, operand.name, name) for name, _ in module.placed if name != operand.name)


def test_a_start_that_copies_its_operand_needs_it_no_longer() -> None:
    nodes = (
        node("s", "aten.sin.default", SQUARE, Ref("x")),
        node("r", SUM, SQUARE, Ref("s"), "sum", "0"),
        node("w", WAIT, SQUARE, Ref("r")),
        node("out", "aten.neg.default", SQUARE, Ref("w")),
    )
    module = scheduled(graph(*nodes))
    (wait,) = externs(module, WAIT)
    assert [b.name for b in step_reads(module.steps[wait])] == ["r"]
    assert [b.name for b in step_writes(module.steps[wait])] == ["r"]


def test_nothing_is_reordered_or_read_before_it_is_there() -> None:
    """Two in flight, waited for the other way round, with kernels around that would fuse if they could."""
    nodes = (
        node("p", "aten.sin.default", SQUARE, Ref("x")),
        node("r1", SUM, SQUARE, Ref("p"), "sum", "0"),
        node("q", "aten.cos.default", SQUARE, Ref("x")),
        node("r2", SUM, SQUARE, Ref("q"), "sum", "0"),
        node("w2", WAIT, SQUARE, Ref("r2")),
        node("t", "aten.exp.default", SQUARE, Ref("w2")),
        node("w1", WAIT, SQUARE, Ref("r1")),
        node("out", "aten.add.Tensor", SQUARE, Ref("t"), Ref("w1")),
    )
    module = scheduled(graph(*nodes))
    calls = [step for step in module.steps if isinstance(step, Extern)]
    order = [step.results[0].name if step.target == SUM else step.writes[0].name for step in calls]  # type: ignore[union-attr]
    assert order == ["r1", "r2", "r2", "r1"]
    for name in ("r1", "r2"):
        numbers = [n for n, step in enumerate(module.steps) if any(b.name == name for b in step_reads(step))]
        first = next(n for n in externs(module, WAIT) if module.steps[n].writes[0].name == name)  # type: ignore[union-attr]
        assert min(numbers) == first and len(numbers) > 1


def test_a_sum_of_a_transposed_operand_is_contiguous_until_it_is_there() -> None:
    """The result of a collective is contiguous; torch's fake tensors may say otherwise.  What lies as they say is a copy."""
    flipped = meta(64, 64, strides=(1, 64))
    nodes = (node("r", SUM, flipped, Ref("x"), "sum", "0"), node("out", WAIT, flipped, Ref("r")))
    module = scheduled(graph(*nodes))
    start, wait, copy = module.steps
    assert isinstance(start, Extern) and start.results[0].strides == SQUARE.strides  # type: ignore[union-attr]
    assert isinstance(wait, Extern) and isinstance(copy, Launch)


def test_a_collective_is_the_ranks_own_affair_with_every_reason() -> None:
    """It stays what it is where all nodes are left to ATen."""
    given = gathered(late=True)
    module = lower(given, Options(), frozenset(n.name for n in given.nodes))
    wait = module.steps[externs(module, WAIT)[0]]
    assert {b.name for b in step_reads(wait)} == {"r", "s"}
    assert memory.run(module, TARGET, Options()).placed == ()
