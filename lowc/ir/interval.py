"""Bounds of index expressions by interval arithmetic: each atom by itself, whatever its sign.

``index.lower_bound`` knows how atoms depend on one another, and gives up where one may be below 0; this is for such places.
"""

from lowc.ir.index import Atom, Axis, FloorDiv, Index, Min, Mod, Opaque, Symbol, constant

Interval = tuple[int | None, int | None]
"""The lowest and the highest value, None where unknown."""


def interval(index: Index) -> Interval:
    """Bounds of ``index`` from those of each atom by itself, which may be below 0 (``lower_bound`` gives up there)."""
    ends = [_term(monomial, coefficient) for monomial, coefficient in index.terms]
    lows, highs = [e[0] for e in ends if e[0] is not None], [e[1] for e in ends if e[1] is not None]
    return sum(lows) if len(lows) == len(ends) else None, sum(highs) if len(highs) == len(ends) else None


def _term(monomial: tuple[Atom, ...], coefficient: int) -> Interval:
    if len(monomial) == 1:  # one end may be known alone
        ends = [None if e is None else e * coefficient for e in _atom_interval(monomial[0])]
        return (ends[0], ends[1]) if coefficient > 0 else (ends[1], ends[0])
    low = high = coefficient
    for atom in monomial:
        least, most = _atom_interval(atom)
        if least is None or most is None:
            return None, None
        products = [x * y for x in (low, high) for y in (least, most)]
        low, high = min(products), max(products)
    return low, high


def _atom_interval(atom: Atom) -> Interval:
    if isinstance(atom, Symbol):
        return atom.lo, atom.hi
    if isinstance(atom, Axis):
        most = interval(atom.extent)[1]
        return 0, None if most is None else max(0, most - 1)
    if isinstance(atom, Opaque):
        return None, None
    if isinstance(atom, FloorDiv | Mod):
        ends, den = interval(atom.num), constant(atom.den)
        if isinstance(atom, Mod):
            most = interval(atom.den)[1]
            return 0, None if most is None else max(0, most - 1)
        if den is None or den < 1:
            return (0 if ends[0] is not None and ends[0] >= 0 else None), None
        return tuple(None if e is None else e // den for e in ends)  # type: ignore[return-value]
    a, c = interval(atom.a), interval(atom.b)
    lows, highs = (a[0], c[0]), (a[1], c[1])
    known_lows, known_highs = [x for x in lows if x is not None], [x for x in highs if x is not None]
    if isinstance(atom, Min):
        return min(known_lows) if len(known_lows) == 2 else None, min(known_highs, default=None)
    return max(known_lows, default=None), max(known_highs) if len(known_highs) == 2 else None
