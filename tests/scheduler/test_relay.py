"""Attention by tiles: every form keeps the meaning of the kernel; what is no such kernel is refused."""

from typing import Any

import pytest

from lowc.errors import ScheduleError
from lowc.ir.index import ix
from lowc.ir.nodes import For, Kernel, Launch, Module
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.relays import block_body, relay
from lowc.ir.verify_gpu import verify_kernel_threads
from lowc.ir.walk import buffers
from lowc.options import Options
from lowc.scheduler import attention as form
from lowc.scheduler import schedule
from tests.scheduler.attentions import TARGET, Shape, attention, by_tiles, interpreted, machine, ways

CLOSE = {"bf16": 6e-3, "f16": 8e-4}


def check(shape: Shape, sizes: dict[str, int] | None = None, causal: bool = False, bias: bool = False, **changed: Any) -> Kernel:
    kernel = attention(shape, causal, bias, dtype := changed.pop("dtype", "bf16"), scale := changed.pop("scale", 0.25))
    done = by_tiles(kernel, **changed)
    verify_kernel_threads(done)
    numbers = tuple([(sizes or {}).get(n, n) if isinstance(n, str) else n for n in shape])
    out, sums = interpreted(done, numbers, sizes or {}, causal=causal, bias=bias, scale=scale)  # type: ignore[arg-type]
    assert out < CLOSE[dtype]
    assert sums < 1e-5
    return done


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(2, 2, 130, 200, 64), (1, 1, 3, 130, 128), (2, 1, 128, 128, 32), (1, 1, 70, 256, 96), (4, 2, 65, 100, 64)],
    ids=str,
)
def test_meaning_is_kept(shape: Shape, causal: bool) -> None:
    check(shape, causal=causal)


@pytest.mark.parametrize(
    "changed",
    [
        {"groups": 1, "keys": 64}, {"groups": 3}, {"late_first": True}, {"strips": 0}, {"stages": 3}, {"keys": 64}, {"keys": 256},
        {"dtype": "f16"}, {"scale": -0.1}, {"blocks": 2}, {"blocks": 1, "late_first": True},
    ],
    ids=str,
)  # fmt: skip
def test_any_way(changed: dict[str, Any]) -> None:
    check((2, 2, 230, 230, 64), causal=True, **changed)


@pytest.mark.parametrize("causal", [False, True])
def test_biases(causal: bool) -> None:
    check((2, 2, 70, 200, 64), causal=causal, bias=True)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (5, 128), (130, 129), (200, 300)])
@pytest.mark.parametrize("causal", [False, True])
def test_sizes_of_the_call(rows: int, keys: int, causal: bool) -> None:
    check((2, 2, "m", "n", 32), {"m": rows, "n": keys}, causal=causal)


def test_any_order_of_threads() -> None:
    shape: Any = (1, 1, 70, 130, 32)
    out, _ = interpreted(by_tiles(attention(shape, True)), shape, {}, shuffle=True, causal=True)
    assert out < CLOSE["bf16"]


def test_keys_that_nobody_sees_do_not_come() -> None:
    """Tiles before the diagonal have no mask; behind it there are none."""
    done = by_tiles(attention((1, 1, 512, 512, 64), causal=True))
    found = relay(block_body(done.body))
    assert found is not None
    masked, whole = (any("room" in line for line in print_kernel_of(t.work)) for t in found.turns)
    assert (masked, whole) == (True, False)
    whole_only = relay(block_body(by_tiles(attention((1, 1, 512, 512, 64))).body))
    assert whole_only is not None
    assert len(whole_only.turns) == 1


def print_kernel_of(body: Any) -> list[str]:
    return print_kernel(Kernel("f", tuple(b for b in buffers(body) if b.space == "global"), (), tuple(body))).splitlines()


def test_text_is_read_back() -> None:
    done = by_tiles(attention((2, 1, 130, 200, 64), causal=True))
    again = parse_kernel(print_kernel(done))
    assert print_kernel(again) == print_kernel(done)
    assert relay(block_body(again.body)) is not None
    verify_kernel_threads(again)


def test_passes_after_it_leave_the_form_alone() -> None:
    (step,) = machine(by_tiles(attention((2, 2, 300, 300, 64), causal=True, bias=True))).steps
    assert isinstance(step, Launch)
    assert relay(block_body(step.kernel.body)) is not None


def test_scores_need_no_memory() -> None:
    kernel = attention((2, 2, 300, 20000, 64))
    own = [p for p in kernel.params if p.name not in ("scores", "weights", "bias")]
    temps = tuple(p for p in kernel.params if p.name in ("scores", "weights"))
    assert len(temps) == 2
    done = schedule.run(Module("SCHEDULED", (), tuple(own), temps, (), (Launch(kernel, kernel.params),)), TARGET, Options())
    (step,) = done.steps
    assert isinstance(step, Launch)
    assert [a.name for a in step.args] == ["q", "k", "v", "out", "sums"]
    assert not done.temps


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("top == -inf", "top == 0.0"), ("exp(scores", "exp2(scores"), ("weights[h, i, j3]", "scores[h, i, j3]"),
        ("acc total: f32 = add", "acc total: f32 = max"), ("- shift)", "- top)"),
    ],
)  # fmt: skip
def test_what_is_no_attention(old: str, new: str) -> None:
    text = print_kernel(attention((1, 1, 8, 8, 8)))
    kernel = parse_kernel(text)
    assert form.find(kernel.body[0]) is not None
    old, new = (t.replace("h, i, j3", "i*8 + j3") for t in (old, new))
    changed = text.replace(old, new)
    if old == "acc total: f32 = add":
        changed = changed.replace("total add= weight", "total max= weight")
    if old.startswith("weights"):
        changed = changed.replace("f32(scores", "(scores")
    assert changed != text
    assert form.find(parse_kernel(changed).body[0]) is None


def test_what_tensor_cores_do_not_take() -> None:
    with pytest.raises(ScheduleError, match="no value of 16 bits"):
        by_tiles(attention((1, 1, 8, 8, 8), dtype="f32"))
    with pytest.raises(ScheduleError, match="heads of"):
        by_tiles(attention((1, 1, 8, 8, 12)))
    kernel = attention((1, 1, 8, 8, 16))
    text = print_kernel(kernel).replace("q[d", "q[1 + d").replace("q: bf16[128]", "q: bf16[136]")
    with pytest.raises(ScheduleError, match="no box"):
        by_tiles(parse_kernel(text))


def test_how_many_keys_a_row_sees() -> None:
    found = form.find(attention((1, 1, 8, 8, 8), causal=True).body[0])
    assert found is not None
    assert found.rows is not None
    limit, inner = form.seen(found)
    assert limit == ix(found.rows.axis) + 1
    assert form.seen(found)[1] is inner
    everything = form.find(attention((1, 1, 8, 8, 8)).body[0])
    assert everything is not None
    assert form.seen(everything)[0] is None


@pytest.mark.parametrize("deep", [32, 64, 96, 128, 256])
def test_ways_for_every_width(deep: int) -> None:
    kernel = attention((4, 4, 1024, 1024, deep), causal=True)
    found = ways(kernel)
    assert found
    assert found[0].late_first
    assert found[0].strips or deep % 64
    assert isinstance(kernel.body[0], For)
