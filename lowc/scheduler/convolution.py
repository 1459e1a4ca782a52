"""What a convolution is: a nest around one sum of products, one factor of which is seen through a window.  Works on LOOPS and on
SCHEDULED kernels.

    for n { for c { for h { for w {
      acc s = add
      for i { for j { s add= product(x[n, c, h*2 + i - 1, w*2 + j - 1 if inside], weight[c, i, j]) } }
      out[…] = epilogue(s)                             # any lets and stores
    } } } }

That ``x`` is seen through a window is found in its indices: with h and i they all change as ``h*step + i*gap`` does, for the
same two numbers.  So it may be any expression of which this is true: masked loads, casts, what ``inline`` has brought there.
Windows of which no two see the same element, and none sees beyond the edge, are none.  A convolution of one tap has no window.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import gcd

from lowc.ir.index import Atom, Axis, Index, constant, depends_on, ix, split
from lowc.ir.nodes import Acc, Const, Expr, For, FromIndex, Let, Load, Op, Stmt, Store, Update, Var
from lowc.ir.walk import free_atoms, parts, rewrite, stores
from lowc.scheduler.contraction import contiguous, folded, is_product
from lowc.scheduler.nest import chain, estimate


@dataclass(frozen=True, slots=True)
class Window:
    """The input is read at ``place*step + tap*gap``, counted from the first element that is read (or would be, were it there)."""

    place: Axis
    tap: Axis
    step: int
    gap: int


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """``outer``: the loops around, outermost first.  ``depth``: axes that are summed over without being taps of ``windows``.

    ``data`` is the factor that is seen through windows, ``weight`` the other one (the same for all places); ``total`` is their
    sum, ``rest`` what is made of it.
    """

    outer: tuple[For, ...]
    windows: tuple[Window, ...]
    depth: tuple[Axis, ...]
    data: Expr
    weight: Expr
    total: Var
    rest: tuple[Stmt, ...]


def find(loop: Stmt) -> Convolution | None:
    """The Convolution that ``loop`` is, or None: also where its taps are of no known number."""
    if not isinstance(loop, For):
        return None
    outer = tuple(chain((loop,)))
    body = outer[-1].body
    if len(body) < 3 or not isinstance(body[0], Acc) or not isinstance(body[1], For):
        return None
    acc, rest = body[0], tuple(body[2:])
    if not all(isinstance(s, Let) or (isinstance(s, Store) and not s.reducer) for s in rest) or acc.reducer != "add":
        return None
    summed = chain((body[1],))
    inner = summed[-1].body
    update = inner[-1]
    if not isinstance(update, Update) or update.vars[0].name != acc.vars[0].name or update.mask is not None:
        return None
    if not all(isinstance(s, Let) for s in inner[:-1]):
        return None
    product = folded(inner[:-1], update.values[0])
    if not isinstance(product, Op) or not is_product(product):
        return None
    places, depth = [f.axis for f in outer], [f.axis for f in summed]
    for data, weight in (product.args, product.args[::-1]):
        windows = _windows(data, weight, places, depth)
        if windows:
            taps = {w.tap for w in windows}
            return Convolution(
                outer, windows, tuple([a for a in depth if a not in taps]), data, weight, acc.vars[0], rest
            )
    found = Convolution(outer, (), tuple(depth), product.args[0], product.args[1], acc.vars[0], rest)
    return found if len(depth) == 1 and _is_pointwise(found) else None


def _is_pointwise(found: Convolution) -> bool:
    """Whether the first factor lies along the axis that results lie along, and the second along the depth: a convolution of one
    tap, of which ``lowering`` writes the input first."""
    along, (depth,) = results_along(found), found.depth
    if along in free_atoms(found.weight) or depth not in free_atoms(found.data):
        return False
    return contiguous(found.data, along) and contiguous(found.weight, depth)


def results_along(found: Convolution) -> Axis:
    """The axis along which most results are contiguous."""

    def score(loop: For) -> int:
        return sum(constant(split(s.index[-1], loop.axis)[0]) == 1 for s in stores(found.rest))

    return max(reversed(found.outer), key=score).axis


def _windows(data: Expr, weight: Expr, places: Sequence[Axis], depth: Sequence[Axis]) -> tuple[Window, ...]:
    """The windows through which ``data`` is seen: of each place and each tap at most one."""
    fixed, used = free_atoms(weight), free_atoms(data)
    found: list[Window] = []
    for tap in depth:
        if tap not in used or tap not in fixed or constant(tap.extent) is None:
            continue
        taken = {w.place for w in found}
        free = [p for p in places if p in used and p not in fixed and p not in taken]
        fitting = [w for p in free if (w := _window(data, p, tap)) is not None]
        if fitting:
            found.append(min(fitting, key=_span))
    return tuple(found)


def _span(window: Window) -> int:
    """About how much of the input is seen; other axes that could be taken for the place see more."""
    return (estimate(window.place.extent) - 1) * window.step + (estimate(window.tap.extent) - 1) * window.gap


def _window(data: Expr, place: Axis, tap: Axis) -> Window | None:
    ratio: tuple[int, int] | None = None
    for index in _indices(data):
        along, rest = split(index, place)
        across, rest = split(rest, tap)
        if depends_on(rest, place) or depends_on(rest, tap):
            return None
        step, gap = constant(along), constant(across)
        if step == gap == 0:
            continue
        if not step or not gap or step * gap < 0:
            return None
        common = gcd(step, gap)
        if ratio not in (None, (abs(step) // common, abs(gap) // common)):
            return None
        ratio = abs(step) // common, abs(gap) // common
    if ratio is None:
        return None
    # images and channels are like places and taps of which no two meet, but for masks
    meet = ratio[0] < (constant(tap.extent) or 0) and ratio[1] < (constant(place.extent) or 0)
    masked = any(isinstance(p, FromIndex) and depends_on(p.index, tap) for p in parts(data))
    return Window(place, tap, *ratio) if meet or masked else None


def _indices(expr: Expr) -> list[Index]:
    found: list[Index] = []
    for part in parts(expr):
        if isinstance(part, Load):
            found += part.index
        elif isinstance(part, FromIndex):
            found.append(part.index)
    return found


# ---------------------------------------------------------------- the input, by places of its own


def seen_at(data: Expr, where: dict[Window, Index]) -> Expr:
    """``data`` at places of the input, whatever output and tap they belong to."""

    def moved(index: Index) -> Index:
        for window, place in where.items():
            along, rest = split(index, window.place)
            _, rest = split(rest, window.tap)
            index = rest + ix((constant(along) or 0) // window.step) * place
        return index

    def node(part: Expr) -> Expr:
        if isinstance(part, Load):
            return Load(part.buffer, tuple([moved(i) for i in part.index]), part.mask)
        return FromIndex(moved(part.index), part.dtype) if isinstance(part, FromIndex) else part

    return rewrite(data, node, {})


def bounded(data: Expr, axis: Atom, moving: Collection[Atom] = ()) -> tuple[Index | None, Index | None, Expr]:
    """(first and behind the last of ``axis`` for which no mask makes a load 0, the load without that mask), None: no bound.
    No bound depends on ``moving``.

    ``x[… if i >= 1 & i < 57]`` is (1, 57, x[…]).
    """
    low: Index | None = None
    high: Index | None = None
    masked = [p for p in parts(data) if isinstance(p, Load) and p.mask is not None]
    if len(masked) != 1 or not _zero_where_masked(data, masked[0]):
        return None, None, data
    (load,) = masked
    assert load.mask is not None
    kept: Expr | None = None
    for each in _conjuncts(load.mask):
        limit = _limit(each, axis)
        if limit is None or any(depends_on(limit[1], a) for a in moving):
            kept = each if kept is None else Op("and", (kept, each), each.dtype)
        elif limit[0] and low is None:
            low = limit[1]
        elif not limit[0] and high is None:
            high = limit[1]
        else:
            return None, None, data
    new = Load(load.buffer, load.index, kept)
    return low, high, rewrite(data, lambda p: new if p is load else p, {})


def _zero_where_masked(data: Expr, load: Load) -> bool:
    """Whether ``data`` is 0 where ``load`` is: it is that load, perhaps cast."""
    while isinstance(data, Op) and data.name == "cast":
        data = data.args[0]
    return data is load


def _conjuncts(mask: Expr) -> list[Expr]:
    if isinstance(mask, Op) and mask.name == "and":
        return [c for a in mask.args for c in _conjuncts(a)]
    return [mask]


def _limit(condition: Expr, axis: Atom) -> tuple[bool, Index] | None:
    """(True, i) for a condition ``axis >= i``, (False, i) for ``axis < i``."""
    if not isinstance(condition, Op) or condition.name not in ("ge", "gt", "lt", "le"):
        return None
    left, right = (_number(a) for a in condition.args)
    if left is None or right is None:
        return None
    at_least = condition.name in ("ge", "gt")
    room = left - right if at_least else right - left  # at least 0 (or 1, if the comparison is strict) where it holds
    step, rest = split(room, axis)
    if depends_on(rest, axis) or constant(step) not in (1, -1):
        return None
    strict = 1 if condition.name in ("gt", "lt") else 0
    return (True, ix(strict) - rest) if constant(step) == 1 else (False, rest - strict + 1)


def _number(value: Expr) -> Index | None:
    if isinstance(value, FromIndex):
        return value.index
    return ix(int(value.value)) if isinstance(value, Const) and value.dtype.kind == "i" else None

