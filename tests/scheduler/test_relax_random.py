"""``relax`` on random kernels: with near maths as far off as it may be, what is rounded to f16 has at most ``ROOM`` such errors,
and results in f32 have none.

Both are seen exactly when the kernels run in f64.  LOWC_SEEDS=N tries N kernels instead of a few.
"""

import os
import random
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lowc.ir.interp_kernel import run_kernel
from lowc.ir.nodes import Kernel
from lowc.ir.ops import OPS
from lowc.ir.parser import parse_kernel
from lowc.ir.printer import print_kernel
from lowc.scheduler import relax

COUNT = int(os.environ.get("LOWC_SEEDS", "60"))
ERROR = 2.0**-15  # of near maths, relative
N = 16


class Writer:
    """A random kernel: names, sums and rows of exponentials and sigmoids, stored in f16 and f32."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names: list[str] = []
        self.rows: list[str] = []
        self.count = 0

    def value(self, depth: int, axis: str) -> str:
        rng = self.rng
        if depth == 0:
            leaves = [f"x[{axis}]", f"z[{axis}]", "0.5", "1.0", *self.names * 2, *(f"{r}[{axis}]" for r in self.rows * 2)]
            return rng.choice(leaves)
        one = [self.value(depth - 1, axis) for _ in range(2)]
        return rng.choice(
            [
                *[f"exp({one[0]})"] * 3,
                f"sigmoid({one[0]})",
                f"erfc({one[0]})",
                f"(1.0 + erf({one[0]}))",
                f"(tanh({one[0]}) + 1.0)",
                f"({one[0]} / (1.0 + exp(-{one[1]})))",
                *[f"({one[0]} * {one[1]})"] * 3,
                f"({one[0]} + {one[1]})",
                f"({one[0]} - {one[1]})",
                f"({one[0]} / (1.0 + abs({one[1]})))",
                f"max({one[0]}, {one[1]})",
                f"sqrt(abs({one[0]}))",
                f"select({one[0]} < {one[1]}, {one[0]}, {one[1]})",
                f"(-{one[0]})",
            ]
        )

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def loop(self, axis: str) -> list[str]:
        """The lines of a loop: a sum, a row, or results."""
        rng, outer = self.rng, len(self.names)
        lines: list[str] = []
        head: list[str] = []
        after: list[str] = []
        for _ in range(rng.randint(0, 3)):
            new = self.name("v")
            lines.append(f"{new} = {self._value(axis, -1)}")
            self.names.append(new)
            for _ in range(rng.choice([0, 0, 0, 3])):  # high powers
                lines.append(f"{(power := self.name('v'))} = {self.names[-1]} * {self.names[-1]}")
                self.names.append(power)
        kind = rng.random()
        if kind < 0.3:
            acc = self.name("a")
            reducer = rng.choice(["add", "add", "max", "mul"])
            head.append(f"acc {acc}: f32 = {reducer}")
            for _ in range(rng.randint(1, 2)):
                lines.append(f"{acc} {reducer}= {self._value(axis)}")
            after.append(acc)
            if rng.random() < 0.3:  # a scan
                lines.append(f"y[{axis}] = f16({acc} * {self._value(axis)})")
        elif kind < 0.6:
            row = self.name("r")
            head.append(f"alloc {row}: f32[{N}] @local")
            lines.append(f"{row}[{axis}] = {self._value(axis)}")
            if rng.random() < 0.4:
                before, step = f"{row}[max({axis} - 1, 0)]", self._value(axis, -1)
                form = rng.choice([f"{before} * {step}", f"{before} + {step}", f"max({before}, {step})"])
                lines.append(f"{row}[{axis}] = {form}")
            self.rows.append(row)
        else:
            lines.append(f"y[{axis}] = f16({self._value(axis, 1)})")
            if rng.random() < 0.4:
                lines.append(f"w[{axis}] = {self._value(axis, -1)}")
        del self.names[outer:]
        self.names += after
        return [*head, f"for {axis} in {N} {{", *("  " + line for line in lines), "}"]

    def _value(self, axis: str, more: int = 0) -> str:
        return self.value(self.rng.randint(1, 3) + max(more, 0) if more >= 0 else self.rng.randint(1, 2), axis)

    def text(self) -> str:
        lines = [line for axis in "ijkl" for line in self.loop(axis)]
        lines += ["for m in 16 {", f"  y[m] = f16({self._value('m', 1)})", "}"]
        params = f"x: f32[{N}], z: f32[{N}], y: f16[{N}], w: f32[{N}]"
        return f"kernel k({params}) {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def wide(kernel: Kernel) -> Kernel:
    """The kernel in f64 throughout, without roundings to f16."""
    text = re.sub(r"(\d\.\d+)\b(?!:)", r"\1:f64", print_kernel(kernel))
    return parse_kernel(text.replace("f32", "f64").replace("f16[", "f64[").replace("f16(", "("))


def run(kernel: Kernel, seed: int) -> dict[str, np.ndarray]:
    """What ``kernel``, in f64, stores."""
    rng = np.random.default_rng(seed)
    memory = {p.name: rng.normal(0, 1.5, N) if p.name in "xz" else np.zeros(N) for p in kernel.params}
    with np.errstate(all="ignore"):
        run_kernel(kernel, memory)
    return memory


def wrong(a: np.ndarray, b: np.ndarray, relative: float, absolute: float = 0.0) -> str:
    """The first place where ``a`` and ``b`` differ by more, in words."""
    with np.errstate(all="ignore"):
        found = np.flatnonzero(np.isfinite(b) & ~(np.abs(a - b) <= relative * np.abs(b) + absolute))
    return f"[{found[0]}] {a[found[0]]!r} instead of {b[found[0]]!r}" if len(found) else ""


def difference(kernel: Kernel, seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is wrong with ``relax`` of ``kernel``, or an empty string."""
    near = relax._relax(kernel)
    if near is kernel:
        return ""
    exact, meant = run(wide(kernel), seed), run(wide(near), seed)
    problems = [wrong(meant["y"], exact["y"], 2.0**-13, 1e-9)]
    for sign in (1, -1):
        for name in relax.NEAR.values():
            true = OPS[name].numpy
            off = partial(lambda v, true, sign: true(v) * (1 + sign * ERROR), true=true, sign=sign)
            monkeypatch.setitem(OPS, name, replace(OPS[name], numpy=off))
        found = run(wide(near), seed)
        monkeypatch.undo()
        problems.append(wrong(found["y"], meant["y"], relax.ROOM * ERROR * 1.001))
        problems.append(wrong(found["w"], exact["w"], 0.0) if "w" in exact else "")
    text = next((p for p in problems if p), "")
    return text and f"{text}\n{print_kernel(kernel)}{print_kernel(near)}"


@pytest.mark.parametrize("seed", range(COUNT))
def test_near_maths_changes_results_by_few_errors(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert difference(parse_kernel(Writer(seed).text()), seed, monkeypatch) == ""


def test_random_kernels_have_near_maths() -> None:
    found = [print_kernel(relax._relax(parse_kernel(Writer(seed).text()))) for seed in range(60)]
    assert sum("near_" in text for text in found) > 20
