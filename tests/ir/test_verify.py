"""The verifier: accepts the golden programs, refuses programs that break one rule each, and shows the line."""

from dataclasses import replace
from pathlib import Path

import pytest

from lowc.errors import VerifyError
from lowc.ir.index import ix
from lowc.ir.nodes import Buffer, Const, For, Kernel, Load, Op, Store
from lowc.ir.ops import OPS
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.types import f32, f64
from lowc.ir.verify import MachineOps, verify_kernel, verify_module

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.lowc"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_programs_are_accepted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.startswith("module"):
        verify_module(parse_module(text))
    else:
        verify_kernel(parse_kernel(text), "LOOPS")


# ---------------------------------------------------------------- kernels

BAD_KERNELS = [
    # name, level, params, body, what the message says
    ("twice", "LOOPS", "x: f32[4]", "for i in 4 {\n}\nfor i in 4 {\n}", "the name i is already taken"),
    ("odd lanes", "MACHINE", "x: f32[24]", "for i in 24 vector(12) {\nx[i] = 1.0\n}", "lanes are a power of two"),
    ("too many lanes", "MACHINE", "x: f32[512]", "for i in 512 vector(256) {\nx[i] = 1.0\n}", "256 lanes, 1 strips"),
    ("shadow", "LOOPS", "x: f32[4]", "x = 1.0", "the name x is already taken"),
    (
        "op dtype",
        "LOOPS",
        "x: f32[4]",
        "x[0] = add:f32(x[1], 1.5:f64)",
        "add takes arguments of one dtype, got f32, f64",
    ),
    (
        "op result",
        "LOOPS",
        "x: f32[4]",
        "x[0] = f32(lt:f32(x[1], 1.5))",
        "lt of these arguments is bool, not f32",
    ),
    ("op kind", "LOOPS", "x: i64[4]", "x[0] = div:i64(x[1], 2)", "div does not take i64"),
    ("op arity", "LOOPS", "x: f32[4]", "x[0] = exp:f32(x[1], x[2])", "exp takes 1 arguments, got 2"),
    ("no op", "LOOPS", "x: f32[4]", "x[0] = foo:f32(x[1])", "unknown op foo"),
    ("bitcast", "LOOPS", "x: f32[4]", "x[0] = bitcast:f32(1:i64)", "no bitcast from i64 to f32"),
    ("check", "LOOPS", "x: i64[4]", "x[0] = check_index(x[1], 4, 1)", "check_index takes"),
    ("constant", "LOOPS", "x: i8[4]", "x[0] = 128:i8", "128 is no constant of i8"),
    ("constant bool", "LOOPS", "x: bool[4]", "x[0] = 1:bool", "1 is no constant of bool"),
    ("constant float", "LOOPS", "x: i8[4]", "x[0] = 1.0:i8", "1.0 is no constant of i8"),
    ("let dtype", "LOOPS", "x: f32[4]", "t: f64 = x[0]", "t is declared f64, its value is f32"),
    ("idx dtype", "LOOPS", "x: f32[4]", "x[0] = idx:f32(3)", "an index as a value of f32"),
    ("store dtype", "LOOPS", "x: f32[4]", "x[0] = 1", "a value of i64 is stored to x of f32"),
    ("rank", "LOOPS", "x: f32[4, 4]", "x[0] = 1.0", "1 indices for x, which has 2 dimensions"),
    ("load mask", "LOOPS", "x: f32[4]", "x[0] = x[1 if 1]", "a condition of i64, not bool"),
    ("store mask", "LOOPS", "x: f32[4]", "x[0 if 1.0] = 1.0", "a condition of f32, not bool"),
    ("condition", "LOOPS", "x: f32[4]", "if 1 {\n x[0] = 1.0\n}", "a condition of i64, not bool"),
    ("param space", "LOOPS", "x: f32[4] @local", "x[0] = 1.0", "parameters are global"),
    ("strides", "LOOPS", "x: f32[4 : 1, 2]", "", "x has 1 dimensions but 2 strides"),
    ("alloc space", "LOOPS", "x: f32[4]", "alloc b: f32[4]", "an alloc is local or shared"),
    ("alloc size", "LOOPS", "n: size 1.., x: f32[4]", "alloc b: f32[n] @local", "whose size is not a number"),
    (
        "alloc reducer",
        "LOOPS",
        "x: f32[4]",
        "alloc b: f32[2] @local = argmax",
        "argmax has 2 accumulators, got 1",
    ),
    (
        "alloc other",
        "LOOPS",
        "x: f32[4]",
        "alloc b: f32[2] @local = add\nb[0] max= 1.0",
        "was allocated for add",
    ),
    ("space", "LOOPS", "x: f32[4]", "alloc b: f32[4] @moon", "unknown space moon"),
    ("reducer", "LOOPS", "x: f32[4]", "x[0] foo= 1.0", "unknown reducer foo"),
    ("reducer kind", "LOOPS", "x: bool[4]", "x[0] add= true", "add does not take bool"),
    ("acc arity", "LOOPS", "x: f32[4]", "acc s: f32, t: f32 = add", "add has 1 accumulators, got 2"),
    ("acc index", "LOOPS", "x: f32[4]", "acc s: f32, t: i32 = argmax", "the index of argmax is i64, got i32"),
    (
        "update reducer",
        "LOOPS",
        "x: f32[4]",
        "acc s: f32 = add\ns max= 1.0",
        "declared with add, and is updated by max",
    ),
    (
        "update dtype",
        "LOOPS",
        "x: f32[4]",
        "acc s: f32 = add\ns add= 1",
        "s is f32, the value it is updated with is i64",
    ),
    ("update arity", "LOOPS", "x: f32[4]", "acc s: f32 = add\ns add= 1.0, 2.0", "add takes 1 values, got 2"),
    ("update let", "LOOPS", "x: f32[4]", "s = 1.0\ns add= 1.0", "s is no accumulator"),
    (
        "update half",
        "LOOPS",
        "x: f32[4]",
        "acc s: f32, t: i64 = argmax\nt argmax= 1",
        "s, t were declared together",
    ),
    ("update mask", "LOOPS", "x: f32[4]", "acc s: f32 = add\ns add= 1.0 if 1", "a condition of i64"),
    ("coordinate", "LOOPS", "x: f32[4]", "t = 1:i32\nx[t] = 1.0", "t is i32; a coordinate is i64"),
    ("coordinate acc", "LOOPS", "x: f32[4]", "acc t: i64 = add\nx[t] = 1.0", "t is no let in scope"),
    ("kind at LOOPS", "LOOPS", "x: f32[4]", "for i in 4 parallel {\n}", "a parallel loop at LOOPS"),
    ("barrier at LOOPS", "LOOPS", "x: f32[4]", "barrier", "a barrier at LOOPS"),
    ("kind", "SCHEDULED", "x: f32[4]", "for i in 4 sideways {\n}", "unknown kind of loop sideways"),
    ("width", "SCHEDULED", "x: f32[4]", "for i in 4 vector {\n}", "a vector loop needs a width"),
    ("instr", "SCHEDULED", "x: f32[4]", "for i in 4 instr {\n}", "name an instruction"),
    ("rank 2", "SCHEDULED", "x: f32[4, 4]", "", "x is not one-dimensional with stride 1"),
    ("stride 2", "SCHEDULED", "x: f32[4 : 2]", "", "x is not one-dimensional with stride 1"),
    (
        "barrier",
        "SCHEDULED",
        "x: f32[4]",
        "for t in 4 thread(4) {\n barrier\n}",
        "a barrier inside the thread loop t",
    ),
    (
        "uniform",
        "SCHEDULED",
        "x: f32[4]",
        "for i in 4 vector(4) {\n c = x[i] > 0.0\n if c {\n }\n}",
        "vector axis i; use masks",
    ),
    (
        "uniform idx",
        "SCHEDULED",
        "x: f32[4]",
        "for i in 4 vector(4) {\n if idx((i % 3)) > 0 {\n }\n}",
        "vector axis i",
    ),
    (
        "uniform acc",
        "SCHEDULED",
        "x: f32[4]",
        "acc s: f32 = add\nfor i in 4 vector(4) {\n s add= x[i]\n if s > 0.0 {\n }\n}",
        "vector axis i",
    ),
    (
        "parallel acc",
        "MACHINE",
        "x: f32[4]",
        "acc s: f32 = add\nfor i in 4 parallel {\n s add= x[i]\n}",
        "s is updated across the parallel axis i",
    ),
    (
        "block array",
        "MACHINE",
        "x: f32[4]",
        "alloc b: f32[1] @shared = add\nfor i in 4 block {\n b[0] add= x[i]\n}",
        "b is updated across the block axis i",
    ),
    # bounds
    (
        "below",
        "LOOPS",
        "x: f32[4]",
        "for i in 4 {\n x[i - 1] = 1.0\n}",
        "goes below 0, out of its range 0 .. 3",
    ),
    ("above", "LOOPS", "x: f32[4]", "for i in 4 {\n x[i + 1] = 1.0\n}", "goes to 4, out of its range 0 .. 3"),
    (
        "above two",
        "LOOPS",
        "x: f32[16]",
        "for i in 4 {\n for j in 5 {\n x[i*4 + j] = 1.0\n }\n}",
        "goes to 16",
    ),
    (
        "symbolic",
        "LOOPS",
        "n: size 1.., x: f32[n]",
        "for i in n {\n x[i + 1] = 1.0\n}",
        "goes to n, out of its range",
    ),
    ("divided", "LOOPS", "x: f32[4]", "for i in 4 {\n x[(i // 3) + 4] = 1.0\n}", "out of its range 0 .. 3"),
    (
        "load",
        "LOOPS",
        "x: f32[4], y: f32[5]",
        "for i in 5 {\n y[i] = exp(x[i] + 1.0)\n}",
        "index i of x goes to 4",
    ),
]


