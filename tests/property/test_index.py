"""Index expressions by brute force: every rule is checked at every point of small ranges, symbols at 0 and 1 included."""

import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from lowc.ir.index import (
    ZERO,
    Atom,
    Axis,
    Index,
    Opaque,
    Symbol,
    atoms,
    axes_and_symbols,
    constant,
    depends_on,
    evaluate,
    floordiv,
    ix,
    lower_bound,
    maximum,
    minimum,
    mod,
    prove_nonneg,
    split,
    substitute,
    text,
    upper_bound,
)

Env = Mapping[str, int]
Meaning = Callable[[Env], int]
S, T = Symbol("s", 0), Symbol("t", 1, 6)
I3, I4, I6 = Axis("i", ix(3)), Axis("j", ix(4)), Axis("k", ix(6))
KS, KST = Axis("ks", ix(S)), Axis("kst", ix(S) * T)
D = Opaque("d")
COUNT = int(os.environ.get("LOWC_SEEDS", "30"))
SIZES = {"s": (0, 1, 2, 3, 4, 7), "t": (1, 2, 5, 6)}


def points(rng: random.Random, used: list[Atom], most: int) -> Iterator[Env]:
    """Values of the atoms: all there are if those are few, else a sample."""
    names = {a.name: a for a in used if isinstance(a, Axis | Symbol | Opaque)}
    for s, t in itertools.product(SIZES["s"], SIZES["t"]):
        sizes = {"s": s, "t": t}
        ranges: dict[str, list[int]] = {}
        for name, atom in names.items():
            if isinstance(atom, Axis):
                ranges[name] = list(range(evaluate(atom.extent, sizes)))
            elif isinstance(atom, Opaque):
                ranges[name] = [-13, -1, 0, 1, 5, 24]
        total = int(np.prod([len(r) for r in ranges.values()])) if ranges else 1
        if total <= most:
            for values in itertools.product(*ranges.values()):
                yield {**sizes, **dict(zip(ranges, values, strict=True))}
        else:
            for _ in range(most):
                yield {**sizes, **{name: rng.choice(r) for name, r in ranges.items()}}


class Undefined(Exception):
    """Divides by 0: the value is anything."""


def positive(value: int) -> int:
    if value < 1:
        raise Undefined
    return value


def random_index(rng: random.Random, depth: int) -> tuple[Index, Meaning]:
    """An index built by the public operations, and what it should be, computed without them."""
    kind = rng.choice(["leaf", "add", "sub", "mul", "scale", "div", "div", "mod", "mod", "min", "max"])
    if depth == 0 or kind == "leaf":
        leaf = rng.choice([I3, I4, I6, KS, KST, S, T, D, rng.randrange(-7, 13)])
        return ix(leaf), (lambda env: leaf) if isinstance(leaf, int) else (lambda env: env[leaf.name])
    a, fa = random_index(rng, depth - 1)
    if kind == "scale":
        by = rng.choice([-3, -1, 2, 4, 6, 12])
        return a * by, lambda env: fa(env) * by
    if kind in ("div", "mod"):
        n, m, c = rng.choice(
            [
                (0, 0, 2),
                (0, 0, 3),
                (0, 0, 4),
                (0, 0, 6),
                (0, 0, 12),
                (1, 0, 0),
                (0, 1, 0),
                (0, 1, 1),
                (2, 0, 0),
            ]
        )
        b = ix(S) * n + ix(T) * m + c
        if rng.random() < 0.1:
            b, (n, m, c) = ix(S) * T, (0, 0, 0)

        def den(env: Env) -> int:
            return positive(
                env["s"] * env["t"] if (n, m, c) == (0, 0, 0) else env["s"] * n + env["t"] * m + c
            )

        if kind == "div":
            return floordiv(a, b), lambda env: fa(env) // den(env)
        return mod(a, b), lambda env: fa(env) % den(env)
    b, fb = random_index(rng, depth - 1)
    if kind == "mul" and len(a.terms) * len(b.terms) < 8:
        return a * b, lambda env: fa(env) * fb(env)
    if kind == "min":
        return minimum(a, b), lambda env: min(fa(env), fb(env))
    if kind == "max":
        return maximum(a, b), lambda env: max(fa(env), fb(env))
    if kind == "sub":
        return a - b, lambda env: fa(env) - fb(env)
    return a + b, lambda env: fa(env) + fb(env)


