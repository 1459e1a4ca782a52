"""Accumulators combined across threads: by shuffles within a warp, then by one exchange in shared memory between warps.

The threads of a block are numbered y * T_x + x; a thread's number has bits of x below those of y.  To combine over a dimension
is to combine over its bits: bit 0 to 4 by a shuffle (xor), the rest through memory.  The order is the same in every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.reduce import combine
from lowc.backends.llvm.types import memory as memory_type
from lowc.backends.llvm.values import Val, bits
from lowc.backends.nvptx.operations import apply
from lowc.backends.nvptx.thread import Thread, plus
from lowc.ir.types import f32, i64

WARP = 5  # bits of a lane's number
FRESH = 1 << 10  # bytes of an exchange that gets memory of its own …
FRESH_TOTAL = 8 << 10  # … until so much is gone
CHUNK = 16 << 10  # bytes that are exchanged at a time
Item = tuple[str, list[Val]]
"""A reducer, and an accumulator (a pair for argmax, argmin)."""


@dataclass(slots=True)
class Exchange:
    """Shared memory for exchanges.  Memory that was used before needs a barrier before it is written again."""

    b: Builder
    prefix: str
    used: int = 0
    count: int = 0
    common: str = ""

    def place(self, size: int) -> tuple[str, bool]:
        """Memory of ``size`` bytes, and whether it may still be read from before."""
        if size <= FRESH and self.used + size <= FRESH_TOTAL:
            self.used += size
            self.count += 1
            return self._make(f'@"{self.prefix}.{self.count}"', size), False
        fresh = not self.common
        self.common = self._make(f'@"{self.prefix}.0"', CHUNK)
        return self.common, not fresh

    def _make(self, name: str, size: int) -> str:
        self.b.module.globals[name] = f"{name} = internal addrspace(3) global [{size} x i8] undef, align 16"
        return name


def barrier(t: Thread) -> None:
    """All threads of the kernel, or of a team, wait for one another; who fills a ring is none of them."""
    if t.beside:
        t.b.module.declare("llvm.nvvm.barrier.cta.sync.aligned.count", "void", "i32, i32")
        count = t.threads["x"] * t.threads["y"]
        number = plus(t.b, t.team, "1", 32)
        t.b.line(f"call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {number}, i32 {count})")
        return
    t.b.module.declare("llvm.nvvm.barrier.cta.sync.aligned.all", "void", "i32")
    t.b.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")


def across(t: Thread, items: list[Item], over: frozenset[str], exchange: Exchange, again: bool) -> list[Item]:
    """Every accumulator combined over the threads of the dimensions ``over``, the result in each of them.  ``again``: control
    may come here more than once."""
    x, y = (t.threads[d].bit_length() - 1 for d in "xy")
    numbers = [n for n in range(x + y) if ("x" if n < x else "y") in over]
    for n in numbers:
        if n < WARP:
            items = [(r, merge(t, r, v, [shuffled(t, a, 1 << n) for a in v])) for r, v in items]
    high = [n - WARP for n in numbers if n >= WARP]
    if not high:
        return items
    lanes = 1 if "x" in over else 1 << min(x, WARP)  # that hold different accumulators
    slots = lanes << (x + y - WARP)
    out: list[Item] = []
    for chunk in _chunks(items, slots):
        out += _through_memory(t, chunk, numbers, high, lanes, slots, exchange, again)
    return out


def _chunks(items: list[Item], slots: int) -> list[list[Item]]:
    chunks: list[list[Item]] = [[]]
    used = 0
    for item in items:
        size = sum(-(-slots * _bytes(v) // 8) * 8 for v in item[1])
        if chunks[-1] and used + size > CHUNK:
            chunks.append([])
            used = 0
        chunks[-1].append(item)
        used += size
    return chunks


def _bytes(v: Val) -> int:
    return max(4, v.dtype.bytes)


def _through_memory(
    t: Thread,
    items: list[Item],
    numbers: Sequence[int],
    high: Sequence[int],
    lanes: int,
    slots: int,
    exchange: Exchange,
    again: bool,
) -> list[Item]:
    b = t.b
    memory, used = exchange.place(sum(-(-slots * _bytes(v) // 8) * 8 for _, vs in items for v in vs))
    if used or again:
        barrier(t)
    thread = linear(t)
    lane, warp = b.pure(f"and i32 {thread}, 31"), b.pure(f"lshr i32 {thread}, {WARP}")
    within = b.pure(f"and i32 {lane}, {lanes - 1}") if lanes > 1 else "0"

    def slot(number: str) -> str:
        scaled = b.pure(f"mul i32 {number}, {lanes}") if lanes > 1 else number
        return plus(b, scaled, within, 32)

    starts: list[list[str]] = []
    offset = 0
    for _, values in items:
        starts.append([])
        for v in values:
            starts[-1].append(b.pure(f"getelementptr i8, ptr addrspace(3) {memory}, i32 {offset}"))
            offset += -(-slots * _bytes(v) // 8) * 8

    def write() -> list[str]:
        for (_, values), places in zip(items, starts, strict=True):
            for v, start in zip(values, places, strict=True):
                element = memory_type(v.dtype)
                text = b.pure(f"zext i1 {v.text} to i8") if v.dtype.kind == "b" else v.text
                place = b.pure(f"getelementptr {element}, ptr addrspace(3) {start}, i32 {slot(warp)}")
                b.line(f"store {element} {text}, ptr addrspace(3) {place}, align {v.dtype.bytes}")
        return []

    def read(number: str) -> list[list[Val]]:
        out: list[list[Val]] = []
        for (_, values), places in zip(items, starts, strict=True):
            out.append([])
            for v, start in zip(values, places, strict=True):
                element = memory_type(v.dtype)
                place = b.pure(f"getelementptr {element}, ptr addrspace(3) {start}, i32 {slot(number)}")
                text = b.op(f"load {element}, ptr addrspace(3) {place}, align {v.dtype.bytes}")
                text = b.pure(f"icmp ne i8 {text}, 0") if v.dtype.kind == "b" else text
                out[-1].append(Val(text, v.dtype))
        return out

    same = sum(1 << n for n in numbers if n < WARP)  # bits of the lanes that hold the same
    if same:
        first = b.pure(f"icmp eq i32 {b.pure(f'and i32 {lane}, {same}')}, 0")
        b.branch(first, [], write)
    else:
        write()
    barrier(t)
    shift = high[0]
    base = b.pure(f"and i32 {warp}, {~sum(1 << n for n in high)}")
    count = 1 << len(high)
    if lanes == 1:
        # each lane takes one warp's, and the lanes are combined
        number = b.pure(f"and i32 {lane}, {count - 1}")
        held = read(plus(b, base, b.pure(f"shl i32 {number}, {shift}"), 32))
        for n in range(len(high)):
            held = [
                merge(t, r, v, [shuffled(t, a, 1 << n) for a in v])
                for (r, _), v in zip(items, held, strict=True)
            ]
    else:
        held = read(base)

        def more(number: str, texts: list[str]) -> list[str]:
            rest = iter(texts)
            old = [[Val(next(rest), v.dtype) for v in vs] for vs in held]
            place = b.pure(f"shl i32 {number}, {shift}") if shift else number
            new = read(plus(b, base, place, 32))
            merged = [merge(t, r, v, m) for (r, _), v, m in zip(items, old, new, strict=True)]
            return [v.text for vs in merged for v in vs]

        # a loop in the code: with all of it laid out, the loads would want more registers than there are
        texts = iter(
            b.loop("1", str(count), 1, [(v.type, v.text) for vs in held for v in vs], more, True, "i32")
        )
        held = [[Val(next(texts), v.dtype) for v in vs] for vs in held]
    return [(r, v) for (r, _), v in zip(items, held, strict=True)]


def merge(t: Thread, reducer: str, a: list[Val], c: list[Val]) -> list[Val]:
    """Two accumulators as one."""
    return combine(t.b, reducer, a, c, lambda name, x, y: apply(t.b, name, [x, y], x.dtype, t.ops))


def linear(t: Thread) -> str:
    """The thread's number in its block."""
    if t.threads["y"] == 1:
        return t.tid["x"]
    if t.threads["x"] == 1:
        return t.tid["y"]
    return plus(t.b, t.b.pure(f"mul i32 {t.tid['y']}, {t.threads['x']}"), t.tid["x"], 32)