def kernel_text(params: str, body: str) -> str:
    return f"kernel k({params}) {{\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("level", "params", "body", "message"), [row[1:] for row in BAD_KERNELS], ids=[r[0] for r in BAD_KERNELS]
)
def test_bad_kernel(level: str, params: str, body: str, message: str) -> None:
    kernel = parse_kernel(kernel_text(params, body))
    with pytest.raises(VerifyError) as caught:
        verify_kernel(kernel, level)
    assert message in caught.value.message
    lines = caught.value.message.splitlines()
    assert len(lines) <= 7 and sum(line.startswith(">") for line in lines) == 1


GOOD_KERNELS = [
    # what looks like a broken rule, and is none
    ("masked", "LOOPS", "x: f32[4]", "for i in 4 {\n x[i - 1 if idx(i) > 0] = x[i + 1 if idx(i) < 3]\n}"),
    ("guarded", "LOOPS", "n: size 0.., x: f32[4]", "if idx(n) > 5 {\n x[7] = 1.0\n}"),
    ("empty loop", "LOOPS", "x: f32[0]", "for i in 0 {\n x[i + 1] = 1.0\n}"),
    ("maybe empty", "LOOPS", "n: size 0.., x: f32[n]", "for i in n {\n x[i + 1] = 1.0\n}"),
    ("wraps", "LOOPS", "x: f32[4]", "for i in 4 {\n x[((i + 3) % 4)] = 1.0\n}"),
    ("triangle", "LOOPS", "x: f32[4, 4]", "for i in 4 {\n for j in i + 1 {\n x[i, i - j] = 1.0\n }\n}"),
    ("scan", "LOOPS", "x: f32[4]", "acc s: f32 = add\nfor i in 4 {\n s add= x[i]\n x[i] = s\n}"),
    (
        "two updates",
        "LOOPS",
        "x: f32[4]",
        "acc s: f32 = add\nfor i in 4 {\n s add= x[i]\n}\nfor j in 4 {\n s add= x[j]\n}",
    ),
    ("zero-d", "LOOPS", "x: f32[]", "x[] = 1.0"),
    (
        "uniform",
        "SCHEDULED",
        "x: f32[4]",
        "for i in 4 {\n for j in 4 vector(4) {\n if x[i] > 0.0 {\n x[j] = 1.0\n }\n }\n}",
    ),
    (
        "after vector",
        "SCHEDULED",
        "x: f32[4]",
        "acc s: f32 = add\nfor i in 4 vector(4) {\n s add= x[i]\n}\nif s > 0.0 {\n}",
    ),
    (
        "acc inside parallel",
        "MACHINE",
        "x: f32[4]",
        "for i in 4 parallel {\n acc s: f32 = add\n s add= x[i]\n}",
    ),
    (
        "thread barrier",
        "SCHEDULED",
        "x: f32[4]",
        "for b in 4 block {\n for t in 4 thread(4) {\n }\n barrier\n}",
    ),
]


