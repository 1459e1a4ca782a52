"""torch's dtypes and lowc's."""

import torch

from lowc.errors import Unsupported
from lowc.ir import types
from lowc.ir.types import DType

TORCH_DTYPES: dict[torch.dtype, DType] = {
    torch.bool: types.bool_,
    torch.int8: types.i8,
    torch.int16: types.i16,
    torch.int32: types.i32,
    torch.int64: types.i64,
    torch.uint8: types.u8,
    torch.uint16: types.u16,
    torch.uint32: types.u32,
    torch.uint64: types.u64,
    torch.float16: types.f16,
    torch.bfloat16: types.bf16,
    torch.float32: types.f32,
    torch.float64: types.f64,
    torch.complex64: types.c64,
    torch.complex128: types.c128,
    torch.float8_e4m3fn: types.f8e4m3,
    torch.float8_e5m2: types.f8e5m2,
}
TORCH_OF: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in TORCH_DTYPES.items()}


def dtype_of(dtype: torch.dtype) -> DType:
    """lowc's type for ``dtype``; raises Unsupported, naming it, where there is none."""
    if dtype not in TORCH_DTYPES:
        raise Unsupported(f"dtype {dtype} is not supported")
    return TORCH_DTYPES[dtype]