@pytest.mark.parametrize("seed", range(COUNT))
def test_value_and_bounds(seed: int) -> None:
    """The canonical form has the value of what it was built from, within its bounds."""
    rng = random.Random(seed)
    for _ in range(6):
        index, meaning = random_index(rng, rng.randint(1, 5))
        low, high = lower_bound(index), upper_bound(index)
        used: list[Atom] = [I3, I4, I6, KS, KST, D]
        for env in points(rng, used, 4):
            try:
                wanted = meaning(env)
            except Undefined:
                continue
            value = evaluate(index, env)
            assert value == wanted, (text(index), env)
            assert low is None or low <= value, (text(index), env)
            assert high is None or value <= high, (text(index), env)


@pytest.mark.parametrize("seed", range(COUNT))
def test_operations_at_every_point(seed: int) -> None:
    """The same for shallow expressions, at all points."""
    rng = random.Random(1000 + seed)
    for _ in range(5):
        index, meaning = random_index(rng, 2)
        for env in points(rng, [I3, I6, KS, D], 60):
            full = {"j": 1, "kst": 0, **env}
            if evaluate(KST.extent, full) < 1:
                continue
            try:
                wanted = meaning(full)
            except Undefined:
                continue
            assert evaluate(index, full) == wanted, (text(index), full)