@pytest.mark.parametrize(
    ("level", "params", "body"), [row[1:] for row in GOOD_KERNELS], ids=[r[0] for r in GOOD_KERNELS]
)
def test_good_kernel(level: str, params: str, body: str) -> None:
    verify_kernel(parse_kernel(kernel_text(params, body)), level)


def test_scopes_end_with_their_block() -> None:
    kernel = parse_kernel(kernel_text("x: f32[4]", "for i in 4 {\n t = x[i]\n x[i] = t\n}\nfor j in 4 {\n}"))
    loop, other = kernel.body
    assert isinstance(loop, For) and isinstance(other, For)
    inside = loop.body[1]
    assert isinstance(inside, Store)
    with pytest.raises(VerifyError, match="i is no axis in scope"):
        verify_kernel(replace(kernel, body=(loop, For(other.axis, (inside,)))), "LOOPS")
    outside = replace(inside, index=(ix(other.axis),))
    with pytest.raises(VerifyError, match="t is no value in scope"):
        verify_kernel(replace(kernel, body=(loop, For(other.axis, (outside,)))), "LOOPS")


def test_axis_of_another_extent() -> None:
    kernel = parse_kernel(kernel_text("x: f32[4]", "for i in 4 {\n x[i] = 1.0\n}"))
    loop = kernel.body[0]
    assert isinstance(loop, For)
    with pytest.raises(VerifyError, match="i has extent 4 here, its loop has 3"):
        verify_kernel(replace(kernel, body=(replace(loop, axis=replace(loop.axis, extent=ix(3))),)), "LOOPS")


