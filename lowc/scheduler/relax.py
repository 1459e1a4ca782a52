"""relax: SCHEDULED → SCHEDULED, for GPUs.  Maths whose result is rounded to f16 or bf16 need not be exact to the last bit of f32.

Before:  y[i] = bf16(0.5 * x * (1.0 + erf(x * 0.7)))
After:   y[i] = bf16(0.5 * x * near_erfc(-(x * 0.7)))

A value may be near (off by 2**-15 of itself, an eighth of what rounding to f16 may change) if all that it goes into keeps
relative errors as they are and ends in a rounding: products, quotients, choices, sums of what is not negative.  Differences,
comparisons and results in f32 stay as exact as ever.  An op on f16 or bf16 rounds by itself, its maths may always be near.
"""

from collections.abc import Sequence

from lowc.ir.nodes import Acc, Const, Expr, Kernel, Let, Load, Module, Op, Stmt, Store, Update, Var
from lowc.ir.types import DType, f32
from lowc.ir.walk import exprs, make_kernel, map_exprs, map_statements, parts, statements
from lowc.options import Options
from lowc.scheduler.nest import map_kernels
from lowc.target import Target

NEAR = {"exp": "near_exp", "sigmoid": "near_sigmoid", "erfc": "near_erfc"}
WITHIN = frozenset({"erf", "tanh"})  # near as 1 + erf(x), 1 + tanh(x)
# the error of the result, relative to it, is at most the sum of those of the arguments
KEEPING = frozenset({"mul", "div", "neg", "abs", "min", "max", "sqrt"})
NOT_NEGATIVE = frozenset({"exp", "exp2", "sigmoid", "abs", "sqrt", "rsqrt", "erfc"})


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with near maths where roundings hide the difference."""
    return map_kernels(module, _relax) if "ex2" in target.ops else module


def _relax(kernel: Kernel) -> Kernel:
    body = statements(kernel.body)
    roots = [expr for stmt in body for expr in exprs(stmt)]
    if not any(isinstance(p, Op) and (p.name in NEAR or p.name in WITHIN) for root in roots for p in parts(root)):
        return kernel
    rewriter = _Rewriter(_Exact(body))

    def near(stmt: Stmt) -> tuple[Stmt, ...]:
        return (map_exprs(stmt, rewriter.rewrite),)

    return make_kernel(kernel.name, map_statements(kernel.body, near), kernel.params)


def _is_narrow(dtype: DType) -> bool:
    return dtype.kind == "f" and dtype.bits == 16


class _Exact:
    """What must stay exact: ``parts`` by id, ``names`` of Lets and accumulators, ``arrays`` of the kernel's own by id."""

    def __init__(self, body: Sequence[Stmt]) -> None:
        self.body = body
        self.lets = {s.var.name: s.value for s in body if isinstance(s, Let)}
        self.stored: dict[int, list[Expr]] = {}
        self.updated: dict[str, list[Expr]] = {}
        self.reducers = {v.name: s.reducer for s in body if isinstance(s, Acc) for v in s.vars}
        for stmt in body:
            if isinstance(stmt, Store) and stmt.buffer.space != "global":
                self.stored.setdefault(id(stmt.buffer), []).append(stmt.value)
            if isinstance(stmt, Update):
                self.updated.setdefault(stmt.vars[0].name, []).append(stmt.values[0])
        self.parts: set[int] = set()
        self.names: set[str] = set()
        self.arrays: set[int] = set()
        self._seen: set[int] = set()
        self._signs: dict[str | int, bool] = {}
        before = -1
        while before != (now := len(self.names) + len(self.arrays)):  # what is used above in the text, by a loop's next iteration
            before = now
            self._seen.clear()
            for stmt in reversed(body):
                self._statement(stmt)

    def _statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Let):
            self._part(stmt.value, stmt.var.name in self.names)
        elif isinstance(stmt, Update):
            exact = stmt.vars[0].name in self.names
            kept = stmt.reducer in ("max", "min") or (stmt.reducer == "add" and self.not_negative(stmt.values[0]))
            self._part(stmt.values[0], exact or not kept)
            for value in stmt.values[1:]:
                self._part(value, True)
        elif isinstance(stmt, Store):
            exact = stmt.buffer.space == "global" or bool(stmt.reducer) or id(stmt.buffer) in self.arrays
            self._part(stmt.value, exact)
        for expr in exprs(stmt):
            if not isinstance(stmt, Let | Update | Store) or expr is getattr(stmt, "mask", None):
                self._part(expr, True)

    def _part(self, expr: Expr, exact: bool) -> None:
        """``expr`` is used; ``exact``: where its last bits can be seen."""
        if exact:
            if id(expr) in self.parts and id(expr) in self._seen:
                return
            self.parts.add(id(expr))
        elif id(expr) in self._seen:
            return
        self._seen.add(id(expr))
        exact = id(expr) in self.parts
        if isinstance(expr, Var) and exact:
            self.names.add(expr.name)
        elif isinstance(expr, Load):
            if exact:
                self.arrays.add(id(expr.buffer))
            if expr.mask is not None:
                self._part(expr.mask, True)
        elif isinstance(expr, Op):
            for number, arg in enumerate(expr.args):
                self._part(arg, not self._keeps(expr, number, exact))

    def _keeps(self, expr: Op, number: int, exact: bool) -> bool:
        """Whether argument ``number`` may be near, if ``expr`` need not be exact."""
        if _is_narrow(expr.dtype) and expr.name == "cast":
            return True
        if exact or expr.dtype != f32:
            return False
        if expr.name == "select":
            return number > 0
        if expr.name == "add":
            return all(map(self.not_negative, expr.args))
        return expr.name in KEEPING

    def not_negative(self, expr: Expr) -> bool:
        """Whether ``expr`` is known to be at least 0, or NaN."""
        if isinstance(expr, Const):
            return bool(expr.value >= 0)
        if isinstance(expr, Var):
            values = self.updated.get(expr.name, []) if expr.name in self.reducers else [self.lets.get(expr.name, expr)]
            known = self.reducers.get(expr.name, "add") == "add" and expr not in values
            return self._all_not_negative(expr.name, values if known else [])
        if isinstance(expr, Load):
            return self._all_not_negative(id(expr.buffer), self.stored.get(id(expr.buffer), []))
        if not isinstance(expr, Op):
            return False
        if expr.name in NOT_NEGATIVE:
            return True
        if expr.name == "mul" and expr.args[0] is expr.args[1]:
            return True
        args = expr.args[1:] if expr.name == "select" else expr.args
        if expr.name == "max":
            return any(map(self.not_negative, args))
        if expr.name in ("mul", "div", "add", "min", "select", "cast"):
            return all(a.dtype.kind == "f" and self.not_negative(a) for a in args)
        return False

    def _all_not_negative(self, key: str | int, values: Sequence[Expr]) -> bool:
        if key not in self._signs:
            self._signs[key] = False  # until it is known: what a value is made of may be the value itself
            self._signs[key] = bool(values) and all(map(self.not_negative, values))
        return self._signs[key]


