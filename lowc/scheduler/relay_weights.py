"""What weights and slopes of gradients of attention are, and by which others a row is seen, as plain data for ``relay_across``.

    weight = exp(select(tiles, select(i >= j, select(i - j < 70, select(document[i] == document[j], f(s), …), -inf) - lse)
    slope = select(tiles, select(i >= j, …, derivative(s, weight * (g - delta)), 0), 0)
      →  since = i - j + 1, until = j - i + 70: indices that are positive where a row is seen;  seen = tiles
         score = select(document[i] == document[j], f(s), -inf)
         slope = select(document[i] == document[j], derivative(s, gradient), 0); None if it is just ``gradient``

A slope that is a weight times something is 0 where that is.  One that is made by a function has to say so under the same
conditions, as lowering writes it, or they do not count as bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.errors import ScheduleError
from lowc.ir import relays
from lowc.ir.index import Axis, Index, Opaque, atoms, constant, depends_on, split
from lowc.ir.nodes import Const, Expr, Let, Load, Op, Var
from lowc.ir.types import f32
from lowc.ir.walk import free_atoms, parts, rewrite, same
from lowc.scheduler.attention import coordinates, is_constant, masked, masks, room_of
from lowc.scheduler.attention_gradient import Side
from lowc.scheduler.contraction import folded
from lowc.scheduler.relay import scaled
from lowc.scheduler.relay_scores import of_cap, of_tiles, slope_of_tanh, tanh

GRADIENT = "gradient"  # of a masked score, in ``slope``
CAP = "cap"  # what a capped product leaves behind for ``score`` and ``slope``


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights are ``exp(score * factor - lse)`` where ``since`` and ``until`` are positive, the former growing by 1 with each of
    the others, the latter shrinking, and where ``seen`` holds, one for all of a tile.  ``gradient`` is a weight times
    (the second product - ``delta``).  ``lets``: coordinates that scores read by.  ``capped``: if it is not None, ``score`` and
    ``slope`` are made of ``1 / (1 + exp(2 * capped))``, which is made of the first product, and not of that."""

    score: Expr
    factor: float
    lets: tuple[Let, ...]
    since: Index | None
    until: Index | None
    seen: Expr | None
    lse: Expr
    delta: Expr
    slope: Expr | None
    capped: Expr | None = None

    def of_others(self, near: Axis, other: Axis) -> list[Load]:
        """What scores and slopes load for each of the others, that no row tells, each once."""
        found: list[Load] = []
        for value in (self.score, *(() if self.slope is None else (self.slope,))):
            for part in parts(value):
                if isinstance(part, Load) and part.dtype.name in relays.GATHERED and part.mask is None:
                    told = free_atoms(part)
                    of_lets = any(isinstance(a, Opaque) for a in told)
                    if other in told and near not in told and not of_lets and all(not same(part, f) for f in found):
                        found.append(part)
        return found

    @property
    def masked(self) -> bool:
        """Whether blocks have different others."""
        return self.since is not None or self.until is not None or self.seen is not None

    @property
    def plain(self) -> bool:
        """Whether scores are products times a number."""
        return isinstance(self.score, Var)


def is_masked(side: Side) -> bool:
    """Whether some others may not be seen."""
    weight = _narrowed(folded(side.lets, side.kept[0].value))
    exponent = weight.args[0] if isinstance(weight, Op) and weight.name == "exp" else None
    return isinstance(exponent, Op) and bool(masks(exponent.args[0])[0])


def weights_of(side: Side, high: int, size: int) -> Weights:
    """Of ``side``, by tiles of ``high`` rows and ``size`` others; raises ScheduleError for what is not as lowering writes it."""
    assert side.near is not None
    near, other, lets = side.near.axis, side.others[0], coordinates(side.lets)
    free = [s for s in side.lets if all(s is not c for c in lets)]
    weight, slope = (_narrowed(folded(free, s.value)) for s in side.kept)
    if not isinstance(weight, Op) or weight.name != "exp":
        raise ScheduleError("weights are something else")
    exponent = weight.args[0]
    if not isinstance(exponent, Op) or exponent.name != "sub":
        raise ScheduleError("weights are of more than a score and a sum")
    conditions, inner = masks(exponent.args[0])
    hidden, made, delta = _derivative(side, slope, weight)
    lse = exponent.args[1]
    told = {Opaque(s.var.name) for s in lets}
    for value in (lse, delta):
        axes = free_atoms(value)
        if value.dtype != f32 or near in axes or any(p.depth in axes for p in side.products) or not told.isdisjoint(axes):
            raise ScheduleError("what is taken off is not of rows of queries")
    second = side.products[1].total.name
    if any(isinstance(p, Var) and p.name in (second, GRADIENT) for c in (*conditions, inner) for p in parts(c)):
        raise ScheduleError("scores are of the second product")
    plain = isinstance(made, Var) and all(_among(c, conditions) for c in hidden)
    bounds: list[Index | None] = []
    for step in (1, -1):
        rooms = [_bound(c, near, other, step, told) if plain or _among(c, hidden) else None for c in conditions]
        number = next((n for n, room in enumerate(rooms) if room is not None), None)
        bounds.append(None if number is None else rooms[number])
        if number is not None:
            hidden = [c for c in hidden if not same(c, conditions[number])]
            del conditions[number]
    shared = [c for c in conditions if plain or _among(c, hidden)]
    seen, rest = of_tiles(masked(shared, inner), near, high, other, size)
    left = masks(rest)[0]
    hidden = [c for c in hidden if _among(c, left) or not _among(c, shared)]
    rest = masked([c for c in conditions if all(c is not s for s in shared)], rest)
    score, factor = scaled(rest, side.products[0].total)
    value: Expr = made
    for condition in reversed(hidden):
        value = Op("select", (condition, value, Const(0.0, f32)), f32)
    there = tuple([Let(c.var, folded(free, c.value)) for c in lets])
    if plain:
        return Weights(score, factor, there, bounds[0], bounds[1], seen, lse, delta, None)
    capped, score, value = _capped(side.products[0].total, score, value)
    return Weights(score, factor, there, bounds[0], bounds[1], seen, lse, delta, value, capped)


