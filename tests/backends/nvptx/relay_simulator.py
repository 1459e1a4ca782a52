"""Products that are begun and waited for in pieces of assembly of their own (``backends/nvptx/relay.py``), on the CPU.

A product that is begun gives NaN with its number in each of its sums; the wait by which it is done puts the sums in their place.
So whoever reads them between has NaN, and a sum that does not go through the wait stays one.
"""

import ctypes
import functools
import re
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

MARK = 0x7FC00000  # of a NaN: then 13 bits that number the product, 9 bits the sum
MOST = 1 << 13


class Products:
    """What threads have begun; part of the simulator's Machine."""

    local: threading.local
    groups: list[threading.Barrier]
    texts: list[str]
    held_words: dict[tuple[int, int], Any]

    def start(self, number: int, sums: int, count: int, words: int, held: int, a: int, b: int) -> None:
        """Product by text ``number``: ``count`` sums at ``sums`` (what they were, or undefined), ``held`` words of 16-bit pairs
        at ``words``, descriptors."""
        me, local = self.local.thread, self.local
        serial = local.begun % MOST
        local.begun += 1
        if held:
            data = np.ctypeslib.as_array((ctypes.c_uint32 * held).from_address(words)).copy()
            self.held_words[me, serial] = data
        self.groups[me // 128].wait(100.0)  # none of its warps multiplies without the others
        out = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(sums))
        before = out.view(np.float32).copy()
        local.queue.append((serial, number, before, a, b))
        out[:] = MARK | serial << 9 | np.arange(count, dtype=np.uint32)

    def wait(self, pending: int, sums: int, count: int) -> None:
        """Until all but ``pending`` are done; sums of those that are, among the ``count`` at ``sums``, become what they are."""
        local = self.local
        while len(local.queue) > pending:
            serial, number, before, a, b = local.queue.pop(0)
            local.done[serial] = self.product(serial, self.texts[number], before, a, b)
            self.held_words.pop((self.local.thread, (serial - 4) % MOST), None)
        bits = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(sums))
        marked = (bits & 0xFFC00000) == MARK
        for at in np.flatnonzero(marked):
            found = local.done.get(int(bits[at]) >> 9 & MOST - 1)
            if found is not None:
                bits[at] = found.view(np.uint32)[int(bits[at]) & 511]
        for serial in [s for s in local.done if (local.begun - s) % MOST > 4]:
            del local.done[serial]

    def product(self, serial: int, text: str, before: Any, a: int, b: int) -> Any:
        seen = self.seen()
        out = before
        held = {"$a": a, "$b": b}
        for step in steps(text):
            if isinstance(step, Moved):
                held[step.to] = held[step.of] + step.by
                continue
            assert step.first == 0 and step.count == len(out)
            if step.words:  # the left factor is held: behind the sums, twice, since they go in and come out
                left = self.left_held(serial, [n - 2 * len(out) for n in step.words], step.kinds[1])
                other = self.right(seen, held[step.right], step.across[0], step.kinds[1], 2 * step.count)
                mine = (left @ other.T).reshape(2, -1, 2).transpose(1, 0, 2).ravel()
            else:
                mine = self.part(seen, held[step.left], held[step.right], *step.across, step.kinds[1:] * 2, 2 * step.count)
            out = mine + (out if step.keeps else 0)
        return out.astype(np.float32)

    def right(self, seen: Any, b: int, across: int, kind: str, columns: int) -> Any:
        """A thread's columns, 16 deep."""
        key = b, across, kind, columns
        whole = seen.once(key, lambda: self.elements(seen.shared, b, np.arange(columns), np.arange(16), across, kind))
        return whole.reshape(columns // 8, 4, 2, 16)[:, self.local.thread % 4].reshape(-1, 16)

    def left_held(self, serial: int, places: list[int], kind: str) -> Any:
        """Two rows, 16 deep, of what the four threads of a row hold: as the hardware documents it for this instruction."""
        me = self.local.thread
        words = np.stack([self.held_words[me // 4 * 4 + lane, serial][places] for lane in range(4)])
        halves = self.narrow(kind, words.view(np.uint16)).reshape(4, 2, 2, 2)  # lanes, halves of the depth, rows, neighbours
        return halves.transpose(2, 1, 0, 3).reshape(2, 16)

    # what the Machine has

    def seen(self) -> Any:
        raise NotImplementedError

    def part(self, *args: Any) -> Any:
        raise NotImplementedError

    def elements(self, *args: Any) -> Any:
        raise NotImplementedError

    def narrow(self, kind: str, raw: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Moved:
    """A descriptor that is another, further on."""

    to: str
    of: str
    by: int


@dataclass(frozen=True, slots=True)
class Multiplied:
    """``count`` sums from register ``first`` on become, or (``keeps``) are added, a product of 32 bytes' depth.  ``words``:
    registers of a left factor that is not in shared memory; ``across``: which factors lie across; ``kinds``: the last types."""

    first: int
    count: int
    words: tuple[int, ...]
    left: str
    right: str
    keeps: bool
    across: tuple[int, ...]
    kinds: tuple[str, ...]


@functools.cache
def steps(text: str) -> tuple[Moved | Multiplied, ...]:
    """What a piece of assembly does that multiplies; the descriptors that it is given are ``$a`` and ``$b``."""
    found: list[Moved | Multiplied] = []
    (last,) = map(int, re.findall(r"mov\.b64 b, \$(\d+);", text))
    given = {f"${last - 1}": "$a", f"${last}": "$b"}
    for line in text.split(";"):
        words = [given.get(word, word) for word in re.findall(r"[\w$.]+", line)]
        if words[:1] == ["add.s64"]:
            found.append(Moved(words[1], words[2], int(words[3])))
        elif words[:1] == ["mov.b64"]:
            found.append(Moved(words[1], words[2], 0))
        elif words[:1] and words[0].startswith("wgmma.mma_async"):
            sets = [tuple(map(int, re.findall(r"\$(\d+)", of))) for of in re.findall(r"\{([^}]*)\}", line.lstrip("{ "))]
            first, held = sets[0][0], sets[1] if len(sets) > 1 else ()
            flags = [given.get(word, word) for word in re.findall(r"[\w$.]+", line.rpartition("}")[2])]
            left, right, keeps, _, _, *across = ["", *flags] if held else flags
            kinds = tuple(words[0].split(".")[-2:])
            found.append(Multiplied(first, len(sets[0]), held, left, right, keeps == "1", tuple(map(int, across)), kinds))
    return tuple(found)


def started(name: str, type_: str, asm: str, args: list[str], number: int) -> list[str]:
    """LLVM lines for a piece of assembly that begins a product, or waits; what it gives is left in memory at ``name``.a."""
    count = type_.count("float")
    floats = [a for a in args if a.startswith("float ")]
    words = [a for a in args if a.startswith("i32 ")]
    wide = [a for a in args if a.startswith("i64 ")]
    lines = [f"{name}.a = alloca [{count} x float]", f"{name}.w = alloca [{max(1, len(words))} x i32]"]
    lines += [f"{name}.p{n} = getelementptr float, ptr {name}.a, i64 {n}" for n in range(count)]
    lines += [f"store {value}, ptr {name}.p{n}" for n, value in enumerate(floats)]
    for n, value in enumerate(words):
        lines += [f"{name}.q{n} = getelementptr i32, ptr {name}.w, i64 {n}", f"store {value}, ptr {name}.q{n}"]
    if "mma_async" in asm:
        wide = wide if len(wide) == 2 else ["i64 0", *wide]
        where = f"i32 {number}, ptr {name}.a, i32 {count}, ptr {name}.w, i32 {len(words)}"
        lines.append(f"call void @sim_start({where}, {', '.join(wide)})")
    else:
        (pending,) = re.findall(r"aligned (\d+)", asm)
        lines.append(f"call void @sim_wait(i32 {pending}, ptr {name}.a, i32 {count})")
    return lines
