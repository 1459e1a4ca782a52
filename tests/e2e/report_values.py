"""Reports on values: integer and float semantics, casts, mutation and aliasing, layouts."""

import torch
import torch.nn.functional as F

from tests.e2e.report_cases import INF, NAN, PT, R, T, bf16, case, f16, f32, f64, i8, i32, i64, u8

# ---------------------------------------------------------------- integer arithmetic


@case(
    "int_floordiv_scalar_tensor",
    PT + "186164",
    lambda: (T([-7, -6, -1, 0, 1, 6, 7], i64), T(4, i64)),
    kind="int div",
    notes="int64 floor_divide by a 0-dim int64 tensor: rounding must go to -inf",
)
def _(a, d):
    return torch.floor_divide(a, d), a % d, torch.div(a, d, rounding_mode="trunc"), torch.fmod(a, d)


@case(
    "uint8_remainder_by_zero_raises",
    PT + "154420",
    lambda: (T([9, 10, 11], u8), T([3, 0, 4], u8)),
    kind="int div",
    raises=True,
    notes="remainder by zero on uint8 must be an exception, not a dead process",
)
def _(a, b):
    return torch.remainder(a, b)


@case(
    "int_mod_tail_lanes",
    PT + "191968",
    lambda: (torch.arange(20, 35, dtype=i64).reshape(3, 5), T([7, 7, 9, 9, 11], i64)),
    kind="int div",
    notes="% with an odd-length divisor: zero-filled tail lanes of a vector raised a false ZeroDivisionError (2.13)",
)
def _(a, b):
    return a % b


@case(
    "float_floordiv_near_integer",
    PT + "197895",
    lambda: (T([1.0, 0.3, 0.7, -1.0, 5.0], f64), T([0.1, 0.1, 0.1, 0.1, 0.2], f64)),
    kind="float div",
    notes="float // must follow fmod, not floor(a/b): the rounded quotient may be one too high",
)
def _(a, b):
    return a // b, torch.div(a, b, rounding_mode="floor")


@case(
    "float_divtrunc_near_integer",
    PT + "184408",
    lambda: (T([11.999999, 20.999998, 185.0, 444.0], f32), T([3.0, 7.0, 37.0, 37.0], f32)),
    kind="float div",
    notes="trunc division needs correctly rounded division first",
)
def _(a, b):
    return torch.div(a, b, rounding_mode="trunc")


@case(
    "remainder_huge_ratio",
    PT + "194345",
    lambda: (T([3e10, -3e10, 1e38, 7.0], f32), T([7e-15, 7e-15, 3e-38, -2.5], f32)),
    kind="float div",
    notes="remainder/fmod when abs(a/b) exceeds the mantissa: a - b*trunc(a/b) is wrong",
)
def _(a, b):
    return torch.remainder(a, b), torch.fmod(a, b)


@case(
    "fmod_remainder_special",
    "coverage",
    lambda: (T([INF, 1.0, 1.0, -0.0, NAN, -5.5], f32), T([2.0, INF, 0.0, 3.0, 1.0, INF], f32)),
    kind="float div",
    notes="fmod/remainder with inf, zero divisor, -0.0 and NaN",
)
def _(a, b):
    return torch.fmod(a, b), torch.remainder(a, b)


@case(
    "int32_add_wraps_before_widening",
    PT + "108520 (also #190764)",
    lambda: (T([2**31 - 1, -(2**31), 12], i32),),
    kind="int wrap",
    notes="int32 arithmetic must wrap at 32 bits before the cast to int64",
)
def _(x):
    return (x + x).to(i64), (x * 3).to(i64), (x - 1).to(i64)


@case(
    "uint8_neg_then_compare",
    PT + "93829",
    lambda: (T([9, 0, 1], u8),),
    kind="int wrap",
    notes="-x on uint8 is 256-x; a comparison after it must see the wrapped value",
)
def _(x):
    y = -x
    return y, y < 10, y > 100


@case(
    "uint8_abs_neg_cat_sum",
    PT + "187018",
    lambda: (T([150, 3, 250], u8),),
    kind="int wrap",
    notes="abs promoted uint8 to int, so -abs(x) went negative before cat+sum",
)
def _(x):
    y = -x.abs()
    return torch.cat([y, y + 1]).sum(), y.to(i32)


@case(
    "int8_distributive",
    PT + "109105",
    lambda: (T([7, -90, 100], i8), T([5, 60, 100], i8)),
    kind="int wrap",
    notes="(x+y)*c and x*c+y*c agree in int8 only when each step wraps",
)
def _(x, y):
    return ((x + y) * 7).to(i32), (x * 7 + y * 7).to(i32)


