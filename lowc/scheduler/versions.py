"""Versions of a GPU kernel for sizes known at run time only, of which the sizes of a call choose one.

Rows of symbolic length ``n`` may begin anywhere, so that they are read element by element, and tiles may end anywhere.  Where
knowing that ``n`` is a multiple of some number gives accesses of 16 bytes, or whole tiles, there are two launches, of which one
has no blocks:

    for version in 1 - min(1, n % 8) block { … n written as 8*(n // 8) … }
    for version in min(1, n % 8) block { … n … }

Rows that several stages read lie in registers if their length is known.  Knowing that ``n`` is at most what the threads of a
block can hold, with the traced size as the example, does as well; the one of the two above that the traced size would take then
is two itself, and there are three launches at most:

    for version in 1 - min(1, n % 8 + n // 4097) block { … n written as 8*min(512, n // 8), its rows shared (``share``) … }
    for version in 1 - min(1, n % 8) block { for bound in min(1, n // 4097) block { … n written as 8*(n // 8) … } }
    for version in min(1, n % 8) block { … n … }
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lowc.ir.index import (
    ZERO,
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
from lowc.ir.nodes import For, If, Kernel
from lowc.ir.walk import Substitution, indices, loads, make_kernel, names, statements
from lowc.scheduler.apply_simt import BLOCK
from lowc.scheduler.choose_simt import MAX_LANES, TILE, VECTOR_BYTES
from lowc.scheduler.nest import estimate, touched
from lowc.scheduler.rename import fresh
from lowc.scheduler.share import share_bounded

MOST = 4  # symbols of a kernel that are tried one by one
TILES = (2 * TILE, 4 * TILE)  # multiples that may make tiles and rows of warps whole, tried if the traced sizes are such


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of sizes in a version: by symbol, a number that it is a multiple of, and the most that it is."""

    divisors: Mapping[Symbol, int]
    most: Mapping[Symbol, int]

    def apply(self, kernel: Kernel) -> Kernel:
        """``kernel`` where its indices show that."""
        values: dict[Atom, Index] = {}
        for symbol in {**self.divisors, **self.most}:
            number = self.divisors.get(symbol, 1)
            count = floordiv(ix(symbol), ix(number))
            if symbol in self.most:
                count = minimum(count, self.most[symbol] // number)
            values[symbol] = count * number
        return make_kernel(kernel.name, Substitution(values).body(kernel.body), kernel.params)


def versions(kernel: Kernel, schedule: Callable[[Kernel], Kernel]) -> tuple[Kernel, ...]:
    """``kernel``, SCHEDULED-level and serial, by ``schedule``: as it is, or in two or three versions of which one runs."""
    plain = schedule(kernel)
    symbols = _symbols(kernel)
    if not symbols or not _on_grid(plain):
        return (plain,)
    best, divisors = _multiples(kernel, plain, symbols, schedule)
    traced = all(symbol.hint is not None and symbol.hint % number == 0 for symbol, number in divisors.items())
    base, known = (best, divisors) if traced else (plain, dict[Symbol, int]())
    held, most = _held(kernel, base, known, schedule)
    off = sum((mod(ix(symbol), ix(number)) for symbol, number in divisors.items()), start=ZERO)
    over = sum((floordiv(ix(symbol), ix(number + 1)) for symbol, number in most.items()), start=ZERO)
    by = f"_by{max(divisors.values())}" if divisors else ""
    forms = [(best, by, (_none(off),)), (plain, "", (_some(off),))] if divisors else [(plain, "", ())]
    if held is None:
        return tuple([_guarded(k, f"{kernel.name}{ending}", holds) for k, ending, holds in forms])
    found: list[Kernel] = []
    for form, ending, holds in forms:
        if form is not base:
            found.append(_guarded(form, f"{kernel.name}{ending}", holds))
            continue
        short = (_none(off + over),) if form is best else (*holds, _none(over))
        found.append(_guarded(held, f"{kernel.name}{ending}_upto{max(most.values(), default=0)}", short))
        if over != ZERO:
            found.append(_guarded(form, f"{kernel.name}{ending}", (*holds, _some(over))))
    return tuple(found)


def _multiples(
    kernel: Kernel, plain: Kernel, symbols: Sequence[Symbol], schedule: Callable[[Kernel], Kernel]
) -> tuple[Kernel, Mapping[Symbol, int]]:
    """The best schedule of ``kernel`` for symbols that are multiples of numbers, and these; ``plain`` and none if none is."""
    best, known = plain, dict[Symbol, int]()
    lanes = _most_lanes(kernel)
    for number in (lanes, *TILES):
        if number > lanes and not _tiled(best):
            break
        fitting = [s for s in symbols[:MOST] if number == lanes or (s.hint or 1) % number == 0]
        trials: list[Sequence[Symbol]] = [(s,) for s in fitting]
        if len(fitting) > 1:
            trials.append(fitting)
        for trial in trials:
            if number == lanes and _width(best) >= lanes:
                break
            more = {**known, **dict.fromkeys(trial, number)}
            made = schedule(_Known(more, {}).apply(kernel))
            better = _width(made) > _width(best) or (number > lanes and _ragged(made) < _ragged(best))
            if better and _width(made) >= _width(best) and _on_grid(made):
                best, known = made, more
    return best, known


def _held(
    kernel: Kernel, base: Kernel, divisors: Mapping[Symbol, int], schedule: Callable[[Kernel], Kernel]
) -> tuple[Kernel | None, Mapping[Symbol, int]]:
    """A schedule of ``kernel`` that holds rows in registers, and the most that symbols are in it, or None.

    ``base``: the one for rows of any length."""
    chunk = _threads(base) * _width(base)
    trials: dict[tuple[tuple[Symbol, int], ...], None] = {}
    for stage in statements(kernel.body):
        if not isinstance(stage, For) or any(isinstance(s, For | If) for s in stage.body):
            continue
        bounds = _bounds(stage.axis.extent, divisors, chunk)
        if bounds is not None:
            trials[tuple(bounds.items())] = None
    for trial in trials:
        most = dict(trial)
        shown = _Known(divisors, most).apply(kernel)
        shared = share_bounded(shown)
        if shared is shown:
            continue
        made = schedule(shared)
        if _on_grid(made) and _width(made) >= _width(base) and _threads(made) >= _threads(base) and _reads(made) < _reads(base):
            return made, most
    return None, {}


def _bounds(extent: Index, divisors: Mapping[Symbol, int], chunk: int) -> Mapping[Symbol, int] | None:
    """The most that each symbol of ``extent`` may be: as traced, and if there is but one, with the last chunk full.  None if one
    has not been traced, and might be anything."""
    symbols = [a for a in axes_and_symbols(extent) if isinstance(a, Symbol)]
    if not symbols or len(symbols) < len(axes_and_symbols(extent)):
        return None
    most: dict[Symbol, int] = {}
    for symbol in symbols:
        if symbol.hint is None or symbol.hint < 1:
            return None
        most[symbol] = symbol.hint
    if len(symbols) == 1:
        (symbol,) = symbols
        size = estimate(extent)
        room = -(-size // chunk) * chunk
        most[symbol] = max(symbol.hint or 0, (symbol.hint or 0) * room // max(1, size))
    return {s: n // divisors.get(s, 1) * divisors.get(s, 1) for s, n in most.items()}


def _none(count: Index) -> Index:
    """1 where ``count``, which is never negative, is 0, else 0."""
    return 1 - minimum(1, count)


def _some(count: Index) -> Index:
    """0 where ``count``, which is never negative, is 0, else 1."""
    return minimum(1, count)


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


def _threads(kernel: Kernel) -> int:
    """The most threads x that share a loop."""
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "thread" and s.kind.key != "y"]
    return max((loop.kind.width for loop in loops), default=1)


def _reads(kernel: Kernel) -> int:
    """How many loads from global memory it has in the text."""
    return sum(load.buffer.space == "global" for load in loads(kernel.body))


def _guarded(kernel: Kernel, name: str, holds: Sequence[Index]) -> Kernel:
    """``kernel``, with blocks only where each of ``holds`` is 1, not 0."""
    body = kernel.body
    for each in reversed(holds):
        body = (For(Axis(fresh("version", names(body)), each), body, BLOCK),)
    return make_kernel(name, body, kernel.params)
