"""Versions of a GPU kernel for sizes known at run time only, of which the sizes of a call choose one.

Rows of symbolic length ``n`` may begin anywhere, so that they are read element by element, and tiles may end anywhere.  Where
knowing that ``n`` is a multiple of some number gives accesses of 16 bytes, or whole tiles, there are two launches, of which one
has no blocks:

    for version in 1 - min(1, n % 8) block { … n written as 8*(n // 8) … }
    for version in min(1, n % 8) block { … n … }
"""

from collections.abc import Callable, Mapping, Sequence

from lowc.ir.index import (
    ONE,
    Atom,
    Axis,
    Index,
    Symbol,
    axes_and_symbols,
    constant,
    floordiv,
    ix,
    minimum,
    mod,
)
from lowc.ir.nodes import For, Kernel
from lowc.ir.walk import Substitution, indices, make_kernel, names, statements
from lowc.scheduler.apply_simt import BLOCK
from lowc.scheduler.choose_simt import MAX_LANES, TILE, VECTOR_BYTES
from lowc.scheduler.nest import touched
from lowc.scheduler.rename import fresh

MOST = 4  # symbols of a kernel that are tried one by one
TILES = (2 * TILE, 4 * TILE)  # multiples that may make tiles and rows of warps whole, tried if the traced sizes are such


def versions(kernel: Kernel, schedule: Callable[[Kernel], Kernel]) -> tuple[Kernel, ...]:
    """``kernel``, SCHEDULED-level and serial, by ``schedule``: as it is, or in two versions of which one runs."""
    plain = schedule(kernel)
    symbols = _symbols(kernel)
    if not symbols or not _on_grid(plain):
        return (plain,)
    best, known = plain, dict[Symbol, int]()
    lanes = _most_lanes(kernel)
    for number in (lanes, *TILES):
        if number == lanes and _width(best) >= lanes:
            continue
        if number > lanes and not (_ragged(best) and _tiled(best)):
            break
        fitting = [s for s in symbols[:MOST] if number == lanes or (s.hint or 1) % number == 0]
        trials: list[Sequence[Symbol]] = [(s,) for s in fitting]
        if len(fitting) > 1:
            trials.append(fitting)
        for trial in trials:
            more = {**known, **dict.fromkeys(trial, number)}
            made = schedule(_knowing(kernel, more))
            better = _width(made) > _width(best) or (number > lanes and _ragged(made) < _ragged(best))
            if better and _width(made) >= _width(best) and _on_grid(made):
                best, known = made, more
    if not known:
        return (plain,)
    holds = ONE
    for symbol, number in known.items():
        holds = holds * (1 - minimum(1, mod(ix(symbol), ix(number))))
    return (
        _guarded(best, f"{kernel.name}_by{max(known.values())}", holds),
        _guarded(plain, kernel.name, 1 - holds),
    )


def _symbols(kernel: Kernel) -> list[Symbol]:
    """The symbols that its loops and addresses depend on, those of the innermost loops first."""
    found: dict[Symbol, None] = {}
    for stmt in reversed(statements(kernel.body)):
        if isinstance(stmt, For):
            found.update({a: None for a in axes_and_symbols(stmt.axis.extent) if isinstance(a, Symbol)})
    for index in indices(kernel.body):
        found.update({a: None for a in axes_and_symbols(index) if isinstance(a, Symbol)})
    return list(found)


def _most_lanes(kernel: Kernel) -> int:
    """Elements of the smallest global buffer that 16 bytes hold."""
    sizes = [a.buffer.dtype.bytes for a in touched(kernel.body) if a.buffer.space == "global"]
    return min(MAX_LANES, VECTOR_BYTES // min(sizes)) if sizes else 1


def _width(kernel: Kernel) -> int:
    """The lanes of its widest vector loop."""
    return max((s.kind.width for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "vector"), default=1)


def _ragged(kernel: Kernel) -> int:
    """How many of its loops over threads and lanes may end early."""
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind.name in ("thread", "vector")]
    return sum(constant(loop.axis.extent) is None for loop in loops)


def _tiled(kernel: Kernel) -> bool:
    return any(isinstance(s, For) and s.kind.name == "thread" and s.kind.key == "y" for s in statements(kernel.body))


def _on_grid(kernel: Kernel) -> bool:
    return len(kernel.body) == 1 and isinstance(kernel.body[0], For) and kernel.body[0].kind == BLOCK


def _knowing(kernel: Kernel, divisors: Mapping[Symbol, int]) -> Kernel:
    """``kernel`` where each symbol is visibly a multiple of its number."""
    values: dict[Atom, Index] = {s: floordiv(ix(s), ix(number)) * number for s, number in divisors.items()}
    return make_kernel(kernel.name, Substitution(values).body(kernel.body), kernel.params)


def _guarded(kernel: Kernel, name: str, holds: Index) -> Kernel:
    """``kernel``, with blocks only where ``holds`` is 1, not 0."""
    axis = Axis(fresh("version", names(kernel.body)), holds)
    return make_kernel(name, (For(axis, kernel.body, BLOCK),), kernel.params)