def test_buffer_identity_and_unlisted_sizes() -> None:
    kernel = parse_kernel(kernel_text("n: size 1.., x: f32[n]", "x[0] = x[n - 1]"))
    with pytest.raises(VerifyError, match="the size n .* is not listed"):
        verify_kernel(replace(kernel, sizes=()), "LOOPS")
    with pytest.raises(VerifyError, match="x is another object"):
        verify_kernel(replace(kernel, params=(replace(kernel.params[0]),)), "LOOPS")
    with pytest.raises(VerifyError, match="x is no buffer in scope"):
        verify_kernel(replace(kernel, params=()), "LOOPS")


@pytest.mark.parametrize("name", ["for", "f32", "nan", "a b", "1x", ""])
def test_names_that_cannot_be_read_back(name: str) -> None:
    with pytest.raises(VerifyError, match="name"):
        verify_kernel(Kernel("k", (Buffer(name, f32, (ix(1),), (ix(1),)),), (), ()), "LOOPS")


def test_target_ops_and_dtypes() -> None:
    kernel = parse_kernel(kernel_text("x: f32[4], h: f16[4]", "x[0] = exp(x[1])\nx[1] = f32(h[0])"))
    every = frozenset(OPS)
    verify_kernel(kernel, "MACHINE", MachineOps(every, frozenset({f32})))
    verify_kernel(kernel, "SCHEDULED", MachineOps(frozenset(), frozenset()))
    with pytest.raises(VerifyError, match="the target has no exp: "):
        verify_kernel(kernel, "MACHINE", MachineOps(every - {"exp"}, frozenset({f32})))
    with pytest.raises(VerifyError, match="the target has no exp of f32"):
        verify_kernel(kernel, "MACHINE", MachineOps(every, frozenset({f64})))


def test_the_line_is_marked() -> None:
    body = "\n".join(f"x[{n}] = {n}.0" for n in range(20)) + "\nx[19] = x[20]"
    with pytest.raises(VerifyError) as caught:
        verify_kernel(parse_kernel(kernel_text("x: f32[20]", body)), "LOOPS")
    assert str(caught.value) == (
        "k: index 20 of x goes to 20, out of its range 0 .. 19, without a mask\n"
        "    x[16] = 16.0\n"
        "    x[17] = 17.0\n"
        "    x[18] = 18.0\n"
        "    x[19] = 19.0\n"
        ">   x[19] = x[20]\n"
        "  }"
    )


