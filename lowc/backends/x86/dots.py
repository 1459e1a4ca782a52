"""The ops ``pair`` and ``dot2``: two products of bf16 at a time, by ``vdpbf16ps`` on whole registers of a target that has it.

The instruction rounds each addition to nearest even; denormals, of factors and of sums, are 0 to it, whatever the mode of the
thread.  Elsewhere products and sums are those of f32.

And ``quad`` and ``dot4``: four products of bytes at a time.  ``vpdpbusd`` (AVX512_VNNI, AVX-VNNI) multiplies unsigned bytes by
signed ones and adds all four products to a sum, which wraps; nothing saturates.  Elsewhere, and where both have signs, bytes are
widened to 16 bits, even ones and odd ones, and ``vpmaddwd`` adds two products at a time: 2 * 2**15 * 2**7 fit in its 32 bits.
(Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.)
"""

from lowc.backends.llvm.builder import Builder
from lowc.backends.llvm.rows import shl, widen_bf16
from lowc.backends.llvm.types import vector
from lowc.backends.llvm.values import Val, binary, bits, const, intrinsic, splat
from lowc.ir.types import DType, bf16, f32, i32, u32


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
    """``total`` and the product of two floats, both products of two pairs, or all four of two quads, the products not rounded."""
    lanes = total.lanes
    if total.dtype == i32:
        return dot4(b, [*(splat(b, f, lanes) for f in factors), total], i32, lanes, ops)
    args = [*(splat(b, f, lanes) for f in factors), total]
    return dot2(b, args, f32, lanes, ops) if factors[0].dtype == u32 else intrinsic(b, "fma", args, lanes)


def quad(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    out: Val | None = None
    for n, a in enumerate(args):
        part = shl(b, Val(b.pure(f"zext {a.type} {a.text} to {vector('i32', lanes)}"), dtype, lanes), 8 * n)
        out = part if out is None else binary(b, "or", out, part)
    assert out is not None
    return out


# by lanes, and the ability that stands for the instruction set that has it
WORDS = {4: ("sse2.pmadd.wd", ""), 8: ("avx2.pmadd.wd", "fma"), 16: ("avx512.pmaddw.d.512", "scalef")}


def dot4(b: Builder, args: list[Val], dtype: DType, lanes: int, ops: frozenset[str]) -> Val:
    """All four products of two quads, added to a third argument if there is one."""
    x, y = args[:2] if args[0].dtype == u32 else (args[1], args[0])
    total = args[2] if len(args) > 2 else const(0, i32, lanes)
    words, needs = WORDS.get(lanes, ("", ""))
    instruction = "avx512vnni" in ops or ("avxvnni" in ops and lanes <= 8)
    if words and instruction and (x.dtype, y.dtype) == (u32, i32):
        bytes_ = vector("i8", 4 * lanes)
        halves = [(bytes_, b.pure(f"bitcast {v.type} {v.text} to {bytes_}")) for v in (x, y)]
        function = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        return Val(b.call(function, total.type, [(total.type, total.text), *halves]), i32, lanes)
    if words and (not needs or needs in ops):
        for odd in (False, True):
            halves = [(vector("i16", 2 * lanes), _words(b, v, lanes, odd)) for v in (x, y)]
            part = Val(b.call(f"llvm.x86.{words}", total.type, halves), i32, lanes)
            total = binary(b, "add", total, part)
        return total
    for n in range(4):
        total = binary(b, "add", total, binary(b, "mul", *(_byte(b, v, n) for v in (x, y))))
    return total


def _words(b: Builder, x: Val, lanes: int, odd: bool) -> str:
    """The even or the odd bytes of ``x`` as 16 bits."""
    type_ = vector("i16", 2 * lanes)
    words = b.pure(f"bitcast {x.type} {x.text} to {type_}")
    if not odd:
        words = b.pure(f"shl {type_} {words}, splat (i16 8)")
    return b.pure(f"{'ashr' if x.dtype == i32 else 'lshr'} {type_} {words}, splat (i16 8)")


def _byte(b: Builder, x: Val, number: int) -> Val:
    """One byte of each element of ``x``, in 32 bits."""
    up = shl(b, x, 24 - 8 * number)
    word = "ashr" if x.dtype == i32 else "lshr"
    text = b.pure(f"{word} {up.type} {up.text}, {const(24, i32, x.lanes).text}")
    return Val(text, i32, x.lanes)
