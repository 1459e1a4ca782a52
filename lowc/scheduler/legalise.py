"""``legalise``: BUFFERED → MACHINE.  Only ops and dtypes of arithmetic that the target has.

* Maths ops on f32, and those on f64 that ``maths.DOUBLE`` and ``DOUBLE_WITH_BRANCHES`` list, become primitive ops (``maths.py``);
  the others on f64 stay, the backend calls the C library.
* f16 and bf16: args are widened to f32, the op computes there, its result is rounded by a cast: ``out[i] =
  a[i] + b[i]`` of bf16 becomes ``out[i] = bf16(f32(a[i]) + f32(b[i]))``.  Every op rounds, so
  ``f32(bf16(x))`` stays, except where x is a bf16 value anyway (of a max, say).  Loads, stores, selects and
  bitcasts of narrow floats remain.  Accumulators of narrow floats become f32.
* Casts of float8 are integer arithmetic, but for those in the meaning of an instruction.
* Without "f16c", casts from and to f16 are integer arithmetic.
* ``mad`` becomes ``fma`` where the target has it, else mul and add; ``fma`` without it goes by f64;
  ``ldexp`` without "scalef" goes by f64; min and max of bool become ``and`` and ``or``.

Values used more than once become Lets right before the statement that uses them.  Does not move, merge or
remove statements.
"""

import math
import struct

