"""Turns with a third product (``ir/relays.Across``), as those who multiply have them.

    before the first turn, also of a pipeline that does not go on where the one before ends: what rows of its tiles have is
    gathered; all wait for one another
    each turn:
      wait for tiles; begin both first products; begin to load what rows of the next turn's tiles have
      until the first of them is done; the work on it; until the second is done; the rest of the work
      spread what is held, store what was loaded for the next turn; say so
      begin total += held @ …
      wait until all have spread; begin across = spread @ resident; begin total_1 += held_1 @ …
      until the first two are done; say that the first one's tile is empty; add ``across`` to memory
      until the third is done; say that its tile is empty

Atomic additions go on while the last product does.  What is spread and gathered has two places, taken in turn: who has waited
for a turn's knows that all others are done with the turn before, so that no barrier says when a place is empty.  What is made of
a number that is loaded for the next turn is made where it is stored: before that nothing waits for the load.
"""

from collections.abc import Callable, Sequence

from lowc.backends.llvm.types import constant as constant_text
from lowc.backends.llvm.types import scalar
from lowc.backends.llvm.values import Val
from lowc.backends.nvptx import barriers, relay_seen
from lowc.backends.nvptx.barriers import SHARED
from lowc.backends.nvptx.begun import start_across, start_held, start_tiles, wait_for
from lowc.backends.nvptx.multiply import uniform
from lowc.backends.nvptx.relay import ALIGNMENT, WARP, RelayRing, line_room
from lowc.backends.nvptx.thread import Memory, Thread, Vals, plus
from lowc.ir.index import ZERO, constant, ix
from lowc.ir.nodes import Buffer, Const, Expr, For, Load, Op, Stmt, Store, Var
from lowc.ir.relays import Across, Spread, Turns
from lowc.ir.tiles import GROUP, SPAN
from lowc.ir.walk import Substitution, exprs, parts, rewrite, same, statements

LINE = 128  # bytes of a row of a tile
LOADED = "gathered.loaded"  # what a thread has loaded and has not stored