@pytest.mark.parametrize("seed", range(COUNT * 2 // 3))
def test_substitute(seed: int) -> None:
    """Substituting values in an atom's range gives the value at that point."""
    rng = random.Random(2000 + seed)
    outer, inner = Axis("o", ix(2)), Axis("u", ix(3))
    values: dict[Atom, tuple[Index, Meaning]] = {
        I6: (ix(outer) * 3 + inner, lambda env: env["o"] * 3 + env["u"]),
        I4: (ix(outer) * 2 + 1, lambda env: env["o"] * 2 + 1),
        I3: (ix(2) - inner, lambda env: 2 - env["u"]),
        S: (ix(7), lambda env: 7),
        T: (ix(T), lambda env: env["t"]),
        D: (ix(inner) - 1, lambda env: env["u"] - 1),
    }
    for _ in range(6):
        index, meaning = random_index(rng, rng.randint(1, 4))
        chosen = {
            a: v for a, v in values.items() if rng.random() < 0.6 and (a != S or not depends_on_size(index))
        }
        new = substitute(index, {a: v for a, (v, _) in chosen.items()})
        for env in points(rng, [outer, inner, I3, I4, I6, KS, KST, D], 4):
            before = {
                **env,
                **{a.name: f(env) for a, (_, f) in chosen.items() if isinstance(a, Axis | Symbol | Opaque)},
            }
            try:
                wanted = meaning(before)
            except Undefined:
                continue
            assert evaluate(new, env) == wanted, (text(index), text(new), env)
    assert substitute(ix(I3) + 2, {I4: ZERO}) == ix(I3) + 2


def depends_on_size(index: Index) -> bool:
    """Whether an axis in ``index`` has the extent that the test would replace."""
    return any(isinstance(a, Axis) and depends_on(a.extent, S) for a in atoms(index))


@pytest.mark.parametrize("seed", range(COUNT * 2 // 3))
def test_split_and_atoms(seed: int) -> None:
    rng = random.Random(3000 + seed)
    for _ in range(10):
        index, _ = random_index(rng, rng.randint(1, 4))
        assert set(axes_and_symbols(index)) == {a for a in atoms(index) if isinstance(a, Axis | Symbol)}
        for atom in (I3, I6, KS, S, D):
            coefficient, rest = split(index, atom)
            assert coefficient * atom + rest == index
            assert not any(atom in m for m, _ in rest.terms)
            assert depends_on(index, atom) == (atom in set(atoms(index)))


@pytest.mark.parametrize("seed", range(COUNT * 2 // 3))
def test_equal_indices_are_one(seed: int) -> None:
    """Sums in any order have one form; so has what is rebuilt from its own atoms."""
    rng = random.Random(4000 + seed)
    parts = [random_index(rng, 2)[0] for _ in range(4)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    rng.shuffle(parts)
    again = parts[0] + (parts[1] + parts[2]) + parts[3]
    for env in points(rng, [I3, I4, I6, KS, KST, D], 2):
        assert evaluate(total, env) == evaluate(again, env)
    assert total - total == ZERO
    assert hash(total) == hash(total + 0)
    assert substitute(total, {Axis("none", ix(2)): ZERO}) is total


def ravel(coords: list[Index], shape: list[Index]) -> Index:
    position = ZERO
    for coordinate, extent in zip(coords, shape, strict=True):
        position = position * extent + coordinate
    return position


def unravel(position: Index, shape: list[Index]) -> list[Index]:
    out: list[Index] = []
    for extent in reversed(shape[1:]):
        out.append(position % extent)
        position = position // extent
    return [position, *reversed(out)]


SHAPES = [
    ([2, 3, 4], [6, 4]),
    ([2, 3, 4], [24]),
    ([2, 3, 4], [4, 6]),
    ([8, 9], [3, 24]),
    ([S, 4], [S, 2, 2]),
    ([S, T], [ix(S) * T]),
    ([3, S, T], [ix(S) * 3, T]),
    ([S, 6, T], [S, ix(T) * 6]),
    ([ix(S) * 2, 4], [S, 8]),
    ([5, 1, 7], [35]),
]


@pytest.mark.parametrize("old, new", SHAPES)
def test_reshape_there_and_back(old: list[Index | int], new: list[Index | int]) -> None:
    """Coordinates that go through another shape and back come back as they were, as objects."""
    shape, other = [ix(n) for n in old], [ix(n) for n in new]
    coords = [ix(Axis(f"a{n}", extent)) if extent != 1 else ZERO for n, extent in enumerate(shape)]
    there = unravel(ravel(coords, shape), other)
    assert unravel(ravel(there, other), shape) == coords


@pytest.mark.parametrize("seed", range(COUNT * 2 // 3))
def test_chains_of_views(seed: int) -> None:
    """Permutes, merges, splits, slices and flips in a row address what numpy's views show, and stay small."""
    rng = random.Random(5000 + seed)
    shape = [
        ix(n) for n in rng.choice([[2, 3, 4], [2, 2, 2, 3], [8, 9], [4, 5, 6], [S, 4, 3], [S, T, 2], [12, S]])
    ]
    env = {"s": rng.choice([1, 3, 7]), "t": rng.choice([1, 5])}
    view = np.arange(evaluate(product(shape), env)).reshape([evaluate(n, env) for n in shape])
    base = view
    maps: list[Callable[[list[Index]], list[Index]]] = []
    rank = len(shape)
    for _ in range(8):
        shape, view, mapping = random_view(rng, shape, view, env)
        maps.append(mapping)
    axes = [Axis(f"v{n}", extent) for n, extent in enumerate(shape)]
    coords = [ix(a) for a in axes]
    for mapping in reversed(maps):
        coords = mapping(coords)
    assert len(coords) == rank
    assert len([a for c in coords for a in atoms(c)]) < 300, [text(c) for c in coords]
    places = {a.name: grid for a, grid in zip(axes, np.indices(view.shape), strict=True)}
    found = [evaluate(c, {**env, **places}) for c in coords]  # type: ignore[arg-type]
    assert np.array_equal(base[tuple(np.broadcast_to(f, view.shape) for f in found)], view)


def product(extents: list[Index]) -> Index:
    total = ix(1)
    for extent in extents:
        total = total * extent
    return total


def random_view(
    rng: random.Random, shape: list[Index], view: Any, env: Env
) -> tuple[list[Index], Any, Callable[[list[Index]], list[Index]]]:
    """A view of ``view``: its shape, itself, and the map from its coordinates to those of ``view``."""
    dim = rng.randrange(len(shape))
    size = shape[dim]
    number = constant(size)
    kind = rng.choice(["permute", "merge", "split", "slice", "flip"])
    if kind == "permute":
        order = list(range(len(shape)))
        rng.shuffle(order)
        return (
            [shape[d] for d in order],
            view.transpose(order),
            lambda c: [c[order.index(d)] for d in range(len(order))],
        )
    if kind == "merge" and dim + 1 < len(shape):
        inner = shape[dim + 1]
        merged = [*shape[:dim], size * inner, *shape[dim + 2 :]]
        view = view.reshape([evaluate(n, env) for n in merged])
        return merged, view, lambda c: [*c[:dim], c[dim] // inner, c[dim] % inner, *c[dim + 1 :]]
    if kind == "split" and number is not None and number % 2 == 0:
        parts = [*shape[:dim], ix(number // 2), ix(2), *shape[dim + 1 :]]
        view = view.reshape([evaluate(n, env) for n in parts])
        return parts, view, lambda c: [*c[:dim], c[dim] * 2 + c[dim + 1], *c[dim + 2 :]]
    if kind == "slice" and number is not None and number > 2:
        step = rng.choice([1, 2])
        count = (number - 1 + step - 1) // step
        window = (*[slice(None)] * dim, slice(1, None, step))
        return _put(shape, dim, ix(count)), view[window], lambda c: _put(c, dim, c[dim] * step + 1)
    return shape, np.flip(view, dim), lambda c: _put(c, dim, size - 1 - c[dim])


def _put(items: list[Index], place: int, item: Index) -> list[Index]:
    return [*items[:place], item, *items[place + 1 :]]


def test_division_by_nothing_does_not_trap() -> None:
    """A size of 0 makes loops that never run, but their addresses may be computed."""
    index = floordiv(ix(D), ix(S)) + mod(ix(D), ix(S)) * 3
    assert isinstance(evaluate(index, {"s": 0, "d": 5}), int)
    assert evaluate(index, {"s": 2, "d": 5}) == 2 + 3
    for size in (ix(D), ix(7)):  # as where the size is known only then
        assert (floordiv(size, ix(0)), mod(size, ix(0))) == (size, ix(0))


def test_bounds_of_a_quotient_by_what_may_be_nothing() -> None:
    s, t = ix(Symbol("s", 0, 9)), ix(Symbol("t", 0, 7))
    quotient = floordiv(s, floordiv(t, ix(4)))
    values = [evaluate(quotient, {"s": a, "t": b}) for a in range(10) for b in range(8)]
    assert (lower_bound(quotient), upper_bound(quotient)) == (min(values), max(values)) == (0, 9)


def test_evaluate_takes_arrays() -> None:
    index = floordiv(ix(D) + I3, ix(S)) - minimum(ix(D), ix(T)) * 2 + maximum(ix(I3), ix(1))
    env = {"d": np.array([-3, 0, 7]), "i": np.array([0, 1, 2]), "s": 2, "t": 3}
    expected = [
        evaluate(index, {"d": d, "i": i, "s": 2, "t": 3}) for d, i in zip([-3, 0, 7], [0, 1, 2], strict=True)
    ]
    assert list(evaluate(index, env)) == expected  # type: ignore[arg-type]


def test_known_forms() -> None:
    """What passes count on."""
    n, m = Symbol("n"), Symbol("m", 2)
    i, j = Axis("i", ix(m)), Axis("j", ix(n))
    assert (ix(i) * n + j) // ix(n) == ix(i)
    assert (ix(i) * n + j) % ix(n) == ix(j)
    assert (ix(j) * 8 + 5) // ix(4) == ix(j) * 2 + 1
    assert ix(j) // ix(4) * 4 + ix(j) % ix(4) == ix(j)
    assert (ix(j) // ix(4)) // ix(8) == ix(j) // ix(32)
    assert (ix(j) % ix(32)) // ix(4) % ix(8) == ix(j) // ix(4) % ix(8)
    assert prove_nonneg(ix(m) - 2) and not prove_nonneg(ix(m) - 3) and not prove_nonneg(ix(n) - 1)
    assert prove_nonneg(ix(n) - 1 - j) and prove_nonneg(ix(m) * n - 1 - ix(i) * n - j)
    assert constant(minimum(ix(i), ix(m))) is None and minimum(ix(i), ix(m)) == ix(i)
    assert maximum(ix(j), ix(n)) == ix(n)
    assert lower_bound(ix(j) % ix(7)) == 0 and upper_bound(ix(j) % ix(7)) == 6
