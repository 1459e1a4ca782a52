"""relax: SCHEDULED → SCHEDULED, for GPUs.  Maths whose result is rounded to f16 or bf16 need not be exact to the last bit of f32.

Before:  y[i] = bf16(0.5 * x * (1.0 + erf(x * 0.7)))
After:   y[i] = bf16(0.5 * x * near_erfc(-(x * 0.7)))

A value may be near (off by 2**-15 of itself, an eighth of what rounding to f16 may change) if all that it goes into keeps
relative errors as they are and ends in a rounding: choices, sums of what is not negative, products and quotients as long as
``ROOM`` is left, since those add up the errors of their factors.  Differences, comparisons and results in f32 stay as exact as
ever.  An op on f16 or bf16 rounds by itself, its maths may always be near.
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
# errors of near values that may come together before a rounding: half of what rounding to f16 may change
ROOM = 4
# the error of the result, relative to it, is at most the largest of those of the arguments …
KEEPING = frozenset({"neg", "abs", "min", "max", "sqrt"})
ADDING = frozenset({"mul", "div"})  # … or their sum
NOT_NEGATIVE = frozenset({"exp", "exp2", "sigmoid", "abs", "sqrt", "rsqrt", "erfc"})


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with near maths where roundings hide the difference."""
    return map_kernels(module, _relax) if "ex2" in target.ops else module


def _relax(kernel: Kernel) -> Kernel:
    body = statements(kernel.body)
    roots = [expr for stmt in body for expr in exprs(stmt)]
    if not any(isinstance(p, Op) and (p.name in NEAR or p.name in WITHIN) for root in roots for p in parts(root)):
        return kernel
    rewriter = _Rewriter(_Room(body))

    def near(stmt: Stmt) -> tuple[Stmt, ...]:
        return (map_exprs(stmt, rewriter.rewrite),)

    return make_kernel(kernel.name, map_statements(kernel.body, near), kernel.params)


def _is_narrow(dtype: DType) -> bool:
    return dtype.kind == "f" and dtype.bits == 16