def test_deep_and_shared_expressions_are_checked_once() -> None:
    """2**200 paths through 200 nodes, and a chain deeper than Python recurses."""
    x = Buffer("x", f32, (ix(4),), (ix(1),))
    value = Load(x, (ix(0),))
    for _ in range(200):
        value = Op("add", (value, value), f32)
    for _ in range(5000):
        value = Op("add", (value, Const(1.0, f32)), f32)
    verify_kernel(Kernel("k", (x,), (), (Store(x, (ix(0),), value),)), "LOOPS")


# ---------------------------------------------------------------- modules

HEAD = "input x: f32[4]\n input n: i64[2]\n temp t: f32[4]\n temp y: f32[4]\n"
COPY = "kernel copy(a: f32[4], b: f32[4]) {\n for i in 4 {\n b[i] = a[i]\n }\n}\n"
SIZED = "kernel sized(s: size 1.., b: f32[4]) {\n b[0] = f32(idx(s))\n}\n"
SUM = "kernel sum(a: f32[4], b: f32[4]) {\n for i in 4 {\n b[0] add= a[i]\n }\n}\n"
BAD_MODULES = [
    ("level", "module @MOON() {\n}", "unknown level MOON"),
    ("name", f"module @LOOPS() {{\n {HEAD} temp x: f32[1]\n}}", "the name x is already taken"),
    ("space", "module @LOOPS() {\n temp x: f32[1] @local\n}", "buffers of a module are global"),
    (
        "undefined",
        f"module @LOOPS() {{\n {HEAD} launch copy(t, y)\n}}\n{COPY}",
        "copy reads t, which nothing has written yet",
    ),
    (
        "count",
        f"module @LOOPS() {{\n {HEAD} launch copy(x)\n}}\n{COPY}",
        "copy has 2 parameters, got 1 arguments",
    ),
    (
        "dtype",
        f"module @LOOPS() {{\n {HEAD} launch copy(n, y)\n}}\n{COPY}",
        "n is i64, parameter a of copy is f32",
    ),
    (
        "alias",
        f"module @LOOPS() {{\n {HEAD} launch copy(x, x)\n}}\n{COPY}",
        "x is passed twice to copy, which writes it",
    ),
    (
        "update",
        f"module @LOOPS() {{\n {HEAD} launch sum(x, y)\n}}\n{SUM}",
        "sum reads y, which nothing has written yet",
    ),
    ("returned", f"module @LOOPS() {{\n {HEAD} return t\n}}", "t is used, but nothing has written it"),
    (
        "extern arg",
        f"module @LOOPS() {{\n {HEAD} t = extern f((x, (y,)))\n}}",
        "y is used, but nothing has written it",
    ),
    (
        "extern twice",
        f"module @LOOPS() {{\n {HEAD} t = extern f(x)\n t = extern f(x)\n}}",
        "t has a value already",
    ),
    ("extern input", f"module @LOOPS() {{\n {HEAD} x = extern f(x)\n}}", "the result x is an input"),
    (
        "size",
        f"module @LOOPS(s: 1..) {{\n {HEAD} launch sized(y)\n}}\n{SIZED}",
        "sized needs the size s, to which nothing",
    ),
    (
        "size range",
        f"module @LOOPS(s: 2..) {{\n {HEAD} input size s\n launch sized(y)\n}}\n{SIZED}",
        "the size s (with this",
    ),
    (
        "size arg",
        f"module @LOOPS(s: 2..) {{\n {HEAD} extern f(idx(s))\n}}",
        "the size s is used, but nothing has given",
    ),
    (
        "shape of an argument",
        f"module @LOOPS() {{\n {HEAD} temp u: f32[2, 2]\n launch copy(x, u)\n}}\n{COPY}",
        "u is f32[2, 2], parameter",
    ),
    (
        "memory of an argument",
        f"module @SCHEDULED() {{\n {HEAD} temp u: f32[3]\n launch copy(x, u)\n}}\n{COPY}",
        "u is f32[3], parameter",
    ),
    (
        "kernel",
        f"module @SCHEDULED() {{\n {HEAD} launch copy(x, y)\n}}\n{COPY.replace('[4]', '[2, 2]', 1)}",
        "one-dimensional",
    ),
    (
        "outside",
        f"module @BUFFERED() {{\n {HEAD} temp u: f32[4] at 4\n workspace 16\n}}",
        "u is placed at 4 .. 20, outside the workspace of 16 bytes",
    ),
    (
        "placed output",
        f"module @BUFFERED() {{\n {HEAD} temp u: f32[0] at 0\n return u\n}}",
        "u is placed, but is returned",
    ),
    (
        "overlap",
        "module @BUFFERED() {\n input x: f32[4]\n temp t: f32[4] at 0\n temp u: f32[4] at 12\n temp y: f32[4]\n workspace 28\n"
        f" launch copy(x, t)\n launch copy(t, u)\n launch copy(u, y)\n return y\n}}\n{COPY}",
        "u and t are live at step 1 and overlap in the workspace",
    ),
]


