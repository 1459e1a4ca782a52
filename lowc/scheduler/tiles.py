"""Sizes that schedules of contractions on a CPU try: tiles of registers, blocks, slices of the depth."""

from lowc.ir.index import constant
from lowc.ir.nodes import For
from lowc.ir.types import DType, i32, u32
from lowc.ir.walk import exprs
from lowc.scheduler.contraction import Contraction, innermost
from lowc.scheduler.nest import estimate, weight
from lowc.target import Target

DEPTH = 512  # of a slice at most: panels of it stay in the L2 cache, and no sum has longer chains
STACK = 900 << 10  # bytes of scratch memory at most
LINE = 0.5  # cycles for a vector of a panel, which comes from the L2 cache
HIGH = 10  # rows of a tile at most: where rows are a power of two apart, more would not stay in the L1 cache, of 8 to 12 ways
OF_PAIRS = 8  # registers beside a tile of dots: vdpbf16ps overwrites its sum, and LLVM, short of registers, moves all sums about
CANDIDATES = 6  # tiles of registers that blocks are tried with


def tiles(rows: int, columns: int, factor: DType, target: Target) -> list[tuple[float, tuple[int, int]]]:
    """The best tiles of registers, (rows, columns), with the cycles for a sum's multiply-add in each, of factors of a dtype."""
    lanes = target.vector_bits // factor.bits
    spare = 1 if "fma" in target.ops else 2
    loads = 0.9 if target.vector_bits == 512 else 2  # in a cycle
    most, line = HIGH, LINE
    if factor in (i32, u32):
        spare, loads, most, line = OF_PAIRS, 1.8, 8, 1.0  # as measured on Zen 5, where 8 x 32 is best
    found: list[tuple[float, int, tuple[float, tuple[int, int]]]] = []
    for high in range(1, most + 1):
        for vectors in range(1, 9):
            if high * vectors + vectors + spare > target.registers:
                continue
            cycles = max(high * vectors / 2, (high + vectors) / loads, 4.0) + 0.5 + line * vectors
            wide = vectors * lanes
            total = -(-rows // high) * -(-columns // wide) * cycles
            found.append((total, high + vectors, (cycles / (high * wide), (high, wide))))
    found.sort()
    near = [f for f in found if f[0] <= found[0][0] * 1.1]
    whole = [f for f in near if rows % f[2][1][0] == 0]
    powers = [f for f in found if f[2][1][0] in (4, 8)]
    return [entry for _, _, entry in (*near[:CANDIDATES], *whole[:CANDIDATES], *powers[:2])]


def lengths(extent: int, tile: int) -> list[int]:
    """Lengths of blocks, whole tiles, that share ``extent`` evenly."""
    count = -(-extent // tile)
    found = {-(-count // parts) * tile: None for parts in (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4))}
    return [n for n in found if n <= 1024 and (n >= 32 or n >= extent)] or [tile]


def slices(depth: For) -> list[int]:
    """Lengths of slices to try: even shares of the depth."""
    extent, known = estimate(depth.axis.extent), constant(depth.axis.extent) is not None
    out: list[int] = []
    for most in (DEPTH, DEPTH // 2):
        count = max(1, -(-extent // most))
        deep = -(-extent // count)
        out.append(deep if count == 1 and known else -(-deep // 16) * 16)
    return list(dict.fromkeys(out))


def flight(found: Contraction) -> int:
    """Strips of the epilogue in flight."""
    block = innermost(found.outer[-1].body)
    assert block is not None
    return 4 if sum(weight(e) for s in block[2] for e in exprs(s)) <= 8 else 1