class _Rewriter:
    """Puts near maths where ``exact`` does not forbid it."""

    def __init__(self, exact: _Exact) -> None:
        self.exact = exact
        self.memo: dict[int, Expr] = {}

    def rewrite(self, expr: Expr) -> Expr:
        found = self.memo.get(id(expr))
        if found is None:
            found = self.memo[id(expr)] = self._rewritten(expr)
        return found

    def _rewritten(self, expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.mask is not None:
            mask = self.rewrite(expr.mask)
            return expr if mask is expr.mask else Load(expr.buffer, expr.index, mask)
        if not isinstance(expr, Op):
            return expr
        near = expr.dtype == f32 and id(expr) not in self.exact.parts
        if near and (made := self._pattern(expr)) is not None:
            return made
        args = tuple([self.rewrite(a) for a in expr.args])
        name = NEAR.get(expr.name, expr.name) if near or _is_narrow(expr.dtype) else expr.name
        if name == expr.name and all(a is b for a, b in zip(args, expr.args, strict=True)):
            return expr
        return Op(name, args, expr.dtype)

    def _pattern(self, expr: Op) -> Expr | None:
        """1 + erf(x) as erfc(-x), 1 + tanh(x) as 2 sigmoid(2x), a / (1 + exp(x)) as a sigmoid(-x)."""
        if expr.name == "div" and (inner := _beside_one(self._named(expr.args[1]))) is not None:
            inner = self._named(inner)
            if isinstance(inner, Op) and inner.name == "exp":
                sigmoid = Op("near_sigmoid", (_negative(self.rewrite(inner.args[0])),), f32)
                return Op("mul", (self.rewrite(expr.args[0]), sigmoid), f32)
        if expr.name == "add" and (inner := _beside_one(expr)) is not None and isinstance(inner, Op):
            if inner.name == "erf":
                return Op("near_erfc", (_negative(self.rewrite(inner.args[0])),), f32)
            if inner.name == "tanh":
                twice = self.rewrite(inner.args[0])
                sigmoid = Op("near_sigmoid", (Op("mul", (twice, Const(2.0, f32)), f32),), f32)
                return Op("mul", (sigmoid, Const(2.0, f32)), f32)
        return None

    def _named(self, expr: Expr) -> Expr:
        """What ``expr`` is a name for, if that is arithmetic on names of Lets (which is the same wherever it is evaluated)."""
        value = self.exact.lets.get(expr.name, expr) if isinstance(expr, Var) else expr
        changing = any(isinstance(p, Load) or (isinstance(p, Var) and p.name in self.exact.reducers) for p in parts(value))
        return expr if changing else value


def _negative(expr: Expr) -> Expr:
    return expr.args[0] if isinstance(expr, Op) and expr.name == "neg" else Op("neg", (expr,), expr.dtype)


def _beside_one(expr: Expr) -> Expr | None:
    """The x of 1 + x."""
    if not isinstance(expr, Op) or expr.name != "add":
        return None
    one, other = expr.args if isinstance(expr.args[0], Const) else expr.args[::-1]
    return other if isinstance(one, Const) and one.value == 1.0 else None
