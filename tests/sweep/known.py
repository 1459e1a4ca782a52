"""Differences from eager that are understood and stay: what they are about, and why.

Each is named by op (a pattern), by a part of what the sweep says, and by the reason; nothing else is excused.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple


class Known(NamedTuple):
    """``ops``: patterns of names as in op_db, separated by spaces; ``detail``: a part of the message; ``variant``: of the samples
    in this layout, or with these values, alone; ``device``: there alone."""

    ops: str
    detail: str
    reason: str
    variant: str = ""
    device: str = ""


KNOWN = (
    Known(
        "*batch_norm* *group_norm *instance_norm",
        "sign of",
        "eager computes x * scale + shift, lowc (x - mean) * rstd * weight + bias: what cancels to 0 may have another sign",
    ),
    Known(
        "*native_batch_norm* nn.functional.batch_norm",
        "tolerances",
        "bf16 gradients that nearly cancel, of statistics that eager keeps in bf16, too; eager's largest error is larger",
    ),
    Known("nn.functional.instance_norm", "NaN or infinity", "the same for infinite inputs: inf * 0 against inf - inf"),
    Known(
        "nn.functional.interpolate.* nn.functional.upsample_*",
        "NaN or infinity",
        "AOTAutograd takes interpolation apart as a + (b - a) * w, which is NaN between two infinities",
    ),
    Known(
        "nn.functional.interpolate.nearest* nn.functional.upsample_nearest",
        "strides",
        "AOTAutograd takes interpolation apart; a permuted input gives other strides than the whole op",
    ),
    Known("nn.functional.softshrink", "sign of", "AOTAutograd takes softshrink apart; x * 0 keeps the sign of x"),
    Known("native_dropout_backward", "sign of", "grad * mask * scale: a masked element has the sign of the product"),
    Known("native_dropout_backward", "strides", "torch's decomposition has the strides of the product"),
    Known("cummax cummin", "sign of", "which of two equal zeros a running extremum holds"),
    Known(
        "maximum minimum fmax fmin max.binary min.binary clamp clamp_max clamp_min scatter_reduce.amax scatter_reduce.amin",
        "sign of",
        "which of two equal zeros is kept: eager's vector code and its code for single elements differ (docs/limits.md)",
    ),
    Known("var_mean std_mean", "result 1: NaN or infinity", "the mean beside infinities is that of ``mean`` (docs/limits.md)"),
    Known("native_group_norm", "values", "eager reads an expanded weight and bias as if they were contiguous", "expanded"),
    Known("native_layer_norm", "sign of", "(x - mean) * rstd * weight for x * scale + shift: what cancels may have another sign"),
    Known(
        "nn.functional.elu nn.functional.selu nn.functional.celu",
        "result 2: NaN or infinity",
        "the gradient at NaN is NaN, as in eager's vector code, not passed on, as in its code for single elements",
    ),
    Known(
        "nn.functional.pixel_unshuffle",
        "[0, 9, 2, 2], not",
        "eager gives a batch of nothing the shape of its input; lowc the shape that the op has, as torch's fake tensors do",
    ),
    Known("nn.functional.gelu", "NaN or infinity", "gelu(inf) is inf, as in eager for f64 and f16 (docs/limits.md)"),
    Known("logit", "NaN or infinity", "the gradient at -0.0 is 1 / -0.0; ATen's vector code drops the sign"),
    Known("prod", "NaN or infinity", "the gradient of a product of infinities: eager looks at the values to choose a formula"),
    Known(
        "_batch_norm_with_update nn.functional.max_unpool* resize_as_ angle",
        "strides",
        "torch's fake tensors have other strides than ATen's result, and all that follows is compiled with them",
    ),
    Known("normal.in_place", "values", "AOTAutograd makes it functional: numbers are drawn for a contiguous tensor"),
    Known("kron", "tolerances", "a sum of 200 terms that cancel to a hundredth of their size"),
    Known("_chunk_cat nn.functional.pdist linalg.eig*", "exit status", "eager itself ends the process"),
    Known("native_batch_norm _native_batch_norm_legit", "exit status -8", "eager itself divides by a count of 0"),
    Known(
        "nn.functional.avg_pool2d",
        "result 2",
        "eager's kernel for channels_last (avg_pool2d_backward_out_cuda_frame_nhwc) leaves the padding out of where windows are",
        "channels_last",
        "cuda",
    ),
    Known(
        "nn.functional.relu nn.functional.relu6",
        "sign of",
        "of -0.0 and the limit 0.0 eager keeps the limit in torch 2.11; later sources of TensorCompare.cu keep -0.0, as on a CPU",
        device="cuda",
    ),
    Known(
        "_softmax_backward_data",
        "sign of",
        "(grad - sum) * output, as on a CPU, where eager has grad * output - output * sum",
        device="cuda",
    ),
    Known(
        "native_batch_norm _native_batch_norm_legit",
        "strides",
        "ATen's own kernels keep a permutation, cuDNN's result is contiguous; AOTAutograd traces one op for both",
        "transposed",
        "cuda",
    ),
    Known("lu_solve", "values", "pivots of a larger matrix: eager reads and writes rows that are not there", "single", "cuda"),
)


def why_known(op: str, variant: str, detail: str, device: str = "cpu") -> str | None:
    """The reason for a difference, or None if it is not known."""
    for known in KNOWN:
        if known.variant not in ("", variant) or known.device not in ("", device.split(":")[0]) or known.detail not in detail:
            continue
        if any(fnmatchcase(op, pattern) for pattern in known.ops.split()):
            return known.reason
    return None