class _Room:
    """How many errors of near values each part of ``body`` may hold: ``parts`` by id, ``names`` of Lets and accumulators,
    ``arrays`` of the kernel's own by id.  0 is exact; names and arrays that are missing may hold ``ROOM``."""

    def __init__(self, body: Sequence[Stmt]) -> None:
        self.lets = {s.var.name: s.value for s in body if isinstance(s, Let)}
        self.stored: dict[int, list[Expr]] = {}
        self.updated: dict[str, list[Expr]] = {}
        self.reducers = {v.name: s.reducer for s in body if isinstance(s, Acc) for v in s.vars}
        for stmt in body:
            if isinstance(stmt, Store) and stmt.buffer.space != "global":
                self.stored.setdefault(id(stmt.buffer), []).append(stmt.value)
            if isinstance(stmt, Update):
                self.updated.setdefault(stmt.vars[0].name, []).append(stmt.values[0])
        self.parts: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.arrays: dict[int, int] = {}
        self._seen: set[int] = set()
        self._signs: dict[str | int, bool] = {}
        self._near: dict[str | int, bool] = {}
        before = -1
        while before != (now := self._left()):  # what is used above in the text, by a loop's next iteration
            before = now
            self._seen.clear()
            for stmt in reversed(body):
                self._statement(stmt)

    def _left(self) -> int:
        """What shrinks until all is known."""
        known = [*self.names.values(), *self.arrays.values()]
        return sum(known) - (ROOM + 1) * len(known)

    def _statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Let):
            self._part(stmt.value, self.names.get(stmt.var.name, ROOM))
        elif isinstance(stmt, Update):
            name = stmt.vars[0].name
            kept = stmt.reducer in ("max", "min") or (
                stmt.reducer == "add" and self._all_not_negative(name, self.updated[name])
            )
            self._part(stmt.values[0], self.names.get(name, ROOM) if kept else 0)
            for value in stmt.values[1:]:
                self._part(value, 0)
        elif isinstance(stmt, Store):
            exact = stmt.buffer.space == "global" or bool(stmt.reducer)
            self._part(stmt.value, 0 if exact else self.arrays.get(id(stmt.buffer), ROOM))
        for expr in exprs(stmt):
            if not isinstance(stmt, Let | Update | Store) or expr is getattr(stmt, "mask", None):
                self._part(expr, 0)

    def _part(self, expr: Expr, room: int) -> None:
        """``expr`` is used where it may hold ``room`` errors."""
        key = id(expr)
        known = self.parts.get(key, ROOM)
        if key in self._seen and known <= room:
            return
        room = min(room, known)
        self._seen.add(key)
        self.parts[key] = room
        if isinstance(expr, Var) and room < ROOM:
            self.names[expr.name] = min(room, self.names.get(expr.name, ROOM))
        elif isinstance(expr, Load):
            if room < ROOM:
                self.arrays[id(expr.buffer)] = min(room, self.arrays.get(id(expr.buffer), ROOM))
            if expr.mask is not None:
                self._part(expr.mask, 0)
        elif isinstance(expr, Op):
            for number, arg in enumerate(expr.args):
                self._part(arg, self._of_argument(expr, number, room))

    def _of_argument(self, expr: Op, number: int, room: int) -> int:
        """The room of argument ``number`` of ``expr``, which has ``room``."""
        if _is_narrow(expr.dtype) and expr.name == "cast":
            return ROOM
        if expr.dtype != f32 or room == 0:
            return 0
        if expr.name in ADDING:
            return self.of_factor(expr, room)
        if expr.name == "select":
            kept = number > 0
        elif expr.name == "add":
            kept = all(map(self.not_negative, expr.args))
        else:
            kept = expr.name in KEEPING
        return room if kept else 0

    def of_factor(self, expr: Op, room: int) -> int:
        """The room of each of the two factors of ``expr``: half, if both may be near."""
        return room // 2 if all(map(self.may_be_near, expr.args)) else room

    def may_be_near(self, expr: Expr) -> bool:
        """Whether ``expr`` may hold errors of near values, had it the room."""
        if expr.dtype != f32:
            return False
        if isinstance(expr, Var):
            values = self.updated.get(expr.name, []) if expr.name in self.reducers else [self.lets.get(expr.name, expr)]
            return self._any_near(expr.name, [v for v in values if v is not expr])
        if isinstance(expr, Load):
            return self._any_near(id(expr.buffer), self.stored.get(id(expr.buffer), []))
        if not isinstance(expr, Op):
            return False
        if expr.name in NEAR or expr.name in WITHIN:
            return True
        if id(expr) not in self._near:
            held = expr.name in KEEPING or expr.name in ADDING or expr.name in ("add", "select")
            self._near[id(expr)] = held and any(map(self.may_be_near, expr.args))
        return self._near[id(expr)]

    def _any_near(self, key: str | int, values: Sequence[Expr]) -> bool:
        if key not in self._near:
            self._near[key] = True  # until it is known: what is made of itself gathers errors from turn to turn
            self._near[key] = any(map(self.may_be_near, values))
        return self._near[key]

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
    """Puts near maths where there is ``room`` for its error."""

    def __init__(self, room: _Room) -> None:
        self.room = room
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
        near = expr.dtype == f32 and self.room.parts.get(id(expr), 0) > 0
        if near and (made := self._pattern(expr)) is not None:
            return made
        args = tuple([self.rewrite(a) for a in expr.args])
        name = NEAR.get(expr.name, expr.name) if near or _is_narrow(expr.dtype) else expr.name
        if name == expr.name and all(a is b for a, b in zip(args, expr.args, strict=True)):
            return expr
        return Op(name, args, expr.dtype)

    def _pattern(self, expr: Op) -> Expr | None:
        """1 + erf(x) as erfc(-x), 1 + tanh(x) as 2 sigmoid(2x), a / (1 + exp(x)) as a sigmoid(-x)."""
        fits = expr.name == "div" and self.room.of_factor(expr, self.room.parts[id(expr)]) > 0
        if fits and (inner := _beside_one(self._named(expr.args[1]))) is not None:
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
        value = self.room.lets.get(expr.name, expr) if isinstance(expr, Var) else expr
        changing = any(isinstance(p, Load) or (isinstance(p, Var) and p.name in self.room.reducers) for p in parts(value))
        return expr if changing else value


def _negative(expr: Expr) -> Expr:
    return expr.args[0] if isinstance(expr, Op) and expr.name == "neg" else Op("neg", (expr,), expr.dtype)


def _beside_one(expr: Expr) -> Expr | None:
    """The x of 1 + x."""
    if not isinstance(expr, Op) or expr.name != "add":
        return None
    one, other = expr.args if isinstance(expr.args[0], Const) else expr.args[::-1]
    return other if isinstance(one, Const) and one.value == 1.0 else None
