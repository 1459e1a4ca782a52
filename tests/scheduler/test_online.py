"""Attention by blocks on a CPU: every form keeps the meaning of the kernel, on every target; what is none is refused."""

from typing import Any

import pytest

from lowc.errors import ScheduleError
from lowc.ir.nodes import For, Kernel, Kind, Launch, Module
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.verify import verify_module
from lowc.ir.walk import buffers, statements
from lowc.options import Options
from lowc.scheduler import choose_online, contract, schedule
from lowc.scheduler.online import Online
from lowc.scheduler.online_dots import OnlineDots
from lowc.target import Target
from tests.scheduler.attentions import Shape, applied, attention, interpreted

CLOSE = {"f32": 1e-6, "bf16": 6e-3, "f16": 8e-4}
MANY: dict[str, Any] = {"rows": 16, "keys": 16, "tile": (4, 8), "lanes": 4, "kind": Kind("parallel")}
FEW: dict[str, Any] = {"keys": 16, "tile": (4, 8), "lanes": 4, "kind": Kind("parallel")}


def by_blocks(kernel: Kernel, step: type[Online] | type[OnlineDots] = Online, **changed: Any) -> Kernel:
    """``kernel`` by blocks, with the params that it still needs."""
    loop: Any = kernel.body[0]
    way = MANY if step is Online else FEW
    done = applied(kernel, step(loop.axis.name, **{**way, **changed}))
    launch = Launch(done, done.params)
    verify_module(Module("SCHEDULED", done.sizes, (*done.params, *done.sizes), (), (), (launch,)), "SCHEDULED")
    assert not {"scores", "weights"} & {p.name for p in done.params}
    return done


def check(kernel: Kernel, shape: Shape, sizes: dict[str, int] | None = None, dtype: str = "f32", **given: Any) -> None:
    numbers = tuple([(sizes or {}).get(n, n) if isinstance(n, str) else n for n in shape])
    out, sums = interpreted(kernel, numbers, sizes or {}, **given)  # type: ignore[arg-type]
    assert out < CLOSE[dtype]
    assert sums < 1e-5


SHAPES: list[Shape] = [
    (2, 2, 16, 32, 8), (2, 2, 17, 33, 8), (1, 1, 3, 18, 16), (2, 1, 30, 16, 12), (4, 2, 20, 40, 8), (1, 1, 1, 50, 5),
    (1, 1, 33, 1, 3),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_on_lanes(shape: Shape, causal: bool) -> None:
    check(by_blocks(attention(shape, causal, dtype="f32")), shape, causal=causal)


@pytest.mark.parametrize(
    "changed", [{"rows": 8}, {"tile": (2, 4)}, {"tile": (8, 16)}, {"keys": 32}, {"lanes": 8}, {"kind": Kind()}], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
def test_any_sizes_of_tiles(changed: dict[str, Any], causal: bool) -> None:
    shape: Shape = (2, 2, 37, 45, 8)
    check(by_blocks(attention(shape, causal, dtype="f32"), **changed), shape, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 2, 1, 40, 8), (2, 1, 3, 35, 16), (4, 2, 2, 5, 8)], ids=str)
def test_the_depth_on_lanes(shape: Shape, causal: bool) -> None:
    check(by_blocks(attention(shape, causal, dtype="f32"), OnlineDots), shape, causal=causal)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("step", [Online, OnlineDots])
def test_narrow_factors(step: Any, dtype: str) -> None:
    shape: Shape = (2, 1, 3, 37, 8)
    check(by_blocks(attention(shape, dtype=dtype), step), shape, dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("step", [Online, OnlineDots])
def test_biases(step: Any, causal: bool) -> None:
    shape: Shape = (2, 2, 3, 40, 8)
    check(by_blocks(attention(shape, causal, True, "f32"), step), shape, causal=causal, bias=True)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (5, 40), (33, 17), (16, 32)])
@pytest.mark.parametrize("causal", [False, True])
def test_sizes_of_the_call(rows: int, keys: int, causal: bool) -> None:
    shape: Shape = (2, 2, "m", "n", 8)
    check(by_blocks(attention(shape, causal, dtype="f32")), shape, {"m": rows, "n": keys}, causal=causal)


