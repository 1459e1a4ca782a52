"""Every row of the pass table, and the whole pipeline, keeps the meaning of random programs.

The interpreter runs a program before and after; a failure shows the seed.  LOWC_SEEDS=N tries N programs instead of a few,
LOWC_FIRST_SEED=M starts at another, LOWC_TARGET=nvptx takes one target.
"""

import os
import random
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from lowc.ir.interp import run_module
from lowc.ir.nodes import LEVELS, Module
from lowc.ir.parser import parse_module
from lowc.ir.verify import verify_module
from lowc.options import Options
from lowc.scheduler import (
    cascade,
    choose,
    choose_simt,
    distribute,
    fuse,
    inline,
    pipeline,
    recompute,
    share,
    split,
)
from lowc.target import Target
from tests.property.programs import Program, differences, random_module, run
from tests.property.views import size

CHECK = os.environ.get("LOWC_NOCHECK") is None
COUNT = int(os.environ.get("LOWC_SEEDS", "60"))
FIRST = int(os.environ.get("LOWC_FIRST_SEED", "0"))
TARGETS = {
    "avx512": Target(
        "x86",
        "skylake-avx512",
        "",
        512,
        32,
        1 << 15,
        1 << 20,
        1 << 25,
        16,
        frozenset({"fma", "scalef", "masked", "gather", "f16c"}),
    ),  # fmt: skip
    "avx2": Target(
        "x86", "haswell", "", 256, 16, 1 << 15, 1 << 18, 1 << 23, 2, frozenset({"fma", "gather", "f16c"})
    ),
    "sse2": Target("x86", "x86-64", "", 128, 16, 1 << 10, 1 << 12, 1 << 14, 64, frozenset()),
    "nvptx": Target("nvptx", "sm_90a", "", 128, 255, 48 << 10, 1 << 18, 1 << 25, 132, frozenset({"fma", "f16c"})),
}
EAGER: tuple[tuple[Any, str, Any], ...] = (
    (inline, "_pays", lambda *_: True),
    (choose, "PARALLEL_WORK", 1),
    (cascade, "CHAIN", 2),
    (choose, "GRAIN", 4),
    (cascade, "DOWN", 2),
    (choose, "STRIP", 2),
    (distribute, "STRIP", 2),
    (distribute, "ROWS", 2),
    (distribute, "SMALL", 1),
    (choose, "TILE_MIN", 2),
    (fuse, "LARGE", 1),
    (fuse, "FEW", 0),
    (recompute, "CHEAP", 50),
    (share, "COSTLY", 1),
    (share, "ROW_LEAST", 2),
    (split, "SMALL", 8),
    (split, "CHUNK", 4),
    (split, "SCAN_CHUNKS", 2),
    (choose_simt, "ROW_LEAST", 2),
    (choose_simt, "WARP", 4),
    (choose_simt, "TILE", 4),
    (choose_simt, "ROW_ELEMENTS", 2),
)
"""What makes passes do to small programs what they do to large ones."""
OPTIONAL = [row.name for row in pipeline.PASSES if not row.required]


def stages(
    program: Program, target: Target, options: Options, off: frozenset[str]
) -> list[tuple[str, Module]]:
    """The program after each row."""
    module = program.module
    out: list[tuple[str, Module]] = []
    for row in pipeline.PASSES:
        if row.name in off or row.only not in ("", target.kind):
            continue
        module = pipeline.apply(row, module, target, options)
        out.append((row.name, module))
    return out


def check(seed: int) -> str:
    """Runs program ``seed`` after every pass of one pipeline; returns what is wrong, or an empty string."""
    rng = random.Random(seed)
    eager = [knob for knob in EAGER if rng.random() < 0.6] if rng.random() < 0.7 else []
    with ExitStack() as stack:
        for module, name, value in eager:
            stack.enter_context(patch.object(module, name, value))
        found = compare(seed, rng)
    return f"{found}; eager: {', '.join(name for _, name, _ in eager)}" if found else ""


def compare(seed: int, rng: random.Random) -> str:
    """``check`` with the passes as they are."""
    program = random_module(seed)
    target = TARGETS[os.environ.get("LOWC_TARGET") or rng.choice(sorted(TARGETS))]
    options = Options(threads=rng.random() < 0.7, check=CHECK)
    off = frozenset(name for name in OPTIONAL if rng.random() < 0.15)
    inputs = [rng.randrange(1000) for _ in range(2)]
    small = (
        sum(size(t.shape) for t in program.module.temps) < 2000
    )  # iterations in random order go one by one
    expected = [run(program, program.module, each) for each in inputs]
    for name, module in stages(program, target, options, off):
        for each, right in zip(inputs, expected, strict=True):
            shuffle = (
                random.Random(seed) if small and LEVELS.index(module.level) and rng.random() < 0.5 else None
            )
            try:
                found = differences(program, right, run(program, module, each, shuffle))
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            if found:
                return f"after {name} (inputs {each}, off {sorted(off)}): {found[0]}"
    return ""


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_passes_keep_the_meaning(seed: int) -> None:
    assert check(seed) == ""


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT, 4))
def test_random_programs_are_valid(seed: int) -> None:
    """What the other tests start from: programs by the rules, which mean the same in whatever order loops run."""
    program = random_module(seed)
    verify_module(program.module)
    assert program.module.level == "LOOPS"
    assert program.module.steps
    assert not differences(program, run(program, program.module, 1), run(program, program.module, 1))


