"""Copies, creation, concatenation, padding and data-dependent reads against eager."""

from typing import Any

import pytest
import torch

from lowc.lowering import lower
from tests.lowering.harness import BOOL, FLOATS, INTS, check, check_module, data, run, trace

aten = torch.ops.aten
ALL = FLOATS + INTS + BOOL
F = torch.float32


def test_conversions() -> None:
    for seed, source in enumerate(ALL):
        x = data((5, 7), source, seed, special=False)
        for target in ALL:
            if target == torch.uint8 and source.is_floating_point:
                x = x.abs()  # negative floats to unsigned are undefined in C
            check(lambda a, t=target: aten._to_copy.default(a, dtype=t), x)
    x = data((5, 7), torch.float64)
    check(lambda a: (a.to(torch.float32), a.to(torch.bfloat16), a.to(torch.float16), a.to(torch.bool)), x)


def test_clones_and_memory_formats() -> None:
    x = data((2, 3, 4, 5), F)
    check(lambda a: a.permute(0, 2, 3, 1).clone(), x)
    check(lambda a: aten.clone.default(a, memory_format=torch.channels_last), x)
    check(lambda a: a.permute(3, 1, 0, 2).clone(memory_format=torch.contiguous_format), x)
    check(lambda a: aten._to_copy.default(a, dtype=torch.float64, memory_format=torch.channels_last), x)
    check(lambda a: aten.lift_fresh_copy.default(a), x)
    check(lambda a, b: aten.copy.default(a, b), x, data((4, 1), torch.int32))


def test_creation() -> None:
    x = data((3, 4), F)
    check(
        lambda a: (
            aten.full.default([2, 3], 2.5),
            aten.full_like.default(a, 3),
            aten.new_full.default(a, [2], 7),
        ),
        x,
    )
    check(
        lambda a: (aten.zeros.default([2]), aten.zeros_like.default(a), aten.new_zeros.default(a, [3])),
        x,
        extern=None,
    )
    check(
        lambda a: (aten.ones.default([2]), aten.ones_like.default(a.t()), aten.new_ones.default(a, [3])),
        x,
        extern=None,
    )
    check(lambda a: (aten.fill.Scalar(a, 3), aten.fill.Tensor(a, a[0, 0])), x)
    check(lambda a: a + aten.scalar_tensor.default(3.5), x)
    check(
        lambda a: (
            aten.empty_like.default(a).isnan() & False,
            aten.new_empty.default(a, [3, 2]).isnan() & False,
        ),
        x,
    )
    check(
        lambda a: (
            aten.empty.memory_format([3]).isnan() & False,
            aten.empty_permuted.default([3, 2], [1, 0]).isnan() & False,
        ),
        x,
    )
    check(
        lambda a: (
            aten.empty_strided.default([3, 2], [1, 3]).isnan() & False,
            aten.new_empty_strided.default(a, [3], [1]).isnan() & False,
        ),
        x,
    )
    check(lambda a: (aten.eye.default(3), aten.eye.m(3, 5)), x, extern=None)
    for arguments in ((5,), (2, 9), (2, 9, 3), (9, 2, -2), (0.5, 3.0, 0.25), (1, 2, 0.3)):
        check(lambda a, v=arguments: torch.arange(*v), x)
    check(lambda a: torch.arange(5, dtype=torch.float64), x)
    check(lambda a: torch.arange(5, dtype=torch.bfloat16), x)
    check(
        lambda a: torch.ops.prims.iota.default(
            5, start=3, step=2, dtype=torch.int32, device="cpu", requires_grad=False
        ),
        x,
    )


@pytest.mark.parametrize("diagonal", [-2, 0, 1])
def test_triangles(diagonal: int) -> None:
    for dtype in (F, torch.int32, torch.bool):
        check(
            lambda a: (aten.triu.default(a, diagonal), aten.tril.default(a, diagonal)), data((2, 4, 5), dtype)
        )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(dim: int) -> None:
    x, y = data((3, 4, 5), F), data((3, 4, 5), F, 1)
    check(lambda a, b: aten.cat.default([a, b, a], dim), x, y)
    check(lambda a, b: aten.cat.default([a.transpose(0, 2), b.transpose(0, 2)], dim), x, y)
    check(lambda a, b: aten.cat.default([a, b.to(torch.float64)], dim), x, y)
    check(lambda a, b: aten.stack.default([a, b], dim), x, y)
    check(lambda a, b: aten.cat.default([a[:, :, :0], b], -1), x, y)
    check(lambda a, b: aten.cat.default([a.new_zeros(0), b], dim), x, y, extern=None)