from lowc.errors import CodegenError
from lowc.ir import tiles
from lowc.ir.nodes import (
    Acc,
    Alloc,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Module,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from lowc.ir.ops import MATHS, REDUCERS
from lowc.ir.types import DType, bool_, f16, f32
from lowc.ir.walk import names
from lowc.options import Options
from lowc.scheduler import maths, maths_narrow
from lowc.scheduler.conflict import conflict
from lowc.scheduler.maths_emit import Emit
from lowc.scheduler.nest import map_kernels
from lowc.target import Target

# ops whose result on narrow floats needs no rounding: it is of the narrow type by itself
EXACT = frozenset({"neg", "abs", "min", "max", "copysign", "fmod", "floor", "ceil", "trunc", "round", "tf32"})
# not arithmetic: they take and give narrow floats as they are
MOVES = frozenset({"select", "bitcast", "pair", "quad"})
# reducers whose accumulators only ever hold one of the values
CHOOSING = frozenset({"max", "min", "argmax", "argmin"})
INEXACT = (None, False)
PRODUCTS = (tiles.WGMMA, tiles.APART)


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` @BUFFERED as @MACHINE.  Raises CodegenError for an atomic update of a narrow float that the target lacks."""
    return map_kernels(module, lambda kernel: legalise_kernel(kernel, target), "MACHINE")


def legalise_kernel(kernel: Kernel, target: Target) -> Kernel:
    """``kernel`` with every expression legal for ``target``; the same object if all of them were."""
    taken = names(kernel.body)
    taken.update(b.name for b in kernel.params)
    taken.update(s.name for s in kernel.sizes)
    body = _Rewriter(Emit(target.ops, taken), kernel.name).body(kernel.body)
    return kernel if body is kernel.body else Kernel(kernel.name, kernel.params, kernel.sizes, body)


def _may_meet(loop: For) -> bool:
    """Whether iterations of ``loop`` that run at the same time may store to one element."""
    if loop.kind.name in ("serial", "unroll"):
        return False
    return loop.kind.name not in ("parallel", "vector") or bool(conflict(loop, loop.kind))


def _is_narrow(dtype: DType) -> bool:
    return dtype.bits == 16 and dtype.kind == "f"


def _is_exact(expr: Expr) -> bool:
    """Whether the narrow ``expr``, or a choice that it is, is made by ops that round nothing."""
    if not isinstance(expr, Op):
        return False
    if expr.name == "select":
        return any(map(_is_exact, expr.args[1:]))
    return expr.name in EXACT or (expr.name == "cast" and (_fits(expr.args[0]) or _holds(expr.args[0], expr.dtype)))


def _fits(expr: Expr) -> bool:
    """Whether every narrow float has all values of the dtype of ``expr``: 8 bits, as many as bf16 has in its mantissa."""
    return expr.dtype.bits == 8


def _holds(expr: Expr, dtype: DType) -> bool:
    """Whether the f32 ``expr`` has none but values of the narrow ``dtype``."""
    if isinstance(expr, Const):
        return expr.dtype == f32 and rounded(float(expr.value), dtype) == expr.value
    if not isinstance(expr, Op) or expr.dtype != f32:
        return False
    if expr.name == "cast":
        return expr.args[0].dtype == dtype
    args = expr.args[1:] if expr.name == "select" else expr.args
    return (expr.name in EXACT or expr.name == "select") and all(_holds(a, dtype) for a in args)


class _Rewriter:
    """The state of one kernel's rewriting.

    ``legal`` and ``wide`` hold, for the statement at hand, what each expression (by id) became: as it is,
    and in f32 if it is narrow. ``vars`` and ``arrays`` hold the names and arrays (by id) of narrow floats,
    accumulators for the most part, that are f32 now, and whether their values need no rounding.
    """

    __slots__ = ("arrays", "emit", "halves", "kernel", "legal", "loops", "vars", "wide")

    def __init__(self, emit: Emit, kernel: str) -> None:
        self.emit = emit
        self.halves = "f16c" in emit.abilities
        self.kernel = kernel
        # with what each was made of, which a rewriting may have made itself: its address must not be that of another
        self.legal: dict[int, tuple[Expr, Expr]] = {}
        self.wide: dict[int, tuple[Expr, Expr]] = {}
        self.vars: dict[str, tuple[Var, bool]] = {}
        self.arrays: dict[int, tuple[Buffer, bool]] = {}
        self.loops: list[For] = []

    # ------------------------------------------------------------ statements

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """``body`` legalised; the same object if it was legal."""
        out: list[Stmt] = []
        for stmt in body:
            new = self._stmt(stmt)
            out.extend(self.emit.statements)
            self.emit.statements.clear()
            if isinstance(new, For) and new.kind.name == "instr" and new.kind.key in PRODUCTS:
                pass  # an instruction, of which this is the meaning
            elif isinstance(new, For):
                self.loops.append(new)
                inner = self.body(new.body)
                self.loops.pop()
                new = new if inner is new.body else For(new.axis, inner, new.kind)
            elif isinstance(new, If):
                inner = self.body(new.body)
                new = new if inner is new.body else If(new.cond, inner)
            out.append(new)
        unchanged = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
        return body if unchanged else tuple(out)

    def _stmt(self, stmt: Stmt) -> Stmt:
        """``stmt`` itself, not its body; what it needs before it is in ``emit.statements``."""
        # a load means something else after a store: nothing is kept from one statement to the next
        self.legal.clear()
        self.wide.clear()
        if isinstance(stmt, Let):
            if _is_narrow(stmt.var.dtype) and _is_exact(stmt.value):
                var = Var(stmt.var.name, f32)
                self.vars[var.name] = var, True
                return Let(var, self.widened(stmt.value))
            value = self.rewrite(stmt.value)
            return stmt if value is stmt.value else Let(stmt.var, value)
        if isinstance(stmt, Store):
            return self._store(stmt)
        if isinstance(stmt, Update):
            return self._update(stmt)
        if isinstance(stmt, If):
            cond = self.rewrite(stmt.cond)
            return stmt if cond is stmt.cond else If(cond, stmt.body)
        if isinstance(stmt, Acc) and _is_narrow(stmt.vars[0].dtype):
            var = Var(stmt.vars[0].name, f32)
            self.vars[var.name] = var, stmt.reducer in CHOOSING
            return Acc((var, *stmt.vars[1:]), stmt.reducer)
        if isinstance(stmt, Alloc) and stmt.reducer and _is_narrow(stmt.buffer.dtype):
            old = stmt.buffer
            buffer = Buffer(old.name, f32, old.shape, old.strides, old.space)
            self.arrays[id(old)] = buffer, stmt.reducer in CHOOSING
            return Alloc(buffer, stmt.reducer)
        return stmt

    def _update(self, stmt: Update) -> Stmt:
        mask = None if stmt.mask is None else self.rewrite(stmt.mask)
        if stmt.vars[0].name in self.vars:
            values = (self.widened(stmt.values[0]), *[self.rewrite(v) for v in stmt.values[1:]])
            return Update((self.vars[stmt.vars[0].name][0], *stmt.vars[1:]), stmt.reducer, values, mask)
        values = tuple([self.rewrite(v) for v in stmt.values])
        if mask is stmt.mask and all(a is b for a, b in zip(values, stmt.values, strict=True)):
            return stmt
        return Update(stmt.vars, stmt.reducer, values, mask)

    def _store(self, stmt: Store) -> Stmt:
        mask = None if stmt.mask is None else self.rewrite(stmt.mask)
        array = self.arrays.get(id(stmt.buffer))
        if array is not None:
            return Store(array[0], stmt.index, self.widened(stmt.value), mask, stmt.reducer)
        if stmt.reducer and _is_narrow(stmt.buffer.dtype) and "narrow_atomics" not in self.emit.abilities:
            if any(_may_meet(loop) for loop in self.loops):
                raise CodegenError(
                    f"{self.kernel}: no atomic {stmt.reducer} on {stmt.buffer.dtype} ({stmt.buffer.name})",
                    hint="keep the sums in float32",
                )
            old = Load(stmt.buffer, stmt.index, stmt.mask)
            combined = Op(REDUCERS[stmt.reducer].op, (old, stmt.value), stmt.buffer.dtype)
            return Store(stmt.buffer, stmt.index, self.rewrite(combined), mask)
        value = self.rewrite(stmt.value)
        if value is stmt.value and mask is stmt.mask:
            return stmt
        return Store(stmt.buffer, stmt.index, value, mask, stmt.reducer)

    # ------------------------------------------------------------ expressions

    def rewrite(self, expr: Expr) -> Expr:
        """``expr`` in legal ops, of its own dtype; the same object if it was legal."""
        if isinstance(expr, Op | Load | Var):
            found = self.legal.get(id(expr))
            if found is None:
                found = self.legal[id(expr)] = expr, self._rewritten(expr)
            return found[1]
        return expr

    def _rewritten(self, expr: Op | Load | Var) -> Expr:
        if isinstance(expr, Var):
            return self._narrowed(self.vars[expr.name][0], expr.dtype) if expr.name in self.vars else expr
        if isinstance(expr, Load):
            return self._load(expr)
        if expr.name == "cast":
            return self._cast(expr)
        if expr.name not in MOVES:
            if _is_narrow(expr.dtype):
                value = self.widened(expr) if expr.name in EXACT else self._computed(expr)
                return self._narrowed(value, expr.dtype)
            if _is_narrow(expr.args[0].dtype):  # a comparison
                return Op(expr.name, tuple([self.widened(a) for a in expr.args]), expr.dtype)
        args = tuple([self.rewrite(a) for a in expr.args])
        new = self._replaced(expr.name, args, expr.dtype)
        if new is None:
            same = all(a is b for a, b in zip(args, expr.args, strict=True))
            return expr if same else Op(expr.name, args, expr.dtype)
        return new

    def _load(self, expr: Load) -> Expr:
        mask = None if expr.mask is None else self.rewrite(expr.mask)
        if id(expr.buffer) in self.arrays:
            return self._narrowed(Load(self.arrays[id(expr.buffer)][0], expr.index, mask), expr.dtype)
        return expr if mask is expr.mask else Load(expr.buffer, expr.index, mask)

    def _computed(self, expr: Op) -> Expr:
        """The f32 value that the narrow ``expr`` is the rounding of."""
        args = tuple([self.widened(a) for a in expr.args])
        new = self._replaced(expr.name, args, f32)
        return Op(expr.name, args, f32) if new is None else new

    def widened(self, expr: Expr) -> Expr:
        """The narrow ``expr`` in f32: its rounded value, exactly."""
        if isinstance(expr, Const):
            return Const(rounded(float(expr.value), expr.dtype), f32)
        found = self.wide.get(id(expr))
        if found is None:
            found = self.wide[id(expr)] = expr, self._widened(expr)
        return found[1]

    def _widened(self, expr: Expr) -> Expr:
        if isinstance(expr, Op) and expr.name in EXACT:
            return self._computed(expr)
        if isinstance(expr, Op) and expr.name == "cast" and _holds(expr.args[0], expr.dtype):
            return self.rewrite(expr.args[0])
        if isinstance(expr, Op) and expr.name == "cast" and _fits(expr.args[0]):
            return self.rewrite(Op("cast", expr.args, f32))
        if isinstance(expr, Op) and expr.name == "select" and any(map(_is_exact, expr.args[1:])):
            # else a negated branch would be rounded, which changes nothing, only to be widened again
            cond, *branches = expr.args
            return Op("select", (self.rewrite(cond), *[self.widened(b) for b in branches]), f32)
        # f32 now, and holds nothing but narrow values
        if isinstance(expr, Var) and self.vars.get(expr.name, INEXACT)[1]:
            return self.vars[expr.name][0]
        if isinstance(expr, Load) and self.arrays.get(id(expr.buffer), INEXACT)[1]:
            mask = None if expr.mask is None else self.rewrite(expr.mask)
            return Load(self.arrays[id(expr.buffer)][0], expr.index, mask)
        narrow = self.rewrite(expr)
        if narrow.dtype == f16 and not self.halves:
            return maths_narrow.half_to_single(self.emit, narrow)
        return Op("cast", (narrow,), f32)

    def _narrowed(self, value: Expr, dtype: DType) -> Expr:
        """The f32 ``value`` rounded to ``dtype``."""
        if dtype == f16 and not self.halves:
            return maths_narrow.single_to_half(self.emit, value)
        return Op("cast", (value,), dtype)

    def _cast(self, expr: Op) -> Expr:
        (arg,) = expr.args
        source, dtype = arg.dtype, expr.dtype
        if source == dtype:
            return self.rewrite(arg)
        if dtype.kind == "x":
            value = arg if source == f32 else Op("cast", (arg,), f32)
            return maths_narrow.single_to_eighth(self.emit, self.rewrite(value), dtype)
        if _is_narrow(source):
            value = self.widened(arg)
            if dtype == f32:
                return value
            return self._narrowed(value, dtype) if _is_narrow(dtype) else Op("cast", (value,), dtype)
        value = self.rewrite(arg)
        if source.kind == "x":
            value = maths_narrow.eighth_to_single(self.emit, value)
            if dtype == f32:
                return value
        elif _is_narrow(dtype) and source != f32:
            value = Op("cast", (value,), f32)  # as ATen does: f64 and integers by way of f32
        if dtype == f16 and not self.halves:
            return self._narrowed(value, dtype)
        return expr if value is arg else Op("cast", (value,), dtype)

    def _replaced(self, name: str, args: tuple[Expr, ...], dtype: DType) -> Expr | None:
        """``name`` on legal ``args`` as other ops, or None if the target has it as it is."""
        if name in MATHS:
            return (
                maths.expand(name, args, self.emit)
                if dtype == f32
                else maths.expand_f64(name, args, self.emit)
            )
        if name == "mad":
            return self.emit.mad(*args)
        if name == "fma" and dtype == f32 and not self.emit.fused:
            return maths_narrow.fma(self.emit, *args)
        if name == "ldexp" and dtype == f32 and not self.emit.scales:
            return maths.ldexp(self.emit, *args)
        if name in ("min", "max") and dtype == bool_:
            return Op("and" if name == "min" else "or", args, bool_)
        return None


def rounded(value: float, dtype: DType) -> float:
    """``value`` rounded to f32 and then to the narrow ``dtype``."""
    try:
        value = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    if not math.isfinite(value):
        return value
    if dtype == f16:
        try:
            return float(struct.unpack("e", struct.pack("e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    bits = struct.unpack("I", struct.pack("f", value))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("f", struct.pack("I", bits))[0])
