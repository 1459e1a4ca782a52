"""Hand-written kernels, native and in the interpreter, for every instruction set that this processor has."""

import numpy as np
import pytest

from lowc.errors import CodegenError
from tests.backends.harness import ISAS, check

SIZES = [{"s0": n} for n in (0, 1, 2, 15, 16, 17, 33, 64, 65, 130)]
COLUMNS = [{"s0": n, "s1": m} for n, m in ((0, 3), (1, 0), (1, 1), (3, 7), (5, 16), (4, 33), (2, 130))]
DTYPES = ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64")
all_isas = pytest.mark.parametrize("isa", ISAS)
widths = pytest.mark.parametrize("width", (4, 16))


@all_isas
@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_of_every_dtype(isa: str, dtype: str) -> None:
    kernel = "kernel k(s0: size 0.., x: T[s0], y: T[s0]) {\n for i in s0 vector(16) {\n y[i] = x[i]\n }\n}"
    check(kernel.replace("T", dtype), isa, SIZES)


@all_isas
@widths
@pytest.mark.parametrize("extent", (1, 3, 16, 17, 64, 100))
def test_constant_extents(isa: str, width: int, extent: int) -> None:
    check(
        f"""kernel k(x: f32[{extent}], y: f32[{extent}], m: f32[1]) {{
          acc a: f32 = max
          for i in {extent} vector({width}, 4) {{
            y[i] = x[i] * 2.0
            a max= x[i]
          }}
          m[0] = a
        }}""",
        isa,
    )


@all_isas
@pytest.mark.parametrize("extent", (1, 9, 16, 17, 18, 33))
def test_partial_strips_of_narrowed_and_widened_values(isa: str, extent: int) -> None:
    """Memory beyond the last element must stay as it is (LLVM's masked stores of narrowed values are not
    always right).
    """
    names = ("i64", "i32", "i16", "u8", "bf16", "bool", "f32", "f64")
    pairs = [(a, b) for a in names for b in names if a != b and "bf16" not in (a, b)] + [
        ("f32", "bf16"),
        ("bf16", "f32"),
    ]
    outputs = [f"y_{a}_{b}: {b}[{extent}]" for a, b in pairs] + [f"z_{b}: {b}[{extent}]" for b in names]
    lines = [f"y_{a}_{b}[i] = {b}(x_{a}[i])" for a, b in pairs]
    lines += [
        f"z_{b}[j if idx(j) == {extent - 1}] = {b}(x_{'f32' if b == 'bf16' else 'i64'}[j])"
        for b in names
        if b != "i64"
    ]
    params = [f"x_{a}: {a}[{extent}]" for a in names] + outputs
    body = f"for i in {extent} vector(8) {{\n" + "\n".join(lines[: len(pairs)]) + "\n}\n"
    body += f"for j in {extent} vector(16) {{\n" + "\n".join(lines[len(pairs) :]) + "\n}\n"
    ones = {f"x_{a}": np.arange(extent) % 3 for a in names}
    ones["x_bf16"] = np.full(extent, 0x4049)
    check(f"kernel k({', '.join(params)}) {{\n{body}}}", isa, given=ones)


@all_isas
@pytest.mark.parametrize("dtype", ("bool", "i8", "u8", "i16", "i32", "u32", "i64", "u64", "f32", "f64"))
def test_reducers(isa: str, dtype: str) -> None:
    names = {"b": ("max", "min", "and", "or"), "f": ("add", "mul", "max", "min")}.get(
        dtype[0], ("add", "mul", "max", "min", "and", "or")
    )
    parts = [
        f"""
          acc plain{n}: {dtype} = {reducer}
          for i{n} in s0 vector(8) {{ plain{n} {reducer}= x[i{n}] }}
          y[{3 * n}] = plain{n}
          acc flight{n}: {dtype} = {reducer}
          for j{n} in s0 vector(8, 4) {{ flight{n} {reducer}= x[j{n}] if b[j{n}] }}
          y[{3 * n + 1}] = flight{n}
          acc serial{n}: {dtype} = {reducer}
          for k{n} in s0 {{ serial{n} {reducer}= x[k{n}] }}
          y[{3 * n + 2}] = serial{n}"""
        for n, reducer in enumerate(names)
    ]
    head = f"kernel k(s0: size 0.., x: {dtype}[s0], b: bool[s0], y: {dtype}[{3 * len(names)}]) {{"
    tolerance = 1e-4 if dtype == "f32" else 1e-12
    check("\n".join([head, *parts, "}"]), isa, SIZES, tolerance=tolerance, special=False)


