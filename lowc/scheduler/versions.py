"""Versions of a GPU kernel for sizes known at run time only, of which the sizes of a call choose one.

Rows of symbolic length ``n`` may begin anywhere, so that they are read element by element.  Where knowing that ``n`` is a
multiple of 4 or 8 gives accesses of 16 bytes, there are two launches, of which one has no blocks:

    for ok in 1 - min(1, n % 8) block { … n written as 8*(n // 8) … }
    for else in min(1, n % 8) block { … n … }
"""

from collections.abc import Callable, Mapping, Sequence

from lowc.ir.index import ONE, Atom, Axis, Index, Symbol, axes_and_symbols, floordiv, ix, minimum, mod
from lowc.ir.nodes import For, Kernel
from lowc.ir.walk import Substitution, indices, make_kernel, names, statements
from lowc.scheduler.apply_simt import BLOCK
from lowc.scheduler.choose_simt import MAX_LANES, VECTOR_BYTES
from lowc.scheduler.nest import touched
from lowc.scheduler.rename import fresh

MOST = 4  # symbols of a kernel that are tried one by one


def versions(kernel: Kernel, schedule: Callable[[Kernel], Kernel]) -> tuple[Kernel, ...]:
    """``kernel``, SCHEDULED-level and serial, by ``schedule``: as it is, or in two versions of which one runs."""
    plain = schedule(kernel)
    lanes = _most_lanes(kernel)
    symbols = _symbols(kernel)
    if not symbols or lanes == 1 or _width(plain) >= lanes or not _on_grid(plain):
        return (plain,)
    best, known = plain, dict[Atom, Index]()
    trials: list[Sequence[Symbol]] = [(s,) for s in symbols[:MOST]]
    if len(symbols) > 1:
        trials.append(symbols)
    for trial in trials:
        if _width(best) >= lanes:
            break
        more: dict[Atom, Index] = {**known, **{s: floordiv(ix(s), ix(lanes)) * lanes for s in trial}}
        made = schedule(_knowing(kernel, more))
        if _width(made) > _width(best) and _on_grid(made):
            best, known = made, more
    if not known:
        return (plain,)
    holds = ONE
    for symbol in known:
        holds = holds * (1 - minimum(1, mod(ix(symbol), ix(lanes))))
    return (
        _guarded(best, f"{kernel.name}_by{lanes}", holds),
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


def _on_grid(kernel: Kernel) -> bool:
    return len(kernel.body) == 1 and isinstance(kernel.body[0], For) and kernel.body[0].kind == BLOCK


def _knowing(kernel: Kernel, values: Mapping[Atom, Index]) -> Kernel:
    return make_kernel(kernel.name, Substitution(values).body(kernel.body), kernel.params)


def _guarded(kernel: Kernel, name: str, holds: Index) -> Kernel:
    """``kernel``, with blocks only where ``holds`` is 1, not 0."""
    axis = Axis(fresh("version", names(kernel.body)), holds)
    return make_kernel(name, (For(axis, kernel.body, BLOCK),), kernel.params)