def shuffled(t: Thread, v: Val, lane: int | str, mode: str = "bfly") -> Val:
    """The value of another lane of the warp: the one whose number differs in one bit (bfly), the one ``lane`` below (up; where
    there is none, the thread's own), or number ``lane`` (idx)."""
    b = t.b
    if v.dtype == f32:
        return Val(_shuffle(t, "f32", "float", v.text, lane, mode), f32)
    word = bits(b, v, i64) if v.dtype.name == "f64" else v
    if v.dtype.bits == 64:
        low = _shuffle(t, "i32", "i32", b.pure(f"trunc i64 {word.text} to i32"), lane, mode)
        above = b.pure(f"lshr i64 {word.text}, 32")
        high = _shuffle(t, "i32", "i32", b.pure(f"trunc i64 {above} to i32"), lane, mode)
        upper = b.pure(f"shl i64 {b.pure(f'zext i32 {high} to i64')}, 32")
        whole = b.pure(f"or i64 {upper}, {b.pure(f'zext i32 {low} to i64')}")
        return bits(b, Val(whole, i64), v.dtype)
    if v.dtype.bits == 32:
        return Val(_shuffle(t, "i32", "i32", v.text, lane, mode), v.dtype)
    wide = b.pure(f"zext {v.type} {v.text} to i32")
    return Val(b.pure(f"trunc i32 {_shuffle(t, 'i32', 'i32', wide, lane, mode)} to {v.type}"), v.dtype)


def _shuffle(t: Thread, name: str, type_: str, text: str, lane: int | str, mode: str) -> str:
    function = f"llvm.nvvm.shfl.sync.{mode}.{name}"
    t.b.module.declare(function, type_, f"i32, {type_}, i32, i32")
    total = t.threads["x"] * t.threads["y"]
    members = -1 if total >= 32 else (1 << total) - 1
    last = 0 if mode == "up" else 31
    return t.b.op(f"call {type_} @{function}(i32 {members}, {type_} {text}, i32 {lane}, i32 {last})")