@all_isas
@pytest.mark.parametrize("dtype", ("f32", "f64"))
def test_extremes_of_special_values(isa: str, dtype: str) -> None:
    check(
        f"""kernel k(s0: size 0.., x: {dtype}[s0], y: {dtype}[2]) {{
          acc a: {dtype} = max
          acc b: {dtype} = min
          for i in s0 vector(8, 2) {{
            a max= x[i]
            b min= x[i]
          }}
          y[0] = a
          y[1] = b
        }}""",
        isa,
        SIZES,
    )


@all_isas
@pytest.mark.parametrize("reducer", ("argmax", "argmin"))
@pytest.mark.parametrize("dtype", ("bool", "u8", "i32", "i64", "f32", "f64"))
def test_pairs(isa: str, dtype: str, reducer: str) -> None:
    check(
        f"""kernel k(s0: size 1.., x: {dtype}[s0], b: bool[s0], y: {dtype}[2], at: i64[2]) {{
          acc v: {dtype}, n: i64 = {reducer}
          for i in s0 vector(8, 2) {{ v, n {reducer}= x[i], idx(i) }}
          y[0] = v
          at[0] = n
          acc w: {dtype}, m: i64 = {reducer}
          for j in s0 {{ w, m {reducer}= x[j], idx(j) if b[j] }}
          y[1] = w
          at[1] = m
        }}""",
        isa,
        SIZES[1:],
    )


@all_isas
@pytest.mark.parametrize("dtype", ("i32", "u8", "f32", "f64", "i64"))
def test_scans(isa: str, dtype: str) -> None:
    parts = [
        f"""
          for i{n} in s0 {{
            acc a{n}: {dtype} = {reducer}
            for j{n} in s1 vector(8, 2) {{
              a{n} {reducer}= x[i{n}*s1 + j{n}]
              y[i{n}*s1 + j{n} + {n}*s0*s1] = a{n}
            }}
            last[i{n} + {n}*s0] = a{n}
          }}"""
        for n, reducer in enumerate(("add", "mul", "max", "min"))
    ]
    head = f"kernel k(s0: size 0.., s1: size 0.., x: {dtype}[s0*s1], y: {dtype}[s0*s1*4], last: {dtype}[s0*4]) {{"
    tolerance = 1e-4 if dtype == "f32" else 1e-12
    check("\n".join([head, *parts, "}"]), isa, COLUMNS, tolerance=tolerance, special=False)


@all_isas
def test_scan_of_pairs_under_a_mask(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: f32[s0], b: bool[s0], y: f32[s0], at: i64[s0]) {
          acc v: f32, n: i64 = argmax
          for i in s0 vector(16) {
            v, n argmax= x[i], idx(i) if b[i]
            y[i] = v
            at[i] = n
          }
        }""",
        isa,
        SIZES,
    )


@all_isas
def test_a_scan_of_blocks(isa: str) -> None:
    """The accumulator is read in the loop around the vector loop: after each block, not each element."""
    check(
        """kernel k(s0: size 0.., x: i32[s0*20], y: i32[s0], total: i32[1]) {
          acc a: i32 = add
          for i in s0 {
            for j in 20 vector(8) { a add= x[i*20 + j] }
            y[i] = a
          }
          total[0] = a
        }""",
        isa,
        SIZES,
    )


@all_isas
def test_scan_with_two_updates_is_refused(isa: str) -> None:
    text = """kernel k(x: i32[40], y: i32[40]) {
      acc a: i32 = add
      for i in 40 vector(8) {
        a add= x[i]
        a add= x[i]
        y[i] = a
      }
    }"""
    with pytest.raises(CodegenError, match="scan of a"):
        check(text, isa)


@all_isas
def test_lanes_are_combined_once_after_all_loops(isa: str) -> None:
    module = check(
        """kernel k(s0: size 0.., s1: size 0.., x: f32[s0*s1], y: f32[1]) {
          acc a: f32 = max
          for i in s0 {
            for u in 2 unroll(2) {
              for j in s1 vector(8, 2) { a max= x[i*s1 + j] + f32(idx(u)) }
            }
            if idx(i) == 1 {
              for k in s1 vector(8) { a max= x[k] * 3.0 }
            }
          }
          a max= 0.5
          y[0] = a
        }""",
        isa,
        COLUMNS,
    )
    from lowc.backends import x86
    from lowc.options import Options
    from tests.backends.harness import target

    options = Options(isa=isa, threads=False)
    text = x86.stages(target(isa), options)[".ll"](module)
    assert text.count("extractelement <2 x float>") + text.count("extractelement <1 x float>") == 1


@all_isas
def test_column_reduction_with_lanes_outside(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., s1: size 0.., x: f32[s0*s1], b: bool[s0], most: f32[s1], sum: f32[s1], at: i64[s1]) {
          for j in s1 vector(8) {
            acc m: f32, n: i64 = argmax
            for i in s0 { m, n argmax= x[i*s1 + j], idx(i) }
            most[j] = m
            at[j] = n
            acc s: f32 = add
            for i2 in s0 { s add= x[i2*s1 + j] if b[i2] }
            sum[j] = s
          }
        }""",
        isa,
        COLUMNS,
        tolerance=1e-4,
        special=False,
    )


