"""Index expressions: exact integers for sizes, strides, coordinates and addresses.

An ``Index`` is a polynomial, a sum of coefficient × product of atoms, made canonical on construction, so that equal
values that the rules can see are equal objects (``==``).  Atoms are loop axes, size symbols, floor divisions,
remainders, minima, maxima, and opaque data values.  The div/mod rules use ranges: with ``0 <= j < N``, ``(i*N + j) // N``
is ``i`` and ``(i*N + j) % N`` is ``j``, for numbers and for symbols.

Not a computer algebra system: no division of polynomials by polynomials beyond what reshapes need, no solving.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable, 0 .. extent-1.  Names are unique in a kernel."""

    name: str
    extent: "Index"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size known when the kernel is called; ``hi`` None is unbounded.

    ``hint``: the value it had when the graph was traced.  It guides decisions and never proves anything, so that symbols are
    equal whatever their hints.
    """

    name: str
    lo: int = 0
    hi: int | None = None
    hint: int | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class FloorDiv:
    num: "Index"
    den: "Index"


@dataclass(frozen=True, slots=True)
class Mod:
    num: "Index"
    den: "Index"


@dataclass(frozen=True, slots=True)
class Min:
    a: "Index"
    b: "Index"


@dataclass(frozen=True, slots=True)
class Max:
    a: "Index"
    b: "Index"


@dataclass(frozen=True, slots=True)
class Opaque:
    """The i64 value of a Let (``nodes.Var``, by name) used as a coordinate, e.g. one read from an index tensor."""

    name: str

    def __repr__(self) -> str:
        return self.name


Atom = Axis | Symbol | FloorDiv | Mod | Min | Max | Opaque
Monomial = tuple[Atom, ...]
_RANK: dict[type, int] = {Symbol: 0, Axis: 1, FloorDiv: 2, Mod: 3, Min: 4, Max: 5, Opaque: 6}


class Index:
    """A canonical integer polynomial.  ``terms``: (product of atoms, coefficient), sorted, no zero coefficients."""

    __slots__ = ("_hash", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """For this module only: ``terms`` must be canonical.  Use ``ix``, the operators, ``floordiv`` and ``mod``."""
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Index):
            return self is other or (self._hash == other._hash and self.terms == other.terms)
        return isinstance(other, int) and constant(self) == other

    def __add__(self, other: "IndexLike") -> "Index":
        other = ix(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        return _collect((*self.terms, *other.terms))

    def __neg__(self) -> "Index":
        return Index(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: "IndexLike") -> "Index":
        return self + -ix(other)

    def __rsub__(self, other: "IndexLike") -> "Index":
        return ix(other) - self

    def __mul__(self, other: "IndexLike") -> "Index":
        other = ix(other)
        if len(other.terms) == 1 and not other.terms[0][0]:
            factor = other.terms[0][1]
            return self if factor == 1 else Index(tuple((m, c * factor) for m, c in self.terms))
        products = [(_product(m, n), c * d) for m, c in self.terms for n, d in other.terms]
        return _collect(products)

    def __floordiv__(self, other: "IndexLike") -> "Index":
        return floordiv(self, ix(other))

    def __mod__(self, other: "IndexLike") -> "Index":
        return mod(self, ix(other))

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        return text(self)


IndexLike = Index | Atom | int
ZERO = Index(())
ONE = Index((((), 1),))


def ix(value: IndexLike) -> Index:
    """``value`` as an Index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int):
        return Index((((), int(value)),)) if value else ZERO
    return Index((((value,), 1),))


def constant(index: Index) -> int | None:
    """The number that ``index`` is, or None if it depends on an atom."""
    if not index.terms:
        return 0
    if len(index.terms) == 1 and not index.terms[0][0]:
        return index.terms[0][1]
    return None


def multiple_of(index: Index, number: int) -> bool:
    """Whether every term of ``index`` visibly is a multiple of ``number``."""
    for monomial, coefficient in index.terms:
        if coefficient % number:
            rest = number // gcd(coefficient, number)
            if not any(isinstance(a, Min | Max) and multiple_of(a.a, rest) and multiple_of(a.b, rest) for a in monomial):
                return False
    return True


def _key(atom: Atom) -> tuple[int, str]:
    if isinstance(atom, Axis | Symbol | Opaque):
        return _RANK[type(atom)], atom.name
    return _RANK[type(atom)], text_of_atom(atom)


