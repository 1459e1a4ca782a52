"""DTypes as LLVM types, and exact constants.

In registers bool is ``i1``; f16 and bf16 are carried as ``i16`` bits (lowc computes in f32 and converts).
In memory bool is ``i8``.
"""

import math
import struct

from lowc.ir.types import DType

_REGISTER = {"f32": "float", "f64": "double", "f16": "i16", "bf16": "i16", "bool": "i1"}


def scalar(dtype: DType) -> str:
    """The type of a value of ``dtype`` in a register."""
    return _REGISTER.get(dtype.name) or f"i{dtype.bits}"


def memory(dtype: DType) -> str:
    """The type of an element of ``dtype`` in memory."""
    return "i8" if dtype.kind == "b" else scalar(dtype)


def vector(element: str, lanes: int) -> str:
    """``lanes`` of an LLVM type; the type itself for 0 lanes."""
    return f"<{lanes} x {element}>" if lanes else element


def suffix(element: str, lanes: int) -> str:
    """How intrinsics name a type: ``v16f32``, ``i64``."""
    short = {"float": "f32", "double": "f64"}.get(element, element)
    return f"v{lanes}{short}" if lanes else short


def constant(value: bool | int | float, dtype: DType, lanes: int = 0) -> str:
    """A constant operand, bit for bit; a splat for ``lanes``."""
    text = _constant(value, dtype)
    return f"splat ({scalar(dtype)} {text})" if lanes else text


def _constant(value: bool | int | float, dtype: DType) -> str:
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind != "f":
        bits = int(value) & (2**dtype.bits - 1)
        return str(bits - 2**dtype.bits if bits >> (dtype.bits - 1) else bits)
    number = float(value)
    if dtype.name == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    single = to_f32(number)
    if dtype.name == "f32":
        return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"
    if dtype.name == "f16":
        try:
            packed = struct.pack("<e", number)
        except OverflowError:
            packed = struct.pack("<e", math.copysign(math.inf, number))
        return str(struct.unpack("<h", packed)[0])
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    rounded = 0x7FC0 if number != number else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return str(rounded - 0x10000 if rounded & 0x8000 else rounded)


def to_f32(number: float) -> float:
    """``number`` rounded to single precision."""
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