@all_isas
def test_unrolled_loop_inside_and_around_lanes(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: i32[s0*12], y: i32[s0*12], t: i32[2]) {
          acc a: i32 = add
          acc b: i32 = min
          for i in s0 {
            for u in 3 unroll(3) {
              for j in 4 vector(4) {
                y[i*12 + u*4 + j] = x[i*12 + u*4 + j] + i32(idx(u*4 + j))
                a add= x[i*12 + u*4 + j]
              }
              b min= x[i*12 + u]
            }
          }
          t[0] = a
          t[1] = b
        }""",
        isa,
        SIZES,
    )


@all_isas
def test_masked_loads_and_stores(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: f32[s0], h: bf16[s0], c: u8[s0], b: bool[s0],
                    y: f32[s0], z: bf16[s0], w: u8[s0], one: f32[2]) {
          for i in s0 vector(8) {
            y[i if b[i]] = x[i if idx(i) > 3] + f32(h[i])
            z[i if not(b[i])] = h[i]
            w[i if c[i] > 2:u8] = c[i if b[i]]
          }
          one[0 if 2 < idx(s0)] = x[2 if 2 < idx(s0)]
          one[1] = x[s0 + 1000000000 if idx(s0) < 0]
        }""",
        isa,
        SIZES,
    )


@all_isas
def test_padding_reads_nothing_outside(isa: str) -> None:
    """The mask keeps indices in bounds; what lies beyond is not memory."""
    check(
        """kernel k(s0: size 1.., x: f32[s0], y: f32[s0*3]) {
          for i in s0*3 vector(8) {
            y[i] = x[i - s0 if (idx(i - s0) >= 0) & (idx(i - s0) < idx(s0))]
          }
        }""",
        isa,
        SIZES[1:],
    )