def _monomial_key(monomial: Monomial) -> tuple[int, tuple[tuple[int, str], ...]]:
    return -len(monomial), tuple(map(_key, monomial))


def _product(a: Monomial, b: Monomial) -> Monomial:
    if not a:
        return b
    if not b:
        return a
    return tuple(sorted((*a, *b), key=_key))


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Index:
    """The canonical sum of ``terms``."""
    total: dict[Monomial, int] = {}
    has_mod = False
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
        has_mod = has_mod or any(type(a) is Mod for a in monomial)
    if has_mod:
        return _recombine(total)
    return _sorted(total)


def _sorted(total: dict[Monomial, int]) -> Index:
    kept = [(m, c) for m, c in total.items() if c]
    if len(kept) > 1:
        kept.sort(key=lambda term: _monomial_key(term[0]))
    return Index(tuple(kept))


def _recombine(total: dict[Monomial, int]) -> Index:
    """Applies ``d * (x // d) + x % d = x`` wherever both halves are there."""
    for monomial, coefficient in list(total.items()):
        for position, atom in enumerate(monomial):
            if type(atom) is not Mod or not coefficient:
                continue
            quotient = floordiv(atom.num, atom.den)
            if len(quotient.terms) != 1:
                continue
            rest = Index(((monomial[:position] + monomial[position + 1 :], coefficient),))
            partner = rest * atom.den * quotient
            if len(partner.terms) == 1 and total.get(partner.terms[0][0]) == partner.terms[0][1]:
                total = {m: c for m, c in total.items() if m not in (monomial, partner.terms[0][0])}
                return _sorted(total) + rest * atom.num
    return _sorted(total)


# ---------------------------------------------------------------- division


