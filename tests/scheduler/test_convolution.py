"""Convolutions by blocks on a CPU: every form keeps the meaning of the kernel, on every target; what is none is refused."""

import random
from typing import Any

import numpy as np
import pytest

from lowc.errors import ScheduleError
from lowc.ir.index import constant
from lowc.ir.interp import run_kernel
from lowc.ir.nodes import Alloc, For, Kernel, Kind, Launch, Module, Store
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.verify import verify_module
from lowc.ir.walk import statements
from lowc.options import Options
from lowc.scheduler import choose_convolution, contract, linearise, schedule
from lowc.scheduler.convolution import find
from lowc.scheduler.depthwise import Depthwise
from lowc.scheduler.direct import Direct
from lowc.target import Target

PARALLEL = Kind("parallel")
X86 = {
    bits: Target("x86", "", "", bits, 32 if bits == 512 else 16, 32 << 10, 1 << 20, 32 << 20, 2, frozenset({"fma"}))
    for bits in (128, 256, 512)
}


def kernel(
    made: int, channels: int, size: tuple[int, int], taps: int, step: int = 1, pad: int = 1, gap: int = 1, last: bool = False,
    alone: bool = False, images: int = 2,
) -> Kernel:  # fmt: skip
    """out = relu(convolution of x by w) @SCHEDULED, as ``lowering/convolution.py`` writes it; ``last``: channels lie side by
    side; ``alone``: each channel by itself."""
    high, wide = ((n + 2 * pad - (taps - 1) * gap - 1) // step + 1 for n in size)

    def lies(count: int, rows: int, columns: int) -> str:
        return f" : {count * rows * columns}, 1, {columns * count}, {count}" if last else ""

    row, column = f"h*{step} + i*{gap} - {pad}", f"w*{step} + j*{gap} - {pad}"
    mask = f"(idx({row}) >= 0) & (idx({row}) < {size[0]}) & ((idx({column}) >= 0) & (idx({column}) < {size[1]}))"
    own, deep = ("o", 1) if alone else ("c", channels)
    sums = f"for i in {taps} {{ for j in {taps} {{ s add= product(x[n, {own}, {row}, {column} if {mask}], " + (
        "weight[o, 0, i, j]) } }" if alone else "weight[o, c, i, j]) } }"
    )
    sums = sums if alone else f"for c in {channels} {{ {sums} }}"
    loops = {"n": images, "h": high, "w": wide, "o": made} if last else {"n": images, "o": made, "h": high, "w": wide}
    body = f"acc s: f32 = add {sums} t = s + bias[o] out[n, o, h, w] = max(t, 0.0)"
    body = body.replace(" {", " {\n").replace(" add for", " add\nfor").replace(") }", ")\n}").replace("} t =", "}\nt =")
    body = body.replace(" } }", "\n}\n}").replace(" }", "\n}").replace("} t", "}\nt").replace("] out", "]\nout")
    for name, extent in reversed(loops.items()):
        body = f"for {name} in {extent} {{\n{body}\n}}"
    text = f"""kernel f(x: f32[{images}, {channels}, {size[0]}, {size[1]}{lies(channels, *size)}],
        weight: f32[{made}, {deep}, {taps}, {taps}], bias: f32[{made}],
        out: f32[{images}, {made}, {high}, {wide}{lies(made, high, wide)}]) {{\n{body}\n}}"""
    return linearise._linear(parse_kernel(text))


def results(of: Kernel, shuffle: bool = False) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(0)
    memory = {
        p.name: np.full(p.shape[0].terms[0][1], np.nan, np.float32) if p.name == "out"
        else generator.normal(size=p.shape[0].terms[0][1]).astype(np.float32)
        for p in of.params
    }  # fmt: skip
    run_kernel(of, memory, {}, random.Random(0) if shuffle else None)
    return memory["out"]


def check(of: Kernel, step: Any, shuffle: bool = False) -> Kernel:
    done = contract.apply(of, step)
    verify_module(Module("SCHEDULED", (), done.params, (), (), (Launch(done, done.params),)), "SCHEDULED")
    np.testing.assert_allclose(results(done, shuffle), results(of), rtol=1e-5, atol=1e-5)
    assert print_kernel(parse_kernel(print_kernel(done))) == print_kernel(done)
    return done


def apart(along: str = "w", down: str = "h", rows: int = 2, high: int = 4, wide: int = 0) -> Depthwise:
    tile = ((along, wide), (down, high))
    return Depthwise("n", along, down, tile, rows, 4, 1, PARALLEL)


@pytest.mark.parametrize("size", [(8, 9), (4, 4), (11, 17)])
@pytest.mark.parametrize(("step", "pad", "gap"), [(1, 1, 1), (2, 1, 1), (1, 4, 2), (3, 2, 1), (1, 0, 1)])
def test_lanes_along_rows(size: tuple[int, int], step: int, pad: int, gap: int) -> None:
    check(kernel(3, 3, size, 3, step, pad, gap, alone=True), apart())


@pytest.mark.parametrize("high", [1, 3, 0])
@pytest.mark.parametrize(("step", "pad", "gap"), [(1, 1, 1), (2, 2, 1), (1, 3, 2)])
def test_lanes_along_channels(high: int, step: int, pad: int, gap: int) -> None:
    of = kernel(6, 6, (7, 10), 3, step, pad, gap, last=True, alone=True)
    check(of, Depthwise("n", "o", "w", (("o", 8), ("w", 4), ("h", high)), 2, 4, 1, PARALLEL))


def test_many_taps_are_loops() -> None:
    done = check(kernel(2, 2, (12, 12), 7, 1, 3, alone=True), apart(rows=3, high=6))
    assert [s.axis.extent for s in statements(done.body) if isinstance(s, For) and s.axis.name.startswith("j")]


@pytest.mark.parametrize("size", [(8, 9), (5, 6)])
@pytest.mark.parametrize(("step", "pad", "gap"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 0, 1)])
def test_all_channels(size: tuple[int, int], step: int, pad: int, gap: int) -> None:
    of = kernel(6, 3, size, 3, step, pad, gap)
    wide = (size[1] + 2 * pad - 2 * gap - 1) // step + 1
    for tile, deep, made in (((2, 8), 3, 6), ((4, 4), 2, 4)):  # even; sums in slices, weights copied, channels left over
        check(of, Direct("n", "w", wide, "h", 3, ("o", made), tile, deep, 4, PARALLEL), shuffle=deep == 2)


