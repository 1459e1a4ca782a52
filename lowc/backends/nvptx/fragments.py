"""``mma.sync``: a warp multiplies 16 rows by 8 columns, 32 bytes of the depth at a time, from registers into registers.

What a thread holds of a factor (PTX ISA 9.7.14.5, figures of m16n8k16) is read from a tile in shared memory by ``ldmatrix``: four
matrices of 8 rows of 16 bytes at once, of which each lane says where one row is.  A piece of 16 bytes lies where the swizzle of
tiles has it (``copies.py``): piece ``p`` of line ``r`` where ``p ^ r % 8`` would be, so that the eight rows of a matrix are in
eight different groups of banks.  A tile that lies along its rows is transposed while it is read (``.trans``, 16 bits only).

Lanes' addresses differ from one matrix of a tile to the next by a number that is added or by bits that are inverted, never by
both at one place: where a warp begins, and where it goes on, are different bits of a row's number.

Elements of f32 and i8 are read the same way, as if they were others of 16 bits.  Those of f32 are rounded to TF32 in registers:
what is left of the mantissa would be cut off.  Before capability 9.0 ties are rounded away from zero there, not to even.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowc.backends.llvm.types import scalar
from lowc.backends.nvptx.operations import TIES_TO_EVEN as EVEN
from lowc.backends.nvptx.thread import Thread, plus
from lowc.ir.nodes import Buffer
from lowc.ir.tiles import LINE, SPAN, STEP, WARP_ROWS, TileProduct
from lowc.ir.types import f32

WARP = 32
CHUNK = SPAN * LINE  # bytes from 64 rows to the next, of a tile that lies along them
MULTIPLY = {
    "bf16": "m16n8k16.row.col.bf16",
    "f16": "m16n8k16.row.col.f32.f32",
    "f32": "m16n8k8.row.col.tf32",
    "i8": "m16n8k32.row.col.s8",
}


@dataclass(frozen=True, slots=True)
class Factor:
    """How a warp reads one factor: ``offset``: of a lane's row of its first matrices, in bytes of the tile (an i32)."""

    tile: Buffer
    offset: str

    @property
    def across(self) -> bool:
        return len(self.tile.shape) == 3

    def further(self, position: int, step: int) -> tuple[int, int]:
        """(bits to invert, bytes to add) for the matrices ``position`` rows further, number ``step`` of the depth."""
        if self.across:
            return position % SPAN * 2, position // SPAN * CHUNK + step * (STEP // 2) * LINE
        return step * STEP, position * LINE