@all_isas
def test_one_element_for_all_lanes(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: f32[2], b: bool[s0], y: f32[s0], z: f32[s0]) {
          for i in s0 vector(8) {
            y[i] = x[1]
            z[i] = x[1 if b[i]]
          }
        }""",
        isa,
        SIZES,
    )


@all_isas
@pytest.mark.parametrize("dtype", ("f32", "f64", "u8", "bf16", "bool"))
def test_gather_and_scatter(isa: str, dtype: str) -> None:
    check(
        """kernel k(s0: size 0.., x: T[s0*3], y: T[s0*2], z: T[s0], r: T[s0], q: T[7]) {
          for i in s0 vector(16) {
            z[i] = x[i*3 + 1]
            y[i*2 + 1] = x[i]
            r[s0 - i - 1] = x[i]
          }
          for j in 7 vector(8) {
            q[j] = q[(j*5) % 7]
          }
        }""".replace("T", dtype).replace("q[(j*5) % 7]", "x[(j // 2) % 3 if idx(s0) > 0]"),
        isa,
        SIZES,
    )


@all_isas
@pytest.mark.parametrize("dtype", ("f32", "f64", "u8", "i16", "bool"))
def test_lanes_at_equal_distances(isa: str, dtype: str) -> None:
    """Nothing beyond the last lane is read or written."""
    steps = (2, 3, 4, 5)
    names = ", ".join(f"x{s}: {dtype}[{s - 1} + s0*{s}], y{s}: {dtype}[s0]" for s in steps)
    newline = "\n"
    loops = [f"for i{s} in s0 vector(8, 2) {{ y{s}[i{s}] = x{s}[i{s}*{s} + {s - 1}] }}" for s in steps]
    check(
        f"""kernel k(s0: size 0.., {names}, x: {dtype}[s0], y: {dtype}[s0], z: {dtype}[s0]) {{
          for i in s0 vector(16) {{
            y[i] = x[s0 - 1 - i]
            z[s0 - 1 - i] = x[i]
          }}
          {newline.join(loops)}
        }}""",
        isa,
        [{"s0": n} for n in (0, 1, 7, 8, 16, 17, 32, 40, 65)],
    )


@all_isas
def test_addresses_of_lanes_in_32_bits(isa: str) -> None:
    """Coordinates that are large, negative or masked, addresses that are not."""
    check(
        """kernel k(x: f32[5000], n: i64[40], y: f32[40], z: f32[40], w: f32[4000]) {
          for i in 40 vector(16) {
            at = check_index(n[i], 10, true)
            y[i] = x[at*500 + i*7 - 5000000000*(at - at) + (i // 7) % 3]
            z[i] = x[i*1000000007 if idx(i) < 1]
            w[(39 - i)*100 + i] = x[4999 - i*50 - (i % 5)*10]
          }
        }""",
        isa,
        given={"n": np.arange(40) * 7 % 10},
    )


@all_isas
@pytest.mark.parametrize("index", ("i32", "i64"))
def test_indirect_loads_with_checks(isa: str, index: str) -> None:
    text = f"""kernel k(s0: size 0.., n: {index}[s0], x: f32[10], y: f32[s0]) {{
      for i in s0 vector(8) {{
        at = i64(check_index(n[i], 10:{index}, true))
        y[i] = x[at]
      }}
    }}"""
    rng = np.random.default_rng(1)
    for size in SIZES:
        good = rng.integers(0, 10, size["s0"])
        check(text, isa, [size], {"n": good})
        if size["s0"]:
            for bad in (-1, 10, 2**31 - 1, -(2**31)):
                broken = good.copy()
                broken[rng.integers(0, size["s0"])] = bad
                check(text, isa, [size], {"n": broken})


@all_isas
def test_checks_count_only_under_their_mask(isa: str) -> None:
    text = """kernel k(s0: size 0.., n: i64[s0], b: bool[s0], x: f32[10], d: i32[s0], y: f32[s0], q: i32[s0]) {
      for i in s0 vector(8) {
        at = check_index(n[i], 10, b[i])
        y[i] = x[at if b[i]]
        q[i] = floordiv(100:i32, check_nonzero(d[i], b[i]))
      }
    }"""
    for count in (1, 8, 13):
        size = {"s0": count}
        n, b, d = np.arange(count) * 2, np.arange(count) < 5, np.arange(count)[::-1] + 0
        d[-1] = 1 if count < 6 else 0
        check(text, isa, [size], {"n": n, "b": b, "d": d})
        check(text, isa, [size], {"n": n, "b": b, "d": d * 0})
        check(text, isa, [size], {"n": n + 5, "b": b, "d": d})


@all_isas
def test_failed_check_reads_nothing(isa: str) -> None:
    """Indexing an empty buffer: the check fails and nothing is loaded."""
    text = """kernel k(s0: size 0.., n: i64[3], x: f32[s0], y: f32[3]) {
      for i in 3 {
        at = check_index(n[i], idx(s0), true)
        y[i] = x[at + 100000000000 if true]
      }
    }"""
    check(text, isa, [{"s0": 0}], {"n": np.array([0, 1, 2])})


@all_isas
def test_sums_into_places_that_data_tells(isa: str) -> None:
    """Several lanes may have one place."""
    for dtype in ("f32", "i64"):
        check(
            f"""kernel k(s0: size 0.., n: i64[s0], x: {dtype}[s0], b: bool[s0], y: {dtype}[4], z: {dtype}[1]) {{
              for i in s0 vector(8) {{
                at = check_index(n[i], 4, true)
                y[at if b[i]] add= x[i]
                z[0] max= x[i]
              }}
            }}""",
            isa,
            [{"s0": 33}],
            {"n": np.arange(33) % 4},
            special=False,
            tolerance=1e-5,
        )


@all_isas
def test_local_memory_with_and_without_identity(isa: str) -> None:
    for dtype, start in (("f32", "add"), ("bool", "or"), ("i64", "max")):
        check(
            f"""kernel k(s0: size 0.., x: {dtype}[s0*37], y: {dtype}[37]) {{
              alloc t: {dtype}[37] @local = {start}
              alloc u: {dtype}[37] @local
              for i in s0 {{
                for j in 37 vector(8) {{ t[j] {start}= x[i*37 + j] }}
              }}
              for j2 in 37 vector(8) {{ u[j2] = t[j2] }}
              for j3 in 37 {{ y[j3] = u[36 - j3] }}
            }}""",
            isa,
            SIZES[:6],
            special=False,
            tolerance=1e-4,
        )


@all_isas
def test_local_memory_of_each_lane(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: f32[s0*4], n: i64[s0], y: f32[s0], z: f32[s0]) {
          for i in s0 vector(8) {
            alloc t: f32[4] @local = add
            for k in 4 { t[k] = x[i*4 + k] }
            t[0] add= 1.0
            at = check_index(n[i], 4, true)
            y[i] = t[3] - t[0]
            z[i] = t[at]
          }
        }""",
        isa,
        [{"s0": 33}],
        {"n": np.arange(33) * 3 % 4},
    )


@all_isas
def test_loads_see_stores_before_them(isa: str) -> None:
    """One node, used by two statements with a store between them, is two loads."""
    check(
        """kernel k(s0: size 0.., x: i32[s0], y: i32[s0]) {
          for i in s0 vector(8) {
            a = x[i]
            x[i] = a + 1:i32
            y[i] = x[i] + a
          }
        }""",
        isa,
        SIZES,
    )


@all_isas
def test_conditions_and_accumulators(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: i32[s0*9], y: i32[2]) {
          acc a: i32 = add
          acc m: i32, n: i64 = argmin
          for i in s0 {
            if x[i*9] > 0:i32 {
              for j in 9 vector(4) { a add= x[i*9 + j] }
              m, n argmin= x[i*9], idx(i)
            }
            a add= 1:i32
          }
          y[0] = a
          y[1] = m + i32(n)
        }""",
        isa,
        SIZES[1:],
    )


@all_isas
def test_extents_that_depend_on_outer_axes(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: f32[s0*s0], row: f32[s0], column: f32[s0], low: f32[s0*s0]) {
          for i in s0 {
            acc a: f32 = max
            for j in i vector(8, 2) { a max= x[i*s0 + j] }
            row[i] = a
            for j2 in i - 3 vector(8) { low[i*s0 + j2] = x[i*s0 + j2] }
          }
          for c in s0 vector(8) {
            acc b: f32 = max
            for r in c + 1 { b max= x[r*s0 + c] }
            column[c] = b
          }
        }""",
        isa,
        SIZES[:8],
    )


