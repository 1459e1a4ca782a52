"""The C header of an artifact: what its shared library has, and what this model takes and returns."""

from typing import Any

from lowc.standalone.dtypes import NUMBERS
from lowc.standalone.manifest import Manifest, Size, Tensor
from lowc.standalone.trees import size_text

_C = {
    "bool": "uint8_t, 0 or 1", "u8": "uint8_t", "i8": "int8_t", "i16": "int16_t", "u16": "uint16_t", "i32": "int32_t",
    "u32": "uint32_t", "i64": "int64_t", "u64": "uint64_t", "f16": "uint16_t, IEEE 754 half", "bf16": "uint16_t, bfloat16",
    "f32": "float", "f64": "double",
}  # fmt: skip

_TYPES = """\
#ifndef LOWC_TENSOR
#define LOWC_TENSOR

/* What the elements of a tensor are. */
enum {{
{dtypes}
}};

/* A tensor: memory of the caller's, which a call only reads (inputs) or fills (outputs).
   Tensors of one call must not overlap if one of them is an output. */
typedef struct {{
  void *data;             /* the first element, aligned to the size of one; may be NULL if there are none */
  const int64_t *sizes;   /* rank of them */
  const int64_t *strides; /* rank of them, in elements; NULL: the last index is contiguous, none is padded */
  int32_t rank;
  int32_t dtype;
}} lowc_tensor;

#endif
"""

_FUNCTIONS = """\
/* One call of the model: 0, or why there is none.
   inputs, outputs: {PREFIX}_INPUTS and {PREFIX}_OUTPUTS tensors, in the order below.  Their dtypes, ranks, sizes and strides are
   checked before anything is computed.
   workspace: {prefix}_workspace() bytes at a multiple of 64 that nothing else uses meanwhile; NULL: the call allocates it.
   bytes: of the workspace.
   May be called from several threads at once. */
int64_t {prefix}_run(const lowc_tensor *inputs, int64_t n, const lowc_tensor *outputs, int64_t m, void *workspace, int64_t bytes);

/* The sizes of the outputs for inputs of such sizes: sizes[i] has room for those of output i.  0, or what is wrong with the
   inputs (data and strides of which are checked as well, and integers read). */
int64_t {prefix}_sizes(const lowc_tensor *inputs, int64_t n, int64_t *const *sizes);

/* Bytes of workspace for inputs of such sizes; a number below 0 says what is wrong with them. */
int64_t {prefix}_workspace(const lowc_tensor *inputs, int64_t n);

/* What a code that is not 0 means.  Below 0, -code >> 8 is the number of the argument (inputs, then outputs) that is refused;
   1 and 2 are the model's own checks: an index out of range, an integer division by zero. */
const char *{prefix}_message(int64_t code);
"""


def text(manifest: Manifest, prefix: str) -> str:
    """The header's content."""
    dtypes = ",\n".join(f"  LOWC_{name.upper()} = {number} /* {_C[name]} */" for name, number in NUMBERS.items())
    guard = f"{prefix.upper()}_H"
    gpus = [code.level for code in manifest.code if code.gpu is not None]
    lines = [
        f"/* {manifest.name}, compiled by lowc {manifest.lowc}; numerics {manifest.numerics}, calls version {manifest.abi}. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        _TYPES.format(dtypes=dtypes),
        f"#define {prefix.upper()}_INPUTS {len(manifest.inputs)}",
        *(f"/* input {n}: {_tensor(tensor)} */" for n, tensor in enumerate(manifest.inputs)),
        f"#define {prefix.upper()}_OUTPUTS {len(manifest.outputs)}",
        *(f"/* output {n}: {_output(output)} */" for n, output in enumerate(manifest.outputs)),
        *(f"/* size {s.name}: {s.low} to {'any' if s.high is None else s.high} */" for s in manifest.symbols),
        *(f"/* with {shown} */" for _, shown in manifest.conditions),
        *([f"/* code for GPUs ({', '.join(gpus)}) is for Python alone: tensors here are the host's */"] if gpus else []),
        "",
        _FUNCTIONS.format(prefix=prefix, PREFIX=prefix.upper()),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        f"#endif /* {guard} */",
        "",
    ]
    return "\n".join(lines)


def _output(output: Tensor | Size) -> str:
    return _tensor(output) if isinstance(output, Tensor) else f"{output.name}, LOWC_I64 of rank 0: a size"


def _tensor(tensor: Tensor) -> str:
    strides, dense = list(map(str, tensor.strides)), ""
    if strides != list(map(str, _contiguous(tensor.shape))):
        dense = f", strides [{', '.join(map(size_text, tensor.strides))}]"
    if tensor.value is not None:
        return f"{tensor.name}, LOWC_I64 of rank 0: an integer, {size_text(tensor.value)}"
    if tensor.drawn:
        return f"{tensor.name}, LOWC_I64 [1]: the seed of random numbers"
    return f"{tensor.name}, LOWC_{tensor.dtype.upper()} [{', '.join(map(size_text, tensor.shape))}]{dense}"


def _contiguous(shape: tuple[Any, ...]) -> list[Any]:
    """Strides of numbers, as far as they can be said without arithmetic on names."""
    found: list[Any] = []
    step: Any = 1
    for extent in reversed(shape):
        found.append(step)
        step = step * extent if isinstance(step, int) and isinstance(extent, int) else extent if step == 1 else None
    return found[::-1]
