"""Random index expressions: the canonical form has the value of what it was built from, and its text is read back as it is."""

import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowc.ir.expressions import Scope, parse_index
from lowc.ir.index import (
    Axis,
    Index,
    Opaque,
    Symbol,
    evaluate,
    floordiv,
    ix,
    lower_bound,
    maximum,
    minimum,
    mod,
    text,
    upper_bound,
)
from lowc.ir.lexer import Cursor
from lowc.ir.nodes import Var
from lowc.ir.types import i64

Env = Mapping[str, int]
Meaning = Callable[[Env], int]
N, M = Symbol("n", 1), Symbol("m", 0, 64)
OUTER = Axis("o", (ix(N) + 3) // 4)
WITHIN = Axis("w", minimum(4, ix(N) - ix(OUTER) * 4))  # with o, n in blocks of 4
AXES = (Axis("i", ix(7)), Axis("j", ix(12)), Axis("k", ix(N)), Axis("l", ix(N) * M), Axis("z", ix(64)), OUTER, WITHIN)


def random_index(rng: random.Random, depth: int) -> tuple[Index, Meaning]:
    """An index, and what it should evaluate to."""
    choice = rng.randrange(9)
    if depth == 0 or choice < 2:
        leaf = rng.choice([*AXES, *AXES, N, M, Opaque("t"), rng.randrange(-3, 13)])
        return ix(leaf), (lambda env: leaf) if isinstance(leaf, int) else (lambda env: env[leaf.name])
    a, fa = random_index(rng, depth - 1)
    if choice in (6, 7):
        factor, size = rng.choice([(2, 0), (3, 0), (4, 0), (7, 0), (12, 0), (48, 0), (0, 1), (0, 2), (1, 3)])
        b = ix(N) * size + factor
        if choice == 6:
            return floordiv(a, b), lambda env: fa(env) // (env["n"] * size + factor)
        return mod(a, b), lambda env: fa(env) % (env["n"] * size + factor)
    b, fb = random_index(rng, depth - 1)
    if choice == 8:
        if rng.random() < 0.5:
            return minimum(a, b), lambda env: min(fa(env), fb(env))
        return maximum(a, b), lambda env: max(fa(env), fb(env))
    if choice == 5 and len(a.terms) * len(b.terms) < 6:
        return a * b, lambda env: fa(env) * fb(env)
    factor = rng.choice([1, -1, 2, 3, 4, 12])
    return a + b * factor, lambda env: fa(env) + fb(env) * factor


def random_env(rng: random.Random) -> Env:
    n, m = rng.choice([1, 2, 3, 5, 8, 48]), rng.choice([1, 2, 7, 64])
    values = {"n": n, "m": m, "t": rng.randrange(-50, 50)}
    for axis in AXES:
        values[axis.name] = rng.randrange(evaluate(axis.extent, values))
    return values


def read(shown: str) -> Index:
    scope = Scope()
    for atom in (*AXES, N, M):
        scope.add(atom.name, atom)
    scope.add("t", Var("t", i64))
    cursor = Cursor(shown)
    index = parse_index(cursor, scope)
    assert cursor.token.kind == "end"
    return index


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 7))
def test_value_bounds_and_text(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    index, meaning = random_index(rng, depth)
    low, high = lower_bound(index), upper_bound(index)
    for _ in range(8):
        env = random_env(rng)
        value = evaluate(index, env)
        assert value == meaning(env)
        assert low is None or low <= value
        assert high is None or value <= high
    again = read(text(index))
    assert again == index and text(again) == text(index)


@pytest.mark.parametrize("numerator", [3, 4])
def test_quotient_by_a_size_keeps_its_range(numerator: int) -> None:
    """Regression: the bound of ``4 // (2*n)`` was computed as if n started at 2, so that its remainder vanished."""
    quotient = floordiv(ix(numerator), ix(N) * 2)
    assert evaluate(mod(quotient, ix(N) * 2), {"n": 1}) == (numerator // 2) % 2


def test_remainder_lays_bare_another() -> None:
    """Regression: ``(t + 2) % 4`` unwrapped modulo 2 gave a form that was canonical only when built again."""
    t = ix(Opaque("t"))
    index = mod(mod(t + 2, ix(4)) * t * 21, ix(2))
    assert read(text(index)) == index


def test_bounds_of_blocks_in_blocks() -> None:
    """Each extent is a minimum over the one further out; without remembering, the time would double (or worse) with each."""
    left = ix(Symbol("s", 1, 1 << 40))
    for level in range(30):
        left = minimum(ix(1000 - level), left + Axis(f"i{level}", left))
    assert upper_bound(left) == 971


def test_what_is_inside_blocks_of_a_symbol() -> None:
    """An inner axis' range cancels the outer axis it depends on, also where it is in blocks again."""
    assert lower_bound(ix(N) - 1 - ix(OUTER) * 4 - WITHIN) == 0
    inner = Axis("v", minimum(2, minimum(4, ix(N) - ix(OUTER) * 4) - ix(Axis("t", ix(2))) * 2))
    assert lower_bound(ix(N) - 1 - ix(Axis("t", ix(2))) * 2 - inner) == 0
    size = (ix(N) + 47) // 48
    chunk = Axis("c", ix(48))
    assert lower_bound(ix(N) - 1 - ix(chunk) * size - Axis("p", minimum(size, ix(N) - ix(chunk) * size))) == 0


def test_products_of_what_is_at_least_one() -> None:
    rows, columns = Symbol("r", 0), Symbol("c", 1)
    half = (ix(columns) + 1) // 2
    assert lower_bound(half * rows - rows) == 0
    assert lower_bound((half * rows - rows) // 64) == 0
    assert lower_bound(minimum(ix(columns), ix(4)) * rows - ix(rows) * 2) is None
