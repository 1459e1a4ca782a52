"""``wgmma``: 128 threads multiply 64 rows by up to 256 columns, 32 bytes deep, from tiles in shared memory into registers.

A descriptor says where a tile is and how it lies.  Along the depth: rows of 128 bytes, eight of which are a unit of the swizzle;
an instruction multiplies 32 bytes of it, 16 elements of 16 bits, 8 of f32 (TF32), or 32 of float8.  Along rows: 64 rows side by
side, each step of the depth 128 bytes; then the next 64 rows.

One piece of assembly multiplies all of a stage.  Its sums are the same registers going in and coming out, so that nothing is
moved between, and it waits until all but its own instructions are done, not for those.  The first instructions of a tile set the
sums, which hold nothing then, instead of adding to them.

Where stages are added up by themselves (``tiles.APART``), a piece of assembly sets new registers and waits until that is done;
then they are added to the sums.  Tensor cores add up float8 in fewer bits than f32 has (about 14, as DeepSeek-V3's report, 2024,
section 3.5.2 says), which cuBLAS avoids in the same way.  Meanwhile the other group of threads multiplies.
"""

from lowc.backends.llvm.values import Val
from lowc.backends.nvptx.combine import shuffled
from lowc.backends.nvptx.thread import Thread
from lowc.ir.nodes import Buffer
from lowc.ir.tiles import APART, LINE, STEP, TileProduct
from lowc.ir.types import i32

SWIZZLED = 1 << 62  # over 128 bytes
UNIT = 1024 >> 4  # bytes from eight rows to the next, in the descriptor's measure
ROWS_BYTES = 64 * LINE  # of the rows of one group
ADDRESS = (1 << 18) - 1
NAMES = {"f32": "tf32", "f8e4m3": "e4m3", "f8e5m2": "e5m2"}
"""Of types, where the instruction has others."""