@pytest.mark.parametrize("bits", X86)
@pytest.mark.parametrize(("of", "form"), [("rows", Depthwise), ("channels", Depthwise), ("all", Direct)])
def test_what_is_chosen(bits: int, of: str, form: Any) -> None:
    """The first choice is legal, and is what schedules are made by."""
    made = kernel(5, 5, (9, 13), 3, last=of == "channels", alone=of != "all")
    ((first,), *_) = choose_convolution.choices(made, X86[bits], True)
    assert isinstance(first, form)
    check(made, first)
    module = Module("SCHEDULED", (), made.params, (), (), (Launch(made, made.params),))
    (launch,) = schedule.run(module, X86[bits], Options()).steps
    assert isinstance(launch, Launch)
    assert any(s.buffer.name == "seen" for s in statements(launch.kernel.body) if isinstance(s, Store))


def test_windows_are_found() -> None:
    found = find(kernel(4, 3, (9, 13), 3, 2, 1, 3).body[0])
    assert found is not None
    assert sorted((w.place.name, w.tap.name, w.step, w.gap) for w in found.windows) == [("h", "i", 2, 3), ("w", "j", 2, 3)]
    assert [a.name for a in found.depth] == ["c"]


def test_images_and_channels_are_no_window() -> None:
    """x[n*5 + c] is no other than x[h*5 + i]: a window that nothing can be gained by is none."""
    text = """kernel f(x: f32[20], w: f32[15], out: f32[12]) { for n in 4 { for o in 3 { acc s: f32 = add
        for c in 5 { s add= product(x[n*5 + c], w[o*5 + c]) }
        out[n*3 + o] = s } } }"""
    assert find(parse_kernel(text).body[0]) is None


