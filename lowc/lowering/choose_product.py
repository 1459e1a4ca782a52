"""Which matrix products lowc's own kernels do under ``matmul="auto"``: those that were measured to be faster so than ATen's.

Measured (``benchmarks/results/matmul_cpu.md``): f32 on AVX-512, beside MKL.  Where each element of a factor is used often, MKL is
as fast or faster; where few rows meet weights that lie along the depth, as in a linear layer of a small batch, it is not, since
weights can be read once, as they lie.  Whatever was not measured stays ATen's.
"""

from lowc.ir.index import constant
from lowc.ir.types import f32
from lowc.lowering.values import Value
from lowc.options import Options
from lowc.target import Target

ROWS = range(2, 65)  # rows of the left factor …
WEIGHTS = 1 << 18  # … and elements of the right one, from which on the call of ATen itself is no part of the time
NARROW = 256  # columns, and depth, below which no run of weights is long enough


def own(x: Value, y: Value, options: Options | None, target: Target | None, made: bool) -> bool:
    """Whether the product of ``x`` and ``y`` is lowc's own; sizes that are not known are ATen's.

    ``made``: ``y`` is computed in the graph, say from weights of 8 bits.  That can then happen where it is used, so that one row
    is reason enough.
    """
    if options is None or target is None or options.matmul != "auto" or options.numerics == "strict":
        return False
    if target.kind != "x86" or target.vector_bits < 512 or x.dtype != f32 or len(x.shape) != 2 or len(y.shape) != 2:
        return False
    rows, depth, columns = constant(x.shape[0]), constant(x.shape[1]), constant(y.shape[1])
    if rows is None or depth is None or columns is None or y.strides is None or constant(y.strides[0]) != 1:
        return False
    if x.strides is None or any(constant(s) == 0 for s in x.strides):
        return False
    few = rows in ROWS or made and rows == 1
    return few and min(depth, columns) >= NARROW and depth * columns >= WEIGHTS