GATHER = """
module @LOOPS(s: 0..) {
  input x: f32[s, 5]
  input at: i64[3]
  temp a: i64[3]
  temp g: f32[3, 5]
  temp out: f32[3]
  launch shift(at, a)
  launch gather(x, a, g)
  launch rows(g, out)
  return out
}

kernel shift(at: i64[3], a: i64[3]) { for i in 3 { a[i] = truncdiv(at[i], check_nonzero(at[i], true)) * (at[i] - 1) } }

kernel gather(s: size 0.., x: f32[s, 5], a: i64[3], g: f32[3, 5]) {
  for i in 3 {
    for j in 5 {
      p = check_index(a[i], idx(s), true)
      g[i, j] = x[p, j if idx(s) > 0] + 1.0
    }
  }
}

kernel rows(g: f32[3, 5], out: f32[3]) {
  for i in 3 {
    acc t: f32 = add
    for k in 5 { t add= g[i, k] if idx(k) < 4 }
    out[i] = t
  }
}
"""


PARTS = {
    "whole": GATHER,
    "sliced": GATHER.replace("t add= g[i, k] if", "t add= g[0, k] if"),
    "cropped": GATHER.replace("t add= g[i, k] if idx(k) < 4", "t add= g[i - 1, k if (idx(i) == 1) & (idx(k) < 4)]"),
    "under an if": GATHER.replace(
        "for k in 5 { t add= g[i, k] if idx(k) < 4 }",
        "if idx(i) == 0 {\n      for k in 5 { t add= g[i, k] if idx(k) < 4 }\n    }",
    ),
    "unread": GATHER.replace("t add= g[i, k] if", "t add= 1.0 if"),
}
"""GATHER with its last kernel reading all of g, the first row of it, or nothing."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("off", ["", "inline", "fuse", "forward", "inline,fuse,schedule"])
@pytest.mark.parametrize(
    "rows, index", [(4, [1, 4, 2]), (4, [1, 5, 2]), (4, [1, 0, 2]), (4, [3, 1, -7]), (0, [1, 1, 1])]
)
def test_failing_checks_raise_after_every_pass(rows: int, index: list[int], off: str, part: str) -> None:
    """An index out of range, and a zero divisor, in a chain of kernels that fuse; also in rows that nobody reads."""
    module = parse_module(PARTS[part])
    x = np.arange(rows * 5, dtype=np.float32)
    places = [v - 1 for v in index]
    skip = frozenset(off.split(",")) & frozenset(OPTIONAL)
    for row in pipeline.PASSES:
        if row.name in skip or row.only not in ("", "x86"):
            continue
        module = pipeline.apply(row, module, TARGETS["avx2"], Options(check=CHECK))
        storages = [x.copy(), np.array(index)]
        if 0 in index:
            with pytest.raises(ZeroDivisionError):
                run_module(module, storages, sizes={"s": rows})
        elif not all(0 <= p < rows for p in places):
            with pytest.raises(IndexError):
                run_module(module, storages, sizes={"s": rows})
        else:
            (found,) = run_module(module, storages, sizes={"s": rows})
            sums = [x.reshape(rows, 5)[p, :4].sum() + 4 for p in places]
            first = sums[0]
            wanted = {"whole": sums, "sliced": [first] * 3, "cropped": [0, first, 0], "under an if": [first, 0, 0]}
            assert found.tolist() == wanted.get(part, [4, 4, 4])


MASKED = """
module @LOOPS() {
  input x: f32[4]
  temp t: f32[4]
  temp out: f32[6]
  launch map(x, t)
  launch pad(t, out)
  return out
}

kernel map(x: f32[4], t: f32[4]) { for i in 4 { t[i] = exp(x[i]) } }

kernel pad(t: f32[4], out: f32[6]) { for i in 6 { out[i] = t[i - 1 if (idx(i - 1) >= 0) & (idx(i - 1) < 4)] } }
"""


def test_a_masked_load_of_an_inlined_map_is_zero() -> None:
    """Found by seed 981: what takes the load's place must be 0 where its mask is false."""
    module = parse_module(MASKED)
    for row in pipeline.PASSES:
        with patch.object(inline, "_pays", lambda *_: True):
            module = pipeline.apply(row, module, TARGETS["avx2"], Options(check=CHECK))
        (found,) = run_module(module, [np.zeros(4, np.float32)])
        assert found.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0], row.name
