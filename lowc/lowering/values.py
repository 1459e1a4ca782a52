"""Tensor values during lowering: a buffer seen through a coordinate map.

A view op makes a new ``Value`` and no code.  ``coords`` maps the view's coordinates to the buffer's; ``strides`` and
``offset`` say the same in elements for calls of ATen, which take strided windows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lowc.errors import NotLowered
from lowc.ir.index import ONE, ZERO, Index, constant, contiguous_strides, prove_nonneg
from lowc.ir.nodes import Buffer
from lowc.ir.types import DType

Coords = tuple[Index, ...]
CoordMap = Callable[[Coords], Coords]


@dataclass(frozen=True, slots=True)
class Value:
    """``shape`` and ``dtype`` are the view's own; ``dtype`` may reinterpret the buffer's.

    ``coords`` is None where the window has no coordinates in the buffer (it can only be handed to ATen); ``strides`` is None
    where it is no strided window.  ``offset`` is in elements of ``dtype`` past the buffer's pointer.
    """

    buffer: Buffer
    dtype: DType
    shape: Coords
    coords: CoordMap | None
    strides: Coords | None
    offset: Index = ZERO


def whole(buffer: Buffer) -> Value:
    """All of ``buffer``."""
    return Value(buffer, buffer.dtype, buffer.shape, lambda c: c, buffer.strides)


def remap(
    base: Value, shape: Coords, mapping: CoordMap, strides: Coords | None, offset: Index = ZERO
) -> Value:
    """The view of ``base`` whose element ``c`` is base's element ``mapping(c)``; ``offset`` is relative to base's."""
    inner = base.coords
    composed = None if inner is None else lambda c: inner(mapping(c))
    linear = base.strides is not None and strides is not None
    return Value(base.buffer, base.dtype, shape, composed, strides if linear else None, base.offset + offset)


def is_one(extent: Index) -> bool:
    return constant(extent) == 1


def product(extents: Coords) -> Index:
    total = ONE
    for extent in extents:
        total = total * extent
    return total


def loop_order(shape: Coords, strides: Coords) -> list[int]:
    """Dimensions from the outermost loop to the innermost: by falling stride, as written where strides tell nothing."""
    order: list[int] = []
    for dim in range(len(shape)):
        place = len(order)
        while place > 0 and _inside(order[place - 1], dim, shape, strides):
            place -= 1
        order.insert(place, dim)
    return order


def _inside(a: int, b: int, shape: Coords, strides: Coords) -> bool:
    """Whether dimension ``a`` must be a loop inside dimension ``b``: its stride is certainly smaller."""
    if is_one(shape[a]) or is_one(shape[b]) or strides[a] == strides[b]:
        return False
    if constant(strides[a]) == 0 or constant(strides[b]) == 0:
        return False
    return prove_nonneg(strides[b] - strides[a] - 1)


def overlaps(shape: Coords, strides: Coords) -> bool:
    """Whether elements may share memory, by all that is known: a step of one dimension is no longer than what lies inside of it.

    (Strides that interleave, as (3, 2) of [2, 3], count as well; no op of torch makes them.)
    """
    if any(constant(extent) == 0 for extent in shape):
        return False
    several = [dim for dim, extent in enumerate(shape) if not is_one(extent)]
    shape, strides = tuple(shape[dim] for dim in several), tuple(strides[dim] for dim in several)
    reach = ZERO
    for dim in reversed(loop_order(shape, strides)):
        # an extent that nothing is known of may be 1; then the op is ATen's without need
        if constant(strides[dim]) == 0 or prove_nonneg(reach - strides[dim]):
            return True
        reach = reach + (shape[dim] - 1) * strides[dim]
    return False


def channels_last(shape: Coords) -> Coords:
    """Strides of the memory formats channels_last and channels_last_3d: dimension 1 is innermost."""
    order = [0, *range(2, len(shape)), 1]
    inner = contiguous_strides(tuple(shape[d] for d in order))
    return tuple(inner[order.index(d)] for d in range(len(shape)))


def ravel(coords: Coords, shape: Coords) -> Index:
    """Row-major position of ``coords`` in ``shape``."""
    position = ZERO
    for coordinate, extent in zip(coords, shape, strict=True):
        position = position * extent + coordinate
    return position


def unravel(position: Index, shape: Coords) -> Coords:
    """Inverse of ``ravel``; the sizes must not be 0."""
    coords: list[Index] = []
    for extent in reversed(shape[1:]):
        coords.append(ZERO if is_one(extent) else position % extent)
        position = position if is_one(extent) else position // extent
    if shape:
        coords.append(position)
    return tuple(reversed(coords))


def regroup(old: Coords, new: Coords) -> list[tuple[list[int], list[int]]]:
    """Pairs of (dims of ``old``, dims of ``new``) with equal numbers of elements, sizes 1 left out: the finest split found."""
    left = [d for d in range(len(old)) if not is_one(old[d])]
    right = [d for d in range(len(new)) if not is_one(new[d])]
    groups: list[tuple[list[int], list[int]]] = []
    while left or right:
        group = _first_group(left, right, old, new)
        if group is None:
            groups.append((left, right))
            break
        groups.append((left[: group[0]], right[: group[1]]))
        left, right = left[group[0] :], right[group[1] :]
    return groups


def _first_group(left: list[int], right: list[int], old: Coords, new: Coords) -> tuple[int, int] | None:
    """The shortest (m, n) such that the first m dims of ``left`` hold as many elements as the first n of ``right``."""
    partial: dict[Index, int] = {}
    total = ONE
    for count, dim in enumerate(left, 1):
        total = total * old[dim]
        partial.setdefault(total, count)
    total = ONE
    for count, dim in enumerate(right, 1):
        total = total * new[dim]
        if total in partial:
            return partial[total], count
    return None


def reshape_coords(old: Coords, new: Coords) -> CoordMap:
    """The map from coordinates in ``new`` to those in ``old`` of the same row-major position."""
    if any(constant(extent) == 0 for extent in new):
        return lambda c: (ZERO,) * len(old)
    groups = regroup(old, new)

    def mapping(c: Coords) -> Coords:
        out = [ZERO] * len(old)
        for before, after in groups:
            position = ravel(tuple(c[d] for d in after), tuple(new[d] for d in after))
            for dim, coordinate in zip(before, unravel(position, tuple(old[d] for d in before)), strict=True):
                out[dim] = coordinate
        return tuple(out)

    return mapping


def reshape_strides(shape: Coords, strides: Coords, new: Coords) -> Coords | None:
    """Strides with which ``new`` views the same elements in row-major order without a copy, or None if there are none."""
    if any(constant(extent) == 0 for extent in new):
        return strides if shape == new else contiguous_strides(new)
    out: list[Index | None] = [None] * len(new)
    for before, after in regroup(shape, new):
        for dim, inner in zip(before, before[1:], strict=False):
            if strides[dim] != strides[inner] * shape[inner]:
                return None
        step = strides[before[-1]] if before else ONE
        for dim in reversed(after):
            out[dim] = step
            step = step * new[dim]
    following = ONE
    for dim in reversed(range(len(new))):
        if out[dim] is None:
            out[dim] = following
        following = out[dim] * new[dim]  # type: ignore[operator]
    return tuple(s if s is not None else ONE for s in out)


def dense_coords(buffer: Buffer, strides: Coords, offset: Index, shape: Coords) -> CoordMap | None:
    """Coordinates of a strided window of a dense buffer (each element once, no gaps; fixed sizes), or None."""
    sizes = [constant(s) for s in buffer.shape]
    steps = [constant(s) for s in buffer.strides]
    window = [constant(s) for s in (*shape, *strides, offset)]
    if None in sizes or None in steps or None in window:
        return None
    order = [d for d in sorted(range(len(sizes)), key=lambda d: -(steps[d] or 0)) if sizes[d] != 1]
    expected = 1
    for dim in reversed(order):
        if steps[dim] != expected:
            return None
        expected *= sizes[dim] or 0
    first = last = window[-1] or 0
    for extent, stride in zip(window[: len(shape)], window[len(shape) : -1], strict=True):
        last += max((extent or 0) - 1, 0) * max(stride or 0, 0)
        first += max((extent or 0) - 1, 0) * min(stride or 0, 0)
    if first < 0 or last >= expected:
        return None

    def mapping(c: Coords) -> Coords:
        position = offset
        for coordinate, stride in zip(c, strides, strict=True):
            position = position + coordinate * stride
        out = [ZERO] * len(sizes)
        for dim, coordinate in zip(
            order, unravel(position, tuple(buffer.shape[d] for d in order)), strict=True
        ):
            out[dim] = coordinate
        return tuple(out)

    return mapping


def check_loadable(value: Value, kinds: str = "biuf") -> None:
    """Raises NotLowered if no kernel can read ``value`` by coordinates, as one of ``kinds``."""
    if value.coords is None:
        raise NotLowered("reads a window that has no coordinates in its buffer")
    stored = value.buffer.dtype
    if value.dtype != stored and (
        value.dtype.bits != stored.bits or not {value.dtype.kind, stored.kind} <= set("iuf")
    ):
        raise NotLowered(f"reads {value.buffer.dtype} memory as {value.dtype}")
    if value.dtype.kind not in kinds:
        raise NotLowered(f"lowc does not compute in {value.dtype}")
