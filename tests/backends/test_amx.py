"""The instruction ``amx`` natively: products of tiles against what their nests mean, and the code, anywhere."""

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from lowc.backends import x86
from lowc.backends.x86.levels import level
from lowc.backends.x86.module import emit_module
from lowc.ir.numeric import to_storage
from lowc.ir.parser import parse_kernel
from lowc.ir.types import bf16
from lowc.machine import may_use_tiles, processor
from lowc.options import Options
from lowc.target import Target
from tests.backends.harness import call, check, compiled, module_of, target

OPS = frozenset({"fma", "masked", "amx-bf16", "amx-int8"})
WITH = Target("x86", "sapphirerapids", "", 512, 32, 48 << 10, 2 << 20, 64 << 20, 2, OPS)
DOTS = """kernel k(n: size 0.., x: u32[4096], y: u32[4096], out: {sum}[2048]) {{
  for t in 2 {{
    for r in {rows} instr(amx) {{ for c in {columns} {{ for d in n*16 {{
      out[t*1024 + r*{columns} + c] add= {dot}(x[t*64 + r*64 + d], y[d*64 + c + t*3])
    }} }} }}
  }}
}}"""
LOCAL = """kernel k(x: bf16[4096], y: u32[2048], out: f32[2048]) {
  for t in 2 %s {
    alloc s: f32[1024] @local = add
    for r in 32 instr(amx) { for c in 32 { for d in 32 { s[r*32 + c] add= dot2(pair(x[t*64 + r*64 + 2*d], x[t*64 + r*64 + 2*d + 1]), y[d*32 + c]) } } }
    for i in 32 { for j in 32 vector(16, 2) { out[t*1024 + i*32 + j] = s[i*32 + j] * 2.0 } }
  }
}"""  # noqa: E501


TWICE = """kernel k(x: bf16[4096], y: u32[2048], out: f32[4096]) {
  for t in 2 parallel {
    for r in 32 instr(amx) { for c in 32 { for d in 32 { out[t*1024 + r*32 + c] add= dot2(PAIR, y[d*32 + c]) } } }
  }
  for r2 in 32 instr(amx) { for c2 in 32 { for d2 in 32 { out[2048 + r2*32 + c2] add= dot2(y[r2*32 + d2], y[d2*32 + c2]) } } }
}""".replace("PAIR", "pair(x[t*64 + r*64 + 2*d], x[t*64 + r*64 + 2*d + 1])")


def here() -> None:
    if "amx-bf16" not in target("avx512").ops:
        pytest.skip("no AMX here, or no permission to use it")


def bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Pairs of small integers of bf16: all sums are exact."""
    return to_storage(rng.integers(-8, 9, 2 * count).astype(np.float32), bf16).view(np.uint32)


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("columns", [16, 32])
def test_products_of_pairs(rows: int, columns: int) -> None:
    here()
    rng = np.random.default_rng(0)
    text = DOTS.format(sum="f32", rows=rows, columns=columns, dot="dot2")
    given = {"x": bits(rng, 4096), "y": bits(rng, 4096), "out": rng.integers(-9, 9, 2048).astype(np.float32)}
    check(text, "avx512", [{"n": n} for n in (0, 1, 2)], given)


@pytest.mark.parametrize("signs", ["i32 i32", "u32 i32", "i32 u32", "u32 u32"])
@pytest.mark.parametrize("columns", [16, 32])
def test_products_of_quads(signs: str, columns: int) -> None:
    here()
    rng = np.random.default_rng(1)
    left, right = signs.split()
    text = DOTS.format(sum="i32", rows=32, columns=columns, dot="dot4")
    text = text.replace("x: u32", f"x: {left}").replace("y: u32", f"y: {right}")
    given = {
        name: rng.integers(0, 1 << 32, 4096).astype(np.uint32).view(f"{dtype[0]}4") for name, dtype in (("x", left), ("y", right))
    }
    given["out"] = rng.integers(-(1 << 31), 1 << 31, 2048).astype(np.int32)
    check(text, "avx512", [{"n": n} for n in (0, 1, 2)], given)


@pytest.mark.parametrize("kind", ["", "parallel"])
def test_sums_that_begin_with_the_product(kind: str) -> None:
    here()
    rng = np.random.default_rng(2)
    check(LOCAL % kind, "avx512", [{}], {"x": bits(rng, 2048).view(np.uint16), "y": bits(rng, 2048)}, threads=bool(kind))


def test_special_values() -> None:
    """NaN and infinities go where they belong; denormals of factors and sums count as 0."""
    here()
    text = DOTS.format(sum="f32", rows=16, columns=16, dot="dot2").replace("for t in 2", "for t in 1")
    module = module_of(parse_kernel(text))
    x, y = (np.zeros((64, 64, 2), np.float32) for _ in "xy")
    x[:, 0, 0], y[0, :, 0] = 1.0, 1.0
    x[1, 0, 0], x[2, 0, 0], y[0, 3, 0] = np.nan, np.inf, -np.inf
    x[4, 0, 0] = 0.0
    memory = {"x": to_storage(x.ravel(), bf16).view(np.uint32), "y": to_storage(y.ravel(), bf16).view(np.uint32)}
    memory["out"] = np.zeros(2048, np.float32)
    assert call(*compiled(module, "avx512"), memory, {"n": 1}) == 0
    got = memory["out"][:256].reshape(16, 16)
    wanted = np.ones((16, 16), np.float32)
    wanted[1], wanted[2], wanted[4] = np.nan, np.inf, 0.0
    wanted[:, 3] = [-np.inf, np.nan, -np.inf, -np.inf, np.nan, *[-np.inf] * 11]
    np.testing.assert_array_equal(got, wanted)
    memory["x"], memory["y"] = np.full(4096, 1, np.uint32), np.full(4096, 0x7F00, np.uint32)
    memory["out"] = np.zeros(2048, np.float32)
    assert call(*compiled(module, "avx512"), memory, {"n": 1}) == 0
    assert (memory["out"] == 0).all()


def test_the_code_configures_and_releases_tiles_where_they_are_used() -> None:
    text, _ = emit_module(module_of(parse_kernel(LOCAL % "")), WITH, False)
    function = next(f for f in text.split("define ") if '"k.k"' in f.splitlines()[0])
    assert function.count("@llvm.x86.ldtilecfg") == function.count("@llvm.x86.tilerelease") == 1
    assert function.count("@llvm.x86.tdpbf16ps") == 4 and function.count("@llvm.x86.tileload") == 4
    assert function.count("@llvm.x86.tilezero") == function.count("@llvm.x86.tilestored64") == 4
    assert "llvm.x86" not in emit_module(module_of(parse_kernel(LOCAL % "")), replace(WITH, ops=frozenset({"fma"})), False)[0]


def test_each_thread_configures_its_own() -> None:
    text, _ = emit_module(module_of(parse_kernel(LOCAL % "parallel")), WITH, True)
    functions = {f.splitlines()[0].split("@")[1].split("(")[0]: f for f in text.split("define ")[1:]}
    assert functions['"k.k.1"'].count("@llvm.x86.ldtilecfg") == functions['"k.k.1"'].count("@llvm.x86.tilerelease") == 1
    assert "llvm.x86" not in functions['"k.k"'] and "llvm.x86" not in functions['"k.k.1.worker"']


def test_after_a_parallel_loop_tiles_are_configured_again() -> None:
    text, _ = emit_module(module_of(parse_kernel(TWICE)), WITH, True)
    function = next(f for f in text.split("define ") if '"k.k"' in f.splitlines()[0])
    order = [line.split("@")[1].split("(")[0] for line in function.splitlines() if "ldtilecfg" in line or "GOMP_parallel" in line]
    assert order == ["llvm.x86.ldtilecfg", "GOMP_parallel", "llvm.x86.ldtilecfg"]
    here()
    rng = np.random.default_rng(3)
    given = {"x": bits(rng, 2048).view(np.uint16), "y": bits(rng, 2048), "out": np.zeros(4096, np.float32)}
    check(TWICE, "avx512", [{}], given, threads=True)


def test_levels_of_artifacts_do_without() -> None:
    for name in ("native", "x86-64-v4", "x86-64-v3"):
        assert not {"amx-bf16", "amx-int8"} & level(name).ops


def test_the_permission_holds_in_threads_and_forks() -> None:
    here()
    assert may_use_tiles() and "tiles: True" in processor()
    rng = np.random.default_rng(4)
    artifact, library = compiled(module_of(parse_kernel(LOCAL % "")), "avx512")
    given = {"x": bits(rng, 2048).view(np.uint16), "y": bits(rng, 2048)}
    results: list[np.ndarray] = []

    def run() -> None:
        memory = {**{k: v.copy() for k, v in given.items()}, "out": np.zeros(2048, np.float32)}
        assert call(artifact, library, memory, {}) == 0
        results.append(memory["out"])

    run()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 5
    for each in results[1:]:
        np.testing.assert_array_equal(each, results[0])
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0 if np.array_equal(results[-1], results[0]) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_assembly() -> None:
    here()
    text = x86.stages(target("avx512"), Options())[".s"](module_of(parse_kernel(LOCAL % "")))
    assert text.count("tdpbf16ps") == 4 and text.count("tileloadd") == 4
