"""Which ATen ops are taken apart before lowering sees them, and how.

Three sources: lowc's own (``OWN``), torch's (``TORCHS``, by name: each was compared with eager over torch's own op samples,
values, dtypes and strides), and the list ops of optimisers.  What lowering has a kernel for is not taken apart (``keep``).

Left whole on purpose, because torch's decomposition differs from eager:

* strides: baddbmm, max_unpool2d, reflection_pad*_backward, huber, mse and smooth-L1 gradients (own instead);
* values: addr and linalg_cross in bf16, special_log_ndtr and special_ndtr in the tails;
* random numbers: bernoulli, normal, uniform, rrelu_with_noise (see random.py);
* shape of the second result: _scaled_dot_product_flash_attention_for_cpu.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false

from lowc.frontend import decomp_loss as loss
from lowc.frontend import decomp_norm as norm
from lowc.frontend.decomp_foreach import foreach_decompositions


def torchs(op: Any) -> Callable[..., Any]:
    """torch's own decomposition of ``op``; imported where it is needed, which takes long."""
    from torch._decomp import decomposition_table

    return decomposition_table[op]


def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    mixed = self.unflatten(1, (groups, self.shape[1] // groups)).transpose(1, 2).flatten(1, 2)
    if self.device.type != "cpu":
        return mixed.contiguous()
    return mixed.contiguous(memory_format=suggest_memory_format(self))


def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """As ATen does it, so that the strides are ATen's: on a GPU contiguous, on a CPU those of ``cat``.  The fake tensor of the
    whole op has others, and a backward pass that is given the result would read it by those."""
    if self.device.type != "cpu":
        return torchs(torch.ops.aten.roll.default)(self, shifts, dims).contiguous()
    if not dims:
        return roll(self.contiguous().flatten(), shifts, (0,)).view(self.shape)
    out = self
    for shift, dim in zip(shifts, dims, strict=True):
        size = out.shape[dim]
        if guard_or_false(size == 0):
            return self.clone()
        if isinstance(size, torch.SymInt):
            # Torch asks of each part whether it has one row only; sizes that may be any, as the user says, cannot be told apart so.
            index = torch.remainder(torch.arange(size, device=out.device) - shift, size)
            out = out.index_select(dim, index).contiguous(memory_format=suggest_memory_format(out))
            continue
        start = (size - shift) % size
        out = torch.cat((out.narrow(dim, start, size - start), out.narrow(dim, 0, start)), dim)
    return out


def into_copy_of_expanded(op: Any) -> Callable[..., Any]:
    """``op``, which gives its first tensor with a part replaced.  Of one that overlaps itself ATen makes a copy first; fake
    tensors of torch 2.11 give the result the strides of what was expanded."""

    def replaced(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        expanded = any(type(s) is int and s == 0 and n != 1 for n, s in zip(self.shape, self.stride(), strict=True))
        if not expanded or any(type(n) is int and n == 0 for n in self.shape):
            return NotImplemented
        return op(self.clone(), *args, **kwargs)

    return replaced


def zeros(size: Sequence[int], **options: Any) -> Tensor:
    """Zeros that lie in memory.  ATen's have none, and a kernel that reads them ends the process."""
    return torch.zeros(size, **options)


def index_fill(x: Tensor, dim: int, index: Tensor, value: complex | Tensor) -> Tensor:
    """torch's own copies in place where strides differ, which AOTAutograd of torch 2.11 refuses."""
    flat = x.unsqueeze(0) if x.dim() == 0 else x
    filling = value.to(x.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    places = [None] * (dim % flat.dim()) + [index.reshape(-1)]
    return as_it_lies(torch.ops.aten.index_put.default(flat, places, filling).reshape(x.shape), x)


def as_it_lies(made: Tensor, x: Tensor) -> Tensor:
    """``made``, which is one like ``x``, with the strides of ``x`` where there is one element: ATen's results have these, fake
    ones of many ops have not, and whether something counts as channels_last hangs on them."""
    alone = [n == 1 for n in x.shape if type(n) is int]
    if len(alone) < x.dim() or made.stride() == x.stride():
        return made
    same = all(a == b for a, b, one in zip(made.stride(), x.stride(), alone, strict=True) if not one)
    return made.as_strided(made.shape, x.stride()) if same else made


def take(self: Tensor, index: Tensor) -> Tensor:
    """torch's own reads a 0-dim index as a number, which a graph does not know."""
    return torch.ops.aten.index.Tensor(self.reshape(-1), [index])


def isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """torch's own way for many elements, a search among the sorted ones, does not find infinities beside NaN."""
    few = guard_or_false(test_elements.numel() < 10.0 * pow(elements.numel(), 0.145))
    if few or assume_unique or not test_elements.is_floating_point():
        own = torchs(torch.ops.aten.isin.Tensor_Tensor)
        return own(elements, test_elements, assume_unique=assume_unique, invert=invert)
    ordered = test_elements.flatten().sort().values
    place = torch.searchsorted(torch.where(ordered.isnan(), torch.inf, ordered), elements)
    found = ordered[place.clamp(max=ordered.numel() - 1)] == elements
    return ~found if invert else found


def is_number_in(element: complex, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    found = (test_elements == element).any()
    return ~found if invert else found


def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """ATen's result is contiguous whatever the strides of ``self``."""
    half = self.shape[dim] // 2
    a, gate = norm.widen(self.narrow(dim, 0, half)), torch.sigmoid(norm.widen(self.narrow(dim, half, half)))
    grad = norm.widen(grad_output) * gate
    return torch.cat((grad, (1 - gate) * grad * a), dim).to(self.dtype).contiguous()


def unfold_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    """Where windows do not overlap, elements in their places, with zeros between: a sum from 0 on, torch's own, loses the sign of
    a zero, which matters where memory is written through ``unfold``."""
    if not input_sizes or step < size:
        return torchs(torch.ops.aten.unfold_backward.default)(grad, input_sizes, dim, size, step)
    dim %= len(input_sizes)
    inner = len(input_sizes) - dim - 1
    windows = torch.constant_pad_nd(grad.movedim(-1, dim + 1), [0, 0] * inner + [0, step - size])
    flat = torch.constant_pad_nd(windows.flatten(dim, dim + 1), [0, 0] * inner + [0, size])
    return flat.narrow(dim, 0, input_sizes[dim]).contiguous()


def conj(self: Tensor | complex) -> Tensor:
    """Not lazily.  A gradient formula conjugates Python numbers too; what it multiplies then is complex already, so the 0-d
    tensor of the widest dtype takes part without changing any dtype."""
    if not isinstance(self, Tensor):
        return torch.scalar_tensor(complex(self).conjugate(), dtype=torch.complex128)
    return torch.conj_physical(self)


def neg_view(self: Tensor | complex) -> Tensor:
    if not isinstance(self, Tensor):
        return torch.scalar_tensor(-self, dtype=torch.complex128 if isinstance(self, complex) else torch.float64)
    return torch.neg(self)


def dim_from_front(op: Any, place: int) -> Callable[..., Any]:
    """``op``, whose argument number ``place`` is a dimension or a list of some, for dimensions counted from the back.

    The fake tensors of ``unique`` have a dimension too many for the last one (``shape[dim + 1 :]`` with dim -1), and with torch
    2.11 those of ``vector_norm``, if it has size 1.
    """

    def counted(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        dim = args[place - 1] if len(args) >= place else kwargs.get("dim")
        dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
        if not self.dim() or all(d >= 0 for d in dims):
            return NotImplemented
        wrapped = [d % self.dim() for d in dims]
        front = wrapped[0] if isinstance(dim, int) else wrapped
        if len(args) >= place:
            return op(self, *args[: place - 1], front, *args[place:], **kwargs)
        return op(self, *args, **kwargs | {"dim": front})

    return counted


def ldexp(self: Tensor, other: Tensor) -> Tensor:
    """Torch's own makes f32 of integers, whatever the default dtype."""
    dtype = self.dtype if self.is_floating_point() or self.is_complex() else torch.get_default_dtype()
    return self * torch.pow(self.new_full((), 2.0, dtype=dtype), other)


OWN: dict[str, Callable[..., Any]] = {
    "ldexp.Tensor": ldexp,
    "unique_consecutive.default": dim_from_front(torch.ops.aten.unique_consecutive.default, 3),
    "unique_dim.default": dim_from_front(torch.ops.aten.unique_dim.default, 1),
    "unique_dim_consecutive.default": dim_from_front(torch.ops.aten.unique_dim_consecutive.default, 1),
    "linalg_vector_norm.default": dim_from_front(torch.ops.aten.linalg_vector_norm.default, 2),
    "_log_softmax.default": norm.log_softmax,
    "_softmax_backward_data.default": norm.softmax_backward,
    "_log_softmax_backward_data.default": norm.log_softmax_backward,
    "native_layer_norm.default": norm.layer_norm,
    "native_layer_norm_backward.default": norm.layer_norm_backward,
    "_fused_rms_norm.default": norm.rms_norm,
    "native_group_norm.default": norm.group_norm,
    "native_group_norm_backward.default": norm.group_norm_backward,
    "_native_batch_norm_legit_functional.default": norm.batch_norm_functional,
    "_native_batch_norm_legit.no_stats": norm.batch_norm_no_stats,
    "_native_batch_norm_legit_no_training.default": norm.batch_norm_no_training,
    "native_batch_norm_backward.default": norm.batch_norm_backward,
    "nll_loss_forward.default": loss.nll_loss,
    "nll_loss2d_forward.default": loss.nll_loss,
    "nll_loss_backward.default": loss.nll_loss_backward,
    "nll_loss2d_backward.default": loss.nll_loss_backward,
    "mse_loss_backward.default": loss.mse_loss_backward,
    "smooth_l1_loss_backward.default": loss.smooth_l1_loss_backward,
    "huber_loss_backward.default": loss.huber_loss_backward,
    "native_dropout.default": loss.native_dropout,
    "channel_shuffle.default": channel_shuffle,
    "roll.default": roll,
    "take.default": take,
    "isin.Tensor_Tensor": isin,
    "isin.Scalar_Tensor": is_number_in,
    "_efficientzerotensor.default": zeros,
    "unfold_backward.default": unfold_backward,
    "select_scatter.default": into_copy_of_expanded(torch.ops.aten.select_scatter.default),
    "slice_scatter.default": into_copy_of_expanded(torch.ops.aten.slice_scatter.default),
    "diagonal_scatter.default": into_copy_of_expanded(torch.ops.aten.diagonal_scatter.default),
    "index_fill.int_Scalar": index_fill,
    "index_fill.int_Tensor": index_fill,
    "glu_backward.default": glu_backward,
    "_conj.default": conj,
    "_neg_view.default": neg_view,
}

# Taken apart even where lowering has a kernel: the fake tensor of the whole op has other strides than eager, which everything
# after it would inherit; lazily conjugated or negated tensors, and zeros without memory, cannot be read; and a backward pass
# needs less than the result.
_ALWAYS = (
    "roll channel_shuffle _conj _neg_view _log_softmax _efficientzerotensor select_scatter slice_scatter diagonal_scatter "
    "linalg_vector_norm"
)
ALWAYS = frozenset(f"aten.{name}.default" for name in _ALWAYS.split())

TORCHS = """
    _fused_rms_norm_backward.default _prelu_kernel.default _prelu_kernel_backward.default _safe_softmax.default
    _weight_norm_interface.default addcdiv.default addcmul.default
    alias_copy.default expand_copy.default permute_copy.default squeeze_copy.default squeeze_copy.dim squeeze_copy.dims
    t_copy.default transpose_copy.int unbind_copy.int unfold_copy.default unsqueeze_copy.default
    split_with_sizes_copy.default unsafe_split.Tensor unsafe_split_with_sizes.default
    all.default all.dim all.dims aminmax.default arange.default arange.start block_diag.default celu.default
    binary_cross_entropy.default binary_cross_entropy_backward.default binary_cross_entropy_with_logits.default
    clamp_max.Tensor clamp_min.Tensor clamp_min.default count_nonzero.default count_nonzero.dim_IntList deg2rad.default
    detach.default diag_embed.default diagonal_backward.default diagonal_copy.default elu.default elu_backward.default
    eye.default eye.m fill.Scalar fill.Tensor floor_divide.default frac.default gelu.default gelu_backward.default
    glu.default hardshrink.default hardsigmoid.default hardsigmoid_backward.default hardswish.default
    hardswish_backward.default hardtanh.default hardtanh_backward.default huber_loss.default
    isneginf.default isposinf.default leaky_relu.default leaky_relu_backward.default lerp.Scalar lerp.Tensor
    linspace.default log_sigmoid_backward.default logaddexp2.default logit.default logit_backward.default
    logsumexp.default masked_fill.Scalar masked_fill.Tensor mish.default mish_backward.default mse_loss.default
    nan_to_num.default nansum.default native_dropout_backward.default new_full.default new_ones.default
    new_zeros.default norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype ones.default
    ones_like.default pixel_shuffle.default pixel_unshuffle.default rad2deg.default rot90.default
    rsub.Scalar rsub.Tensor select_backward.default sgn.default sigmoid_backward.default silu.default
    silu_backward.default sinc.default slice_backward.default smooth_l1_loss.default soft_margin_loss.default
    soft_margin_loss_backward.default softplus.default softplus_backward.default softshrink.default
    special_entr.default special_xlog1py.default special_xlog1py.other_scalar special_xlog1py.self_scalar
    split.Tensor squeeze.default squeeze.dim stack.default std_mean.correction t.default tanh_backward.default
    threshold.default threshold_backward.default trace.default transpose.int tril.default triu.default
    unbind.int upsample_nearest1d.default upsample_nearest1d.vec upsample_nearest2d.default
    upsample_nearest2d.vec upsample_nearest3d.default upsample_nearest3d.vec upsample_bilinear2d.default
    upsample_bilinear2d.vec zero.default zeros.default zeros_like.default
    _chunk_cat.default _unsafe_masked_index.default _unsafe_masked_index_put_accumulate.default
    col2im.default dist.default im2col.default index_copy.default
    isin.Tensor_Scalar
    linspace.Scalar_Tensor linspace.Tensor_Scalar linspace.Tensor_Tensor logspace.default logspace.Scalar_Tensor
    logspace.Tensor_Scalar logspace.Tensor_Tensor multi_margin_loss.default multilabel_margin_loss_forward.default
    narrow_copy.default renorm.default tril_indices.default triu_indices.default
""".split()


def decompositions(keep: Collection[str] = (), *, fallback_random: bool = False) -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd: op → function.  ``keep``: ops to leave whole, as ``aten.add.Tensor``.

    With ``fallback_random``, ops that draw do it as eager does.
    """
    return dict(_table(frozenset(keep), fallback_random))


@lru_cache(4)
def _table(keep: frozenset[str], fallback_random: bool) -> dict[Any, Callable[..., Any]]:
    made = {op: f for name, (op, f) in _all().items() if name not in keep or name in ALWAYS}
    if fallback_random:
        made[torch.ops.aten.native_dropout.default] = loss.eager_dropout
    return made


@cache
def _all() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """By the names of ops, put together here: an op takes as long to say its own as to be found."""
    from torch._decomp import decomposition_table

    table = foreach_decompositions()
    for name in TORCHS:
        op = _op(name)
        if op in decomposition_table:
            table[f"aten.{name}"] = op, decomposition_table[op]
    for name, function in OWN.items():
        op = _op(name)
        if op is not None:
            table[f"aten.{name}"] = op, function
    return table


def _op(name: str) -> Any:
    """The overload, or None if this torch has none of that name."""
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)