PADS: dict[str, Any] = {
    "constant": lambda x: aten.constant_pad_nd.default(x, [1, 2, 0, 3], 2.5),
    "constant_crop": lambda x: aten.constant_pad_nd.default(x, [-1, 2, 1, -2]),
    "reflection1": lambda x: aten.reflection_pad1d.default(x[0], [2, 3]),
    "reflection2": lambda x: aten.reflection_pad2d.default(x, [2, 1, 1, 3]),
    "reflection3": lambda x: aten.reflection_pad3d.default(x[None], [2, 1, 1, 3, 1, 0]),
    "replication1": lambda x: aten.replication_pad1d.default(x[0], [2, 3]),
    "replication2": lambda x: aten.replication_pad2d.default(x, [2, 1, 1, 3]),
    "replication3": lambda x: aten.replication_pad3d.default(x[None], [2, 1, 1, 3, 1, 0]),
}


@pytest.mark.parametrize("name", PADS)
def test_pads(name: str) -> None:
    check(PADS[name], data((3, 4, 5), F))
    check(PADS[name], data((5, 4, 3), F).permute(2, 1, 0))


def test_flip_roll_repeat() -> None:
    x = data((3, 4, 5), F)
    check(lambda a: (aten.flip.default(a, [0, -1]), aten.flip.default(a, [])), x)
    check(lambda a: (aten.roll.default(a, [1, -2], [0, 2]), aten.roll.default(a, [7], [1])), x)
    check(lambda a: aten.repeat.default(a, [2, 1, 3, 2]), x)
    check(lambda a: aten.diagonal_copy.default(a), x)
    for empty in (x[:0], x[:, :0]):
        check(lambda a: (aten.roll.default(a, [1, 2], [0, 1]), aten.roll.default(a, [3], [2])), empty)
        check(lambda a: aten.repeat.default(a, [3, 2, 1]), empty)
    check(lambda a: aten.repeat.default(a, [0, 2, 1]), x)
    for dtype in (F, torch.int64, torch.bool):
        check(lambda a: aten._conj_physical.default(a), data((3, 4), dtype).t())


def test_scatters_of_slices() -> None:
    x, y = data((4, 6), F), data((4, 2), F, 1)
    check(lambda a, b: aten.slice_scatter.default(a, b, 1, 2, 4), x, y)
    check(lambda a, b: aten.slice_scatter.default(a, b, 1, 1, 9223372036854775807, 3), x, y)
    check(lambda a, b: aten.slice_scatter.default(a, a, 1), x, y)
    check(lambda a, b: aten.slice_scatter.default(a, b, -1, -2), x, y)
    check(
        lambda a, b: (
            aten.select_scatter.default(a, b[:, 0], 1, 3),
            aten.select_scatter.default(a, b[:, 0], -1, -1),
        ),
        x,
        y,
    )


def test_gathers() -> None:
    x = data((4, 6, 5), F)
    i = torch.tensor([[0, 3], [5, 1]])
    check(lambda a, i: aten.index_select.default(a, 1, i.view(-1)), x, i)
    check(lambda a, i: aten.index_select.default(a, -2, i[0, 0]), x, i)
    check(lambda a, i: aten.gather.default(a, 1, i[:, :, None].expand(2, 2, 5)), x, i)
    check(lambda a, i: aten.embedding.default(a[:, :, 0].t(), i), x, i)
    check(lambda a, i: aten.embedding.default(a[:, :, 0].t(), i.to(torch.int32), 1), x, i)


