"""Thread loops that read what threads accumulate together: each thread gets the prefixes that belong to its elements.

The body is done piece by piece: up to the update by the threads that take part, the update by all of them (shuffles and barriers
wait for every thread; one that takes no part contributes the identity), and so on.  The prefix of an element is

    what was accumulated before the loop  ∘  warps before  ∘  threads before in the warp  ∘  lanes before  ∘  its own

Warps hand over their totals in shared memory; the total of all is kept by every thread, in registers, for the next loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.backends.llvm.types import memory as memory_type
from lowc.backends.llvm.values import Val, const, select
from lowc.backends.nvptx.combine import WARP, Exchange, barrier, linear, merge, shuffled
from lowc.backends.nvptx.thread import Group, Lanes, Memory, Thread, Vals, operand, plus
from lowc.ir.index import constant
from lowc.ir.nodes import For, Stmt, Update
from lowc.ir.types import bool_ as FLAG

REPEATABLE = ("add", "mul")  # reducers for which x ∘ x is not x


@dataclass(slots=True)
class Piece:
    """What a thread does together: the body outside of a vector loop, all lanes of one, or a single lane of one that may be cut
    short.

    ``condition``: under which it does so ("": always).  ``axis`` is number ``lane`` in it, if there is one.  Names are its own.
    """

    condition: str
    variables: dict[str, Vals]
    groups: dict[str, Group]
    memory: dict[str, Memory]
    axis: str = ""
    lane: int = 0
    lanes: Lanes | None = None


class Scan:
    """Emits one thread loop.

    ``names``: the accumulators of which it holds prefixes; ``body`` emits statements, ``contributions`` gives what an update adds
    in each lane; ``again``: control may come here more than once.
    """

    def __init__(
        self,
        t: Thread,
        exchange: Exchange,
        names: frozenset[str],
        body: Callable[[Sequence[Stmt]], None],
        contributions: Callable[[Update], list[list[Val]]],
        again: bool,
    ) -> None:
        self.t = t
        self.b = t.b
        self.exchange = exchange
        self.names = names
        self.body = body
        self.contributions = contributions
        self.again = again

    def run(self, loop: For, condition: str) -> None:
        """Emits ``loop`` for the threads for which ``condition`` holds."""
        t = self.t
        held = t.variables, t.groups, t.memory, t.active
        t.active = ""
        self.walk(loop.body, [Piece(condition, dict(t.variables), dict(t.groups), dict(t.memory))])
        t.variables, t.groups, t.memory, t.active = held

    def walk(self, body: Sequence[Stmt], pieces: list[Piece]) -> None:
        plain: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Update) and stmt.vars[0].name in self.names:
                self.update(plain, stmt, pieces)
            elif isinstance(stmt, For) and any(
                isinstance(s, Update) and s.vars[0].name in self.names for s in stmt.body
            ):
                self.plain(plain, pieces)
                self.walk(stmt.body, self.lanes(stmt, pieces[0]))
            else:
                plain.append(stmt)
                continue
            plain = []
        self.plain(plain, pieces)

    def lanes(self, loop: For, outer: Piece) -> list[Piece]:
        """The lanes of a vector loop: together if there are always all of them."""
        width, axis = loop.kind.width, loop.axis

        def piece(condition: str, lane: int, lanes: Lanes | None) -> Piece:
            own = dict(outer.variables), dict(outer.groups), dict(outer.memory)
            return Piece(condition, *own, axis.name, lane, lanes)

        extent = constant(axis.extent)
        if extent == width and width > 1:
            return [piece(outer.condition, 0, Lanes(axis, width, 0))]
        if extent is not None:
            return [piece(outer.condition, n, None) for n in range(extent)]
        self.enter(outer)
        end, bits = operand(self.t, axis.extent)
        out: list[Piece] = []
        for n in range(width):
            inside = self.b.pure(f"icmp slt i{bits} {n}, {end}")
            out.append(
                piece(
                    self.b.pure(f"and i1 {outer.condition}, {inside}") if outer.condition else inside, n, None
                )
            )
        return out

    # ------------------------------------------------------------ pieces

    def enter(self, piece: Piece) -> None:
        t = self.t
        t.variables, t.groups, t.memory, t.lanes = piece.variables, piece.groups, piece.memory, piece.lanes
        if piece.axis:
            t.axes[piece.axis] = piece.lane

    def plain(self, body: Sequence[Stmt], pieces: list[Piece]) -> None:
        """Statements before, between or after updates."""
        if body:
            for piece in pieces:
                self.under(piece, body, lambda: [])
        self.t.lanes = None

    def under(
        self, piece: Piece, body: Sequence[Stmt], values: Callable[[], list[Val]], other: Sequence[Val] = ()
    ) -> list[Val]:
        """``body`` and then ``values``, which are ``other`` for threads that take no part; lets go on to what follows."""
        self.enter(piece)
        before = set(piece.variables)
        kept: list[tuple[str, int]] = []
        carried: list[tuple[str, str]] = []
        found: list[Val] = []

        def then() -> list[str]:
            self.body(body)
            found.extend(values())
            carried.extend((v.type, o.text) for v, o in zip(found, other, strict=True))
            for name, lanes in piece.variables.items():
                if name not in before:
                    kept.append((name, len(lanes)))
                    found.extend(lanes)
                    carried.extend(
                        (v.type, const(False if v.dtype.kind == "b" else 0, v.dtype).text) for v in lanes
                    )
            return [v.text for v in found]

        if not piece.condition:
            then()
            return found[: len(other)]
        texts = self.b.branch(piece.condition, carried, then)
        result = [Val(x, v.dtype) for x, v in zip(texts, found, strict=True)]
        rest = iter(result[len(other) :])
        for name, count in kept:
            piece.variables[name] = tuple([next(rest) for _ in range(count)])
        return result[: len(other)]

    # ------------------------------------------------------------ prefixes

    def update(self, body: Sequence[Stmt], stmt: Update, pieces: list[Piece]) -> None:
        """``body`` and the update behind it; from then on, its accumulators are prefixes."""
        t, b = self.t, self.b
        group = pieces[0].groups[stmt.vars[0].name]
        start = [v for _, v in group.vars]
        own: list[list[Val]] = []
        for piece in pieces:
            count = piece.lanes.count if piece.lanes is not None else 1

            def values() -> list[Val]:
                return [v for one in self.contributions(stmt) for v in one]

            flat = self.under(piece, body, values, start * count)
            own += [flat[n : n + len(start)] for n in range(0, len(flat), len(start))]
        t.lanes = None
        held = own[:1]
        for one in own[1:]:
            held.append(merge(t, group.reducer, held[-1], one))
        before, total = self.across(group.reducer, start, held[-1] if held else start)
        (places,) = group.places
        old = [Val(b.op(f"load {v.type}, ptr {p}"), v.dtype) for p, v in zip(places, start, strict=True)]
        base = merge(t, group.reducer, old, before)
        prefixes = [merge(t, group.reducer, base, one) for one in held]
        for p, v in zip(places, merge(t, group.reducer, old, total), strict=True):
            b.line(f"store {v.type} {v.text}, ptr {p}")
        rest = iter(prefixes)
        for piece in pieces:
            mine = [next(rest) for _ in range(piece.lanes.count if piece.lanes is not None else 1)]
            for n, var in enumerate(stmt.vars):
                piece.variables[var.name] = tuple([one[n] for one in mine])

    def across(self, reducer: str, start: list[Val], value: list[Val]) -> tuple[list[Val], list[Val]]:
        """The threads before, and all of them, of the row of threads x."""
        t, b = self.t, self.b
        bits = t.threads["x"].bit_length() - 1
        inside = min(bits, WARP)
        lane = t.tid["x"] if bits <= WARP else b.pure(f"and i32 {t.tid['x']}, {(1 << WARP) - 1}")
        value = self.climb(reducer, value, lane, inside)
        first = b.pure(f"icmp eq i32 {lane}, 0")
        before = [
            select(b, Val(first, FLAG), s, shuffled(t, v, 1, "up")) for s, v in zip(start, value, strict=True)
        ]
        if bits <= WARP:
            last = (1 << bits) - 1
            return before, [shuffled(t, v, self.group_lane(str(last), last), "idx") for v in value]
        warps = 1 << (bits - WARP)
        warp = b.pure(f"lshr i32 {t.tid['x']}, {WARP}")
        held = self.through_memory(value, lane, warps)
        place = b.pure(f"and i32 {lane}, {warps - 1}")
        held = self.climb(reducer, held, place, bits - WARP)
        total = [shuffled(t, v, warps - 1, "idx") for v in held]
        below = b.pure(f"and i32 {b.pure(f'sub i32 {warp}, 1')}, {warps - 1}")
        lower = b.pure(f"icmp eq i32 {warp}, 0")
        earlier = [
            select(b, Val(lower, FLAG), s, shuffled(t, v, below, "idx"))
            for s, v in zip(start, held, strict=True)
        ]
        return merge(t, reducer, earlier, before), total

    def group_lane(self, number: str, mask: int) -> str:
        """Lane ``number`` among the ``mask`` + 1 neighbours that the thread is one of."""
        if mask == 31 or self.t.threads["y"] == 1:
            return number
        group = self.b.pure(f"and i32 {linear(self.t)}, {31 & ~mask}")
        return self.b.pure(f"or i32 {group}, {number}")

    def climb(self, reducer: str, value: list[Val], lane: str, bits: int) -> list[Val]:
        """Inclusive prefixes over groups of 2**bits lanes, in which a thread is number ``lane``."""
        t, b = self.t, self.b
        alone = (
            bits == WARP and reducer not in REPEATABLE
        )  # lanes below the distance get their own value back
        for n in range(bits):
            other = [shuffled(t, v, 1 << n, "up") for v in value]
            merged = merge(t, reducer, other, value)
            if not alone:
                reached = Val(b.pure(f"icmp ult i32 {lane}, {1 << n}"), FLAG)
                merged = [select(b, reached, v, m) for v, m in zip(value, merged, strict=True)]
            value = merged
        return value

    def through_memory(self, value: list[Val], lane: str, warps: int) -> list[Val]:
        """The last lane's value of warp number ``lane`` (modulo how many there are) of the row."""
        t, b = self.t, self.b
        slots = t.threads["x"] * t.threads["y"] >> WARP
        sizes = [-(-slots * max(4, v.dtype.bytes) // 8) * 8 for v in value]
        memory, used = self.exchange.place(sum(sizes))
        if used or self.again:
            barrier(t)
        warp = b.pure(f"lshr i32 {linear(t)}, {WARP}")
        starts = [
            b.pure(f"getelementptr i8, ptr addrspace(3) {memory}, i32 {sum(sizes[:n])}")
            for n in range(len(value))
        ]

        def write() -> list[str]:
            for v, start in zip(value, starts, strict=True):
                element = memory_type(v.dtype)
                text = b.pure(f"zext i1 {v.text} to i8") if v.dtype.kind == "b" else v.text
                place = b.pure(f"getelementptr {element}, ptr addrspace(3) {start}, i32 {warp}")
                b.line(f"store {element} {text}, ptr addrspace(3) {place}, align {v.dtype.bytes}")
            return []

        b.branch(b.pure(f"icmp eq i32 {lane}, {(1 << WARP) - 1}"), [], write)
        barrier(t)
        mine = b.pure(f"and i32 {lane}, {warps - 1}")
        if t.threads["y"] > 1:
            mine = plus(b, b.pure(f"and i32 {warp}, {~(warps - 1)}"), mine, 32)
        out: list[Val] = []
        for v, start in zip(value, starts, strict=True):
            element = memory_type(v.dtype)
            place = b.pure(f"getelementptr {element}, ptr addrspace(3) {start}, i32 {mine}")
            text = b.op(f"load {element}, ptr addrspace(3) {place}, align {v.dtype.bytes}")
            out.append(Val(b.pure(f"icmp ne i8 {text}, 0") if v.dtype.kind == "b" else text, v.dtype))
        return out