class Fragments:
    """The multiplication of ``found`` by the warps of a block, thread ``thread`` of it (an i32)."""

    def __init__(self, t: Thread, found: TileProduct, thread: str) -> None:
        self.t, self.found = t, found
        self.type = scalar(found.sums.dtype)
        self.blocks = found.rows // found.high
        self.columns = found.columns // found.shares  # that a warp multiplies
        b = t.b
        warp = b.pure(f"lshr i32 {thread}, {WARP.bit_length() - 1}")
        down = found.high // WARP_ROWS
        row = b.pure(f"mul i32 {b.pure(f'and i32 {warp}, {down - 1}')}, {WARP_ROWS}")
        column = b.pure(f"mul i32 {b.pure(f'lshr i32 {warp}, {down.bit_length() - 1}')}, {self.columns}")
        self.left = Factor(found.left, self.offset(found.left, thread, row, True))
        self.right = Factor(found.right, self.offset(found.right, thread, column, False))

    def offset(self, tile: Buffer, thread: str, start: str, left: bool) -> str:
        """Of a lane's row: matrices of the left factor go on along rows first, those of the right one along the depth."""
        b = self.t.b
        eight = b.pure(f"and i32 {thread}, 7")
        first, second = (b.pure(f"and i32 {b.pure(f'lshr i32 {thread}, {n}')}, 1") for n in (3, 4))
        of_rows, of_depth = (first, second) if left else (second, first)
        if len(tile.shape) == 3:
            line = plus(b, b.pure(f"mul i32 {of_depth}, 8"), eight, 32)
            piece = plus(b, b.pure(f"lshr i32 {b.pure(f'and i32 {start}, {SPAN - 1}')}, 3"), of_rows, 32)
            far = b.pure(f"mul i32 {b.pure(f'lshr i32 {start}, {SPAN.bit_length() - 1}')}, {CHUNK}")
        else:
            line = plus(b, plus(b, b.pure(f"mul i32 {of_rows}, 8"), eight, 32), start, 32)
            piece, far = of_depth, ""
        at = plus(b, b.pure(f"mul i32 {line}, {LINE}"), far, 32)
        swizzled = b.pure(f"shl i32 {b.pure(f'xor i32 {piece}, {eight}')}, 4")
        return b.pure(f"or i32 {at}, {swizzled}")

    def matrices(self, factor: Factor, at: str, position: int, step: int) -> list[str]:
        """Four registers of ``factor``, a lane's first row of which is at ``at``."""
        b = self.t.b
        invert, add = factor.further(position, step)
        address = b.pure(f"xor i32 {at}, {invert}") if invert else at
        pointer = b.pure(f"inttoptr i32 {address} to ptr addrspace(3)")
        if add:
            pointer = b.pure(f"getelementptr i8, ptr addrspace(3) {pointer}, i32 {add}")
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{'.trans' if factor.across else ''}.b16.p3"
        b.module.declare(name, "{i32, i32, i32, i32}", "ptr addrspace(3)")
        found = b.op(f"call {{i32, i32, i32, i32}} @{name}(ptr addrspace(3) {pointer})")
        words = [b.pure(f"extractvalue {{i32, i32, i32, i32}} {found}, {n}") for n in range(4)]
        return [self.rounded(w) for w in words] if factor.tile.dtype == f32 else words

    def rounded(self, word: str) -> str:
        """The bits of an f32 to TF32."""
        value = self.t.b.pure(f"bitcast i32 {word} to float")
        return self.t.b.call(f"llvm.nvvm.f2tf32.{'rn' if EVEN in self.t.ops else 'rna'}", "i32", [("float", value)])

    def step(
        self, left: str, right: str, sums: Sequence[str], beside: Sequence[Callable[[], Callable[[], None] | None]] = ()
    ) -> list[str]:
        """The sums (in order) and the products of the tiles at ``left`` and ``right`` (addresses in shared memory).

        Matrices are read one step ahead of their multiplication.  ``beside``: what is done meanwhile, some of it in each step;
        what it gives is done at the end of its step."""
        out, b = list(sums), self.t.b
        at_left, at_right = (b.op(f"add i32 {a}, {f.offset}") for a, f in ((left, self.left), (right, self.right)))
        steps = self.found.depth * self.found.left.dtype.bytes // STEP
        order = [(step, column) for step in range(steps) for column in range(0, self.columns, WARP_ROWS)]

        def rows_of(step: int) -> list[list[str]]:
            return [self.matrices(self.left, at_left, n * self.found.high, step) for n in range(self.blocks)]

        rows, pair = rows_of(0), self.matrices(self.right, at_right, 0, 0)
        later: list[Callable[[], None]] = []
        for number, (step, column) in enumerate(order):
            if not column:
                share = range(step * len(beside) // steps, (step + 1) * len(beside) // steps)
                later = [done for n in share if (done := beside[n]()) is not None]
            more, following = order[number + 1] if number + 1 < len(order) else (step, -1)
            next_rows = rows_of(more) if more != step else rows
            next_pair = self.matrices(self.right, at_right, following, more) if following >= 0 else pair
            for block, row in enumerate(rows):
                for half in range(2):
                    first = block * (self.columns // 2) + (column // 8 + half) * 4
                    out[first : first + 4] = self.multiply(row, pair[2 * half : 2 * half + 2], out[first : first + 4])
            rows, pair = next_rows, next_pair
            if more != step or following < 0:
                for each in later:
                    each()
        return out

    def multiply(self, row: Sequence[str], column: Sequence[str], sums: Sequence[str]) -> list[str]:
        b, kind = self.t.b, self.found.left.dtype.name
        name = f"llvm.nvvm.mma.{MULTIPLY[kind]}"
        words, type_ = [*row, *column], "i32"
        if kind == "f16":
            type_ = "<2 x half>"
            words = [b.pure(f"bitcast i32 {w} to {type_}") for w in words]
        four = f"{{{', '.join([self.type] * 4)}}}"
        b.module.declare(name, four, ", ".join([type_] * 6 + [self.type] * 4))
        args = ", ".join([f"{type_} {w}" for w in words] + [f"{self.type} {s}" for s in sums])
        found = b.op(f"call {four} @{name}({args})")
        return [b.op(f"extractvalue {four} {found}, {n}") for n in range(4)]