@case(
    "shift_in_range_types",
    "coverage",
    lambda: (T([1, 129, 255], u8), T([-128, 127, -1], i8), T([7, 3, 1], i8)),
    kind="shift",
    notes="in-range shifts: logical for uint8, arithmetic for int8, wrap at the type's width",
)
def _(a, b, s):
    return a << 3, a >> 2, b << 1, b >> s


@case(
    "pow_int_negative_exponent",
    "pytorch/xla#6750",
    lambda: (T([-2, -1, 1, 2, 3], i64), T(-1, i64)),
    kind="pow",
    notes="integer tensor to a negative tensor exponent: 0 except for base +-1",
)
def _(x, e):
    return torch.pow(x, e), torch.pow(x, -1 * torch.ones_like(x))


# ---------------------------------------------------------------- NaN, inf, signed zero


@case(
    "argmax_nan_wins",
    PT + "118266",
    lambda: (T([[0.5, NAN, 7.0, NAN], [1.0, 2.0, 2.0, 0.0]]),),
    kind="nan",
    notes="argmax/argmin pick the first NaN; first index wins on ties",
)
def _(x):
    y = torch.log1p(x)
    return y.argmax(1), y.argmin(1), y.max(1).indices, y.amax(1)


@case(
    "negzero_sub_and_neg",
    "coverage",
    lambda: (T([0.0, -0.0, 1.0]),),
    kind="signed zero",
    notes="0 - x and -x differ on zeros; x - x is +0.0; x * 0 keeps the sign and NaN/inf",
)
def _(x):
    return -x, 0.0 - x, x - x, x * 0.0, x * -0.0, torch.copysign(torch.ones(3), x)


@case(
    "minimum_signed_zero",
    PT + "194347 (also #185610)",
    lambda: (T([-0.0, 0.0, -0.0]), T([0.0, -0.0, -0.0])),
    kind="signed zero",
    platform=True,
    notes="minimum(-0.0, 0.0): eager keeps -0.0",
)
def _(a, b):
    return torch.minimum(a, b), torch.maximum(a, b)


@case(
    "frac_trunc_negzero",
    PT + "183606",
    lambda: (T([-0.0, -2.0, -2.75, 3.25]),),
    kind="signed zero",
    notes="frac/trunc/round of negative zero keep the sign",
)
def _(x):
    return torch.frac(x), torch.trunc(x), torch.round(x), torch.ceil(x)


@case(
    "gelu_underflow_sign",
    PT + "189804",
    lambda: (T([-5.52, -5.6, -8.0, -40.0]),),
    kind="signed zero",
    platform=True,
    notes="gelu far left: a tiny negative instead of -0.0 flips sign()",
)
def _(x):
    return torch.sign(F.gelu(x))


@case(
    "log_ndtr_sign",
    PT + "187336",
    lambda: (T([80.0, 5.0, -3.0]),),
    kind="signed zero",
    notes="log_ndtr of a large value is -0.0; copysign shows it",
)
def _(x):
    return torch.copysign(torch.ones_like(x), torch.special.log_ndtr(x))


@case(
    "sinh_cosh_near_overflow",
    PT + "183765 (also #183763)",
    lambda: (T([88.8, 89.0, -89.3, 0.5]),),
    kind="overflow",
    exact=False,
    rtol=1e-4,
    notes="exp(x) overflows before the halving; sinh/cosh are finite up to 89.4",
)
def _(x):
    return torch.sinh(x), torch.cosh(x)


@case(
    "xlogy_entr_zero",
    "coverage",
    lambda: (T([0.0, 0.0, 2.0, NAN]), T([0.0, NAN, 0.0, 0.0])),
    kind="nan",
    notes="xlogy(0, 0)=0, xlogy(0, NaN)=NaN; xlog1py; entr",
)
def _(a, b):
    return torch.xlogy(a, b), torch.special.xlog1py(a, b), torch.special.entr(a)


@case(
    "atan2_special",
    "coverage",
    lambda: (T([0.0, -0.0, 0.0, -0.0, INF, -INF]), T([-0.0, -0.0, 0.0, 1.0, -INF, INF])),
    kind="signed zero",
    exact=False,
    rtol=1e-6,
    notes="atan2 quadrants with signed zeros and infinities",
)
def _(y, x):
    return torch.atan2(y, x)


# ---------------------------------------------------------------- casts and low precision