ADVANCED: dict[str, Any] = {
    "one": lambda x, i, j: aten.index.Tensor(x, [i]),
    "second": lambda x, i, j: aten.index.Tensor(x, [None, j]),
    "two": lambda x, i, j: aten.index.Tensor(x, [i, j]),
    "two_later": lambda x, i, j: aten.index.Tensor(x, [None, j, i]),
    "apart": lambda x, i, j: aten.index.Tensor(x, [i, None, i]),
    "broadcast": lambda x, i, j: aten.index.Tensor(x, [i[:, :1], j[:1]]),
    "unsafe": lambda x, i, j: aten._unsafe_index.Tensor(x, [None, j]),
}


@pytest.mark.parametrize("name", ADVANCED)
def test_advanced_indexing(name: str) -> None:
    i, j = torch.tensor([[0, -1], [2, 1]]), torch.tensor([[-6, 5], [0, -2]])
    check(ADVANCED[name], data((4, 6, 5), F), i, j)
    check(ADVANCED[name], data((5, 6, 4), torch.int16).permute(2, 1, 0), i.to(torch.int32), j.to(torch.int32))


BAD: dict[str, Any] = {
    "embedding_high": lambda w, i: aten.embedding.default(w, i),
    "embedding_negative": lambda w, i: aten.embedding.default(w, i - 5),
    "index": lambda w, i: aten.index.Tensor(w, [i]),
    "index_low": lambda w, i: aten.index.Tensor(w, [i - 9]),
    "gather": lambda w, i: aten.gather.default(w, 0, i[:, None]),
    "gather_negative": lambda w, i: aten.gather.default(w, 0, i[:, None] - 5),
    "index_select": lambda w, i: aten.index_select.default(w, 0, i),
}


@pytest.mark.parametrize("name", BAD)
def test_indices_out_of_range_raise(name: str) -> None:
    w, i = data((4, 3), F), torch.tensor([1, 4, 0])
    module = lower(trace(BAD[name], (w, i)))
    with pytest.raises(IndexError):
        run(module, [w, i])


def test_masks_are_left_to_aten() -> None:
    """What lowc does not lower is called, with the reason."""
    x, m = data((4, 3), F), data((4,), torch.bool)
    module = check(lambda a: aten.frexp.Tensor(a), x, extern=("aten.frexp.Tensor",))
    assert module.steps[0].because == "no lowering for this op"  # type: ignore[union-attr]
    check(lambda a, m: aten.index_put.default(a, [m], a[0]), x, m, extern=("aten.index_put.default",))
    check(lambda a: torch.mm(a, a.t()) + 1, x, extern=("aten.mm.default",), ulps=8, reference=False)
    check(lambda a: aten.native_layer_norm.default(a, [3], None, None, 1e-5), x, extern=None, ulps=16)


def test_mutated_inputs() -> None:
    """A closing copy_ writes the input; a source that reads the same memory elsewhere is copied first."""

    def add_one(x: torch.Tensor) -> torch.Tensor:
        aten.copy_.default(x, x + 1)
        return x * 2

    def transposed_in_place(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.copy_(x.t().clone())][1:]

    check(lambda x: add_one(x), data((4, 5), F))
    check_module(
        lower(trace(lambda x: [aten.copy_.default(x, x.t())][1:], (data((4, 4), F),))),
        transposed_in_place,
        (data((4, 4), F),),
        None,
    )
    check(lambda x, y: [aten.copy_.default(x, y)][1:], data((4, 5), F), data((5,), torch.int32))
    check(lambda x: [aten.copy_.default(x, x.flip(0))][1:], data((4, 5), F))
    check(lambda x: [aten.copy_.default(x, x * 2)][1:], data((4, 5), F).t())


def test_symbolic_sizes() -> None:
    x, i = data((4, 6), F), torch.tensor([1, 3, 0])
    check(
        lambda a: (torch.arange(a.shape[0]) + 1, a.new_zeros(a.shape[1]), torch.full((a.shape[0], 2), 1.5)),
        x,
        dynamic=True,
    )
    check(lambda a, i: (a[i], a[:, i]), x, i, dynamic=True)
    check(lambda a: (aten.constant_pad_nd.default(a, [1, 2]), torch.triu(a), a.flip(1)), x, dynamic=True)
    check(lambda a: aten.slice_scatter.default(a, a[:, :2], 1, 0, 2), x, dynamic=True)