@all_isas
def test_division_by_sizes_and_constants(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., s1: size 0.., y: i64[s0*s1], z: i64[s0*s1], w: i32[s0*s1], v: i64[s0*s1]) {
          for i in s0*s1 vector(8) {
            y[i] = idx(i // s1 * 1000 + i % s1)
            z[i] = idx((i - 7) // 3 * 1000 + (i - 7) % 3)
            w[i] = i32(idx(min(i, s1) + max(i - 5, 0)))
            v[i] = idx((i*5) // (s0 + 1))
          }
          for j in s0 * s1 {
            y[j] = y[j] + idx(j // s0 % 7)
          }
        }""",
        isa,
        COLUMNS,
    )


@all_isas
def test_parallel_regions(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., s1: size 0.., x: f32[s0*s1], p: f32[s0], y: f32[s0*s1], n: i64[s0]) {
          acc m: f32 = max
          for j in s0*s1 vector(8) { m max= x[j] }
          top = m * 0.5
          for i in s0 parallel {
            acc a: f32 = min
            for j2 in s1 vector(8, 2) { a min= x[i*s1 + j2] }
            p[i] = a
            alloc t: f32[3] @local
            t[0] = top
            for j3 in s1 vector(8) { y[i*s1 + j3] = x[i*s1 + j3] + t[0] }
            for q in 2 parallel { n[i] = idx(i*s0) }
          }
          for i2 in s0 parallel { p[i2] = p[i2] + m }
        }""",
        isa,
        [*COLUMNS, {"s0": 100, "s1": 17}],
        threads=True,
    )


@all_isas
def test_checks_in_parallel_regions(isa: str) -> None:
    text = """kernel k(n: i64[64], x: f32[10], y: f32[64]) {
      for i in 64 parallel {
        at = check_index(n[i], 10, true)
        y[i] = x[at]
      }
    }"""
    check(text, isa, given={"n": np.arange(64) % 10}, threads=True)
    check(text, isa, given={"n": np.arange(64)}, threads=True)


@all_isas
def test_transpose(isa: str) -> None:
    check(
        """kernel k(s0: size 0.., x: f32[s0*16*48], y: f32[s0*16*48]) {
          for a in s0 {
            for c in 3 {
              alloc tile: f32[256] @local
              for j in 16 instr(transpose) {
                for i in 16 { tile[i*16 + j] = x[a*768 + j*48 + c*16 + i] }
              }
              for i2 in 16 {
                for j2 in 16 vector(16) { y[a*768 + c*256 + i2*16 + j2] = tile[i2*16 + j2] }
              }
            }
          }
        }""",
        isa,
        [{"s0": n} for n in (0, 1, 3)],
    )


@all_isas
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i16", "i8", "bool"])
@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("rows", ["", " unroll(1)"])  # unrolled, the tile stays in registers
def test_transposed_tiles(isa: str, dtype: str, size: int, rows: str) -> None:
    high, wide = 3 * size, 2 * size
    check(
        f"""kernel k(x: {dtype}[{high * wide}], y: {dtype}[{high * wide}]) {{
          for a in 3 {{
            for c in 2 {{
              alloc tile: {dtype}[{size * size}] @local
              for j in {size} instr(transpose) {{
                for i in {size} {{ tile[i*{size} + j] = x[c*{size * high} + j*{high} + a*{size} + i] }}
              }}
              for i2 in {size}{rows} {{
                for j2 in {size} vector({size}) {{
                  y[a*{size * wide} + i2*{wide} + c*{size} + j2] = tile[i2*{size} + j2]
                }}
              }}
            }}
          }}
        }}""",
        isa,
    )


@all_isas
def test_a_tile_that_is_read_otherwise_is_memory(isa: str) -> None:
    check(
        """kernel k(x: f32[256], y: f32[256], z: f32[256]) {
          alloc tile: f32[256] @local
          for j in 16 instr(transpose) {
            for i in 16 { tile[i*16 + j] = x[j*16 + i] }
          }
          for i2 in 16 unroll(16) {
            for j2 in 16 vector(16) { y[i2*16 + j2] = tile[i2*16 + j2] }
          }
          for i3 in 16 unroll(16) {
            for j3 in 16 vector(16) { z[i3*16 + j3] = tile[j3*16 + i3] }
          }
        }""",
        isa,
    )


@all_isas
def test_huge_local_memory_is_refused(isa: str) -> None:
    with pytest.raises(CodegenError, match="stack"):
        check("kernel k(y: f32[1]) {\n alloc t: f32[10000000] @local\n t[0] = 1.0\n y[0] = t[0]\n}", isa)


@all_isas
def test_deep_expressions(isa: str) -> None:
    from lowc.ir.nodes import Const, For, Kernel, Kind, Load, Op, Store
    from lowc.ir.parser import parse_kernel
    from lowc.ir.types import f32
    from tests.backends.harness import call, compiled, module_of

    kernel = parse_kernel("kernel k(x: f32[20], y: f32[20]) {\n for i in 20 vector(8) {\n y[i] = x[i]\n }\n}")
    loop = kernel.body[0]
    assert isinstance(loop, For) and isinstance(loop.body[0], Store)
    store = loop.body[0]
    value = store.value
    assert isinstance(value, Load)
    deep = value
    for _ in range(3000):
        deep = Op("add", (deep, Const(1.0, f32)), f32)  # type: ignore[assignment]
    body = (For(loop.axis, (Store(store.buffer, store.index, deep),), Kind("vector", 8)),)
    artifact, library = compiled(module_of(Kernel("k", kernel.params, (), body)), isa)
    memory = {"x": np.arange(20, dtype=np.float32), "y": np.zeros(20, np.float32)}
    assert call(artifact, library, memory, {}) == 0
    assert (memory["y"] == memory["x"] + 3000).all()