def multiply(ring: RelayRing, loop: For, thread: str, evaluate: Callable[[Expr], Vals]) -> None:
    """A pipeline whose turns have a product across."""
    b, t, found = ring.t.b, ring.t, ring.turns(loop)
    across = found.across
    assert across is not None
    first, shared, rows = ring.multipliers(thread)
    alone = b.pure(f"icmp eq i32 {b.pure(f'and i32 {thread}, {WARP - 1}')}, 0")
    place = {id(fill.tile): number for number, fill in enumerate(found.fills)}
    early, late = _parts(found)
    group = uniform(t, b.pure(f"lshr i32 {thread}, {GROUP.bit_length() - 1}"))
    end, bits = ring.count(loop)
    number = next(n for n, each in enumerate(ring.found.turns) if each is found)
    if number == 0 or not _continues(ring.found.turns[number - 1], found):
        t.axes[loop.axis.name] = 0 if found.seen is None else (relay_seen.told(ring, bits)[0], bits)
        half = ring.half.now()[0]
        _keep(ring, across, thread, half, _gathered(ring, across, thread, evaluate), evaluate)
        ring.meet()
    if number == 0:
        stage, phase = ring.turn.now()
        barriers.wait(t, ring.there(False), phase)
        ring.turn.advance(stage, phase)

    def turn(index: str, _: list[str]) -> Sequence[str]:
        work(index, "")
        return ()

    def work(index: str, further: str) -> None:
        """``further``: the number of the next turn, if that is not the next number."""
        t.axes[loop.axis.name] = (index, bits)
        stage, phase = ring.place.now()
        half, half_phase = ring.half.now()
        for buffer, at in _places(ring, across, half):
            t.memory[buffer.name] = Memory((at,), 3)
        starts = {tile: b.op(f"add i32 {shared}, {ring.offset(number, stage)}") for tile, number in place.items()}
        ring.emit(found.local)
        sums = [(t.memory[p.sums.name].pointers[0], p.columns // 2) for p in found.firsts]
        for product, made in zip(found.firsts, sums, strict=True):
            barriers.wait(t, ring.full(place[id(product.right)], stage), phase)
            start_tiles(t, product, plus(b, rows, str(ring.resident_at(product.left)), 32), starts[id(product.right)], made[0])
        t.axes[loop.axis.name] = (further or b.op(f"add nuw nsw i{bits} {index}, 1"), bits)
        following = _gathered(ring, across, thread, evaluate)
        t.axes[loop.axis.name] = (index, bits)
        wait_for(t, 1, sums[:1])
        ring.emit(early)
        wait_for(t, 0, sums[1:])
        ring.emit(late)
        at = _spread_at(ring, half)
        spread(t, across.spread, thread, at)
        _keep(ring, across, thread, b.op(f"xor i32 {half}, 1"), following, evaluate)
        _say(ring, alone, half)
        one, other = found.seconds
        start_held(t, one, starts[id(one.right)])
        barriers.wait(t, ring.spread(half), half_phase)
        made = t.memory[across.product.sums.name].pointers[0]
        columns = _start(ring, across, group, b.op(f"add i32 {shared}, {at}"), shared, made)
        start_held(t, other, starts[id(other.right)])
        totals = [(t.memory[p.sums.name].pointers[0], p.columns // 2) for p in found.seconds]
        wait_for(t, 1, [totals[0], (made, columns // 2)])
        ring.release(first, ring.empty(place[id(one.right)], stage))
        ring.emit([across.adds])
        wait_for(t, 0, totals[1:])
        ring.release(first, ring.empty(place[id(other.right)], stage))
        ring.place.advance(stage, phase)
        ring.half.advance(half, half_phase)

    if found.seen is None:
        b.loop("0", end, 1, [], turn, (t.range(loop.axis.extent)[0] or 0) >= 1, f"i{bits}")
    else:
        relay_seen.turns(ring, loop, first, work)
    if loop is ring.found.turns[-1].loop:
        ring.release(first, ring.there(True))
        # read anew: what is made of it for results would be in registers during all turns otherwise, or spilled
        t.tid["x"] = b.op('call i32 asm sideeffect "mov.u32 $0, %tid.x;", "=r"()')


def _parts(found: Turns) -> tuple[list[Stmt], list[Stmt]]:
    """The work up to what touches the sums of the second product, and the rest."""
    later = found.firsts[1].sums
    for number, stmt in enumerate(found.work):
        for inside in statements((stmt,)):
            touched = [p.buffer for e in exprs(inside) for p in parts(e) if isinstance(p, Load)]
            if later in (*touched, *([inside.buffer] if isinstance(inside, Store) else [])):
                return list(found.work[:number]), list(found.work[number:])
    return list(found.work), []


def _say(ring: RelayRing, alone: str, half: str) -> None:
    """One thread of each warp says that all of it have stored to shared memory, for tensor cores as well."""
    b, t = ring.t.b, ring.t
    b.module.declare("llvm.nvvm.fence.proxy.async.shared_cta", "void", "")
    b.line("call void @llvm.nvvm.fence.proxy.async.shared_cta()")
    b.module.declare("llvm.nvvm.bar.warp.sync", "void", "i32")
    b.line("call void @llvm.nvvm.bar.warp.sync(i32 -1)")

    def then() -> list[str]:
        barriers.arrive(t, ring.spread(half))
        return []

    b.branch(alone, [], then)


# ---------------------------------------------------------------- what is gathered


def _continues(before: Turns, after: Turns) -> bool:
    """Whether what the turn behind the last of one pipeline would gather is what the first turn of the next one does."""
    if before.across is None or after.across is None or before.seen is not None or after.seen is not None:
        return False
    for one, other in zip(before.across.gathers, after.across.gathers, strict=True):
        stores = [loop.body[0] for loop in (one, other)]
        end, start = {before.loop.axis: before.loop.axis.extent}, {after.loop.axis: ZERO, other.axis: ix(one.axis)}
        ends = Substitution({**end}), Substitution({**start})
        values = [there.expr(s.value) for there, s in zip(ends, stores, strict=True) if isinstance(s, Store)]
        if one.axis.extent != other.axis.extent or not same(values[0], values[1]):
            return False
    return True


def _gathered(ring: RelayRing, across: Across, thread: str, evaluate: Callable[[Expr], Vals]) -> list[Val]:
    """What this thread loads of what is gathered for the turn that the axis of the pipeline says."""
    b, t = ring.t.b, ring.t
    found: list[Val] = []
    for count, stores in _by_count(across):

        def values(stores: Sequence[Store] = stores) -> list[str]:
            return [evaluate(_loaded(s.value))[0].text for s in stores]

        for gather in across.gathers:
            t.axes[gather.axis.name] = (thread, 32)
        if count < ring.groups * GROUP:
            before = [(scalar(d), constant_text(0, d)) for d in (_loaded(s.value).dtype for s in stores)]
            texts = b.branch(b.pure(f"icmp slt i32 {thread}, {count}"), before, values)
        else:
            texts = values()
        found += [Val(text, _loaded(s.value).dtype) for text, s in zip(texts, stores, strict=True)]
    return found


def _by_count(across: Across) -> list[tuple[int, list[Store]]]:
    """How many threads gather, and what they store; neighbours of as many are together, so that there is one branch for them."""
    found: list[tuple[int, list[Store]]] = []
    for loop in across.gathers:
        store, count = loop.body[0], constant(loop.axis.extent) or 0
        assert isinstance(store, Store)
        if not found or found[-1][0] != count:
            found.append((count, []))
        found[-1][1].append(store)
    return found


def _loaded(value: Expr) -> Expr:
    """The part of ``value`` that all is made of, with numbers that are known alone."""
    loads = _loads(value)
    return loads[0] if loads and all(same(loads[0], p) for p in loads) else value


def _loads(value: Expr) -> list[Load]:
    """What ``value`` loads, if it is made of that and numbers; else nothing."""
    if not isinstance(value, Op):
        return [value] if isinstance(value, Load) else []
    parts_ = [_loads(a) for a in value.args if not isinstance(a, Const)]
    return [p for found in parts_ for p in found] if all(parts_) else []


def _places(ring: RelayRing, across: Across, half: str) -> list[tuple[Buffer, str]]:
    """Pointers to what is gathered, in one of two places."""
    b = ring.t.b
    at = plus(b, b.op(f"mul i32 {half}, {ring.gathered}"), str(ring.tiles - 2 * ring.gathered), 32)
    found: list[tuple[Buffer, str]] = []
    for buffer in across.gathered:
        found.append((buffer, b.op(f"getelementptr i8, ptr addrspace(3) {SHARED}, i32 {at}")))
        at = plus(b, at, str(line_room(buffer)), 32)
    return found


def _keep(
    ring: RelayRing, across: Across, thread: str, half: str, loaded: Sequence[Val], evaluate: Callable[[Expr], Vals]
) -> None:
    """Stores what is gathered, of which ``_gathered`` gave what is ``loaded``."""
    b, t = ring.t.b, ring.t
    places, left = _places(ring, across, half), list(loaded)
    for count, stores in _by_count(across):

        def store(stores: Sequence[Store] = stores) -> list[str]:
            for each in stores:
                part = _loaded(each.value)
                t.variables[LOADED] = (left.pop(0),)
                loads = [p for p in parts(each.value) if p is part or (isinstance(p, Load) and same(p, part))]
                made = rewrite(each.value, lambda e: e, {id(p): Var(LOADED, part.dtype) for p in loads})
                at = next(at for buffer, at in places if buffer is each.buffer)
                kind = scalar(each.buffer.dtype)
                place = b.op(f"getelementptr {kind}, ptr addrspace(3) {at}, i32 {thread}")
                value = evaluate(made)[0].text
                b.line(f"store {kind} {value}, ptr addrspace(3) {place}, align {each.buffer.dtype.bytes}")
            return []

        if count < ring.groups * GROUP:
            b.branch(b.pure(f"icmp slt i32 {thread}, {count}"), [], store)
        else:
            store()


# ---------------------------------------------------------------- what is spread


def _spread_at(ring: RelayRing, half: str) -> str:
    """How many bytes into shared memory the tile is that threads spread what they hold over."""
    b = ring.t.b
    size = (ring.tiles - ring.others) // 2 - ring.gathered
    assert size % ALIGNMENT == 0
    return plus(b, b.op(f"mul i32 {half}, {size}"), str(ring.others), 32)


def spread(t: Thread, found: Spread, thread: str, offset: str) -> None:
    """Each warp stores the 16 rows that its threads hold, 16 columns by an instruction, where tensor cores want them: 16-byte
    pieces of a row of 128 bytes are swizzled."""
    b = t.b
    high = constant(found.tile.shape[1]) or 0
    name = "llvm.nvvm.stmatrix.sync.aligned.m8n8.x4.b16.p3"
    b.module.declare(name, "void", "ptr addrspace(3), i32, i32, i32, i32")
    lane = b.pure(f"and i32 {thread}, {WARP - 1}")
    warp = b.pure(f"shl i32 {b.pure(f'lshr i32 {thread}, 5')}, 4")
    row = b.pure(f"add i32 {warp}, {b.pure(f'and i32 {lane}, 15')}")
    piece = b.pure(f"xor i32 {b.pure(f'lshr i32 {lane}, 4')}, {b.pure(f'and i32 {row}, 7')}")
    mine = b.pure(f"or i32 {b.pure(f'shl i32 {row}, 7')}, {b.pure(f'shl i32 {piece}, 4')}")
    start = b.op(f"add i32 {offset}, {mine}")
    held = t.memory[found.held.name].pointers[0]
    places: list[str] = []
    for number in range(SPAN // 16):  # xored last: no more than one number is in registers all along
        at = b.op(f"xor i32 {start}, {2 * number << 4}") if number else start
        places.append(b.op(f"getelementptr i8, ptr addrspace(3) {SHARED}, i32 {at}"))
    for number in range(found.count // 8):
        place = places[number % len(places)]
        if number >= len(places):
            place = b.op(f"getelementptr i8, ptr addrspace(3) {place}, i32 {number // len(places) * high * LINE}")
        words: list[str] = []
        for n in range(4 * number, 4 * number + 4):
            at = b.pure(f"getelementptr i32, ptr {held}, i64 {n}") if n else held
            words.append(f"i32 {b.op(f'load i32, ptr {at}')}")
        b.line(f"call void @{name}(ptr addrspace(3) {place}, {', '.join(words)})")


def _start(ring: RelayRing, across: Across, group: str, left: str, shared: str, sums: str) -> int:
    """Starts the product across of a ``group`` of threads; how many columns it has."""
    b, product = ring.t.b, across.product
    right = plus(b, shared, str(ring.resident_at(product.right)), 32)
    columns = product.columns // ring.groups if product.split else product.columns
    # 64 rows, or columns, side by side make a line of each step of the depth; the next 64 are behind all of it
    further = columns * LINE // SPAN if columns < SPAN else columns // SPAN * product.depth * LINE
    if product.split:
        right = b.op(f"add i32 {right}, {b.pure(f'mul i32 {group}, {further}')}")
    else:
        left = b.op(f"add i32 {left}, {b.pure(f'mul i32 {group}, {product.depth * LINE}')}")
    start_across(ring.t, product, columns, left, right, sums)
    return columns
