"""Which matrix products lowc's own kernels do under ``matmul="auto"``: those that were measured to be faster so than ATen's.

Measured (``benchmarks/results/matmul_cpu.md``): f32 on AVX-512, beside MKL.  On processors of Intel, where each element of a
factor is used often, MKL is as fast or faster; where few rows meet weights that lie along the depth, as in a linear layer of a
small batch, it is not, since weights can be read once, as they lie.  On AMD's Zen 5 lowc's own take half of MKL's time at all
measured sizes, on Zen 4 less than MKL's, too.  Those of bf16 are by pairs there (``scheduler/pairs.py``), as oneDNN's are, beside
which they were measured on Zen 5: 1.1 to 2.7 times as fast for up to 64 rows, and as fast or a little faster for more, unless the
depth is odd or small.  Products of bytes (``scheduler/quads.py``; ``benchmarks/results/quantised.md``) are 1.1 to 10 times as
fast as oneDNN's for up to 64 rows and as fast for more, where the processor has AVX512_VNNI and quads are whole; those of other
integers, which ATen does by plain loops, 1.3 to 9 times as fast.  With AMX (``scheduler/choose_amx.py``; measured on an Emerald
Rapids) linear layers of 1 to 64 rows of bf16 are 1.1 to 2.4 times as fast as oneDNN's, which uses AMX as well, and products of
bytes with weights along the depth 1.1 to 2.5 times, deep ones of many rows 0.9; larger products of bf16 are 0.6 to 1.0 times as
fast.  Whatever was not measured stays ATen's.
"""

from math import prod

from lowc.ir.index import constant
from lowc.ir.types import bf16, f32, i8
from lowc.lowering.values import Value
from lowc.options import Options
from lowc.target import Target

ROWS = range(2, 65)  # rows of the left factor …
WEIGHTS = 1 << 18  # … and elements of the right one, from which on the call of ATen itself is no part of the time
NARROW = 256  # columns, and depth, below which no run of weights is long enough
ZEN = "znver"  # how LLVM's names of AMD's processors begin
DEEP = 128  # depth of products of pairs: of less, oneDNN was faster, probably by how it rounds sums to bf16
SIZE = 4  # bytes of a quad
PAIRS, QUADS = 32, 64  # bf16, and bytes, of a row of a tile of AMX: other depths are padded
BYTES_ROWS, BYTES_DEEP = 1024, 2048  # rows of bytes, and depth of more than a few, up to which products by AMX were faster
LEAST_WORK = 1 << 20  # multiply-adds; of smaller products, on Zen, the call is most of the time; an eighth of them saves a pass


def own(x: Value, y: Value, options: Options | None, target: Target | None, made: bool) -> bool:
    """Whether the product of ``x`` and ``y`` is lowc's own; sizes that are not known are ATen's.

    ``made``: ``y`` is computed in the graph, say from weights of 8 bits.  That can then happen where it is used, so that one row
    is reason enough.
    """
    least = LEAST_WORK // 8 if made or y.dtype != x.dtype else LEAST_WORK
    if options is None or target is None or options.matmul != "auto" or options.numerics == "strict":
        return False
    if target.kind != "x86" or target.vector_bits < 512:
        return False
    if x.dtype == bf16 and "amx-bf16" in target.ops:
        return _layer(x, y, range(1, ROWS.stop)) and (constant(x.shape[-1]) or 1) % PAIRS == 0
    if x.dtype == i8 and y.dtype == i8 and "amx-int8" in target.ops:
        depth = constant(x.shape[-1]) or 1
        return _layer(x, y, range(1, (BYTES_ROWS if depth <= BYTES_DEEP else ROWS[-1]) + 1)) and depth % QUADS == 0
    if x.dtype == bf16:
        depth = constant(x.shape[-1]) or 0
        deep = depth >= DEEP and depth % 2 == 0  # of an odd one, the last pair of each row is masked
        return target.cpu.startswith(ZEN) and "avx512bf16" in target.ops and deep and _on_zen(x, y, least)
    if x.dtype.kind in "iu" and x.dtype.bits <= 32:
        whole = x.dtype.bits > 8 or ((constant(x.shape[-1]) or 1) % SIZE == 0 and "avx512vnni" in target.ops)
        return target.cpu.startswith(ZEN) and whole and _on_zen(x, y, least)
    if x.dtype != f32:
        return False
    if target.cpu.startswith(ZEN):
        return _on_zen(x, y, least)
    return _layer(x, y, range(1, ROWS.stop) if made else ROWS)


def _layer(x: Value, y: Value, among: range) -> bool:
    """Linear layers of so many rows, their weights along the depth and large."""
    if len(x.shape) != 2 or len(y.shape) != 2:
        return False
    rows, depth, columns = constant(x.shape[0]), constant(x.shape[1]), constant(y.shape[1])
    if rows is None or depth is None or columns is None or y.strides is None or constant(y.strides[0]) != 1:
        return False
    if x.strides is None or any(constant(s) == 0 for s in x.strides):
        return False
    return rows in among and min(depth, columns) >= NARROW and depth * columns >= WEIGHTS


def _on_zen(x: Value, y: Value, least: int) -> bool:
    """Products of matrices, or of batches of them, that lie along rows or columns, of at least so many multiply-adds."""
    sizes = [constant(n) for n in (*x.shape, y.shape[-1])]
    if min(len(x.shape), len(y.shape)) < 2 or None in sizes or prod(n or 0 for n in sizes) < least:
        return False
    for factor in (x, y):
        steps = [] if factor.strides is None else [constant(s) for s in factor.strides[-2:]]
        if 1 not in steps or 0 in steps:
            return False
    return True