@case(
    "explicit_bf16_round_trip",
    PT + "179561",
    lambda: (R(64, seed=1),),
    kind="bf16",
    notes="x.bfloat16().float() must truncate the mantissa even inside one kernel",
)
def _(x):
    return x.to(bf16).float() - x


@case(
    "explicit_fp16_round_trip",
    PT + "185337",
    lambda: (R(64, seed=2) * 3,),
    kind="fp16",
    notes="fp32->fp16->fp32 collapsed to a no-op on the CPU path",
)
def _(x):
    return x.half().float() * 2 - 2 * x


@case(
    "fp16_where_full_like_add",
    PT + "183761",
    lambda: (R(33, seed=3, dtype=f16),),
    kind="fp16",
    notes="where with a low-precision fill, a cast and an add: sums drift when the roundings go",
)
def _(x):
    y = torch.where(x > 0, x, torch.full_like(x, 0.3337))
    return (y + y * 0.1).to(f32).sum()


@case(
    "bf16_equality_after_arith",
    PT + "195214",
    lambda: (R(128, seed=4, dtype=bf16), R(128, seed=5, dtype=bf16)),
    kind="bf16",
    notes="ties made by bf16 rounding must still compare equal",
)
def _(a, b):
    s = a + b
    return (s == (b + a)), (s - b == a), ((a * 3) / 3 == a)


@case(
    "rope_mixed_precision",
    PT + "159239",
    lambda: (R(2, 8, seed=6, dtype=bf16), R(8, seed=7, dtype=bf16), R(8, seed=8, dtype=bf16)),
    kind="bf16",
    notes="rotary embedding in bf16: x*cos and rot(x)*sin round separately in eager",
)
def _(x, c, s):
    r = torch.cat([-x[:, 4:], x[:, :4]], dim=1)
    return x * c + r * s


@case(
    "ldexp_fp16_int8",
    PT + "172068",
    lambda: (T([0.7, -1.3, 1.9], f16), T([3, 14, 16], i8)),
    kind="fp16",
    exact=False,
    rtol=1e-3,
    notes="ldexp on fp16 with an integer exponent tensor: where does 2**e round?",
)
def _(x, e):
    return torch.ldexp(x, e)


@case(
    "adamw_fused_update",
    PT + "122040",
    lambda: (R(64, seed=9), R(64, seed=10).abs(), R(64, seed=11)),
    kind="fma",
    exact=False,
    rtol=1e-6,
    atol=1e-7,
    mutates=True,
    notes="mul_ + add_ contracted to fma moves the last bit; optimizer states drift",
)
def _(m, v, g):
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    return m / (v.sqrt().add_(1e-8))


@case(
    "exp_accuracy",
    PT + "161944",
    lambda: (torch.linspace(-20, 20, 257),),
    kind="maths accuracy",
    exact=False,
    rtol=3e-7,
    notes="exp must be within 2 ulp of the correctly rounded value",
)
def _(x):
    return torch.exp(x)


# ---------------------------------------------------------------- views, aliasing, mutation


@case(
    "shift_rows_through_clone",
    PT + "197829",
    lambda: (torch.arange(24.0).reshape(6, 4),),
    kind="overlap",
    mutates=True,
    notes="x[1:] = x[:-1].clone(): the clone must survive, the copy overlaps itself",
)
def _(x):
    x[1:] = x[:-1].clone()
    return x * 1


@case(
    "as_strided_after_roll_channels_last",
    PT + "174963",
    lambda: (torch.arange(48).reshape(2, 4, 2, 3).to(memory_format=torch.channels_last),),
    kind="strides",
    notes="as_strided on an intermediate: the layout of the intermediate is part of the meaning",
)
def _(x):
    return torch.as_strided(torch.roll(x, 1, 0), (4, 6), (5, 1), 1)


@case(
    "transpose_into_self",
    "coverage",
    lambda: (torch.arange(16.0).reshape(4, 4),),
    kind="overlap",
    mutates=True,
    notes="x.copy_(x.t().clone()): a transposing self copy",
)
def _(x):
    x.copy_(x.t().clone() + 1)
    return x[0].clone()


@case(
    "dup_index_inplace_add",
    PT + "174074",
    lambda: (T([[1.0, -2.0], [3.0, 0.5]]),),
    kind="scatter",
    mutates=True,
    notes="x[[1,1]] += x[[1,1]] applies once, not twice",
)
def _(x):
    x[[1, 1]] += x[[1, 1]]
    return x.clone()