@pytest.mark.parametrize(
    ("alone", "step", "why"),
    [
        (False, apart(), "more than taps"),
        (True, Direct("n", "w", 9, "h", 3, ("o", 4), (2, 8), 3, 4, PARALLEL), "0 axes"),
        (False, Direct("n", "w", 9, "h", 3, ("o", 3), (2, 8), 3, 4, PARALLEL), "blocks of 3"),
        (False, Direct("n", "w", 4, "h", 3, ("o", 4), (2, 8), 3, 4, PARALLEL), "lanes along w"),
        (True, Depthwise("n", "w", "w", (("w", 0),), 2, 4, 1, PARALLEL), "lanes along w"),
        (True, Depthwise("n", "w", "h", (("w", 0), ("o", 1 << 20), ("h", 1 << 20)), 2, 4, 1, PARALLEL), "elements"),
    ],
)
def test_what_does_not_fit_is_refused(alone: bool, step: Any, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        contract.apply(kernel(4, 4, (8, 9), 3, alone=alone), step)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    "mask", ["idx(R) >= idx(V)", "idx(V) >= idx(R)", "idx(V + R) < 30", "(idx(V) < 12) & (idx(R) >= 4) & (idx(V) >= idx(R))"]
)
def test_a_mask_over_both_windows_is_no_bound_of_one(mask: str, step: int) -> None:
    """As of a triangle: where the input ends in a row changes from row to row."""
    size = 19 * step + 3
    row, column = f"h*{step} + i", f"w*{step} + j"
    mask = mask.replace("R", row).replace("V", column)
    of = parse_kernel(f"""kernel f(x: f32[{4 * size * size}], weight: f32[36], out: f32[1600]) {{
      for o in 4 {{
        for h in 20 {{
          for w in 20 {{
            acc s: f32 = add
            for i in 3 {{
              for j in 3 {{
                s add= product(x[o*{size * size} + ({row})*{size} + {column} if {mask}], weight[o*9 + i*3 + j])
              }}
            }}
            out[o*400 + h*20 + w] = s
          }}
        }}
      }}
    }}""")
    ((chosen,), *_) = choose_convolution.choices(of, X86[512], False)
    check(of, chosen)


@pytest.mark.parametrize(
    ("made", "channels", "size", "taps"), [(12, 2, 150, 3), (64, 3, 160, 3), (12, 2, 1000, 3), (8, 2, 300, 5)]
)
def test_blocks_of_few_channels_fit_on_a_stack(made: int, channels: int, size: int, taps: int) -> None:
    of = kernel(made, channels, (size, size), taps, images=1)
    ((chosen,), *_) = choose_convolution.choices(of, X86[512], False)
    done = contract.apply(of, chosen)
    taken = [s.buffer for s in statements(done.body) if isinstance(s, Alloc)]
    assert sum((constant(b.shape[0]) or 0) * b.dtype.bytes for b in taken) <= 1 << 20


@pytest.mark.parametrize(("deep", "made", "wide"), [("K", 17, 56), (30, "K", 56), (30, 17, "K")])
def test_sizes_that_only_the_call_tells_are_in_no_tile(deep: Any, made: Any, wide: Any) -> None:
    """As of a product that looks like a convolution of one tap."""
    of = linearise._linear(parse_kernel(f"""kernel f(K: size 0.. ~ 64, x: f32[{deep}, {wide}], w: f32[{made}, {deep}],
      out: f32[{made}, {wide}]) {{ for o in {made} {{ for p in {wide} {{ acc s: f32 = add
      for c in {deep} {{ s add= product(x[c, p], w[o, c])
      }} out[o, p] = s
    }} }} }}""".replace("} }", "}\n}").replace("} out", "}\nout").replace("{ ", "{\n")))
    assert find(of.body[0]) is not None
    assert choose_convolution.choices(of, X86[512], False) == ()
