"""Reports on structure: empty tensors, reductions, scans, pooling, padding, interpolation, indexing,
complex numbers, fusion, dynamic and data-dependent shapes.
"""

import torch
import torch.nn.functional as F

from tests.e2e.report_cases import INF, NAN, PT, R, T, bf16, case, f16, f32, f64, i32, i64, u8

# ---------------------------------------------------------------- empty, zero-dim, odd shapes


@case(
    "cumsum_zero_dim_constant",
    PT + "193265",
    lambda: (),
    kind="zero-dim",
    notes="cumsum of a 0-dim constant: compile-time IndexError",
)
def _():
    return (
        torch.full((), 6.5).cumsum(0),
        torch.tensor(-3).cumsum(-1),
        torch.full((), 2.0).cumprod(0),
        torch.zeros((), dtype=torch.bool).cumsum(-1),
    )


@case(
    "mean_dim_of_scalar",
    PT + "102546",
    lambda: (T(2.5),),
    kind="zero-dim",
    notes="a reduction over dim 0 or -1 of a 0-dim tensor is allowed",
)
def _(x):
    return x.mean(0), x.sum(-1), x.amax(0), x.softmax(0), x.var(0, correction=0), x.argmax(0)


@case(
    "linear_zero_features",
    PT + "104937",
    lambda: (torch.empty(2, 0), torch.empty(3, 0), torch.ones(3), torch.empty(0, 0)),
    kind="empty",
    notes="matmul with an inner dim of zero gives zeros (plus the bias)",
)
def _(x, w, b, e):
    return F.linear(x, w, b), x @ w.t(), e @ e, torch.bmm(torch.ones(2, 3, 0), torch.ones(2, 0, 2))


@case(
    "empty_cat_stack_index",
    "coverage",
    lambda: (torch.empty(0, 3), torch.ones(2, 3), torch.empty(0, dtype=i64)),
    kind="empty",
    notes="cat with empty parts (and the legacy 1-D empty), index by an empty index, empty slices",
)
def _(a, b, i):
    return torch.cat([a, b, a]), torch.cat([torch.empty(0), b]), b[i], b[2:], b[:, 3:], torch.stack([a, a])


@case(
    "zero_dim_complex_add",
    PT + "172073",
    lambda: (T(2.5 + 1j),),
    kind="complex",
    notes="0-dim complex arithmetic crashed in a dtype view",
)
def _(z):
    c = torch.scalar_tensor(1.5, dtype=torch.complex64)
    return z + z, c + c, c * z


@case(
    "scalar_promotion",
    "coverage",
    lambda: (T([1, 2], i32), T(2.5), T(3, i64), T([1.0], f16), T(1e5, f64)),
    kind="dtype",
    notes="0-dim tensors and Python numbers do not promote within a category, do across categories",
)
def _(a, b, c, h, d):
    return a + b, a * c, h + d, h * 2.0, a / 2, a + 1.5, a * True, torch.where(a > 1, a, 0.5), c // 2


@case(
    "masked_fill_broadcast_mask",
    PT + "93823",
    lambda: (R(2, 3, 8, seed=26), torch.ones(2, 3, 1, dtype=torch.bool)),
    kind="broadcast",
    notes="a size-1 bool mask broadcast along the vectorised dim was read as one lane",
)
def _(x, m):
    return x.masked_fill(m, 0.0), x.masked_fill(~m, 1.0), torch.where(m, x, -x)


# ---------------------------------------------------------------- reductions, argmax, sorting


@case(
    "argmax_of_transposed_after_inplace",
    PT + "183082",
    lambda: (R(5, 7, seed=27),),
    kind="argmax",
    notes="flat argmax of a transposed in-place result: the index counts in logical order",
)
def _(x):
    y = x.mul(1.5)
    y.cos_()
    return y.mT.argmin(), y.argmax(), y.unfold(1, 7, 1).permute(1, 2, 0).argmax()


@case(
    "max_dim_of_mixed_layouts",
    PT + "178964",
    lambda: (R(8, 8, seed=28).t(), R(8, 8, seed=29)),
    kind="argmax",
    notes="(a.T + b).max(dim=1): indices came back all zero",
)
def _(a, b):
    v, i = (a + b).max(dim=1)
    w, j = (a + b).min(dim=0)
    return v, i, w, j


