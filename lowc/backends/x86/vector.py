"""Vector loops: strips of lanes, several in flight while they last, then one by one, then the rest under a
mask.
"""

from typing import TYPE_CHECKING

from lowc.backends.x86 import accumulators
from lowc.backends.x86.accumulators import Group, reads
from lowc.backends.x86.operations import Val, binary, const, select, splat
from lowc.backends.x86.region import Lanes, lane_numbers, scalar_index
from lowc.errors import CodegenError
from lowc.ir.index import constant, lower_bound
from lowc.ir.nodes import For, Op, Update
from lowc.ir.types import bool_, i64
from lowc.ir.walk import exprs, parts, statements

if TYPE_CHECKING:
    from lowc.backends.x86.emit import Emitter

LARGE = 160  # ops in flight above which more strips at a time only cost registers and code


def emit(e: "Emitter", stmt: For) -> None:
    """``for … vector(W)``.  Raises CodegenError inside another vector loop, and for scans that it cannot
    do.
    """
    if e.r.lanes is not None:
        raise CodegenError("a vector loop inside a vector loop")
    width = stmt.kind.width
    if width & (width - 1) or width > 64:
        raise CodegenError(f"a vector loop of {width} lanes")
    in_flight = flight(stmt)
    groups = e.carried(stmt.body)
    widened: list[Group] = []
    scanned: list[Group] = []
    for group in groups:
        if group.lanes:
            if group.lanes != width:
                raise CodegenError(
                    f"{group.vars[0].name} is updated in vectors of {group.lanes} and of {width}"
                )
        elif reads(stmt.body, {v.name for v in group.vars}):
            _check_scan(stmt, group)
            accumulators.open_scan(e.b, group, width)
            scanned.append(group)
        else:
            accumulators.widen(group, width, in_flight)
            widened.append(group)
    _strips(e, stmt, groups, in_flight)
    for group in widened:
        accumulators.narrow(e.b, group, e.r.ops)
    for group in scanned:
        accumulators.close_scan(e.b, group)


def flight(stmt: For) -> int:
    """Strips in flight: what the loop says, fewer if its body is large."""
    size = sum(isinstance(p, Op) for s in statements(stmt.body) for x in exprs(s) for p in parts(x))
    count = max(1, stmt.kind.interleave)
    while count > 1 and count * size > LARGE:
        count //= 2
    return count


def _check_scan(stmt: For, group: Group) -> None:
    mine = [
        s for s in statements(stmt.body) if isinstance(s, Update) and s.vars[0].name == group.vars[0].name
    ]
    if len(mine) != 1 or not any(s is mine[0] for s in stmt.body):
        raise CodegenError(f"a scan of {group.vars[0].name} with more than one update an iteration")
    before = stmt.body[: next(n for n, s in enumerate(stmt.body) if s is mine[0])]
    if reads((*before, mine[0]), {v.name for v in group.vars}):
        raise CodegenError(f"{group.vars[0].name} is read before its update in a vector loop")


def _strips(e: "Emitter", stmt: For, groups: list[Group], in_flight: int) -> None:
    width, axis = stmt.kind.width, stmt.axis
    extent, least = constant(axis.extent), lower_bound(axis.extent)
    high = scalar_index(e.r, axis.extent)
    if extent is None and (least is None or least < 0) or extent is not None and extent < 0:
        high = select(
            e.b, binary(e.b, "gt", Val(high, i64), const(0, i64)), Val(high, i64), const(0, i64)
        ).text
        extent = None if extent is None else 0
    done = "0"
    for count in (in_flight, 1) if in_flight > 1 else (1,):
        step = count * width
        if extent is not None:
            end = str(extent // step * step)
            if int(end) <= int(done):
                continue
            runs = True
        else:
            end, runs = _rounded(e, high, step), done == "0" and (least or 0) >= step
        low = done

        def each(index: str, count: int = count) -> None:
            for n in range(count):
                if n == 0 or index.isdigit():  # a place that is known stays known
                    base = index if n == 0 else str(int(index) + n * width)
                else:
                    base = e.b.pure(f"add nsw i64 {index}, {n * width}")
                e.flight = (n, count)
                _strip(e, stmt, base, None)
            e.flight = (0, 1)

        if extent is not None and int(end) - int(low) == step:
            each(low)
        else:
            e.carrying(groups, low, end, step, each, runs)
        done = end
    if extent is None:
        _dynamic_tail(e, stmt, groups, done, high)
    elif extent % width:
        left = extent % width
        bits = ", ".join("i1 true" if n < left else "i1 false" for n in range(width))
        _strip(e, stmt, done, Val(f"<{bits}>", bool_, width))


def _rounded(e: "Emitter", high: str, step: int) -> str:
    """The largest multiple of ``step``, a power of two, up to ``high``, which is not negative."""
    if step & (step - 1):
        return e.b.pure(f"mul i64 {e.b.pure(f'sdiv i64 {high}, {step}')}, {step}")
    return e.b.pure(f"and i64 {high}, {-step}")


def _strip(e: "Emitter", stmt: For, base: str, mask: Val | None) -> None:
    """The body on one strip."""
    e.r.lanes = Lanes(stmt.axis, stmt.kind.width, base, mask)
    e.scoped(stmt.body)
    e.r.lanes = None
    for group in e.r.groups.values():
        group.strip = None


def _dynamic_tail(e: "Emitter", stmt: For, groups: list[Group], done: str, high: str) -> None:
    """The last, partial strip under a mask; skipped at run time if there is none."""
    width = stmt.kind.width
    left_over = e.b.op(f"icmp slt i64 {done}, {high}")

    def then() -> None:
        left = splat(e.b, Val(e.b.pure(f"sub i64 {high}, {done}"), i64), width)
        mask = binary(e.b, "gt", left, lane_numbers(width))
        _strip(e, stmt, done, mask)

    e.conditional(left_over, groups, then)
