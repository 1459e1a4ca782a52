"""lowc's own decompositions against ATen's kernels: dtypes and strides equal, values no further from float64 than ATen's."""

from typing import Any

import pytest
import torch

from lowc.frontend.decompositions import OWN, TORCHS, _all, decompositions

aten = torch.ops.aten


def leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return value.double()
    return torch.float64 if value in (torch.float32, torch.bfloat16) else value


def check(op: Any, *args: Any, slack: float = 2.0, same_dtypes: bool = True) -> None:
    """``op`` taken apart on ``args``; ``slack`` times ATen's own error, plus rounding, is allowed."""
    ours = leaves(decompositions()[op](*args))
    eager, exact = leaves(op(*args)), leaves(op(*map(wide, args)))
    assert len(ours) == len(eager)
    for mine, theirs, true in zip(ours, eager, exact, strict=True):
        if theirs is None or mine is None:
            assert mine is None and theirs is None
            continue
        assert mine.shape == theirs.shape
        assert not same_dtypes or mine.dtype == theirs.dtype
        if mine.numel() > 1:
            assert mine.stride() == theirs.stride()
        if not mine.dtype.is_floating_point or mine.numel() == 0:
            assert torch.equal(mine, theirs)
            continue
        # float64 is its own reference: what is left is only the order of sums.
        unit = torch.finfo(mine.dtype).eps * (100 if mine.dtype == torch.float64 else 1)
        scale = true.abs().nan_to_num(0, 0, 0).amax()
        theirs_off = (theirs.double() - true).abs()
        mine_off = (mine.double() - true).abs()
        agree = (mine.double() == true) | (mine.isnan() & true.isnan())
        assert bool((agree | (mine_off <= slack * theirs_off.nan_to_num(0).amax() + 2 * unit * scale)).all())


def layouts(*shape: int) -> list[torch.Tensor]:
    """Contiguous, channels last (or transposed), and sliced."""
    x = torch.randn(shape)
    strided = torch.randn([2 * n for n in shape])[tuple(slice(None, None, 2) for _ in shape)]
    if len(shape) == 4:
        return [x, x.contiguous(memory_format=torch.channels_last), strided]
    return [x, x.transpose(-1, -2).contiguous().transpose(-1, -2) if len(shape) > 1 else x, strided]


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)


@DTYPES
def test_softmax_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for x in layouts(5, 33):
        for dim in (0, 1, -1):
            x = x.to(dtype)
            grad = torch.randn(5, 33).to(dtype)
            check(aten._softmax_backward_data.default, grad, x.softmax(dim), dim, dtype)
            check(aten._log_softmax_backward_data.default, grad, x.log_softmax(dim), dim, dtype)


@DTYPES
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(dtype: torch.dtype, affine: bool) -> None:
    torch.manual_seed(0)
    for x in layouts(6, 5, 40):
        x = (x * 3 + 50).to(dtype)
        w, b = (torch.randn(5, 40).to(dtype), torch.randn(5, 40).to(dtype)) if affine else (None, None)
        check(aten.native_layer_norm.default, x, [5, 40], w, b, 1e-5)
        _, mean, rstd = aten.native_layer_norm.default(x, [5, 40], w, b, 1e-5)
        grad = torch.randn(6, 5, 40).to(dtype)
        check(
            aten.native_layer_norm_backward.default,
            grad,
            x,
            [5, 40],
            mean,
            rstd,
            w,
            b,
            [True, affine, affine],
        )


@DTYPES
def test_group_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # ATen's kernel takes no other layouts, and wants the gradient in that of x.
    for x in [*layouts(3, 6, 5, 7)[:2], torch.randn(3, 6), torch.randn(3, 6, 1)]:
        x = (x + 5).to(dtype)
        w, b = torch.randn(6).to(dtype), torch.randn(6).to(dtype)
        area = x[0, 0].numel()
        check(aten.native_group_norm.default, x, w, b, 3, 6, area, 2, 1e-5)
        _, mean, rstd = aten.native_group_norm.default(x, w, b, 3, 6, area, 2, 1e-5)
        grad = torch.randn_like(x)
        check(
            aten.native_group_norm_backward.default, grad, x, mean, rstd, w, 3, 6, area, 2, [True, True, True]
        )