def floordiv(a: Index, b: Index) -> Index:
    """``a // b`` rounding down; ``b`` is positive, or the size of what is empty: 0 is taken for 1, as where code is emitted."""
    divisor = constant(b)
    if divisor in (0, 1):
        return a
    value = constant(a)
    if divisor is not None and value is not None:
        return ix(value // divisor)
    quotient, rest = _divide(a, b)
    if _in_range(rest, b):
        return quotient
    return quotient + _floordiv_rest(rest, b, divisor)


def _floordiv_rest(rest: Index, b: Index, divisor: int | None) -> Index:
    if len(rest.terms) > 1 and (coarse := _coarsen(rest, b)) is not None:
        return floordiv(coarse[0], coarse[1])
    if divisor is not None:
        common = gcd(divisor, *(c for m, c in rest.terms if m))
        if common > 1:
            return floordiv(_scale_down(rest, common), ix(divisor // common))
    atom = sole_atom(rest)
    if isinstance(atom, FloorDiv):
        return floordiv(atom.num, atom.den * b)
    if isinstance(atom, Mod):
        outer, remainder = _divide(atom.den, b)
        if not remainder.terms:
            return mod(floordiv(atom.num, b), outer)
    return ix(FloorDiv(rest, b))


def mod(a: Index, b: Index) -> Index:
    """``a - b * (a // b)``: 0 .. b-1; ``b`` as in ``floordiv``."""
    divisor = constant(b)
    if divisor in (0, 1):
        return ZERO
    value = constant(a)
    if divisor is not None and value is not None:
        return ix(value % divisor)
    rest = _divide(_unwrap_mods(a, b), b)[1]
    while any(type(atom) is Mod for m, _ in rest.terms for atom in m):  # unwrapping one may lay bare another
        reduced = _divide(_unwrap_mods(rest, b), b)[1]
        if reduced == rest:
            break
        rest = reduced
    if _in_range(rest, b):
        return rest
    if len(rest.terms) > 1 and (coarse := _coarsen(rest, b)) is not None:
        large, count, unit, small = coarse
        return mod(large, count) * unit + small
    if divisor is not None:
        common = gcd(divisor, *(c for _, c in rest.terms))
        if common > 1:
            return mod(_scale_down(rest, common), ix(divisor // common)) * common
    return ix(Mod(rest, b))


def _coarsen(a: Index, b: Index) -> tuple[Index, Index, Index, Index] | None:
    """(x, m, g, r) with ``a == g*x + r``, ``b == g*m``, ``0 <= r < g`` and g not 1: then ``a // b == x // m``."""
    if len(b.terms) != 1:
        return None
    base, factor = b.terms[0]
    for monomial, coefficient in a.terms:
        shared = tuple(atom for atom in base if atom in monomial)
        unit = Index(((shared, gcd(coefficient, factor)),))
        if unit == ONE or unit == b:
            continue
        large, small = _divide(a, unit)
        count, left = _divide(b, unit)
        if small.terms and not left.terms and large.terms and _in_range(small, unit):
            return large, count, unit, small
    return None


def _unwrap_mods(a: Index, b: Index) -> Index:
    """``x % c`` is ``x`` modulo ``b`` where ``b`` divides ``c``."""
    out = ZERO
    for monomial, coefficient in a.terms:
        term = ix(coefficient)
        for atom in monomial:
            inner = isinstance(atom, Mod) and not _divide(atom.den, b)[1].terms
            term = term * (atom.num if inner and isinstance(atom, Mod) else atom)
        out = out + term
    return out


def _scale_down(a: Index, common: int) -> Index:
    """Each coefficient divided by ``common`` (the constant rounded down)."""
    return _sorted({m: c // common for m, c in a.terms})


def _divide(a: Index, b: Index) -> tuple[Index, Index]:
    """(q, r) with ``a == q*b + r``, q taking every term that visibly is a multiple of ``b``."""
    if len(b.terms) == 1:
        (base, factor) = b.terms[0]
        quotient: list[tuple[Monomial, int]] = []
        rest: list[tuple[Monomial, int]] = []
        for monomial, coefficient in a.terms:
            reduced = _without(monomial, base)
            if reduced is None:
                rest.append((monomial, coefficient))
            elif coefficient % factor == 0:
                quotient.append((reduced, coefficient // factor))
            elif not base and not monomial:
                quotient.append(((), coefficient // factor))
                rest.append(((), coefficient % factor))
            else:
                rest.append((monomial, coefficient))
        return _collect(quotient), _collect(rest)
    quotient_sum, remainder = ZERO, a
    for atom in [*axes_and_symbols(a), None]:
        share, _ = split(remainder, atom) if atom is not None else (remainder, ZERO)
        scale = _multiple(share, b)
        if scale:
            term = ix(scale) if atom is None else ix(atom) * scale
            quotient_sum, remainder = quotient_sum + term, remainder - term * b
    return quotient_sum, remainder


def _multiple(a: Index, b: Index) -> int:
    """k with ``a == k*b``, or 0."""
    if len(a.terms) != len(b.terms) or not a.terms:
        return 0
    scale, left = divmod(a.terms[0][1], b.terms[0][1])
    return scale if left == 0 and b * scale == a else 0


def _without(monomial: Monomial, base: Monomial) -> Monomial | None:
    """``monomial / base``, or None if it does not divide."""
    if not base:
        return monomial
    left = list(monomial)
    for atom in base:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _in_range(rest: Index, b: Index) -> bool:
    """Whether ``0 <= rest < b`` is certain."""
    return not rest.terms or (prove_nonneg(rest) and prove_nonneg(b - 1 - rest))


def minimum(a: IndexLike, b: IndexLike) -> Index:
    a, b = ix(a), ix(b)
    if prove_nonneg(b - a):
        return a
    return b if prove_nonneg(a - b) else ix(Min(*sorted((a, b), key=text)))


def maximum(a: IndexLike, b: IndexLike) -> Index:
    a, b = ix(a), ix(b)
    if prove_nonneg(b - a):
        return b
    return a if prove_nonneg(a - b) else ix(Max(*sorted((a, b), key=text)))


# ---------------------------------------------------------------- ranges


def lower_bound(index: Index) -> int | None:
    """A number that ``index`` is never below, or None.  Axes and remainders take their own, possibly symbolic, ranges."""
    if (bound := _numeric_lower_bound(index)) is not None:
        return bound
    if (bound := _bound_by_parts(index)) is not None:
        return bound
    for atom in _innermost_first(_ranged(index)):
        coefficient, rest = split(index, atom)
        if atom in _ranged(coefficient):
            return None
        top = _extent(atom) - 1
        if (bound := lower_bound(coefficient)) is not None and bound >= 0:
            return lower_bound(rest)
        if (bound := lower_bound(-coefficient)) is not None and bound >= 0:
            return lower_bound(rest + coefficient * top)
        return None
    return _symbolic_lower_bound(index)


def _numeric_lower_bound(index: Index) -> int | None:
    """The common case, fast: each term is a number, or a number times one axis of numeric extent."""
    total = 0
    for monomial, coefficient in index.terms:
        if not monomial:
            total += coefficient
        elif len(monomial) == 1 and isinstance(monomial[0], Axis):
            extent = constant(monomial[0].extent)
            if extent is None:
                return None
            total += coefficient * (extent - 1) if coefficient < 0 else 0
        else:
            return None
    return total


def upper_bound(index: Index) -> int | None:
    """A number that ``index`` never exceeds, or None."""
    below = lower_bound(-index)
    return None if below is None else -below


def prove_nonneg(index: Index) -> bool:
    """True if ``index >= 0`` is certain."""
    bound = lower_bound(index)
    return bound is not None and bound >= 0


@lru_cache(1 << 14)
def _bound_by_parts(index: Index) -> int | None:
    """The bound with one minimum or maximum replaced by either of its parts, if one cancels other terms, as in
    ``n - 64*o - min(64, n - 64*o)``."""
    for monomial, coefficient in index.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, Min) and coefficient < 0 or isinstance(atom, Max) and coefficient > 0:
            signs = {m: c > 0 for m, c in index.terms if m and m != monomial}
            if any(signs.get(m, c * coefficient > 0) != (c * coefficient > 0) for p in (atom.a, atom.b) for m, c in p.terms):
                rest = index - Index(((monomial, coefficient),))
                found = [lower_bound(rest + part * coefficient) for part in (atom.a, atom.b)]
                return max([b for b in found if b is not None], default=None)
    return None


def _innermost_first(ranged: list[Axis | Mod]) -> list[Axis | Mod]:
    """``ranged``, from an atom on that no range of another one depends on, since its own range may cancel those."""
    if len(ranged) > 1:
        inside = {a for r in ranged if constant(_extent(r)) is None for a in atoms(_extent(r))}
        free = [r for r in ranged if r not in inside]
        if free and free[0] is not ranged[0]:
            return free
    return ranged


def _extent(atom: Axis | Mod) -> Index:
    return atom.extent if isinstance(atom, Axis) else atom.den


def _ranged(index: Index) -> list[Axis | Mod]:
    return [a for m, _ in index.terms for a in m if isinstance(a, Axis | Mod)]


@lru_cache(1 << 14)
def _symbolic_lower_bound(index: Index) -> int | None:
    """The bound once only symbols and other atoms are left: by each atom's own range or, where that does not do, by what a
    quotient, a minimum or a maximum is of.

    Remembered: in nested blocks each extent is a minimum over extents further out, and each would be asked for four times.
    """
    if (bound := _bound_by_atoms(index)) is not None or len(index.terms) > RELAXED_TERMS:
        return bound
    return _relaxed_lower_bound(index)


RELAXED_TERMS = 12  # longer sums are not worth the search


def _relaxed_lower_bound(index: Index) -> int | None:
    """The bound with one quotient by a number replaced by the fraction, or one minimum or maximum by either of its parts, on the
    side that is safe: ``n - (n + 1) // 2`` is at least ``(2*n - (n + 1)) / 2``."""
    for monomial, coefficient in index.terms:
        if len(monomial) != 1:
            continue
        atom, rest = monomial[0], index - Index(((monomial, coefficient),))
        if isinstance(atom, FloorDiv) and (divisor := constant(atom.den)) is not None and divisor > 0:
            lowest = atom.num if coefficient < 0 else atom.num - (divisor - 1)
            bound = lower_bound(rest * divisor + lowest * coefficient)
            if bound is not None:
                return -(-bound // divisor)
        elif isinstance(atom, Min) and coefficient < 0 or isinstance(atom, Max) and coefficient > 0:
            found = [lower_bound(rest + part * coefficient) for part in (atom.a, atom.b)]
            if known := [b for b in found if b is not None]:
                return max(known)
    return None


def _bound_by_atoms(index: Index) -> int | None:
    """The bound by the range of each atom: each symbol is moved to start at 0, then signs decide."""
    total = 0
    for monomial, coefficient in _shifted(index).terms:
        if len(monomial) == 1:
            end = _atom_range(monomial[0])[0 if coefficient > 0 else 1]
            if end is None:
                return None
            total += coefficient * end
            continue
        low, high = 1, 1
        for atom in monomial:
            bottom, top = _atom_range(atom)
            if bottom is None or bottom < 0:
                return None
            low *= bottom
            high = None if high is None or top is None else high * top
        if coefficient > 0:
            total += coefficient * low
        elif high is None:
            return None
        else:
            total += coefficient * high
    return total


def _shifted(index: Index) -> Index:
    """``index`` over atoms that start at 0: symbols, and the factors of products, as ``q`` in ``s*q - s`` with ``q`` at least 1.
    They have new names: inside divisions the old ones stay, with their own ranges."""
    moved: dict[Atom, Index] = {}
    for monomial, _ in index.terms:
        for atom in monomial:
            if isinstance(atom, Symbol) or len(monomial) > 1 and isinstance(atom, FloorDiv | Min | Max):
                low, high = _atom_range(atom)
                if low:
                    moved[atom] = ix(Symbol(f"{text_of_atom(atom)}'", 0, None if high is None else high - low)) + low
    if not moved:
        return index
    out = ZERO
    for monomial, coefficient in index.terms:
        term = ix(coefficient)
        for atom in monomial:
            term = term * moved.get(atom, atom)
        out = out + term
    return out


def _atom_range(atom: Atom) -> tuple[int | None, int | None]:
    """(lowest, highest) value of an atom, None where unknown."""
    if isinstance(atom, Symbol):
        return atom.lo, atom.hi
    if isinstance(atom, Axis):
        return 0, upper_bound(atom.extent - 1)
    if isinstance(atom, Mod):
        return 0, upper_bound(atom.den - 1)
    if isinstance(atom, FloorDiv):
        low, high = lower_bound(atom.num), upper_bound(atom.num)
        least = lower_bound(atom.den)
        if least is None or least < 0:
            return None, None
        least = max(least, 1)  # a division by 0 is by 1, see _at_least_one
        most = None if (most := upper_bound(atom.den)) is None else max(most, 1)
        lowest = None if low is None else low // least if low < 0 else low // most if most else 0
        highest = None if high is None else high // least if high >= 0 else high // most if most else -1
        return lowest, highest
    if isinstance(atom, Min | Max):
        lows = (lower_bound(atom.a), lower_bound(atom.b))
        highs = (upper_bound(atom.a), upper_bound(atom.b))
        if isinstance(atom, Min):
            known = [h for h in highs if h is not None]
            return (None if None in lows else min(lows)), (min(known) if known else None)  # type: ignore[type-var]
        known = [x for x in lows if x is not None]
        return (max(known) if known else None), (None if None in highs else max(highs))  # type: ignore[type-var]
    return None, None


# ---------------------------------------------------------------- taking apart


def atoms(index: Index) -> Iterator[Atom]:
    """Every atom in ``index``, also inside divisions."""
    for monomial, _ in index.terms:
        for atom in monomial:
            yield atom
            if isinstance(atom, FloorDiv | Mod):
                yield from atoms(atom.num)
                yield from atoms(atom.den)
            elif isinstance(atom, Min | Max):
                yield from atoms(atom.a)
                yield from atoms(atom.b)


def sole_atom(index: Index) -> Atom | None:
    """The atom that ``index`` is, with nothing added or multiplied."""
    if len(index.terms) != 1:
        return None
    monomial, factor = index.terms[0]
    return monomial[0] if factor == 1 and len(monomial) == 1 else None


def contiguous_strides(shape: Sequence[Index]) -> tuple[Index, ...]:
    """Row-major strides as torch gives them: a size below 1 counts as 1 (where it is known)."""
    strides: list[Index] = []
    step = ONE
    for extent in reversed(shape):
        strides.append(step)
        step = step * (ONE if constant(extent) == 0 else extent)
    return tuple(reversed(strides))


def axes_and_symbols(index: Index) -> list[Axis | Symbol]:
    """The axes and symbols of ``index``, each once, in order of appearance."""
    return list({a: None for a in atoms(index) if isinstance(a, Axis | Symbol)})


def split(index: Index, atom: Atom) -> tuple[Index, Index]:
    """(coefficient, rest) with ``index == coefficient * atom + rest``; rest may still hold ``atom`` inside a division."""
    inside: list[tuple[Monomial, int]] = []
    outside: list[tuple[Monomial, int]] = []
    for monomial, coefficient in index.terms:
        reduced = _without(monomial, (atom,))
        if reduced is None:
            outside.append((monomial, coefficient))
        else:
            inside.append((reduced, coefficient))
    return Index(tuple(inside)) if len(inside) < 2 else _sorted(dict(inside)), Index(tuple(outside))


def depends_on(index: Index, atom: Atom) -> bool:
    """Whether ``atom`` occurs anywhere in ``index``."""
    return any(a == atom for a in atoms(index))


def substitute(index: Index, values: Mapping[Atom, Index]) -> Index:
    """``index`` with atoms replaced, made canonical anew; the same object if nothing was there to replace."""
    out = ZERO
    changed = False
    for monomial, coefficient in index.terms:
        new = [_substitute_atom(atom, values) for atom in monomial]
        if all(n is None for n in new):
            out = out + Index(((monomial, coefficient),))
            continue
        changed = True
        term = ix(coefficient)
        for atom, replacement in zip(monomial, new, strict=True):
            term = term * (atom if replacement is None else replacement)
        out = out + term
    return out if changed else index


def _substitute_atom(atom: Atom, values: Mapping[Atom, Index]) -> Index | None:
    """What ``atom`` becomes, or None if it stays."""
    if atom in values:
        return values[atom]
    if isinstance(atom, FloorDiv | Mod | Min | Max):
        left, right = (atom.num, atom.den) if isinstance(atom, FloorDiv | Mod) else (atom.a, atom.b)
        a, b = substitute(left, values), substitute(right, values)
        return None if a is left and b is right else _BUILD[type(atom)](a, b)
    return None


_BUILD: dict[type, Callable[[Index, Index], Index]] = {FloorDiv: floordiv, Mod: mod, Min: minimum, Max: maximum}


def evaluate(index: Index, env: Mapping[str, int]) -> int:
    """The number that ``index`` is, for values of axes, symbols and opaque names in ``env`` (numpy arrays work as well)."""
    total = 0
    for monomial, coefficient in index.terms:
        value = coefficient
        for atom in monomial:
            value = value * _evaluate_atom(atom, env)
        total = total + value
    return total


def _evaluate_atom(atom: Atom, env: Mapping[str, int]) -> int:
    if isinstance(atom, Axis | Symbol | Opaque):
        return env[atom.name]
    if isinstance(atom, FloorDiv):
        return evaluate(atom.num, env) // _at_least_one(evaluate(atom.den, env))
    if isinstance(atom, Mod):
        return evaluate(atom.num, env) % _at_least_one(evaluate(atom.den, env))
    a, b = evaluate(atom.a, env), evaluate(atom.b, env)
    return a * (a <= b) + b * (a > b) if isinstance(atom, Min) else a * (a >= b) + b * (a < b)


def _at_least_one(value: int) -> int:
    """Division by a size that is 0 does not trap: it is by 1, as in machine code."""
    return value + (1 - value) * (value < 1)


# ---------------------------------------------------------------- text


def text(index: Index) -> str:
    """``index`` as the printer shows it and the parser reads it; also a Python expression (``min`` and ``max`` included)."""
    if not index.terms:
        return "0"
    parts: list[str] = []
    for monomial, coefficient in index.terms:
        factors = [text_of_atom(a) for a in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+"
        parts.append(f" {sign} " if parts else ("-" if coefficient < 0 else ""))
        parts.append("*".join(factors))
    return "".join(parts)


@lru_cache(1 << 14)
def text_of_atom(atom: Atom) -> str:
    if isinstance(atom, Axis | Symbol | Opaque):
        return atom.name
    if isinstance(atom, FloorDiv | Mod):
        sign = "//" if isinstance(atom, FloorDiv) else "%"
        return f"({_operand(atom.num)} {sign} {_operand(atom.den)})"
    name = "min" if isinstance(atom, Min) else "max"
    return f"{name}({text(atom.a)}, {text(atom.b)})"


def _operand(index: Index) -> str:
    shown = text(index)
    return shown if len(index.terms) < 2 and "*" not in shown and not shown.startswith("-") else f"({shown})"
