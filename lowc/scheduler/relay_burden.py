"""How much more than products functions of scores have in registers, by which it is chosen how threads make scores.

A thread of attention on tensor cores holds most of its registers in sums, 192 of 240 for gradients.  ptxas mixes what is made of
one score with what is made of others, so that nothing waits for loads and instructions, until it spills registers.  What helps
takes time (``benchmarks/results/h200_flex_attention.md``): fewer sums, or turns ``apart``.  So they are for functions that need
them: of a burden, counted here, from which on assembled code had spills.  The counts were fitted to what ptxas 13.0 says of
functions that ``tests/backends/nvptx/test_scores_at_random.py`` assembles again.
"""

from collections.abc import Sequence

from lowc.ir.index import Atom, Axis, FloorDiv, Mod, Opaque, atoms, depends_on, ix
from lowc.ir.nodes import Const, Expr, FromIndex, Let, Load, Op
from lowc.ir.walk import free_atoms, parts, same
from lowc.scheduler.attention import masks

COLUMN, BOTH = 1, 3  # of what is loaded for each column of scores, and for each score
TOLD = 1  # of a condition on what is loaded; one more if it is not the first, or if something is made of that
WINDING = 1  # of quotients and remainders of coordinates
BENT = 2  # of what is made of scores, or of coordinates, by pieces
CAP, DEAR, MANY = 1, 2, 4  # of tanh, by two instructions; of functions that take several, and many
DERIVATIVE, CAPPED = 3, 2  # of slopes that are made of scores as well, so that both first products are there; the same of caps
COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
CHEAP = COMPARED | {
    "abs", "add", "and", "bitcast", "cast", "ex2_normal", "fma", "max", "min", "mul", "neg", "not", "or", "rcp", "select", "shl",
    "shr", "sub", "xor",
}  # fmt: skip
PIECES = frozenset({"abs", "max", "min", "select"})
SEVERAL = frozenset({
    "ceil", "div", "erf", "ex2", "exp", "exp2", "floor", "log", "log2", "round", "rsqrt", "sigmoid", "sqrt", "trunc",
})  # fmt: skip


def burden(
    values: Sequence[Expr], lets: Sequence[Let], row: Axis, column: Axis, varying: Sequence[str],
    both: int = BOTH, cap: int = CAP, placed: int = 0,
) -> int:  # fmt: skip
    """Of ``values``, by rows and columns of scores; ``varying``: variables that each score has of its own.  ``both``, ``cap``,
    ``placed``: what loads for each score, caps, and floats of coordinates count."""
    values = [inner for value in values for conditions, inner in [masks(value)] for inner in (*conditions, inner)]
    of_column: set[Atom] = {column, *(Opaque(name) for name in varying)}
    of_row: set[Atom] = {row}
    for each in lets:
        for known in (of_column, of_row):
            if not known.isdisjoint(free_atoms(each.value)):
                known.add(Opaque(each.var.name))
    loads: list[Load] = []
    told: list[Op] = []
    dear: set[str] = set()
    winding = floats = False
    for value in (*(each.value for each in lets), *values):
        for part in parts(value):
            if of_column.isdisjoint(free_atoms(part)):
                continue  # made once for a row
            if isinstance(part, Load):
                if all(not same(part, other) for other in loads):
                    loads.append(part)
            elif isinstance(part, Op):
                by_number = part.name == "div" and isinstance(part.args[1], Const)
                if part.name in PIECES and part.dtype.kind == "f" or part.name not in CHEAP and not by_number:
                    dear.add(part.name)
                floats |= part.name == "cast" and part.dtype.kind == "f" and isinstance(part.args[0], FromIndex)
                read = [p for p in parts(part) if isinstance(p, Load)] if part.name in COMPARED else []
                reads = any(not of_column.isdisjoint(free_atoms(p)) for p in read)
                if reads and all(not same(part, other) for other in told):
                    told.append(part)
            elif isinstance(part, FromIndex):
                winding |= any(isinstance(a, FloorDiv | Mod) and depends_on(ix(a), column) for a in atoms(part.index))
    found = sum(COLUMN if of_row.isdisjoint(free_atoms(p)) else both for p in loads)
    for number, part in enumerate(told):
        made = any(isinstance(a, Op) and a.name != "cast" for a in part.args)
        found += TOLD * (2 if number or made else 1)
    counts = {"tanh": cap, **dict.fromkeys(PIECES, BENT), **dict.fromkeys(SEVERAL, DEAR)}
    return found + WINDING * winding + placed * floats + sum(counts.get(name, MANY) for name in dear)
