"""Scalar types: what a buffer element or an expression may be.

``kind`` is one of ``b`` (bool), ``i`` (signed), ``u`` (unsigned), ``f`` (IEEE or bfloat), ``c`` (complex) and ``x``
(float8).  lowc computes in kinds b, i, u and f; values of kinds c and x pass through to ATen, but that those of kind x can be
converted to floats, as factors of products are.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type: ``name`` as printed, ``kind`` (see the module), ``bits`` as stored (bool is stored in 8)."""

    name: str
    kind: str
    bits: int

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return self.bits // 8

    def __repr__(self) -> str:
        return self.name


bool_ = DType("bool", "b", 8)
i8 = DType("i8", "i", 8)
i16 = DType("i16", "i", 16)
i32 = DType("i32", "i", 32)
i64 = DType("i64", "i", 64)
u8 = DType("u8", "u", 8)
u16 = DType("u16", "u", 16)
u32 = DType("u32", "u", 32)
u64 = DType("u64", "u", 64)
f16 = DType("f16", "f", 16)
bf16 = DType("bf16", "f", 16)
f32 = DType("f32", "f", 32)
f64 = DType("f64", "f", 64)
c64 = DType("c64", "c", 64)
c128 = DType("c128", "c", 128)
f8e4m3 = DType("f8e4m3", "x", 8)
f8e5m2 = DType("f8e5m2", "x", 8)

DTYPES: dict[str, DType] = {
    t.name: t
    for t in (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, c64, c128, f8e4m3, f8e5m2)
}


def is_computable(dtype: DType) -> bool:
    """Whether lowc has arithmetic for ``dtype`` (complex and float8 are passed on to ATen)."""
    return dtype.kind in "biuf"


def compute_dtype(dtype: DType) -> DType:
    """The type that arithmetic on ``dtype`` is carried out in: f32 for f16 and bf16, itself otherwise."""
    return f32 if dtype.kind == "f" and dtype.bits < 32 else dtype


def accumulate_dtype(dtype: DType) -> DType:
    """The type of an accumulator for sums of ``dtype``: f32 for narrow floats, i64 for bool, itself otherwise."""
    return i64 if dtype.kind == "b" else compute_dtype(dtype)