@DTYPES
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype: torch.dtype, training: bool) -> None:
    torch.manual_seed(0)
    for x in [*layouts(4, 3, 5, 6), *layouts(9, 3)]:
        x = (x * 2 + 3).to(dtype)
        w, b, m = (torch.randn(3).to(dtype) for _ in range(3))
        v = torch.rand(3).to(dtype) + 0.5
        check(aten._native_batch_norm_legit_functional.default, x, w, b, m, v, training, 0.1, 1e-5)
        made = aten._native_batch_norm_legit_functional.default(x, w, b, m, v, training, 0.1, 1e-5)
        grad = torch.randn(x.shape).to(dtype)
        check(
            aten.native_batch_norm_backward.default,
            grad,
            x,
            w,
            m,
            v,
            made[1],
            made[2],
            training,
            1e-5,
            [True] * 3,
        )


def test_batch_norm_of_mixed_dtypes() -> None:
    x, w = torch.randn(4, 3, 5).bfloat16(), torch.randn(3)
    check(aten._native_batch_norm_legit_functional.default, x, w, w, w, w.abs(), True, 0.1, 1e-5)


@DTYPES
def test_batch_norm_in_inference_hands_out_statistics_on_gpus(dtype: torch.dtype) -> None:
    """ATen's kernels for a CPU return nothing in their place; "meta" stands for any other device."""
    x, w = torch.randn(4, 3, 5, dtype=dtype, device="meta"), torch.randn(3, dtype=dtype, device="meta")
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    for op in (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit_no_training.default):
        training = (False,) if op is aten._native_batch_norm_legit_functional.default else ()
        _, mean, rstd, *_ = decompositions()[op](x, w, w, w, w, *training, 0.1, 1e-5)
        assert [(t.shape, t.dtype) for t in (mean, rstd)] == [((3,), wide)] * 2


def test_rms_norm_is_contiguous() -> None:
    x = torch.randn(2, 5, 4, 6)
    for given in (x, x.permute(3, 1, 0, 2), x[:, :, ::2], x.contiguous(memory_format=torch.channels_last)):
        ours, theirs = decompositions()[aten._fused_rms_norm.default], aten._fused_rms_norm.default
        for a, b in zip(ours(given, given.shape[2:], None, None), theirs(given, given.shape[2:], None, None), strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b)


@DTYPES
def test_rms_norm(dtype: torch.dtype) -> None:
    x, w = torch.randn(7, 33).to(dtype), torch.randn(33).to(dtype)
    ours, _ = decompositions()[aten._fused_rms_norm.default](x, [33], w, 1e-6)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w.double()
    torch.testing.assert_close(ours.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-12)
    assert ours.dtype == dtype


@DTYPES
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [True, False])
def test_nll_loss(dtype: torch.dtype, reduction: int, weighted: bool) -> None:
    torch.manual_seed(0)
    cases = [
        (aten.nll_loss_forward, aten.nll_loss_backward, (9, 5)),
        (aten.nll_loss_forward, aten.nll_loss_backward, (5,)),
    ]
    cases.append((aten.nll_loss2d_forward, aten.nll_loss2d_backward, (3, 5, 4, 6)))
    for forward, backward, shape in cases:
        x = torch.randn(shape).log_softmax(1 if len(shape) > 1 else 0).to(dtype)
        target = torch.randint(0, 5, (shape[:1] + shape[2:]) if len(shape) > 1 else ())
        if target.dim():
            target.view(-1)[::3] = 2
        weight = torch.rand(5).to(dtype) if weighted else None
        for ignored in (-100, 2) if target.dim() else (-100,):
            check(forward.default, x, target, weight, reduction, ignored)
            loss, total = forward.default(x, target, weight, reduction, ignored)
            grad = torch.randn(loss.shape).to(dtype)
            check(backward.default, grad, x, target, weight, reduction, ignored, total)


