"""Kernels on tensor cores on the CPU: threads of this process, with barriers in shared memory, the engine that copies, and wgmma.

Everything asynchronous happens as late as it may: a copy once somebody waits for it (its tile is NaN until then), a store once
the thread that started it waits, a multiplication at the wait after the next one.  So what is read, written or released too early
shows.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lowc.artifact import Entry, TensorMap
from lowc.backends.llvm import toolchain
from lowc.ir.index import evaluate
from lowc.ir.nodes import Kernel
from lowc.ir.numeric import EIGHTHS
from lowc.ir.ops import OPS
from lowc.ir.types import DTYPES
from tests.backends.nvptx.fragment_simulator import Fragments, Meeting, functions, translated_fragments
from tests.backends.nvptx.relay_simulator import Moved, Products, started, steps

PATIENCE = 100.0  # seconds, on a machine that others use
NARROW = {
    "bf16": lambda raw: (raw.astype(np.uint32) << 16).view(np.float32),
    "f16": lambda raw: raw.view(np.float16).astype(np.float32),
    "tf32": lambda raw: (raw & np.uint32(0xFFFFE000)).view(np.float32),
    "e4m3": lambda raw: EIGHTHS["f8e4m3"][raw],
    "e5m2": lambda raw: EIGHTHS["f8e5m2"][raw],
}
BYTES = {"tf32": 4, "e4m3": 1, "e5m2": 1}
"""Of elements, where they are not two."""
ASM = re.compile(r'(%\w+) = call (\{[^}]*\}) asm sideeffect "([^"]*)", "[^"]*"\((.*)\) convergent nounwind')


def swizzled(offset: Any) -> Any:
    """Where a byte at ``offset`` lies: 16-byte pieces of a line of 128 bytes change places by the number of the line modulo 8."""
    return offset ^ ((offset >> 7 & 7) << 4)


class Barrier:
    """In shared memory: a phase ends when ``count`` have come and no bytes are missing; somebody waits for each but the last."""

    def __init__(self, count: int, lock: Any) -> None:
        self.count = self.missing = count
        self.phase = self.bytes = self.seen = 0
        self.copies: list[Any] = []
        self.changed = threading.Condition(lock)

    def step(self) -> None:
        """Wakes those who wait, where a phase has ended and where one can by copies."""
        if self.missing == 0 and self.bytes == 0:
            assert self.seen == self.phase, "nobody has waited for the phase before"
            self.phase, self.missing = self.phase + 1, self.count
            self.changed.notify_all()
        elif self.missing == 0 and self.copies:
            self.changed.notify_all()


class Snapshot:
    """Shared memory when the first thread of a group waited for a product; what has been multiplied of it, once for all 128."""

    def __init__(self, shared: Any) -> None:
        self.shared, self.missing, self.lock = shared, 128, threading.Lock()
        self.made: dict[Any, Any] = {}

    def once(self, key: Any, made: Callable[[], Any]) -> Any:
        with self.lock:
            if key not in self.made:
                self.made[key] = made()
            return self.made[key]


class Named:
    """A barrier by number: who waits goes on when as many have come as should."""

    def __init__(self, lock: Any) -> None:
        self.come = self.turn = 0
        self.changed = threading.Condition(lock)


class Machine(Products, Fragments):
    """What the threads of a block share."""

    barriers: dict[int, Barrier]
    snapshots: dict[tuple[int, int], Snapshot]
    sizes: Mapping[str, int]
    params: list[Any]

    def __init__(self, threads: int, maps: tuple[TensorMap, ...], texts: list[str]) -> None:
        self.threads, self.maps, self.texts = threads, maps, texts
        self.local = threading.local()
        self.lock = threading.RLock()
        self.named: dict[int, Named] = {}
        self.groups = [threading.Barrier(128) for _ in range(threads // 128)]
        self.meetings = [Meeting() for _ in range(threads // 32)]
        self.number = 0
        self.failed: list[BaseException] = []

    def begin(self, number: int) -> None:
        self.number, self.barriers, self.named, self.snapshots, self.held_words = number, {}, {}, {}, {}
        self.entered = False

    def found(self, base: int, size: int) -> None:
        """Where shared memory is; whoever comes first finds NaN in all of it."""
        with self.lock:
            if not self.entered:
                self.entered, self.base = True, base
                self.shared = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(base))
                self.shared[:] = 0xFF

    def wait_for(self, changed: threading.Condition, holds: Any) -> None:
        if not changed.wait_for(lambda: holds() or self.failed, PATIENCE):
            raise TimeoutError("a thread waits for ever")

    def stop(self, problem: BaseException) -> None:
        """Lets no thread wait any more."""
        self.failed.append(problem)
        for barrier in self.groups:
            barrier.abort()
        with self.lock:
            for waited in (*self.named.values(), *self.barriers.values()):
                waited.changed.notify_all()

    # barriers

    def meet(self, number: int, count: int, waits: bool) -> None:
        with self.lock:
            state = self.named.setdefault(number, Named(self.lock))
            state.come += 1
            turn = state.turn
            if state.come == count:
                state.come, state.turn = 0, turn + 1
                state.changed.notify_all()
            elif waits:
                self.wait_for(state.changed, lambda: state.turn != turn)

    def shuffle(self, value: int, source: int) -> int:
        return self.together((value, source), lambda given: [given[of][0] for _, of in given])

    def meet_warp(self) -> None:
        self.together(None, list)

    def scatter(self, at: int, *words: int) -> None:
        """``stmatrix``: 8 lanes each say where the rows of a matrix of 8 x 8 are; a lane has two neighbours of each of four."""
        lane = self.local.thread % 32
        rows = self.together(at, lambda given: [list(given)] * 32)
        for n, word in enumerate(words):
            place = rows[8 * n + lane // 4] + lane % 4 * 4 - self.base
            self.shared[place : place + 4] = np.frombuffer((word & 0xFFFFFFFF).to_bytes(4, "little"), np.uint8)
        self.meet_warp()

    def add(self, at: int, *values: float) -> None:
        assert at % 16 == 0
        with self.lock:
            np.ctypeslib.as_array((ctypes.c_float * 4).from_address(at))[:] += np.array(values, np.float32)

    def swap(self, value: float, other: int) -> float:
        """Of the lane whose number differs in ``other``."""
        raw = int(np.float32(value).view(np.int32))
        found = self.shuffle(raw, self.local.thread % 32 ^ other)
        return float(np.array([found], np.int64).astype(np.int32).view(np.float32)[0])

    def narrow(self, kind: str, raw: Any) -> Any:
        return NARROW[kind](raw)

    def init(self, at: int, count: int) -> None:
        self.barriers[at] = Barrier(count, self.lock)

    def arrive(self, at: int, size: int) -> int:
        with self.lock:
            barrier = self.barriers[at]
            barrier.bytes += size
            barrier.missing -= 1
            assert barrier.missing >= 0, "more have come than should"
            barrier.step()
        return 0

    def try_wait(self, at: int, parity: int) -> bool:
        with self.lock:
            barrier = self.barriers[at]
            if barrier.phase & 1 == parity:
                if barrier.missing == 0 and barrier.copies:
                    for copy in barrier.copies:
                        barrier.bytes -= copy()
                    barrier.copies = []
                    barrier.step()
                else:
                    barrier.changed.wait(1.0)
            if barrier.phase & 1 == parity:
                return False
            barrier.seen = barrier.phase
            return True

    # copies

    def places(self, number: int, starts: tuple[int, ...]) -> tuple[Any, Any, Any]:
        """Of a box: the tensor's elements, where each of the box's is among them, and whether it is inside."""
        map_, sizes = self.maps[number], self.sizes
        width = 4 if map_.dtype == "tf32" else DTYPES[map_.dtype].bytes
        if map_.lower:
            return self.seen_places(map_, width, starts)
        grid = np.meshgrid(*[np.arange(n) + s for n, s in zip(reversed(map_.box), reversed(starts), strict=True)], indexing="ij")
        extents = [evaluate(n, sizes) for n in map_.sizes]
        strides = [width, *(evaluate(n, sizes) for n in map_.strides)]
        assert all(s % 16 == 0 for s in strides[1:])
        inside = np.ones(grid[0].shape, bool)
        place = np.full(grid[0].shape, evaluate(map_.offset, sizes))
        for coordinate, extent, stride in zip(reversed(grid), extents, strides, strict=True):
            inside &= (coordinate >= 0) & (coordinate < extent)
            place = place + coordinate * stride
        return self.params[map_.param], np.where(inside, place, 0).ravel() // width, inside.ravel()

    def seen_places(self, map_: TensorMap, width: int, starts: tuple[int, ...]) -> tuple[Any, Any, Any]:
        """The same of places, which go on in the next row, and the next image, where one ends (im2col mode)."""
        rank = len(map_.sizes)
        first, taps = starts[:rank], starts[rank:]
        extents = [evaluate(n, self.sizes) for n in map_.sizes]
        strides = [width, *(evaluate(n, self.sizes) for n in map_.strides)]
        assert all(s % 16 == 0 for s in strides[1:])
        at, places = list(first[1:]), []
        for _ in range(map_.box[1]):
            places.append(tuple(at))
            for d, (low, high, step) in enumerate(zip(map_.lower, map_.upper, map_.steps, strict=True)):
                assert low <= at[d] <= extents[1 + d] - 1 + high
                at[d] += step
                if at[d] <= extents[1 + d] - 1 + high:
                    break
                at[d] = low
            else:
                at[-1] += 1
        seen = np.array(places)
        seen[:, :-1] += np.array(taps)
        channel = first[0] + np.arange(map_.box[0])
        inside = (seen >= 0).all(1) & (seen < np.array(extents[1:])).all(1)
        where = evaluate(map_.offset, self.sizes) + seen @ np.array(strides[1:])
        place = where[:, None] + channel * width
        inside = inside[:, None] & (channel < extents[0])
        return self.params[map_.param], np.where(inside, place, 0).ravel() // width, inside.ravel()

    def lines(self, at: int, count: int, width: int) -> Any:
        """Bytes of shared memory of ``count`` elements of a box at ``at``."""
        return swizzled(at - self.base + np.arange(count * width)).reshape(count, width)

    def load(self, number: int, to: int, at: int, *starts: int) -> None:
        data, place, inside = self.places(number, starts)
        lines = self.lines(to, len(place), data.itemsize)
        self.shared[lines] = 0xFF  # NaN

        def copy() -> int:
            values = np.where(inside, data.view(f"u{data.itemsize}")[place], 0).astype(f"u{data.itemsize}")
            if self.maps[number].dtype == "tf32":
                values = OPS["tf32"].numpy(values.view(np.float32)).view(np.uint32)
            self.shared[lines] = values.view(np.uint8).reshape(lines.shape)
            return lines.size

        with self.lock:
            barrier = self.barriers[at]
            barrier.copies.append(copy)
            if barrier.missing == 0:
                barrier.changed.notify_all()

    def store(self, number: int, source: int, *starts: int) -> None:
        data, place, inside = self.places(number, starts)
        lines = self.lines(source, len(place), data.itemsize)

        def copy() -> None:
            values = np.ascontiguousarray(self.shared[lines]).view(f"u{data.itemsize}").ravel()
            data.view(f"u{data.itemsize}")[place[inside]] = values[inside]

        self.local.stores.append(copy)

    def commit(self) -> None:
        self.local.groups.append(self.local.stores)
        self.local.stores = []

    def drained(self, pending: int) -> None:
        while len(self.local.groups) > pending:
            for copy in self.local.groups.pop(0):
                copy()

    # products

    def multiply(self, number: int, sums: int, a: int, b: int, adds: int) -> None:
        self.groups[self.local.thread // 128].wait(PATIENCE)  # none of its warps multiplies without the others
        self.finish(number, sums)
        self.local.pending = (number, a, b, adds)

    def seen(self) -> Snapshot:
        """Shared memory as a group of 128 threads multiplies it: at once for all, when the first of them waits for it."""
        key = (self.local.thread // 128, self.local.steps)
        self.local.steps += 1
        with self.lock:
            if key not in self.snapshots:
                self.snapshots[key] = Snapshot(self.shared.copy())
            found = self.snapshots[key]
            found.missing -= 1
            if not found.missing:
                del self.snapshots[key]
        return found

    def finish(self, number: int, sums: int) -> None:
        if self.local.pending is None:
            return
        number, a, b, adds = self.local.pending
        self.local.pending = None
        (count,) = map(int, re.findall(r"mov\.b64 b, \$(\d+);", self.texts[number]))
        self.carry_out(self.texts[number], np.ctypeslib.as_array((ctypes.c_float * (count // 2)).from_address(sums)), a, b, adds)

    def multiply_at_once(self, number: int, sums: int, count: int, a: int, b: int) -> None:
        """A piece of assembly that sets ``count`` sums and waits for that."""
        self.groups[self.local.thread // 128].wait(PATIENCE)
        self.carry_out(self.texts[number], np.ctypeslib.as_array((ctypes.c_float * count).from_address(sums)), a, b, 0)

    def carry_out(self, text: str, out: Any, a: int, b: int, adds: int) -> None:
        seen = self.seen()
        held = {"$a": a, "$b": b}
        for step in steps(text):
            if isinstance(step, Moved):
                held[step.to] = held[step.of] + step.by
                continue
            across_a, across_b = step.across or (0, 0)
            mine = self.part(seen, held[step.left], held[step.right], across_a, across_b, step.kinds, 2 * step.count)
            assert not np.isnan(mine).any(), "what has not come is multiplied"  # no test of these has NaN among its data
            place = slice(step.first, step.first + step.count)
            out[place] = mine + (out[place] if step.keeps or adds else 0)

    def part(self, seen: Snapshot, a: int, b: int, across_a: int, across_b: int, kinds: Sequence[str], columns: int) -> Any:
        """A thread's sums of 64 x ``columns``, 32 bytes deep."""
        t = self.local.thread % 128

        def whole() -> Any:
            k = np.arange(32 // BYTES.get(kinds[0], 2))
            left = self.elements(seen.shared, a, np.arange(64), k, across_a, kinds[0])
            return left @ self.elements(seen.shared, b, np.arange(columns), k, across_b, kinds[1]).T

        sums = seen.once((a, b, across_a, across_b, *kinds, columns), whole)
        rows = t // 32 * 16 + t % 32 // 4 + np.array([0, 8])
        return sums.reshape(64, columns // 8, 4, 2)[rows, :, t % 4].transpose(1, 0, 2).ravel()

    def elements(self, shared: Any, descriptor: int, across: Any, k: Any, sideways: int, kind: str) -> Any:
        at, leading, unit = ((descriptor >> n & 0x3FFF) << 4 for n in (0, 16, 32))
        assert descriptor >> 62 & 3 == 1
        at = (at - self.base) % (1 << 18)
        p, d = across[:, None], k[None, :]
        if sideways:
            place = at + p // 64 * leading + d // 8 * unit + d % 8 * 128 + p % 64 * 2
        else:
            place = at + p // 8 * unit + p % 8 * 128 + d * BYTES.get(kind, 2)
        place = swizzled(place)
        if kind in ("e4m3", "e5m2"):
            return NARROW[kind](shared[place])
        if kind == "tf32":
            return NARROW[kind](sum(shared[place + n].astype(np.uint32) << 8 * n for n in range(4)))
        raw = shared[place].astype(np.uint16) | shared[place + 1].astype(np.uint16) << 8
        return NARROW[kind](raw)


def unpacked(name: str, type_: str) -> list[str]:
    """LLVM lines that make ``name`` the struct of what is in memory at ``name``.p0 and on."""
    lines: list[str] = []
    before, count = "undef", type_.count("float")
    for n in range(count):
        after = name if n == count - 1 else f"{name}.r{n}"
        lines.append(f"{name}.l{n} = load float, ptr {name}.p{n}")
        lines.append(f"{after} = insertvalue {type_} {before}, float {name}.l{n}, {n}")
        before = after
    return lines


def translated(text: str, shared: int) -> tuple[str, list[str]]:
    """The module for the CPU, and the assembly of each multiplication."""
    texts: list[str] = []

    def through(found: "re.Match[str]") -> str:
        name, type_, asm, given = found.groups()
        if apart:
            lines = started(name, type_, asm, given.split(", "), len(texts))
            texts.append(asm)
            return "\n  ".join(lines + unpacked(name, type_))
        count, args = type_.count("float"), given.split(", ")
        lines = [f"{name}.a = alloca [{count} x float]"]
        if "mma_async" in asm and "wait_group.sync.aligned 0" in asm:
            lines += [f"{name}.p{n} = getelementptr float, ptr {name}.a, i64 {n}" for n in range(count)]
            lines.append(f"call void @sim_at_once(i32 {len(texts)}, ptr {name}.a, i32 {count}, {', '.join(args)})")
            texts.append(asm)
            return "\n  ".join(lines + unpacked(name, type_))
        for n, value in enumerate(args[:count]):
            lines += [f"{name}.p{n} = getelementptr float, ptr {name}.a, i64 {n}", f"store {value}, ptr {name}.p{n}"]
        rest = args[count:]
        if rest:
            rest += ["i32 1"] if len(rest) == 2 else []
            lines.append(f"call void @sim_multiply(i32 {len(texts)}, ptr {name}.a, {', '.join(rest)})")
        else:
            lines.append(f"call void @sim_finish(i32 {len(texts)}, ptr {name}.a)")
        texts.append(asm)
        return "\n  ".join(lines + unpacked(name, type_))

    apart = any("mma_async" in m[3] and "wait_group" not in m[3] for m in ASM.finditer(text))
    text = ASM.sub(through, text)
    text = translated_fragments(text)
    text = re.sub(r'call i32 asm "mov\.b32 \$0, (\d+);", "=r"\(\)', r"add i32 \1, 0", text)
    text = text.replace('call i32 asm sideeffect "mov.u32 $0, %tid.x;", "=r"()', "call i32 @sim_tid()")
    text = re.sub(r'call void asm sideeffect "red\.[\w.]+\.add\.v4\.f32 [^"]*", "[^"]*"\(', "call void @sim_add(", text)
    text = re.sub(r"addrspacecast ptr addrspace\(3\) (%\S+) to ptr addrspace\(7\)", r"getelementptr i8, ptr \1, i32 0", text)
    text = re.sub(r" addrspace\([137]\)", "", text).replace("ptx_kernel ", "")
    text = re.sub(r' byval\(\[128 x i8\]\) align 64 "nvvm.grid_constant"', "", text)
    text = re.sub(r'"nvvm\.\w+"="[^"]*" ', "", text)
    text = re.sub(r"call range\([^)]*\) ", "call ", text)
    text = text.replace("@lowc_shared = external global [0 x i8]", f"@lowc_shared = internal global [{shared} x i8] undef")
    text = text.replace("entry:\n", f"entry:\n  call void @sim_found(ptr @lowc_shared, i32 {shared})\n", 1)
    names = {
        "read.ptx.sreg.tid.x": "tid",
        "read.ptx.sreg.ctaid.x": "block",
        "shfl.sync.idx.i32": "shuffle",
        "shfl.sync.bfly.f32": "swap",
        "read.ptx.sreg.lanemask.le": "up_to",
        "read.ptx.sreg.lanemask.lt": "before",
        "ex2.approx.ftz.f": "ex2",
        "rcp.approx.ftz.f": "rcp",
        "barrier.cta.sync.aligned.count": "sync",
        "barrier.cta.arrive.aligned.count": "come",
        "barrier.cta.sync.aligned.all": "all",
        "mbarrier.init.shared": "init",
        "mbarrier.try.wait.parity.scope.cta.space.cta": "try",
        "mbarrier.arrive.expect.tx.scope.cta.space.cta": "arrive",
        "mbarrier.arrive.scope.cta.space.cta": "release",
        "cp.async.bulk.commit.group": "commit",
        "cp.async.bulk.wait.group.read": "drained",
        "cp.async.bulk.wait.group": "drained",
        "fence.proxy.async.shared_cta": "fence",
        "fence.mbarrier_init.release.cluster": "fence",
        "bar.warp.sync": "warp",
        "stmatrix.sync.aligned.m8n8.x4.b16.p3": "scatter",
        "setmaxnreg.dec.sync.aligned.u32": "registers",
        "setmaxnreg.inc.sync.aligned.u32": "registers",
    }
    for name, short in names.items():
        text = re.sub(rf"@llvm\.nvvm\.{re.escape(name)}\(", f"@sim_{short}(", text)
    text = re.sub(r"@llvm\.nvvm\.cp\.async\.bulk\.tensor\.(g2s|s2g)\.tile\.(\d)d\(", r"@sim_\1_\2(", text)
    text = re.sub(r"@llvm\.nvvm\.cp\.async\.bulk\.tensor\.g2s\.im2col\.(\d)d\(", r"@sim_places_\1(", text)
    declared: list[str] = []
    for line in text.splitlines():
        if not (line.startswith("declare") and line in declared):
            declared.append(line)
    extra = "declare void @sim_found(ptr, i32)\ndeclare void @sim_multiply(i32, ptr, i64, i64, i32)\n"
    extra += "declare void @sim_add(ptr, float, float, float, float)\n"
    extra += "declare void @sim_finish(i32, ptr)\ndeclare void @sim_wait(i32, ptr, i32)\n"
    extra += "declare void @sim_at_once(i32, ptr, i32, i64, i64)\n"
    extra += "declare void @sim_start(i32, ptr, i32, ptr, i32, i64, i64)\n"
    return extra + "\n".join(declared), texts


def simulate(text: str, kernel: Kernel, entry: Entry, memory: dict[str, Any], sizes: Mapping[str, int]) -> None:
    """Runs ``kernel`` over ``memory``; raises what a thread raises."""
    import llvmlite.binding as llvm

    code, texts = translated(text, entry.shared)
    threads = entry.threads[0]
    m = Machine(threads, entry.maps, texts)
    m.sizes, m.params = sizes, [memory[p.name] for p in kernel.params]
    word, wide, place, number = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float

    def guarded(function: Any, otherwise: Any = None) -> Any:
        def call(*args: Any) -> Any:
            try:
                if m.failed:
                    raise SystemExit
                return function(*args)
            except BaseException as problem:
                m.stop(problem)
                return otherwise

        return call

    def made(result: Any, args: list[Any], function: Any, otherwise: Any = None) -> Any:
        return ctypes.CFUNCTYPE(result, *args)(guarded(function, otherwise))

    imported: dict[str, Any] = {
        "sim_found": made(None, [place, word], m.found),
        "sim_tid": made(word, [], lambda: m.local.thread, 0),
        "sim_block": made(word, [], lambda: m.number, 0),
        "sim_shuffle": made(word, [word] * 4, lambda mask, value, source, clamp: m.shuffle(value, source), 0),
        "sim_swap": made(number, [word, number, word, word], lambda mask, value, other, clamp: m.swap(value, other), 0.0),
        "sim_up_to": made(word, [], lambda: -1 if m.local.thread % 32 == 31 else (2 << m.local.thread % 32) - 1, 0),
        "sim_before": made(word, [], lambda: (1 << m.local.thread % 32) - 1, 0),
        "sim_rcp": made(number, [number], lambda x: float(np.float32(1) / np.float32(x)), 0.0),
        "sim_ex2": made(number, [number], lambda x: float(np.exp2(np.float32(x))), 0.0),
        "sim_start": made(None, [word, place, word, place, word, wide, wide], m.start),
        "sim_wait": made(None, [word, place, word], m.wait),
        "sim_init": made(None, [place, word], m.init),
        "sim_sync": made(None, [word, word], lambda n, count: m.meet(n, count, True)),
        "sim_come": made(None, [word, word], lambda n, count: m.meet(n, count, False)),
        "sim_all": made(None, [word], lambda n: m.meet(-1, threads, True)),
        "sim_try": made(ctypes.c_bool, [place, word], m.try_wait, True),
        "sim_arrive": made(wide, [place, word], m.arrive, 0),
        "sim_release": made(wide, [place, word], lambda at, count: m.arrive(at, 0), 0),
        "sim_commit": made(None, [], m.commit),
        "sim_drained": made(None, [word], m.drained),
        "sim_fence": made(None, [], lambda: None),
        "sim_warp": made(None, [word], lambda mask: m.meet_warp()),
        "sim_scatter": made(None, [place, *[word] * 4], m.scatter),
        "sim_add": made(None, [place, *[number] * 4], m.add),
        "sim_registers": made(None, [word], lambda n: None),
        "sim_multiply": made(None, [word, place, wide, wide, word], m.multiply),
        "sim_at_once": made(None, [word, place, word, wide, wide], m.multiply_at_once),
        "sim_finish": made(None, [word, place], m.finish),
    }
    imported |= functions(m, made)
    for rank in range(2, 6):
        last = [ctypes.c_int16, wide, ctypes.c_bool, ctypes.c_bool, word]
        imported[f"sim_g2s_{rank}"] = made(
            None, [place, place, place, *[word] * rank, *last],
            lambda to, at, map_, *rest, rank=rank: m.load((map_ or 0) - 1, to, at, *rest[:rank]),
        )  # fmt: skip
        seen = [*[word] * rank, *[ctypes.c_int16] * (rank - 2)]
        imported[f"sim_places_{rank}"] = made(
            None, [place, place, place, *seen, *last],
            lambda to, at, map_, *rest, rank=rank: m.load((map_ or 0) - 1, to, at, *rest[: 2 * rank - 2]),
        )  # fmt: skip
        imported[f"sim_s2g_{rank}"] = made(
            None, [place, place, *[word] * rank, wide, ctypes.c_bool],
            lambda source, map_, *rest, rank=rank: m.store((map_ or 0) - 1, source, *rest[:rank]),
        )  # fmt: skip
    imports = {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in imported.items()}
    features = ",".join(f"+{f}" for f, on in llvm.get_host_cpu_features().items() if on)
    library = toolchain.Library(toolchain.emit_object(code, llvm.get_host_cpu_name(), features, 1), (entry.symbol,), imports)
    error = ctypes.c_int64(0)
    args = [a.ctypes.data for a in m.params] + [sizes[s.name] for s in kernel.sizes] + [ctypes.addressof(error), 5]
    args += [n + 1 for n in range(len(entry.maps))]
    function = ctypes.CFUNCTYPE(None, *[wide] * len(args))(library.address(entry.symbol))

    def thread(number: int) -> None:
        m.local.copies, m.local.copy_groups = [], []
        m.local.queue, m.local.done, m.local.begun = [], {}, 0
        m.local.thread, m.local.stores, m.local.groups, m.local.pending, m.local.steps = number, [], [], None, 0
        function(*args)

    before = threading.stack_size(512 << 10)
    for block in range(int(evaluate(entry.grid, sizes))):
        m.begin(block)
        workers = [threading.Thread(target=thread, args=(n,), daemon=True) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
        if m.failed:
            break
    threading.stack_size(before)
    real = [f for f in m.failed if not isinstance(f, SystemExit | threading.BrokenBarrierError)]
    if real:
        raise real[0]
