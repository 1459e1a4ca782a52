"""Products of tiles by a CPU's matrix unit (Intel's AMX): what ``instr(amx)`` means, found in its nest.

    for r in 32 instr(amx) { for c in 32 { for k in 512 {
      s[at + r*S + c] add= dot2(x[a + r*R + k], y[b + k*T + c])
    } } }

``x`` and ``y`` are 32 bits each: pairs of bf16 (``dot2``), or quads of bytes (``dot4``), packed already or neighbours in memory.
``x`` is contiguous along the depth and ``y`` along the columns, as a tile is loaded row by row; all other strides are free.
Rows, columns and the depth are multiples of 16, what a tile has: who has fewer pads with zeros.  The unit keeps up to four tiles
of sums while it goes down the depth, so rows and columns are at most 32 each.

``tdpbf16ps`` adds up the products of a tile in the order of the depth, rounds to nearest even, and takes what is denormal, in
factors or sums, for 0, as the op ``dot2`` may; sums of bytes wrap, as those of ``dot4`` do.  (Intel 64 and IA-32 Architectures
Software Developer's Manual, volume 2.)
"""

from dataclasses import dataclass

from lowc.ir.index import Axis, Index, constant, multiple_of, split
from lowc.ir.index import atoms as index_atoms
from lowc.ir.nodes import Alloc, Expr, For, Load, Op, Stmt, Store
from lowc.ir.pairs import DOTS, neighbours
from lowc.ir.types import f32, i32, u32
from lowc.ir.walk import single

AMX = "amx"
SIDE = 16  # rows of a tile, and elements of 32 bits in a row
MOST = 32  # rows, and columns, of a product: two tiles


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProduct:
    """``store`` adds the product ``op`` in the loops over ``rows``, ``columns``, ``depth``.

    ``left`` and ``right``: the first element that each factor reads; of what is packed only there, its neighbours follow.
    ``signs``: whether bytes of the left and of the right factor have one; of bf16 both are true.  ``row_steps``: from row to row
    of the sums, in elements; of ``left``, in its elements.  ``depth_step``: from row to row of ``right``, in its elements.
    """

    rows: Axis
    columns: Axis
    depth: Axis
    store: Store
    op: str
    left: Load
    right: Load
    signs: tuple[bool, bool]
    row_steps: tuple[Index, Index]
    depth_step: Index


def is_amx(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind.name == "instr" and stmt.kind.key == AMX


def matrix_product(stmt: Stmt) -> MatrixProduct | None:
    """The product that ``stmt`` is; None if it is none that the unit can do."""
    found = single(stmt) if is_amx(stmt) else None
    if found is None or any(f.kind.name != "serial" for f in found[0][1:]):
        return None
    axes, inside = [f.axis for f in found[0]], found[1]
    if len(axes) != 3 or not isinstance(inside, Store) or inside.reducer != "add" or inside.mask is not None:
        return None
    rows, columns, depth = axes
    if not all(0 < (constant(a.extent) or 0) <= MOST and multiple_of(a.extent, SIDE) for a in (rows, columns)):
        return None
    if not multiple_of(depth.extent, SIDE) or not {rows, columns}.isdisjoint(index_atoms(depth.extent)):
        return None
    value = inside.value
    if not isinstance(value, Op) or value.name not in DOTS or len(inside.index) != 1 or inside.buffer.space == "shared":
        return None
    if inside.buffer.dtype != (f32 if value.name == "dot2" else i32):
        return None
    factors = [_first(a) for a in value.args]
    if None in factors:
        return None
    turned = columns in _axes(factors[0])
    left, right = (factors[1], factors[0]) if turned else (factors[0], factors[1])
    signs = (True, True) if value.name == "dot2" else (value.args[0].dtype == i32, value.args[1].dtype == i32)
    if value.name == "dot2" and any(a.dtype != u32 for a in value.args):
        return None
    assert left is not None and right is not None
    one = [4 // f.dtype.bytes for f in (left, right)]
    sums, from_left, from_right = (_steps(f.index[0], axes) for f in (inside, left, right))
    if constant(sums[1]) != 1 or sums[2].terms or constant(from_left[2]) != one[0] or from_left[1].terms:
        return None
    if constant(from_right[1]) != one[1] or from_right[0].terms:
        return None
    strides = (sums[0], from_left[0], from_right[2])
    if any(not set(axes).isdisjoint(index_atoms(s)) for s in (*strides, sums[3], from_left[3], from_right[3])):
        return None
    if any(f.buffer is inside.buffer for f in (left, right)):
        return None
    return MatrixProduct(
        rows, columns, depth, inside, value.name, left, right, (signs[1], signs[0]) if turned else signs, strides[:2], strides[2]
    )


def begins(body: tuple[Stmt, ...]) -> bool:
    """Whether ``body`` starts with memory for sums and a product that adds to all of it: the memory need not be set to 0 before,
    since a tile can be."""
    if len(body) < 2 or not isinstance(body[0], Alloc) or body[0].reducer != "add":
        return False
    found = matrix_product(body[1])
    if found is None or found.store.buffer is not body[0].buffer:
        return False
    high, wide = constant(found.rows.extent), constant(found.columns.extent)
    assert high is not None and wide is not None
    rest = _steps(found.store.index[0], [found.rows, found.columns, found.depth])[3]
    whole = constant(found.row_steps[0]) == wide and not rest.terms
    return whole and constant(body[0].buffer.shape[0]) == high * wide and (constant(found.depth.extent) or 0) > 0


def _first(factor: Expr) -> Load | None:
    """The load of a factor of 32 bits, or the first of the neighbours that it packs."""
    if isinstance(factor, Load):
        return factor if factor.mask is None and factor.dtype in (i32, u32) and len(factor.index) == 1 else None
    found = neighbours(factor)
    return found if found is not None and len(found.index) == 1 else None


def _axes(load: Load | None) -> set[Axis]:
    return set() if load is None else {a for a in index_atoms(load.index[0]) if isinstance(a, Axis)}


def _steps(index: Index, axes: list[Axis]) -> tuple[Index, Index, Index, Index]:
    """What each axis is multiplied by, and what is left."""
    rows, rest = split(index, axes[0])
    columns, rest = split(rest, axes[1])
    depth, rest = split(rest, axes[2])
    return rows, columns, depth, rest