@case(
    "argmax_two_trailing_dims",
    PT + "113013",
    lambda: (R(3, 4, 5, seed=30),),
    kind="argmax",
    notes="argmax over two merged dims: the index is over the product",
)
def _(x):
    return x.flatten(1).argmax(1), (x * 2).argmax(), x.permute(2, 0, 1).reshape(5, -1).argmin(1)


@case(
    "argmax_all_equal",
    PT + "114229",
    lambda: (R(3, 33, seed=31),),
    kind="argmax",
    notes="x - x is all zero: the first index wins everywhere; contraction made noise instead",
)
def _(x):
    y = x * 1.7
    return (y - y).argmax(1), (x * 1.7 - y).argmax(1), torch.ones(2, 50).argmin(1)


@case(
    "bool_reductions",
    "coverage",
    lambda: (T([[True, False, True], [True, True, True]]),),
    kind="bool",
    notes="bool sum/prod/cumsum are int64; amax/any/all/max are bool; mean refuses bool",
)
def _(x):
    return (
        x.sum(1),
        x.prod(1),
        x.cumsum(1),
        x.any(1),
        x.all(1),
        x.amax(1),
        x.max(1).indices,
        x.sum(dtype=f32),
        x ^ ~x,
        x.float().mean(),
    )


@case(
    "half_sum_accumulates_in_float",
    "coverage",
    lambda: (torch.full((5000,), 1.0, dtype=f16), torch.full((3000,), 0.01, dtype=bf16)),
    kind="precision",
    exact=False,
    rtol=1e-2,
    notes="an fp16 sum of 5000 ones is 5000 (an fp16 accumulator sticks at 2048)",
)
def _(a, b):
    return a.sum(), b.sum(), a.mean(), a.norm(), a.cumsum(0)[-1]


@case(
    "softmax_all_neg_inf_row",
    "gabrieldemarmiesse/torch-mojo-backend#319 / iree-org/iree#24178",
    lambda: (T([[-INF, -INF, -INF], [0.0, -INF, 1.0], [INF, 0.0, 1.0]]),),
    kind="softmax",
    exact=False,
    rtol=1e-6,
    notes="an all -inf row gives NaN in softmax, -inf in logsumexp; -inf beside finite values is 0",
)
def _(x):
    return x.softmax(1), x.log_softmax(1), x.logsumexp(1), x[:2].logcumsumexp(1)


@case(
    "logcumsumexp_uint8_raises",
    PT + "197807",
    lambda: (T(3, u8),),
    kind="dtype",
    raises=True,
    notes="an unsupported dtype must still be refused on the 0-dim fast path",
)
def _(x):
    return torch.logcumsumexp(x, 0)


@case(
    "cumulative_family",
    "coverage",
    lambda: (T([[3.0, -1.0, NAN, 2.0], [0.0, 5.0, -0.0, 5.0]]),),
    kind="scan",
    exact=False,
    rtol=1e-6,
    notes="cummax/cummin values and indices (last index on ties, NaN sticks), cumprod through zero, reversed cumsum",
)
def _(x):
    a, b = x.cummax(1), x.cummin(0)
    return (
        a.values,
        a.indices,
        b.values,
        b.indices,
        x.cumprod(1),
        x.flip(1).cumsum(1).flip(1),
        x[1:].logcumsumexp(1),
    )


@case(
    "cumprod_backward_with_zero",
    PT + "172062",
    lambda: (T([[0.5, 0.0, 2.0, -1.5], [1.0, 2.0, 0.0, 0.0]]),),
    kind="scan",
    grad=True,
    exact=False,
    rtol=1e-5,
    atol=1e-6,
    notes="gradient of cumprod where the input has zeros (division formula fails)",
)
def _(x):
    return x.cumprod(1) * T([1.0, 2.0, 3.0, 4.0])


# ---------------------------------------------------------------- pooling, padding, interpolation, convolution