@case(
    "inplace_on_overlapping_view",
    PT + "174371",
    lambda: (torch.arange(6.0),),
    kind="overlap",
    platform=True,
    mutates=True,
    notes="in-place on a self-overlapping as_strided view: eager's write order is undefined, "
    "functionalisation wrote each element once in silence; a clear exception is the right answer (upstream chose that)",
)
def _(x):
    x.as_strided((4, 3), (1, 1)).add_(1)
    return x


@case(
    "expand_inplace_raises",
    "coverage",
    lambda: (torch.ones(3, 1),),
    kind="overlap",
    raises=True,
    notes="in-place on an expanded tensor is refused",
)
def _(x):
    x.expand(3, 4).mul_(2)
    return x


@case(
    "outputs_alias_input",
    "coverage",
    lambda: (torch.arange(6.0).reshape(2, 3),),
    kind="aliasing",
    alias=True,
    strides=True,
    notes="returned views share storage with the input; the clone does not",
)
def _(x):
    return x, x.view(3, 2), x.t(), x.detach(), x.clone(), x[1:]


@case(
    "same_tensor_twice",
    "coverage",
    lambda: (lambda t: (t, t))(torch.arange(4.0)),
    kind="aliasing",
    mutates=True,
    notes="one tensor passed as both arguments: a write to one is seen through the other",
)
def _(a, b):
    a.add_(1)
    return b * 10, a + b


@case(
    "overlapping_inputs",
    "coverage",
    lambda: (lambda t: (t[:6], t[2:]))(torch.arange(8.0)),
    kind="aliasing",
    mutates=True,
    notes="two input views of one buffer overlap partly; the first is written",
)
def _(a, b):
    a.mul_(2)
    return b + 1


@case(
    "same_output_twice",
    "coverage",
    lambda: (R(5, seed=14),),
    kind="aliasing",
    alias=True,
    notes="one value returned three times, and an unused output and a constant",
)
def _(x):
    y = x + 1
    return y, y, y.view(-1), torch.ones(2), 3


@case(
    "view_as_real_inplace",
    "coverage",
    lambda: (torch.zeros(3, dtype=torch.complex64),),
    kind="complex",
    mutates=True,
    notes="in-place through view_as_real reaches the complex input",
)
def _(z):
    torch.view_as_real(z)[..., 1].add_(2)
    return z * 1j


# ---------------------------------------------------------------- strides of outputs


def _cl(*s, seed=0):
    return R(*s, seed=seed).to(memory_format=torch.channels_last)


@case(
    "interpolate_nearest_permuted",
    PT + "183771",
    lambda: (R(2, 4, 3, 5, 2, seed=16).permute(0, 4, 1, 2, 3),),
    kind="layout",
    strides=True,
    notes="nearest 3-D interpolate of a permuted input keeps its order of strides",
)
def _(x):
    return F.interpolate(x, size=(6, 4, 7), mode="nearest")


@case(
    "channel_shuffle_channels_last",
    PT + "197109",
    lambda: (_cl(1, 6, 3, 3, seed=17),),
    kind="layout",
    strides=True,
    notes="channel_shuffle keeps channels_last",
)
def _(x):
    return F.channel_shuffle(x, 3)


@case(
    "like_factories_size_one_dim",
    PT + "197815",
    lambda: (R(1, 6, seed=20).t(), R(3, 1, 4, seed=21).permute(2, 0, 1)),
    kind="layout",
    strides=True,
    notes="ones_like and friends keep the odd stride of a size-1 dim",
)
def _(a, b):
    return torch.ones_like(a), torch.zeros_like(b), torch.full_like(a, 2.0), torch.empty_like(b).fill_(1)


@case(
    "index_select_contiguous",
    PT + "168381",
    lambda: (R(4, 3, 5, seed=22).permute(1, 2, 0), T([2, 0])),
    kind="layout",
    strides=True,
    notes="index_select of a permuted tensor returns a contiguous one in eager",
)
def _(x, i):
    return torch.index_select(torch.relu(x), 0, i), x[i]


@case(
    "channels_last_elementwise_chain",
    "coverage",
    lambda: (_cl(2, 4, 3, 5, seed=23), R(1, 4, 1, 1, seed=24)),
    kind="layout",
    strides=True,
    exact=False,
    rtol=1e-6,
    atol=1e-6,
    notes="a fused chain on channels_last returns channels_last; contiguous() and to() are obeyed",
)
def _(x, w):
    y = torch.sigmoid(x * w) + x
    return y, y.contiguous(), y.mean((2, 3), keepdim=True), y.to(memory_format=torch.contiguous_format)