@pytest.mark.parametrize(
    ("text", "message"), [row[1:] for row in BAD_MODULES], ids=[r[0] for r in BAD_MODULES]
)
def test_bad_module(text: str, message: str) -> None:
    module = parse_module(text)
    with pytest.raises(VerifyError) as caught:
        verify_module(module)
    assert message in caught.value.message
    assert len(caught.value.message.splitlines()) <= 7


GOOD_MODULES = [
    ("mutation", f"module @LOOPS() {{\n {HEAD} launch sum(x, n2)\n}}\n{SUM}".replace("input n: i64[2]", "input n2: f32[4]")),
    ("read twice", f"module @LOOPS() {{\n {HEAD} launch two(x, x, y)\n return y\n}}\n"
     "kernel two(a: f32[4], b: f32[4], c: f32[4]) {\n c[0] = a[0] + b[0]\n}"),
    ("size of a dimension", f"module @LOOPS(s: 1..) {{\n input z: f32[2, s]\n temp y: f32[4]\n launch sized(y)\n}}\n{SIZED}"),
    ("size of a result", f"module @LOOPS(s: 1..) {{\n {HEAD} s = extern f(x)\n launch sized(y)\n return idx(s)\n}}\n{SIZED}"),
    ("size of a result's dimension", f"module @LOOPS(s: 1..) {{\n {HEAD} temp z: f32[s]\n"
     f" z = extern nonzero(x)\n launch sized(y)\n}}\n{SIZED}"),
    ("empty output", "module @LOOPS() {\n temp y: f32[4, 0]\n return y\n}"),
    ("reuse", "module @BUFFERED() {\n input x: f32[4]\n temp t: f32[4] at 0\n temp u: f32[4] at 16\n temp v: f32[4] at 0\n"
     " temp y: f32[4]\n workspace 32\n launch copy(x, t)\n launch copy(t, u)\n launch copy(u, v)\n launch copy(v, y)\n"
     f" return y\n}}\n{COPY}"),
    ("temp of its own", f"module @BUFFERED() {{\n {HEAD} launch copy(x, t)\n launch copy(t, y)\n return y\n}}\n{COPY}"),
    ("written then read", f"module @LOOPS() {{\n {HEAD} launch both(x, t, y)\n return y\n}}\n"
     "kernel both(a: f32[4], b: f32[4], c: f32[4]) {\n for i in 4 {\n b[i] = a[i]\n c[i] = b[i]\n }\n}"),
]  # fmt: skip


@pytest.mark.parametrize("text", [row[1] for row in GOOD_MODULES], ids=[r[0] for r in GOOD_MODULES])
def test_good_module(text: str) -> None:
    verify_module(parse_module(text))
    if not text.startswith("module @BUFFERED"):
        verify_module(parse_module(text), "LOOPS")


def test_one_object_a_name_in_a_module() -> None:
    module = parse_module(f"module @LOOPS() {{\n {HEAD} launch copy(x, y)\n return y\n}}\n{COPY}")
    with pytest.raises(VerifyError, match="x is another object than the input or temp"):
        verify_module(replace(module, inputs=(replace(module.inputs[0]), *module.inputs[1:])))  # type: ignore[type-var]
    other = parse_module(f"module @LOOPS() {{\n {HEAD} launch copy(x, y)\n return y\n}}\n{COPY}")
    launch = module.steps[0]
    with pytest.raises(VerifyError, match="two kernels are called copy"):
        steps = (launch, replace(launch, kernel=other.steps[0].kernel))  # type: ignore[union-attr,call-arg]
        verify_module(replace(module, steps=steps))
