"""Text form: printing and reading back are inverse, and what cannot be read is refused with the place."""

import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowc.errors import ParseError
from lowc.ir.graph import Graph, Input, Node, Ref, TensorMeta
from lowc.ir.graph_printer import print_graph
from lowc.ir.index import ZERO, Axis, Index, Opaque, Symbol, ix, minimum
from lowc.ir.nodes import (
    Acc,
    Buffer,
    Const,
    Expr,
    Extern,
    For,
    FromIndex,
    If,
    Kernel,
    Kind,
    Launch,
    Let,
    Load,
    Module,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.ops import OPS, REDUCERS, result_dtype
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.printer import print_expr, print_kernel, print_kernel_lines, print_module
from lowc.ir.types import DTYPES, DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u64
from lowc.ir.verify import verify_kernel, verify_module
from tests.property.programs import random_module

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.lowc"))
COMPUTED = [d for d in DTYPES.values() if d.kind in "biuf"]


def parse(text: str) -> Kernel | Module:
    return parse_module(text) if text.startswith("module") else parse_kernel(text)


def show(program: Kernel | Module) -> str:
    return print_module(program) if isinstance(program, Module) else print_kernel(program)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_round_trip(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert show(parse(text)) == text


@pytest.mark.parametrize("seed", range(30))
def test_random_module_round_trip(seed: int) -> None:
    text = print_module(random_module(seed).module)
    again = parse_module(text)
    verify_module(again)
    assert print_module(again) == text


# ---------------------------------------------------------------- random kernels, every op and dtype


class Generator:
    """Kernels that keep the rules, whatever they compute."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.size = Symbol("n", self.rng.choice([0, 1, 2]), self.rng.choice([None, 64]))
        self.params = [Buffer(f"p{d.name}", d, (ix(8), ix(self.size)), (ix(1), ix(8))) for d in COMPUTED]
        self.axes: list[Axis] = []
        self.values: list[Var] = []
        self.coordinates: list[Var] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def kernel(self) -> Kernel:
        return Kernel("random", tuple(self.params), (self.size,), self.block(3))

    def block(self, depth: int) -> tuple[Stmt, ...]:
        values, coordinates = list(self.values), list(self.coordinates)
        body: list[Stmt] = []
        for _ in range(self.rng.randrange(1, 4)):
            body.extend(self.statement(depth))
        self.values, self.coordinates = values, coordinates
        return tuple(body)

    def statement(self, depth: int) -> list[Stmt]:
        rng, choice = self.rng, self.rng.randrange(6 if depth else 4)
        if choice == 0:
            value = self.expr(rng.choice(COMPUTED), 3)
            var = Var(self.name(), value.dtype)
            self.values.append(var)
            if var.dtype == i64:
                self.coordinates.append(var)
            return [Let(var, value)]
        if choice == 1:
            return self.accumulate()
        if choice in (2, 3):
            buffer = rng.choice(self.params)
            reducer = rng.choice(
                [r.name for r in REDUCERS.values() if r.arity == 1 and buffer.dtype.kind in r.kinds]
            )
            mask = self.expr(bool_, 2)
            return [
                Store(
                    buffer, (ix(3), self.index()), self.expr(buffer.dtype, 4), mask, rng.choice(["", reducer])
                )
            ]
        if choice == 4:
            return [If(self.expr(bool_, 2), self.block(depth - 1))]
        kinds = [
            Kind(),
            Kind("parallel"),
            Kind("unroll", 4),
            Kind("vector", 8),
            Kind("vector", 8, "", 4),
            Kind("instr", 0, "a b"),
        ]
        axis = Axis(self.name(), self.index() if rng.random() < 0.5 else ix(rng.randrange(9)))
        self.axes.append(axis)
        body = self.block(depth - 1)
        self.axes.pop()
        return [For(axis, body, rng.choice(kinds))]

    def accumulate(self) -> list[Stmt]:
        reducer = self.rng.choice(list(REDUCERS.values()))
        dtypes = [self.rng.choice([d for d in COMPUTED if d.kind in reducer.kinds]), i64][: reducer.arity]
        acc = Acc(tuple(Var(self.name(), d) for d in dtypes), reducer.name)
        self.values.extend(acc.vars)
        mask = self.expr(bool_, 2) if self.rng.random() < 0.5 else None
        return [acc, Update(acc.vars, reducer.name, tuple(self.expr(d, 2) for d in dtypes), mask)]

    def index(self) -> Index:
        rng = self.rng
        total = ix(rng.randrange(3))
        for axis in rng.sample(self.axes, min(len(self.axes), rng.randrange(3))):
            total = total + rng.choice(
                [ix(axis), ix(axis) * 4, ix(axis) // 3, ix(axis) % 2, minimum(axis, 2)]
            )
        if self.coordinates and rng.random() < 0.3:
            total = total + Opaque(rng.choice(self.coordinates).name)
        return total + ix(self.size) * rng.randrange(2)

    def expr(self, dtype: DType, depth: int) -> Expr:
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return self.leaf(dtype)
        rows = [
            r
            for r in OPS.values()
            if (r.takes is None and dtype.kind in r.kinds and r.rule != "bool")
            or (dtype == bool_ and r.rule == "bool")
            or (r.takes is not None and dtype in dict(r.takes).values())
        ]
        row = rng.choice(rows)
        source = rng.choice([d for d in COMPUTED if d.kind in row.kinds])
        if row.takes is not None:
            args = [next(taken for taken, made in row.takes if made == dtype)] * row.arity
        elif row.rule == "given":
            if row.name == "bitcast":
                source = rng.choice([d for d in COMPUTED if d.kind in row.kinds and d.bits == dtype.bits])
            args = [source]
        elif row.rule == "bool":
            args = [source, source]
        elif row.rule == "select":
            args = [bool_, dtype, dtype]
        else:
            args = [dtype] * row.arity
            if row.name.startswith("check"):
                args[-1] = bool_
        values = tuple(self.expr(d, depth - 1) for d in args)
        if len(values) == 2 and args[0] == args[1] and rng.random() < 0.3:
            values = (values[0], values[0])
        return Op(row.name, values, result_dtype(row, tuple(args), dtype))

    def leaf(self, dtype: DType) -> Expr:
        rng, choice = self.rng, self.rng.randrange(5)
        values = [v for v in self.values if v.dtype == dtype]
        if choice == 0 and values:
            return rng.choice(values)
        if choice == 1 and dtype.kind in "iu":
            return FromIndex(self.index(), dtype)
        if choice < 4:
            buffer = next(p for p in self.params if p.dtype == dtype)
            return Load(buffer, (self.index(), ix(1)), self.leaf(bool_))
        if dtype.kind == "b":
            return Const(rng.random() < 0.5, dtype)
        if dtype.kind == "f":
            return Const(struct.unpack("<d", rng.randbytes(8))[0], dtype)
        low = -(1 << dtype.bits - 1) if dtype.kind == "i" else 0
        return Const(rng.choice([low, low + (1 << dtype.bits) - 1, 0, 7]), dtype)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_kernel_round_trip(seed: int) -> None:
    kernel = Generator(seed).kernel()
    text = print_kernel(kernel)
    again = parse_kernel(text)
    assert print_kernel(again) == text
    assert [p.strides for p in again.params] == [p.strides for p in kernel.params]


def test_schedules_that_are_asked_for() -> None:
    text = """module @LOOPS() {
  input x: f32[4]
  temp y: f32[4]
  launch f(x, y)
    from "add_1 = aten.add.Tensor"
  schedule add_1 2
  return y
}

kernel f(x: f32[4], y: f32[4]) {
  for i in 4 {
    y[i] = x[i]
  }
}
"""
    module = parse_module(text)
    assert module.schedules == (("add_1", 2),) and print_module(module) == text


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([f16, bf16, f32, f64]))
def test_float_constants_are_exact(value: float, dtype: DType) -> None:
    again = one(Const(value, dtype))
    assert isinstance(again, Const) and again.dtype == dtype
    if value == value:
        assert struct.pack("<d", again.value) == struct.pack("<d", value)
    else:
        assert again.value != again.value


def one(value: Expr) -> Expr:
    """``value`` after printing and parsing."""
    out = Buffer("out", value.dtype, (), ())
    stmt = parse_kernel(print_kernel(Kernel("k", (out,), (), (Store(out, (), value),)))).body[0]
    assert isinstance(stmt, Store)
    return stmt.value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Const(1.5, f32), "1.5"),
        (Const(1, f32), "1.0"),
        (Const(1.5, f64), "1.5:f64"),
        (Const(2**53 + 1, f64), "9007199254740993:f64"),
        (Const(-3, i32), "-3:i32"),
        (Const(2**64 - 1, u64), "18446744073709551615:u64"),
        (Const(True, bool_), "true"),
        (Const(float("-inf"), f16), "-inf:f16"),
        (Const(-0.0, f32), "-0.0"),
        (Op("neg", (Const(1.0, f32),), f32), "neg(1.0)"),
        (Op("neg", (Op("neg", (Op("exp", (Const(-1.0, f32),), f32),), f32),), f32), "--exp(-1.0)"),
        (Op("cast", (Const(3, i64),), bf16), "bf16(3)"),
        (Op("bitcast", (Const(3, i32),), f32), "bitcast:f32(3:i32)"),
        (FromIndex(ix(7), i64), "idx(7)"),
        (FromIndex(ix(7), i8), "idx:i8(7)"),
        # not well formed: the dtype is spelled out
        (Op("add", (Const(1.0, f32), Const(1, i64)), f32), "add:f32(1.0, 1)"),
        (Op("lt", (Const(1, i64), Const(1, i64)), i64), "lt:i64(1, 1)"),
        (Op("exp", (), f32), "exp:f32()"),
        (Op("my.op", (Const(1, i64),), i64), "my.op:i64(1)"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_spelling(value: Expr, text: str) -> None:
    assert print_expr(value) == text
    again = one(value)
    assert print_expr(again) == text and again.dtype == value.dtype


@pytest.mark.parametrize(
    "text",
    [
        "a + b + c", "a + (b + c)", "(a + b) * c", "a + b * c", "a - (b - c)", "a / (b * c)", "-a * b", "-(a * b)", "a - -b",
        "a * -1.5", "-1.5 - a", "a < b", "(a < b) == (b < c)", "(a < b) & (b < c) & (c < a)", "(a < b) & ((b < c) & (c < a))",
        "((a < b) & (b < c)) | (a == b)", "((a < b) | (b < c)) & (a == b)", "((a < b) & (b < c)) ^ (a == b)", "a + b < c * a",
        "select(a < b, a, b) + c", "max(min(a, b), c)", "i32(a) << i32(b)", "(i32(a) + 1:i32) << 2:i32",
        "(i32(a) << 2:i32) + 1:i32",
    ],
)  # fmt: skip
def test_parentheses(text: str) -> None:
    kernel = parse_kernel(f"kernel k() {{\n  a = 1.0\n  b = 2.0\n  c = 3.0\n  d = {text}\n}}\n")
    assert print_kernel(kernel).splitlines()[-2].strip() == f"d = {text}"


# ---------------------------------------------------------------- size


def test_shared_subexpressions_are_written_once() -> None:
    """100 doublings: 2**100 paths, a hundred lines, and the same sharing after reading back."""
    x = Buffer("x", f32, (ix(4),), (ix(1),))
    value: Expr = Load(x, (ix(0),))
    for _ in range(100):
        value = Op("add", (value, value), f32)
    text = print_kernel(Kernel("k", (x,), (), (Store(x, (ix(1),), value), Store(x, (ix(2),), value))))
    assert len(text) < 10_000
    again = parse_kernel(text)
    assert print_kernel(again) == text
    store = again.body[0]
    assert isinstance(store, Store) and isinstance(store.value, Op)
    assert store.value.args[0] is store.value.args[1]
    verify_kernel(again, "LOOPS")


def test_depth_is_no_limit() -> None:
    x = Buffer("x", f32, (ix(4),), (ix(1),))
    value: Expr = Load(x, (ix(0),))
    for number in range(5000):
        name = ("exp", "neg", "add", "sub")[number % 4]
        value = Op(name, (Const(1.0, f32), value) if OPS[name].arity == 2 else (value,), f32)
    text = print_kernel(Kernel("k", (x,), (), (Store(x, (ix(1),), value),)))
    assert print_kernel(parse_kernel(text)) == text
    assert len(print_expr(value, 60)) == 60


def test_lines_know_their_statement() -> None:
    kernel = parse_kernel((Path(__file__).parent / "golden" / "shared.lowc").read_text(encoding="utf-8"))
    lines = print_kernel_lines(kernel)
    loop = kernel.body[0]
    assert isinstance(loop, For)
    first, second = loop.body
    assert [node for _, node in lines] == [kernel, loop, first, first, first, second, None, None]
    assert "\n".join(line for line, _ in lines) + "\n" == print_kernel(kernel)


# ---------------------------------------------------------------- modules and graphs


def test_module_keeps_everything() -> None:
    module = parse_module((Path(__file__).parent / "golden" / "extern.lowc").read_text(encoding="utf-8"))
    topk, double, again, weird = module.steps
    assert isinstance(topk, Extern) and isinstance(double, Launch) and isinstance(weird, Extern)
    assert topk.kwargs == (("largest", True), ("sorted", False)) and topk.because == "no kernel for topk"
    assert topk.origin == ("aten.topk.default: m.py:3 in forward: v, i = x.topk(3)",)
    assert isinstance(again, Launch) and again.kernel is double.kernel and again.args[0] is double.args[1]
    nested, number, dtype, word, size, nan, minus, seven = weird.args
    assert isinstance(nested, tuple) and nested[1] is None and nested[3] == ()
    assert number == complex(0.0, float("-inf")) and dtype == f32 and word == "mean" and size == ix(12)
    assert nan != nan and minus == -1.5 and type(seven) is int and weird.kwargs == (("scale", 0.125),)
    assert weird.target == "weird op!" and weird.because == 'says "no"'
    assert weird.results == (None, module.symbols[0], module.temps[2])
    assert weird.writes == (module.inputs[0], module.inputs[1])
    assert module.placed == (("t", ZERO),) and module.workspace == ix(128)


def test_graph_text() -> None:
    size = Symbol("s0", 2)
    meta = TensorMeta(f32, (ix(size), ix(4)), (ix(4), ix(1)), ZERO, "cpu")
    column = TensorMeta(f32, (ix(4), ix(size)), (ix(1), ix(4)), ix(8), "cpu")
    nodes = (
        Node("t", "aten.t.default", (Ref("x"),), (), (column,), "m.py:3 in f:\n  y = x.t()"),
        Node("m", "aten.max.dim", (Ref("t"), 0, None), (("keepdim", True),), (meta, None)),
        Node("k", "aten.full.default", ((ix(size), 3), 0.5), (("dtype", f64), ("layout", "a b")), ()),
    )
    graph = Graph(
        "g",
        (size,),
        (Input("x", meta, True), Input("s0", ix(size)), Input("u", None)),
        nodes,
        (Ref("m", 1), 3),
    )
    assert print_graph(graph).splitlines() == [
        "graph g(s0: 2..) {",
        "  input x: f32[s0, 4] @cpu mutated",
        "  input s0: size s0",
        "  input u: none",
        "  t: f32[4, s0 : 1, 4] + 8 @cpu = aten.t.default(x)  # m.py:3 in f: y = x.t()",
        "  m: f32[s0, 4] @cpu, none = aten.max.dim(t, 0, none, keepdim=true)",
        '  k: none = aten.full.default((idx(s0), 3), 0.5, dtype=f64, layout="a b")',
        "  return m#1, 3",
        "}",
    ]


# ---------------------------------------------------------------- errors

ERRORS = [
    ("kernel k(", "line 1, column 10: expected", 10),
    ("kernel k() {\n  a = 1.0 +\n}", "line 3, column 1: expected an expression, got '}'", 1),
    ("kernel k() {\n  a = b\n}", "line 2, column 7: b is no value in scope", 7),
    ("kernel k(x: f32[4]) {\n  a = x\n}", "x is a buffer; index it", 7),
    ("kernel k(x: f32[4]) {\n  x[x] = 1.0\n}", "x is a buffer, not an index", 5),
    ("kernel k(x: f32[4]) {\n  for i in 4 {\n    x[i] = i\n  }\n}", "i is an index; write idx(i)", 12),
    (
        "kernel k(x: f32[4]) {\n  for i in 4 {\n  }\n  x[i] = 1.0\n}",
        "line 4, column 5: i is no axis, size or value",
        5,
    ),
    ("kernel k() {\n  y[0] = 1.0\n}", "y is no buffer in scope", 3),
    ("kernel k() {\n  a = foo(1.0)\n}", "unknown op foo", 7),
    ("kernel k() {\n  a = 1.0 + 2\n}", "add takes arguments of one dtype, got f32, i64", 11),
    ("kernel k() {\n  a = exp(1.0, 2.0)\n}", "exp takes 1 arguments, got 2", 7),
    ("kernel k() {\n  a = exp()\n}", "exp takes 1 arguments, got 0", 7),
    ("kernel k() {\n  a = bitcast(1)\n}", "bitcast needs a dtype", 7),
    ("kernel k() {\n  a = 1 < 2 < 3\n}", "comparisons do not chain", 13),
    ("kernel k() {\n  a = (1 + 2\n}", "expected ')', got '}'", 1),
    ("kernel k() {\n  a = 1 b = 2\n}", "expected the end of the statement, got 'b'", 9),
    ("kernel k() {\n  a = $1\n}", "$1 has no line before this statement", 7),
    ("kernel k() {\n  s add= 1\n}", "s is no value in scope", 3),
    ("kernel k() {\n  for i in 4 {\n}\n", "a block is not closed", 1),
    ("kernel k(x: f33[4]) {\n}", "unknown dtype f33", 13),
    ("kernel k(x: f32[(4 // 0)]) {\n}", "division by zero", 20),
    ("kernel k() {\n  a = 1 ? 2\n}", "unexpected character '?'", 9),
    ("kernel k() {\n}\nkernel l() {\n}", "expected the end of the text", 1),
    ("module @LOOPS() {\n  launch k()\n}\n", "no kernel called k", 10),
    (
        "module @LOOPS() {\n}\nkernel k() {\n}\nkernel k() {\n}\n",
        "line 5, column 8: a second kernel called k",
        8,
    ),
    ("module @LOOPS() {\n  return x\n}\n", "x is no buffer of the module", 10),
    ("module @LOOPS() {\n  extern f(a=1, 2)\n}\n", "a positional argument after one with a name", 17),
    ("module @LOOPS() {\n  input size s\n}\n", "s is no symbol of the module", 14),
    ("module @LOOPS() {\n", "line 2, column 1", 1),
]


@pytest.mark.parametrize(("text", "message", "column"), ERRORS, ids=[e[1] for e in ERRORS])
def test_errors_show_the_place(text: str, message: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    first, shown, mark = caught.value.message.splitlines()
    assert message in first and f"column {column}:" in first
    assert mark.index("^") - shown.index("| ") - 2 == column - 1


def test_error_in_a_long_line() -> None:
    with pytest.raises(ParseError) as caught:
        parse_kernel("kernel k() {\n  a = " + "1 + " * 100 + "? + 2\n}")
    _, shown, mark = caught.value.message.splitlines()
    assert len(shown) < 140 and shown[mark.index("^")] == "?"