def test_nll_loss_of_nothing() -> None:
    x, target = torch.randn(4, 3), torch.full((4,), -100)
    ours, total = decompositions()[aten.nll_loss_forward.default](x, target, None, 1, -100)
    assert ours.isnan() and total == 0
    assert aten.nll_loss_forward.default(x, target, None, 1, -100)[0].isnan()


@DTYPES
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_regression_losses(dtype: torch.dtype, reduction: int) -> None:
    torch.manual_seed(0)
    for x in layouts(5, 6):
        x, y = x.to(dtype), torch.randn(5, 6).to(dtype)
        x[0, 0] = y[0, 0] + 1  # on the kink
        grad = torch.randn((5, 6) if reduction == 0 else ()).to(dtype)
        check(aten.mse_loss_backward.default, grad, x, y, reduction)
        check(aten.smooth_l1_loss_backward.default, grad, x, y, reduction, 1.0)
        check(aten.smooth_l1_loss_backward.default, grad, x, y, reduction, 0.0)
        check(aten.huber_loss_backward.default, grad, x, y, reduction, 0.5)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_eagers_numbers(p: float) -> None:
    x = torch.randn(17, 31)
    torch.manual_seed(5)
    ours = decompositions()[aten.native_dropout.default](x, p, True)
    after = torch.rand(3)
    torch.manual_seed(5)
    eager = aten.native_dropout.default(x, p, True)
    assert torch.equal(ours[1], eager[1]) and torch.equal(ours[0], eager[0])
    assert torch.equal(after, torch.rand(3))


def test_list_ops() -> None:
    torch.manual_seed(0)
    a, b, c = ([torch.rand(3) + 0.5, torch.rand(2, 2) + 0.5] for _ in range(3))
    calls: list[tuple[Any, ...]] = [
        (aten._foreach_sqrt.default, a),
        (aten._foreach_add.List, a, b),
        (aten._foreach_mul.Scalar, a, 0.3),
        (aten._foreach_mul.ScalarList, a, [0.3, 2.0]),
        (aten._foreach_div.Tensor, a, torch.tensor(3.0)),
        (aten._foreach_lerp.Scalar, a, b, 0.1),
        (aten._foreach_addcmul.Scalar, a, b, c, 0.7),
        (aten._foreach_addcdiv.ScalarList, a, b, c, [0.7, -1.0]),
        (aten._foreach_addcdiv.Tensor, a, b, c, torch.tensor([0.7, -1.0])),
        (aten._foreach_maximum.Scalar, a, 0.9),
        (aten._foreach_clamp_max.List, a, b),
        (aten._foreach_pow.ScalarAndTensor, 0.9, a),
        (aten._foreach_norm.Scalar, a, 2),
        (aten._foreach_copy.default, a, b),
        (aten._foreach_zero.default, a),
    ]
    for op, *args in calls:
        torch.testing.assert_close(decompositions()[op](*args), list(op(*args)))
    torch.testing.assert_close(
        decompositions()[aten._foreach_add.List](a, b, alpha=2), list(aten._foreach_add.List(a, b, alpha=2))
    )


def test_every_name_is_an_op_of_torch() -> None:
    for name in (*OWN, *TORCHS):
        packet, overload = name.split(".")
        assert overload in getattr(aten, packet).overloads(), name


def test_keep() -> None:
    assert aten.gelu.default in decompositions()
    assert aten.gelu.default not in decompositions({"aten.gelu.default"})


def test_no_random_number_is_drawn_another_way() -> None:
    random = {op for op in decompositions() if torch.Tag.nondeterministic_seeded in op.tags}
    assert random <= {aten.native_dropout.default}


def test_the_table_is_by_the_names_that_ops_have() -> None:
    assert all(str(op) == name for name, (op, _) in _all().items())
    assert {op for op, _ in _all().values()} == set(decompositions())