@case(
    "avg_pool_ceil_mode",
    PT + "100987",
    lambda: (R(1, 2, 6, 7, seed=43),),
    kind="pool",
    exact=False,
    rtol=1e-6,
    atol=1e-6,
    notes="ceil_mode windows that hang over: the divisor counts only what is inside (plus explicit padding)",
)
def _(x):
    return (
        F.avg_pool2d(x, 3, 2, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    )


@case(
    "avg_pool_divisor_override",
    "pytorch/executorch#18616",
    lambda: (R(1, 1, 5, 5, seed=44),),
    kind="pool",
    exact=False,
    rtol=1e-6,
    atol=1e-6,
    notes="divisor_override wins over count_include_pad",
)
def _(x):
    return F.avg_pool2d(x, 2, 2, 1, count_include_pad=False, divisor_override=3), F.avg_pool2d(
        x, 3, divisor_override=1
    )


@case(
    "avg_pool_ceil_backward",
    PT + "198119",
    lambda: (R(1, 1, 7, 7, seed=45),),
    kind="pool",
    grad=True,
    exact=False,
    rtol=1e-6,
    atol=1e-6,
    notes="backward of the overhanging window used the full kernel size",
)
def _(x):
    return F.avg_pool2d(x, 3, 2, ceil_mode=True)


@case(
    "pool_ceil_output_shape",
    "apache/tvm#18641",
    lambda: (R(1, 1, 17, 17, seed=46),),
    kind="pool",
    exact=False,
    rtol=1e-6,
    atol=1e-6,
    notes="a last window that would start in the right padding is dropped: 9x9, not 10x10",
)
def _(x):
    return F.avg_pool2d(x, 2, 2, 1, ceil_mode=True), F.max_pool2d(x, 2, 2, 1, ceil_mode=True)


@case(
    "max_pool_kernel_one_ceil",
    PT + "94775",
    lambda: (R(1, 1, 4, 9, seed=47),),
    kind="pool",
    notes="kernel 1, stride 2, ceil_mode: an extra row of -inf appeared",
)
def _(x):
    return F.max_pool2d(x, 1, stride=2, ceil_mode=True)


@case(
    "pad_modes_and_negative",
    "coverage",
    lambda: (torch.arange(24.0).reshape(1, 1, 4, 6),),
    kind="pad",
    notes="negative (cropping) pads, mixed signs, circular, and pad of a 0-size result",
)
def _(x):
    return (
        F.pad(x, (-1, 2, 1, -2)),
        F.pad(x, (2, 1, 1, 2), mode="circular"),
        F.pad(x, (-3, -3)),
        F.pad(x, (0, 0, 2, 0), value=NAN),
    )


@case(
    "interpolate_modes",
    "coverage",
    lambda: (R(1, 2, 5, 6, seed=49),),
    kind="interpolate",
    exact=False,
    rtol=1e-4,
    atol=1e-5,
    notes="nearest, nearest-exact, bilinear, bicubic, area; align_corners both ways; "
    "fractional scale_factor with and without recompute",
)
def _(x):
    return (
        F.interpolate(x, scale_factor=1.7, mode="nearest"),
        F.interpolate(x, size=(3, 4), mode="nearest-exact"),
        F.interpolate(x, size=(8, 3), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=0.6, mode="bilinear"),
        F.interpolate(x, scale_factor=1.3, mode="bicubic", recompute_scale_factor=True),
        F.interpolate(x, size=(2, 3), mode="area"),
        F.interpolate(x, size=(1, 1), mode="bilinear", align_corners=True),
    )


@case(
    "grid_sample_modes",
    "coverage",
    lambda: (
        R(1, 2, 4, 5, seed=50),
        torch.stack([torch.linspace(-1.4, 1.4, 12), torch.linspace(1.2, -1.3, 12)], -1).reshape(1, 3, 4, 2),
    ),
    kind="interpolate",
    exact=False,
    rtol=1e-4,
    atol=1e-5,
    notes="bilinear/nearest/bicubic x zeros/border/reflection x align_corners, with points outside",
)
def _(x, g):
    return tuple(
        F.grid_sample(x, g, mode=m, padding_mode=p, align_corners=a)
        for m in ("bilinear", "nearest", "bicubic")
        for p in ("zeros", "border", "reflection")
        for a in (True, False)
    )


@case(
    "flip_roll_diagonal",
    "coverage",
    lambda: (torch.arange(24.0).reshape(2, 3, 4),),
    kind="indexing",
    notes="multi-dim flip, negative and over-long roll, rot90, diagonal with offset, tril/triu",
)
def _(x):
    return (
        x.flip(0, 2),
        x.roll((5, -1), (1, 2)),
        torch.rot90(x, 3, (1, 2)),
        x.diagonal(1, 1, 2),
        x.tril(-1),
        x.triu(2),
        x.roll(7),
    )


# ---------------------------------------------------------------- indexing


@case(
    "embedding_negative_index_raises",
    PT + "183608 (also #151918)",
    lambda: (T([1, -1, 3]), R(5, 2, seed=61)),
    kind="bounds",
    raises=True,
    notes="embedding does not wrap negative indices: IndexError, not the last row",
)
def _(i, w):
    return F.embedding(i, w)


@case(
    "gather_negative_index_raises",
    PT + "135546",
    lambda: (R(3, 4, seed=62), T([[0, -1], [1, 2], [3, 0]])),
    kind="bounds",
    raises=True,
    notes="gather does not wrap negative indices",
)
def _(x, i):
    return x.gather(1, i)


@case(
    "index_out_of_range_raises",
    "coverage",
    lambda: (R(3, 4, seed=63), T([0, 3])),
    kind="bounds",
    raises=True,
    notes="x[idx] past the end must raise, not read out of bounds",
)
def _(x, i):
    return x[i] + 1


@case(
    "advanced_indexing_shapes",
    "coverage",
    lambda: (torch.arange(120.0).reshape(2, 3, 4, 5), T([[0], [1]]), T([2, 0, 1])),
    kind="indexing",
    notes="adjacent vs separated index tensors move the broadcast dims; bool masks; None and ellipsis",
)
def _(x, i, j):
    return x[i, j], x[i, :, j], x[:, j, :, 0], x[..., j], x[:, None, 1, ..., -1], x[i, j % 3, 1:3]


@case(
    "embedding_padding_idx_grad",
    "coverage",
    lambda: (R(5, 3, seed=64), T([1, 2, 1, 4])),
    kind="scatter",
    grad=True,
    notes="gradient of embedding: duplicates add, the padding row gets zero",
)
def _(w, i):
    return F.embedding(i, w, padding_idx=2) * 2


@case(
    "embedding_bag_max",
    "pytorch/xla#7588",
    lambda: (T([1, 2, 0, 4, 3]), -R(6, 3, seed=65).abs() - 1, T([0, 3, 3])),
    kind="scatter",
    exact=False,
    rtol=1e-6,
    notes="embedding_bag max of all-negative rows must not be clipped by zero; an empty bag is zero; sum and mean",
)
def _(i, w, o):
    return (
        F.embedding_bag(i, w, o, mode="max"),
        F.embedding_bag(i, w, o, mode="sum"),
        F.embedding_bag(i, w, o, mode="mean"),
    )


@case(
    "index_reduce_amax_grad",
    PT + "168358",
    lambda: (R(5, seed=66),),
    kind="scatter",
    grad=True,
    notes="backward of index_reduce('amax', include_self=False) over a -inf destination gave NaN",
)
def _(x):
    return torch.full((2,), -INF).index_reduce(0, T([0, 1, 0, 1, 1]), x, "amax", include_self=False)


@case(
    "cdist_distances",
    "coverage",
    lambda: (R(4, 3, seed=67), R(5, 3, seed=68)),
    kind="reduction",
    exact=False,
    rtol=1e-4,
    atol=1e-5,
    notes="cdist p = 0, 1, 2, inf; equal points give exactly zero",
)
def _(a, b):
    return (
        torch.cdist(a, b),
        torch.cdist(a, b, p=1.0),
        torch.cdist(a, b, p=INF),
        torch.cdist(a, b, p=0.0),
        torch.cdist(a[:1], a[:1]),
    )


# ---------------------------------------------------------------- complex


@case(
    "complex_conj_matmul",
    PT + "171852",
    lambda: (
        torch.complex(R(2, 3, seed=69), R(2, 3, seed=70)),
        torch.complex(R(4, 3, seed=71), R(4, 3, seed=72)),
    ),
    kind="complex",
    exact=False,
    rtol=1e-5,
    atol=1e-5,
    notes="lazy conj/neg bits into matmul and view_as_real",
)
def _(x, w):
    y = F.linear(x.conj(), w)
    return torch.view_as_real(y.conj().resolve_conj()), y.imag.neg(), (x.mH @ x).real


@case(
    "complex_abs_grad_transposed",
    PT + "184101",
    lambda: (R(3, 2, seed=73), R(3, 2, seed=74)),
    kind="complex",
    grad=True,
    exact=False,
    rtol=1e-5,
    atol=1e-6,
    notes="backward of abs/angle of a transposed complex tensor crashed",
)
def _(re, im):
    z = torch.complex(re, im).t()
    return z.abs() + z.angle()


@case(
    "complex_special_values",
    "coverage",
    lambda: (torch.tensor([complex(0.0, -0.0), complex(-1.0, 0.0), complex(-1.0, -0.0), complex(INF, 1.0)]),),
    kind="complex",
    exact=False,
    rtol=1e-6,
    notes="angle/sqrt/log on the branch cut take the sign of the zero; abs(inf+1j)=inf; sgn(0)=0",
)
def _(z):
    return z.angle(), z[:3].sqrt(), z.abs(), z[1:3].log(), z[:3].sgn(), z.isinf()


# ---------------------------------------------------------------- other compilers' fusion bugs


@case(
    "minmax_of_overlapping_slices",
    "tinygrad/tinygrad#9987",
    lambda: (torch.arange(6),),
    kind="fusion",
    notes="max of one slice minus min of another, fused into one kernel with different ranges",
)
def _(t):
    return t[1:5].max() - t[2:4].min(), t[:2].sum() * t[3:].prod()


@case(
    "argmax_of_bf16_softmax",
    "pytorch/xla#2525",
    lambda: (R(3, 40, seed=78).mul(6).to(bf16),),
    kind="argmax",
    notes="softmax then argmax in bf16: the index stays in range and follows the bf16 values",
)
def _(x):
    return torch.softmax(x.float(), -1).to(bf16).argmax(-1), x.argmax(-1)


# ---------------------------------------------------------------- dynamic shapes and data dependence


@case(
    "dynamic_to_size_one",
    "coverage",
    lambda: (R(6, 4, seed=84),),
    kind="dynamic",
    dynamic=True,
    second=lambda: (R(1, 4, seed=85),),
    exact=False,
    rtol=1e-5,
    atol=1e-6,
    notes="a compiled dynamic batch is called with size 1: broadcasting may change meaning",
)
def _(x):
    return x - x.mean(0), x.var(0, correction=0), x.cumsum(0), x[-1] + x


@case(
    "dynamic_to_size_zero",
    "coverage",
    lambda: (R(6, 4, seed=86),),
    kind="dynamic",
    dynamic=True,
    second=lambda: (R(0, 4, seed=87),),
    exact=False,
    rtol=1e-5,
    atol=1e-6,
    notes="a compiled dynamic batch is called with size 0",
)
def _(x):
    return x.sum(0), x.softmax(1) * 2, torch.cat([x, x.new_ones(1, 4)]).mean(0), x.reshape(-1, 2, 2).flip(0)


@case(
    "dynamic_strides_change",
    "coverage",
    lambda: (R(6, 4, seed=88),),
    kind="dynamic",
    dynamic=True,
    strides=True,
    second=lambda: (R(4, 6, seed=89).t(),),
    exact=False,
    rtol=1e-6,
    atol=1e-6,
    notes="same size, other strides at the second call: the guard must notice",
)
def _(x):
    return x * 2 + 1, x.sum(1), x.reshape(-1)


@case(
    "item_as_size",
    PT + "117461",
    lambda: (T(5),),
    kind="data-dependent",
    capture=True,
    second=lambda: (T(0),),
    notes="a size from .item(), reduced; also for n = 0",
)
def _(n):
    k = n.item()
    return torch.full((k, 2), 3.0).sum(0), torch.arange(k + 1)


@case(
    "nonzero_and_masked_select",
    "coverage",
    lambda: (T([0.0, 2.0, 0.0, -1.0]),),
    kind="data-dependent",
    capture=True,
    fullgraph=False,
    second=lambda: (torch.zeros(4),),
    notes="nonzero, x[mask] and unique; second call has no hit at all",
)
def _(x):
    i = x.nonzero()
    return i * 2, x[x != 0] + 1, i.shape[0] + x.sum() * 0


@case(
    "int64_values_near_2_31",
    PT + "183901 (class)",
    lambda: (T([2**31 - 2, 2**31 + 3, -(2**31) - 7, 2**53 + 1], i64),),
    kind="int width",
    notes="int64 values past 2^31 and 2^53 through arithmetic, comparison, min/max and sum",
)
def _(x):
    return (
        x + 1,
        x * 2,
        x // 3,
        x % 1000,
        x.max(),
        x.sum(),
        x > 2**31,
        x.to(f64) - 2**53,
        torch.arange(2**31, 2**31 + 4),
    )


# ---------------------------------------------------------------- RNG


@case(
    "dropout_p_edge",
    "coverage",
    lambda: (R(9, seed=90),),
    kind="rng",
    platform=True,
    notes="p=0 and eval are the identity, p=1 is zeros: deterministic (eager keeps the sign of the dropped zeros)",
)
def _(x):
    return F.dropout(x, 0.0, True), F.dropout(x, 1.0, True), F.dropout(x, 0.5, False)
