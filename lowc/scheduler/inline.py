"""inline: LOOPS → LOOPS.  A map's expression moves into the kernels that read it, and its buffer vanishes.

Before:  for i in 8 { t[i] = x[i] * 2 }            after:   for i in 8 { y[i] = exp(x[i] * 2) }
         for i in 8 { y[i] = exp(t[i]) }

A map is inlined when it ends up in a single kernel and is evaluated there about once an element, or when evaluating it
costs no more than loading it.  What is returned, read by an extern call, or would be computed many times over stays;
``fuse`` then brings producer and consumer under one loop.  A map that holds checks is inlined only where every element of it
is still evaluated: eager would raise for the elements that nobody reads, too.

Precondition: a kernel's params are the module's own buffers (no kernel is shared).  Not done here: reductions, loops.
Linear: decisions are made once from the last step to the first, then each kernel that stays is rewritten once.
"""

from collections.abc import Sequence
from math import prod

from lowc.ir.index import ONE, ZERO, Axis, Index, constant, depends_on, lower_bound, split
from lowc.ir.nodes import (
    Buffer,
    Const,
    Expr,
    Extern,
    For,
    FromIndex,
    If,
    Launch,
    Let,
    Load,
    Module,
    Stmt,
    Update,
    Var,
)
from lowc.ir.walk import (
    Substitution,
    buffers,
    exprs,
    has_check,
    loads,
    make_kernel,
    map_exprs,
    names,
    parts,
    rewrite,
    statements,
    stores,
    with_mask,
    zero_outside,
)
from lowc.options import Options
from lowc.scheduler.contraction import is_product
from lowc.scheduler.nest import MapNest, as_map, estimate, is_free, numel, prune, step_reads, uses, weight
from lowc.scheduler.rename import apart, fresh
from lowc.target import Target

