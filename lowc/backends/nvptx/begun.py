"""Products on tensor cores that are begun by one piece of assembly and waited for by another (``relay``).

What a product adds up goes through the wait, so that nobody reads it before: each piece takes and gives all of its sums.
"""

from lowc.backends.nvptx.multiply import ADDRESS, SWIZZLED, UNIT
from lowc.backends.nvptx.thread import Thread
from lowc.ir.relays import HeldProduct
from lowc.ir.tiles import SPAN, TileProduct
from lowc.ir.types import DType

STEP = 16  # elements of the depth, of 16 bits, that an instruction multiplies
ATOM = SPAN * 2 >> 4  # a row of a tile, in a descriptor's measure


def start_tiles(t: Thread, found: TileProduct, left: str, right: str, sums: str) -> None:
    """Starts a product of two tiles, which sets the sums."""
    count = found.columns // 2
    multiply, type_ = _form(found.columns, found.left.dtype)
    lines = [f"{{ .reg .b64 a, b; wgmma.fence.sync.aligned; mov.b64 a, ${count}; mov.b64 b, ${count + 1};"]
    for n in range(found.depth // STEP):
        if n:
            atom = n * STEP % SPAN == 0  # the next 64 of the depth are behind all rows
            steps = [rows * ATOM - (SPAN - STEP) * 2 // 16 if atom else STEP * 2 // 16 for rows in (found.rows, found.columns)]
            lines.append(f"add.s64 a, a, {steps[0]}; add.s64 b, b, {steps[1]};")
        lines.append(f"{multiply}, a, b, {int(n > 0)}, 1, 1, 0, 0;")
    lines.append("wgmma.commit_group.sync.aligned; }")
    args = f"i64 {_descriptor(t, left, 1)}, i64 {_descriptor(t, right, 1)}"
    asm = f'asm sideeffect "{" ".join(lines)}", "{",".join(["=f"] * count)},l,l,~{{memory}}"'
    _keep(t, t.b.op(f"call {type_} {asm}({args}) convergent nounwind"), type_, [(sums, count)])


def start_held(t: Thread, found: HeldProduct, right: str) -> None:
    """Starts a product of what threads hold and a tile, added to the sums."""
    b = t.b
    sums, held = t.memory[found.sums.name].pointers[0], t.memory[found.held.name].pointers[0]
    count, words = found.columns // 2, found.depth // 4
    multiply, type_ = _form(found.columns, found.held.dtype)
    lines = [f"{{ .reg .b64 b; wgmma.fence.sync.aligned; mov.b64 b, ${2 * count + words};"]
    for n in range(found.depth // STEP):
        if n:
            lines.append(f"add.s64 b, b, {STEP * ATOM};")
        left = ",".join(f"${2 * count + 4 * n + q}" for q in range(4))
        lines.append(f"{multiply}, {{{left}}}, b, 1, 1, 1, 1;")
    lines.append("wgmma.commit_group.sync.aligned; }")
    values = _values(t, [(sums, count)])
    for n in range(words):
        place = b.pure(f"getelementptr i32, ptr {held}, i64 {n}") if n else held
        values.append(f"i32 {b.op(f'load i32, ptr {place}')}")
    values.append(f"i64 {_descriptor(t, right, found.depth * ATOM)}")
    tied = ",".join(["=f"] * count + [str(n) for n in range(count)] + ["r"] * words)
    asm = f'asm sideeffect "{" ".join(lines)}", "{tied},l,~{{memory}}"'
    _keep(t, b.op(f"call {type_} {asm}({', '.join(values)}) convergent nounwind"), type_, [(sums, count)])


def start_across(t: Thread, found: TileProduct, columns: int, left: str, right: str, sums: str) -> None:
    """Starts a product of two tiles that lie along their rows, of 64 rows and ``columns`` for each group; it sets the sums."""
    count = columns // 2
    multiply, type_ = _form(columns, found.left.dtype)
    lines = [f"{{ .reg .b64 a, b; wgmma.fence.sync.aligned; mov.b64 a, ${count}; mov.b64 b, ${count + 1};"]
    for n in range(found.depth // STEP):
        if n:
            lines.append(f"add.s64 a, a, {STEP * ATOM}; add.s64 b, b, {STEP * ATOM};")
        lines.append(f"{multiply}, a, b, {int(n > 0)}, 1, 1, 1, 1;")
    lines.append("wgmma.commit_group.sync.aligned; }")
    leading = found.depth * ATOM
    args = f"i64 {_descriptor(t, left, leading)}, i64 {_descriptor(t, right, leading)}"
    asm = f'asm sideeffect "{" ".join(lines)}", "{",".join(["=f"] * count)},l,l,~{{memory}}"'
    _keep(t, t.b.op(f"call {type_} {asm}({args}) convergent nounwind"), type_, [(sums, count)])


def wait_for(t: Thread, pending: int, arrays: list[tuple[str, int]]) -> None:
    """Until all but ``pending`` products are done: those of ``arrays`` are, which go through."""
    count = sum(n for _, n in arrays)
    type_ = _struct(count)
    tied = ",".join(["=f"] * count + [str(n) for n in range(count)])
    asm = f'asm sideeffect "wgmma.wait_group.sync.aligned {pending};", "{tied},~{{memory}}"'
    _keep(t, t.b.op(f"call {type_} {asm}({', '.join(_values(t, arrays))}) convergent nounwind"), type_, arrays)


def _form(columns: int, dtype: DType) -> tuple[str, str]:
    """The instruction that adds to a thread's sums of so many columns, up to its operands; the type of all of its sums."""
    count, kind = columns // 2, dtype.name
    registers = ",".join(f"${n}" for n in range(count))
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{STEP}.f32.{kind}.{kind} {{{registers}}}", _struct(count)


def _struct(count: int) -> str:
    return "{" + ",".join(["float"] * count) + "}"


def _places(t: Thread, arrays: list[tuple[str, int]]) -> list[str]:
    return [t.b.pure(f"getelementptr float, ptr {p}, i64 {n}") if n else p for p, count in arrays for n in range(count)]


def _values(t: Thread, arrays: list[tuple[str, int]]) -> list[str]:
    return [f"float {t.b.op(f'load float, ptr {p}')}" for p in _places(t, arrays)]


def _keep(t: Thread, result: str, type_: str, arrays: list[tuple[str, int]]) -> None:
    for n, p in enumerate(_places(t, arrays)):
        t.b.line(f"store float {t.b.op(f'extractvalue {type_} {result}, {n}')}, ptr {p}")


def _descriptor(t: Thread, address: str, leading: int) -> str:
    """Of a tile at ``address``; ``leading``: to the next 64 columns, where it lies along them, in the descriptor's measure."""
    b = t.b
    at = b.op(f"lshr i32 {b.op(f'and i32 {address}, {ADDRESS}')}, 4")
    return b.op(f"or i64 {b.op(f'zext i32 {at} to i64')}, {SWIZZLED | UNIT << 32 | leading << 16}")