class Multiply:
    """Multiplication of the tiles of ``found`` into an array of a thread at ``sums``."""

    def __init__(self, t: Thread, found: TileProduct, sums: str) -> None:
        self.t, self.found, self.sums = t, found, sums
        self.blocks = found.rows // found.high
        self.each = found.columns // 2
        self.count = self.blocks * self.each

    def step(self, group: str, left: str, right: str, adds: str) -> None:
        """Starts the multiply-adds of the tiles at ``left`` and ``right`` (bytes in shared memory), ``group`` those of its rows;
        the ones before are done then.  ``adds`` (an i1): whether the sums hold something; "" if they always do."""
        b = self.t.b
        mine = b.op(f"add i32 {left}, {b.pure(f'mul i32 {group}, {ROWS_BYTES}')}")
        descriptors = _descriptor(self.t, mine, self.found.left), _descriptor(self.t, right, self.found.right)
        dtype, deep = self.found.left.dtype, STEP // self.found.left.dtype.bytes
        across = [len(tile.shape) == 3 for tile in (self.found.left, self.found.right)]
        turned = "" if dtype.bits != 16 else f", {int(across[0])}, {int(across[1])}"
        further = [deep * LINE >> 4 if a else STEP >> 4 for a in across]
        below = self.found.high * LINE >> 4  # from one block of rows to the next
        kinds = [NAMES.get(tile.dtype.name, tile.dtype.name) for tile in (self.found.left, self.found.right)]
        shape = f"m64n{self.found.columns}k{deep}.f32.{'.'.join(kinds)}"
        if self.found.key == APART:
            for block in range(self.blocks):
                self.add(block, block * below, shape, further, descriptors)
            return
        lefts = [f"a{n}" for n in range(self.blocks)]
        lines = [f"{{ .reg .pred p; .reg .b64 {', '.join(lefts)}, b; wgmma.fence.sync.aligned;"]
        lines += [f"add.s64 {a}, ${2 * self.count}, {n * below};" for n, a in enumerate(lefts)]
        lines.append(f"mov.b64 b, ${2 * self.count + 1};")
        if adds:
            lines.append(f"setp.ne.b32 p, ${2 * self.count + 2}, 0;")
        for n in range(self.found.depth // deep):
            if n:
                lines += [f"add.s64 {a}, {a}, {further[0]};" for a in lefts] + [f"add.s64 b, b, {further[1]};"]
            flags = f"{'p' if adds and not n else '1'}, 1, 1{turned}"
            for q, a in enumerate(lefts):
                registers = ",".join(f"${r}" for r in range(q * self.each, (q + 1) * self.each))
                lines.append(f"wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, {a}, b, {flags};")
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1; }")
        args = "".join(f", i64 {d}" for d in descriptors) + (f", i32 {b.pure(f'zext i1 {adds} to i32')}" if adds else "")
        self._through(" ".join(lines), "l,l,r," if adds else "l,l,", args)

    def add(self, block: int, below: int, shape: str, further: list[int], descriptors: tuple[str, str]) -> None:
        """Adds the products of a block of rows, ``below`` the first, once they are added up."""
        b, each = self.t.b, self.each
        lines = ["{ .reg .b64 a, b; wgmma.fence.sync.aligned;", f"add.s64 a, ${each}, {below}; mov.b64 b, ${each + 1};"]
        registers = ",".join(f"${r}" for r in range(each))
        for n in range(LINE // STEP):
            if n:
                lines.append(f"add.s64 a, a, {further[0]}; add.s64 b, b, {further[1]};")
            lines.append(f"wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, a, b, {int(n > 0)}, 1, 1;")
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
        type_, outs = "{" + ",".join(["float"] * each) + "}", ",".join(["=f"] * each)
        asm = f'asm sideeffect "{" ".join(lines)}", "{outs},l,l,~{{memory}}"'
        made = b.op(f"call {type_} {asm}({', '.join(f'i64 {d}' for d in descriptors)}) convergent nounwind")
        for n in range(each):
            place = b.pure(f"getelementptr float, ptr {self.sums}, i64 {block * each + n}")
            one = b.op(f"extractvalue {type_} {made}, {n}")
            before = b.op(f"load float, ptr {place}")
            b.line(f"store float {b.op(f'fadd float {before}, {one}')}, ptr {place}")

    def finish(self) -> None:
        """Waits for all of them."""
        self._through("wgmma.wait_group.sync.aligned 0;", "", "")

    def _through(self, text: str, constraints: str, args: str) -> None:
        """Assembly that has the sums go in and come out."""
        b, count = self.t.b, self.count
        places = [b.pure(f"getelementptr float, ptr {self.sums}, i64 {n}") if n else self.sums for n in range(count)]
        values = ", ".join(f"float {b.op(f'load float, ptr {p}')}" for p in places)
        type_ = "{" + ",".join(["float"] * count) + "}"
        tied = ",".join(["=f"] * count) + "," + ",".join(map(str, range(count)))
        asm = f'asm sideeffect "{text}", "{tied},{constraints}~{{memory}}"'
        out = b.op(f"call {type_} {asm}({values}{args}) convergent nounwind")
        for n, p in enumerate(places):
            b.line(f"store float {b.op(f'extractvalue {type_} {out}, {n}')}, ptr {p}")


def _descriptor(t: Thread, address: str, tile: Buffer) -> str:
    b = t.b
    across = len(tile.shape) == 3  # then the next 64 rows are a tile's depth further
    leading = ROWS_BYTES >> 4 if across else 1
    fixed = SWIZZLED | UNIT << 32 | leading << 16
    at = b.op(f"lshr i32 {b.op(f'and i32 {address}, {ADDRESS}')}, 4")
    return b.op(f"or i64 {b.op(f'zext i32 {at} to i64')}, {fixed}")


def uniform(t: Thread, number: str) -> str:
    """A number that all threads of a warp have, so that ptxas knows that they do."""
    return shuffled(t, Val(number, i32), 0, "idx").text