MAX_DEPTH = 24  # maps inlined one through the other; longer chains meet again in ``fuse``
CHEAP = 2  # an expression of this weight with one large load costs no more than loading its result


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with every map inlined where that pays."""
    blocked: set[int] = set()
    while True:
        chosen = _choose(module, blocked, target.kind == "nvptx")
        if not chosen:
            return module
        steps: list[Launch | Extern] = []
        clash: set[int] = set()
        for step in module.steps:
            if isinstance(step, Extern):
                steps.append(step)
            elif not any(id(b) in chosen for b in _written(step)):
                new = _expand(step, chosen)
                clash |= _overlapping(new, chosen)
                steps.append(new)
        if not clash:
            return prune(module, steps)
        blocked |= clash


def _written(step: Launch) -> list[Buffer]:
    return [s.buffer for s in stores(step.kernel.body)]


def _overlapping(step: Launch, chosen: dict[int, tuple[MapNest, Launch]]) -> set[int]:
    """Maps that must not be inlined since ``step`` now reads what it overwrites at other coordinates than it writes."""
    written: dict[int, set[tuple[Index, ...]]] = {}
    for store in stores(step.kernel.body):
        written.setdefault(id(store.buffer), set()).add(store.index)
    bad = {
        id(load.buffer)
        for load in loads(step.kernel.body)
        if id(load.buffer) in written and written[id(load.buffer)] != {load.index}
    }
    if not bad:
        return set()
    return {key for key, (_, launch) in chosen.items() if any(id(b) in bad for b in step_reads(launch))}


# ---------------------------------------------------------------- which


def _choose(module: Module, blocked: set[int], branches: bool) -> dict[int, tuple[MapNest, Launch]]:
    """The maps to inline, by ``id`` of their output.

    ``branches``: what a mask turns off is not evaluated, as on a GPU; the lanes of a CPU evaluate it and drop it.
    """
    used = uses(module)
    chosen: dict[int, tuple[MapNest, Launch]] = {}
    roots: list[frozenset[int]] = [frozenset({n}) for n in range(len(module.steps))]
    depths: dict[int, int] = {}
    repeats: dict[int, float] = {}
    partial: set[int] = set()  # chosen maps of which nothing evaluates every element, by step number
    for number in range(len(module.steps) - 1, -1, -1):
        step = module.steps[number]
        if not isinstance(step, Launch) or (nest := as_map(step.kernel)) is None:
            continue
        out = id(nest.out)
        consumers = used.readers.get(out, [])
        if out in blocked or out in used.returned or used.writers[out] != [number] or not consumers:
            continue
        if any(isinstance(module.steps[c], Extern) for c in consumers):
            continue
        if (branches or _narrows(nest)) and any(_is_factor(module.steps[c], nest.out) for c in consumers):
            continue
        own_roots = frozenset[int]().union(*(roots[c] for c in consumers))
        if not _order_kept(step, number, own_roots, used.writers):
            continue
        whole = any(c not in partial and _evaluates_all(module.steps[c], nest.out) for c in consumers)
        if not whole and any(has_check(e) for e in (nest.value, *(let.value for let in nest.lets))):
            continue
        repeat = sum(_repeat(module.steps[c], nest, branches) * repeats.get(c, 1.0) for c in consumers)
        cost = weight(nest.value) + sum(weight(let.value) for let in nest.lets)
        deep = 1 + max(depths.get(c, 0) for c in consumers)
        if deep <= MAX_DEPTH and _pays(nest, cost, repeat, len(own_roots)):
            chosen[out] = (nest, step)
            roots[number] = own_roots
            repeats[number] = repeat
            depths[number] = deep
            if not whole:
                partial.add(number)
    return chosen


def _narrows(nest: MapNest) -> bool:
    """Whether bytes are made of what is wider, as where an input is quantised: a product reads them often, and four at a time."""
    values = (nest.value, *(let.value for let in nest.lets))
    return nest.out.dtype.bits == 8 and any(
        isinstance(p, Load) and p.dtype.bits > 8 for value in values for p in parts(value)
    )


def _is_factor(step: Launch | Extern, buffer: Buffer) -> bool:
    """Whether a product reads ``buffer``: on a GPU an engine copies factors, and computes nothing; and each element is read by
    many threads."""
    assert isinstance(step, Launch)
    loops = [s for s in statements(step.kernel.body) if isinstance(s, For)]
    depths = [f for f in loops if any(isinstance(s, Update) and is_product(s.values[0]) for s in f.body)]
    if any(load.buffer is buffer for load in loads(depths)):
        return True
    factors = [p for s in statements(step.kernel.body) for e in exprs(s) for p in parts(e) if is_product(p)]
    return any(isinstance(p, Load) and p.buffer is buffer for f in factors for p in parts(f))


def _order_kept(step: Launch, number: int, roots: frozenset[int], writers: dict[int, list[int]]) -> bool:
    """Whether what ``step`` reads is still unchanged when the last of ``roots`` runs."""
    last = max(roots)
    return not any(number < w < last for b in step_reads(step) for w in writers.get(id(b), ()))


def _pays(nest: MapNest, cost: int, repeat: float, roots: int) -> bool:
    size = estimate(numel(nest.out.shape))
    if size <= 1:
        return True  # invariant everywhere: hoisted out of the loops that use it
    large = _large_loads(nest, size)
    if is_free(nest.value) and not nest.lets:
        return True
    if roots == 1 and repeat <= 1.25:
        return True
    if cost == 0 and large <= 1:
        return True  # a copy, a cast or a broadcast
    return cost <= CHEAP and large <= 1 and repeat <= max(2.5, roots * 2.0)


def _large_loads(nest: MapNest, size: int) -> int:
    """How many loads touch at least half as much memory as the result has elements."""
    found = 0
    for value in (nest.value, *(let.value for let in nest.lets)):
        for part in parts(value):
            if isinstance(part, Load) and estimate(numel(part.buffer.shape)) * 2 >= size:
                found += 1
    return found


def _repeat(step: Launch | Extern, nest: MapNest, branches: bool) -> float:
    """How often ``step`` evaluates an element of ``nest``, on average."""
    assert isinstance(step, Launch)
    size = max(1, estimate(numel(nest.out.shape)))
    return max(1.0, _evaluations(step.kernel.body, nest.out, (), branches) / size)


def _evaluations(body: Sequence[Stmt], buffer: Buffer, around: tuple[Axis, ...], branches: bool) -> int:
    total = 0
    times = prod([max(1, estimate(axis.extent)) for axis in around])
    for stmt in body:
        if isinstance(stmt, For):
            total += _evaluations(stmt.body, buffer, (*around, stmt.axis), branches)
        elif isinstance(stmt, If):
            total += _evaluations(stmt.body, buffer, around, branches)
        found = {p.index: p for e in exprs(stmt) for p in parts(e) if isinstance(p, Load) and p.buffer is buffer}
        for load in found.values():
            once = branches and load.mask is not None and all(any(depends_on(i, a) for i in load.index) for a in around)
            total += min(times, max(1, estimate(numel(buffer.shape)))) if once else times
    return total


def _evaluates_all(step: Launch | Extern, buffer: Buffer) -> bool:
    """Whether ``step`` surely loads every element of ``buffer``, under no mask or condition."""
    assert isinstance(step, Launch)
    return _loads_all(step.kernel.body, buffer, ())


def _loads_all(body: Sequence[Stmt], buffer: Buffer, around: tuple[Axis, ...]) -> bool:
    for stmt in body:
        if isinstance(stmt, For):
            if _loads_all(stmt.body, buffer, (*around, stmt.axis)):
                return True
        elif not isinstance(stmt, If) and getattr(stmt, "mask", None) is None:
            for expr in exprs(stmt):
                for part in parts(expr):
                    if isinstance(part, Load) and part.buffer is buffer and part.mask is None and _covers(part, around):
                        return True
    return False


def _covers(load: Load, around: Sequence[Axis]) -> bool:
    """Whether ``load`` meets every element of its buffer as the loops ``around`` it run: if the row-major number of the element
    is a number of mixed radix, with some of the axes as its digits, and the other loops run at least once."""
    number, radix = ZERO, ONE
    for position, size in zip(reversed(load.index), reversed(load.buffer.shape), strict=True):
        number, radix = number + position * radix, radix * size
    steps: list[tuple[Index, Axis]] = []
    for axis in around:
        step, number = split(number, axis)
        if constant(axis.extent) == 1:
            continue
        if step.terms:
            steps.append((step, axis))
        elif (lower_bound(axis.extent) or 0) < 1:
            return False
    reached = ONE
    while (digit := next((d for d in steps if d[0] == reached), None)) is not None:
        steps.remove(digit)
        reached = reached * digit[1].extent
    return not steps and not number.terms and reached == radix


# ---------------------------------------------------------------- how


class _Inliner:
    """Rewrites one kernel.  ``fresh`` numbers the lets; ``fused`` collects the launches that went in, in order."""

    def __init__(self, chosen: dict[int, tuple[MapNest, Launch]], taken: set[str]) -> None:
        self.chosen = chosen
        self.taken = taken
        self.fused: dict[int, Launch] = {}

    def body(self, body: Sequence[Stmt], known: dict[object, Expr]) -> tuple[Stmt, ...]:
        """``body`` with loads of chosen maps replaced; ``known`` has what enclosing blocks have evaluated."""
        out: list[Stmt] = []
        known = dict(known)
        for stmt in body:
            if isinstance(stmt, For):
                out.append(For(stmt.axis, self.body(stmt.body, known), stmt.kind))
            elif isinstance(stmt, If):
                out.append(If(stmt.cond, self.body(stmt.body, known)))
            else:
                memo: dict[int, Expr] = {}
                out_stmt = map_exprs(stmt, lambda e: rewrite(e, lambda p: self.part(p, out, known), memo))  # noqa: B023
                out.append(out_stmt)
        return tuple(out)

    def part(self, part: Expr, out: list[Stmt], known: dict[object, Expr]) -> Expr:
        if not isinstance(part, Load) or id(part.buffer) not in self.chosen:
            return part
        key = (id(part.buffer), part.index, _mask_key(part.mask))
        found = known.get(key)
        if found is None:
            found = known[key] = self.instance(part, out, known)
        return found

    def instance(self, load: Load, out: list[Stmt], known: dict[object, Expr]) -> Expr:
        """The value of a chosen map at the coordinates and under the mask of ``load``; its lets are added to ``out``."""
        nest, launch = self.chosen[id(load.buffer)]
        self.fused[id(launch)] = launch
        replace = Substitution()
        for axis, position in zip(nest.axes, load.index, strict=True):
            if axis.terms and axis.terms[0][0]:
                replace.atoms[axis.terms[0][0][0]] = position
        masked: dict[int, Expr] = {}
        for let in nest.lets:
            value = self.value(replace.expr(let.value), load.mask, masked, out, known)
            replace.rename(let.var.name, self.named(let.var.name, value, out))
        value = self.value(replace.expr(nest.value), load.mask, masked, out, known)
        if load.mask is not None and not isinstance(value, Load):
            value = zero_outside(value, load.mask)
        if isinstance(value, Const | Var | FromIndex | Load):
            return value
        return self.named(nest.out.name, value, out)

    def value(
        self, expr: Expr, mask: Expr | None, masked: dict[int, Expr], out: list[Stmt], known: dict[object, Expr]
    ) -> Expr:
        if mask is not None:
            expr = with_mask(expr, mask, masked)
        return rewrite(expr, lambda p: self.part(p, out, known), {})

    def named(self, wanted: str, value: Expr, out: list[Stmt]) -> Expr:
        if isinstance(value, Const | Var):
            return value
        var = Var(fresh(wanted, self.taken), value.dtype)
        out.append(Let(var, value))
        return var


def _mask_key(mask: Expr | None) -> object:
    """Equal for masks that are surely equal."""
    if mask is None or isinstance(mask, Var):
        return None if mask is None else mask.name
    return id(mask)


def _expand(step: Launch, chosen: dict[int, tuple[MapNest, Launch]]) -> Launch:
    """``step`` with all chosen maps that it reads, directly or through others, inlined."""
    if not any(id(b) in chosen for b in step_reads(step)):
        return step
    taken = {b.name for b in step.kernel.params} | names(step.kernel.body)
    inliner = _Inliner(chosen, taken)
    body = inliner.body(step.kernel.body, {})
    params = buffers(body)
    origin = tuple(dict.fromkeys(o for launch in (*inliner.fused.values(), step) for o in launch.origin))
    kernel = make_kernel(step.kernel.name, apart(body, {b.name for b in params}), params)
    return Launch(kernel, tuple(params), origin)