@pytest.mark.parametrize("keys", [1, 16, 47])
def test_few_rows_and_keys_of_the_call(keys: int) -> None:
    shape: Shape = (2, 2, 2, "n", 8)
    check(by_blocks(attention(shape, dtype="f32"), OnlineDots), shape, {"n": keys})


def test_any_order_of_blocks() -> None:
    shape: Any = (2, 1, 40, 40, 8)
    out, _ = interpreted(by_blocks(attention(shape, True, dtype="f32")), shape, {}, shuffle=True, causal=True)
    assert out < CLOSE["f32"]


def loops(kernel: Kernel, name: str) -> list[For]:
    return [s for s in statements(kernel.body) if isinstance(s, For) and s.axis.name.startswith(name)]


def test_masks_are_only_where_they_matter() -> None:
    """Whole blocks of keys are one loop, those at the edge another; without an edge there is none."""
    assert len(loops(by_blocks(attention((1, 1, 64, 64, 8), dtype="f32")), "turn")) == 1
    masked = loops(by_blocks(attention((1, 1, 64, 64, 8), causal=True, dtype="f32")), "turn")
    assert ["select(idx" in text(turn) for turn in masked] == [False, True]


def text(loop: For) -> str:
    return print_kernel(Kernel("f", tuple(b for b in buffers((loop,)) if b.space == "global"), (), (loop,)))


def test_text_is_read_back() -> None:
    done = by_blocks(attention((2, 1, 33, 40, 8), causal=True, dtype="f32"))
    assert print_kernel(parse_kernel(print_kernel(done))) == print_kernel(done)


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"rows": 12}, "12 rows"), ({"tile": (4, 6)}, "tiles of"), ({"keys": 18}, "18 keys"), ({"lanes": 16}, "tiles of")],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        by_blocks(attention((1, 1, 32, 32, 8), dtype="f32"), **changed)


def test_few_rows_are_known_and_lie_along_the_depth() -> None:
    with pytest.raises(ScheduleError, match="no known number of rows"):
        by_blocks(attention((1, 1, "m", 32, 8), dtype="f32"), OnlineDots)
    turned = parse_kernel(print_kernel(attention((1, 1, 2, 32, 8), dtype="f32")).replace("k[d + j*8]", "k[d*32 + j]"))
    with pytest.raises(ScheduleError, match="must lie along"):
        by_blocks(turned, OnlineDots)
    check_turned = by_blocks(turned)
    assert loops(check_turned, "turn")


X86 = {
    bits: Target("x86", "", "", bits, 32 if bits == 512 else 16, 32 << 10, 1 << 20, 32 << 20, 2, frozenset({"fma"}))
    for bits in (128, 256, 512)
}


@pytest.mark.parametrize("bits", X86)
@pytest.mark.parametrize("rows", [2, 5, 30, 100])
def test_what_is_chosen(bits: int, rows: int) -> None:
    """The schedule of a module is such blocks, with no rows of scores left; the first choice is legal."""
    shape: Any = (2, 2, rows, 70, 32)
    kernel = attention(shape, dtype="f32")
    scores = [p for p in kernel.params if p.name in ("scores", "weights")]
    inputs = [p for p in kernel.params if p not in scores]
    module = Module("SCHEDULED", (), tuple(inputs), tuple(scores), (), (Launch(kernel, kernel.params),))
    (first, *_) = choose_online.choices(kernel, X86[bits], True)
    assert isinstance(first[0], OnlineDots if rows <= choose_online.FEW else Online)
    contract.apply(kernel, first[0])
    done = schedule.run(module, X86[bits], Options())
    assert not done.temps
    (step,) = done.steps
    assert isinstance(step, Launch)
    check(step.kernel, shape)


def test_who_has_blocks() -> None:
    """Cores share them where there is much to do, and where that is known only when called."""
    for shape, kind in (((2, 2, 4, 6, 8), "serial"), ((2, 2, 512, 512, 64), "parallel"), ((2, 2, 3, "n", 8), "parallel")):
        for (step,) in choose_online.choices(attention(shape, dtype="f32"), X86[512], True):  # type: ignore[arg-type]
            assert isinstance(step, Online | OnlineDots) and step.kind.name == kind


def test_large_heads_are_no_choice() -> None:
    """Scratch memory is on the stack."""
    kernel = attention((1, 1, 100, 100, 4096), dtype="f32")
    assert choose_online.choices(kernel, X86[512], True) == ()