def _capped(product: Var, score: Expr, slope: Expr) -> tuple[Expr | None, Expr, Expr]:
    """(x, score and slope of a variable ``CAP``) if both know of ``product`` no more than ``tanh(x)``; (None, both) if not."""
    caps = [p.args[0] for e in (score, slope) for p in parts(e) if isinstance(p, Op) and p.name == "tanh" and p.dtype == f32]
    if not caps or any(not same(c, caps[0]) for c in caps):
        return None, score, slope
    inverse = Var(CAP, f32)

    def node(part: Expr) -> Expr:
        return tanh(inverse) if isinstance(part, Op) and part.name == "tanh" else part

    def squares(part: Expr) -> Expr:
        return slope_of_tanh(inverse) if isinstance(part, Op) and of_cap(part) is not None else part

    made = [rewrite(rewrite(e, squares, {}), node, {}) for e in (score, slope)]
    if any(isinstance(p, Var) and p.name == product.name for e in made for p in parts(e)):
        return None, score, slope
    return caps[0], made[0], made[1]


def _derivative(side: Side, slope: Expr, weight: Expr) -> tuple[list[Expr], Expr, Expr]:
    """(conditions under which a slope is not 0, what it is then, of a variable ``GRADIENT``; delta)."""
    hidden: list[Expr] = []
    while isinstance(slope, Op) and slope.name == "select" and is_constant(slope.args[2], 0.0):
        hidden.append(slope.args[0])
        slope = _narrowed(slope.args[1])
    second = side.products[1].total
    slope, weight = (rewrite(e, _once_rounded, {}) for e in (slope, weight))
    deltas: list[Expr] = []

    def node(part: Expr) -> Expr:
        if not isinstance(part, Op) or part.name != "mul" or not isinstance(part.args[1], Op) or part.args[1].name != "sub":
            return part
        product, delta = part.args[1].args
        if not isinstance(product, Var) or product.name != second.name or not same(part.args[0], weight):
            return part
        if any(not same(delta, d) for d in deltas):
            return part
        deltas.append(delta)
        return Var(GRADIENT, f32)

    made = rewrite(slope, node, {})
    left = {p.name for p in parts(made) if isinstance(p, Var)}
    if not deltas or second.name in left:
        raise ScheduleError("slopes are not of weights and of products less a number of the row")
    return hidden, made, deltas[0]


def _bound(condition: Expr, near: Axis, other: Axis, step: int, told: set[Opaque]) -> Index | None:
    """An index that is positive where ``condition`` holds, if it grows by ``step`` with each of the others, and with rows shrinks
    by that or is the same."""
    room = room_of(condition)
    if room is None:
        return None
    by, rest = split(room, other)
    down, base = split(rest, near)
    if constant(by) != step or constant(down) not in (0, -step) or not told.isdisjoint(atoms(base)):
        return None
    return None if depends_on(base, other) or depends_on(base, near) or depends_on(rest, other) else room


def _among(condition: Expr, several: Sequence[Expr]) -> bool:
    return any(same(condition, c) for c in several)


def _once_rounded(part: Expr) -> Expr:
    """Without what is rounded to 16 bits on the way, as the gradient of a score is in eager."""
    if isinstance(part, Op) and part.name == "cast" and part.dtype == f32:
        inner = part.args[0]
        if isinstance(inner, Op) and inner.name == "cast" and inner.dtype.bits == 16 and inner.args[0].dtype == f32:
            return inner.args[0]
    return part


def _narrowed(value: Expr) -> Expr:
    """``value`` before it is rounded to 16 bits, and what was rounded before that, once or more."""
    while isinstance(value, Op) and value.name == "cast" and value.args[0].dtype.kind == "f" and 16 in (
        value.dtype.bits, value.args[0].dtype.bits
    ):  # fmt: skip
        value = value.args[0]
    return value
