"""The ops ``pair`` and ``dot2``: two products of bf16 at a time, by ``vdpbf16ps`` on whole registers of a target that has it.

The instruction rounds each addition to nearest even; denormals, of factors and of sums, are 0 to it, whatever the mode of the
thread.  Elsewhere products and sums are those of f32.
"""

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.rows import shl, widen_bf16
from lowc.backends.llvm.types import vector
from lowc.backends.llvm.values import Val, binary, bits, const, intrinsic, splat
from lowc.ir.types import DType, bf16, f32, u32


def pair(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    low, high = (Val(b.pure(f"zext {a.type} {a.text} to {vector('i32', lanes)}"), u32, lanes) for a in args)
    return binary(b, "or", low, shl(b, high, 16))


def dot2(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    """Both products of two pairs, added to a third argument if there is one."""
    x, y = args[:2]
    total = args[2] if len(args) > 2 else const(0.0, f32, lanes)
    if "avx512bf16" in ops and lanes in (4, 8, 16):
        narrow = vector("bfloat", 2 * lanes)
        halves = [(narrow, b.pure(f"bitcast {v.type} {v.text} to {narrow}")) for v in (x, y)]
        function = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        return Val(b.call(function, total.type, [(total.type, total.text), *halves]), f32, lanes)
    for half in (_low, _high):
        factors = [half(b, v) for v in (x, y)]
        if "fma" in ops:
            total = intrinsic(b, "fma", [*factors, total], lanes)
        else:
            total = binary(b, "add", total, binary(b, "mul", *factors))
    return total


def _low(b: Builder, x: Val) -> Val:
    return widen_bf16(b, Val(b.pure(f"trunc {x.type} {x.text} to {vector('i16', x.lanes)}"), bf16, x.lanes))


def _high(b: Builder, x: Val) -> Val:
    return bits(b, binary(b, "and", x, const(0xFFFF0000, u32, x.lanes)), f32)


def add_product(b: Builder, factors: list[Val], total: Val, ops: frozenset[str]) -> Val:
    """``total`` and the product of two floats, or both products of two pairs, the products not rounded."""
    lanes = total.lanes
    args = [*(splat(b, f, lanes) for f in factors), total]
    return dot2(b, args, f32, lanes, ops) if factors[0].dtype == u32 else intrinsic(b, "fma", args, lanes)
