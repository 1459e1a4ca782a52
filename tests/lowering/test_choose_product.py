"""Which matrix products are lowc's own by default."""

from dataclasses import replace

import pytest

from lowc.ir.index import ix
from lowc.ir.nodes import Buffer
from lowc.ir.types import DType, bf16, f32, f64, i8, i16, i32, i64
from lowc.lowering.choose_product import own
from lowc.lowering.values import Value, contiguous_strides, remap, whole
from lowc.options import Options
from lowc.target import Target

AVX512 = Target("x86", "", "", 512, 32, 32 << 10, 1 << 20, 8 << 20, 2, frozenset({"fma", "masked"}))


def matrix(rows: int, columns: int, dtype: DType = f32, turned: bool = False) -> Value:
    """``turned``: it lies in memory along its columns."""
    shape = (ix(columns), ix(rows)) if turned else (ix(rows), ix(columns))
    value = whole(Buffer("x", dtype, shape, contiguous_strides(shape)))
    if not turned:
        return value
    assert value.strides is not None
    return remap(value, shape[::-1], lambda c: c[::-1], value.strides[::-1])


def chosen(
    rows: int,
    columns: int,
    depth: int,
    dtype: DType = f32,
    *,
    along_depth: bool = True,
    made: bool = False,
    target: Target = AVX512,
    **options: str,
) -> bool:
    x, y = matrix(rows, depth, dtype), matrix(depth, columns, dtype, turned=along_depth)
    return own(x, y, Options(**options), target, made)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [2, 8, 64])
def test_linear_layers_of_few_rows_are(rows: int) -> None:
    assert chosen(rows, 2048, 2048)


def test_one_row_is_where_weights_are_computed() -> None:
    assert chosen(1, 2048, 2048, made=True)
    assert not chosen(65, 2048, 2048, made=True)


def test_what_was_not_measured_to_win_is_not() -> None:
    assert not chosen(1, 2048, 2048)
    assert not chosen(65, 2048, 2048)
    assert not chosen(8, 64, 64)
    assert not chosen(8, 2048, 2048, along_depth=False)
    assert not chosen(8, 2048, 2048, f64)
    assert not chosen(8, 2048, 2048, bf16)
    assert not chosen(8, 2048, 2048, matmul="library")
    assert not chosen(8, 2048, 2048, numerics="strict")
    x, y = matrix(8, 2048), matrix(2048, 2048, turned=True)
    assert not own(x, y, Options(), replace(AVX512, vector_bits=256), False)
    assert not own(x, y, Options(), None, False)


@pytest.mark.parametrize("along_depth", [False, True])
def test_on_zen_all_but_small_ones_are(along_depth: bool) -> None:
    zen = replace(AVX512, cpu="znver4")
    assert chosen(512, 2304, 768, along_depth=along_depth, target=zen)
    assert chosen(1, 4096, 4096, along_depth=along_depth, target=zen)
    assert chosen(256, 10, 512, along_depth=along_depth, target=zen)
    assert not chosen(64, 64, 64, along_depth=along_depth, target=zen)
    assert not chosen(512, 2304, 768, bf16, along_depth=along_depth, target=zen)
    of_pairs = replace(zen, ops=zen.ops | {"avx512bf16"})
    assert chosen(512, 2304, 768, bf16, along_depth=along_depth, target=of_pairs)
    assert chosen(1, 2048, 2048, bf16, along_depth=along_depth, target=of_pairs)
    for sizes in ((64, 64, 64), (512, 2304, 767), (512, 512, 64)):
        assert not chosen(*sizes, bf16, along_depth=along_depth, target=of_pairs)
    assert not chosen(512, 2304, 768, bf16, along_depth=along_depth, target=replace(of_pairs, cpu="sapphirerapids"))
    assert not chosen(512, 2304, 768, bf16, along_depth=along_depth, target=of_pairs, numerics="strict")
    assert not chosen(512, 2304, 768, along_depth=along_depth, target=zen, numerics="strict")
    assert not chosen(512, 2304, 768, along_depth=along_depth, target=replace(zen, vector_bits=256))


def test_integers_on_zen() -> None:
    zen = replace(AVX512, cpu="znver5")
    vnni = replace(zen, ops=zen.ops | {"avx512vnni"})
    assert chosen(64, 512, 512, i8, target=vnni)
    assert not chosen(64, 512, 511, i8, target=vnni)  # the last quad of a row is no whole one
    assert not chosen(64, 512, 512, i8, target=zen)
    assert not chosen(16, 16, 16, i8, target=vnni)
    assert chosen(256, 256, 256, i32, target=zen) and chosen(256, 256, 255, i16, target=zen)
    assert not chosen(256, 256, 256, i64, target=zen)
    assert not chosen(256, 256, 256, i32)


def test_computed_weights_are_reason_enough_for_less_work() -> None:
    zen = replace(AVX512, cpu="znver5")
    assert chosen(1, 768, 512, made=True, target=zen) and not chosen(1, 768, 512, target=zen)


def test_with_amx_layers_of_bf16_of_few_rows_and_of_bytes_are() -> None:
    amx = replace(AVX512, cpu="sapphirerapids", ops=AVX512.ops | {"avx512bf16", "avx512vnni", "amx-bf16", "amx-int8"})
    for rows in (1, 2, 8, 64):
        assert chosen(rows, 2048, 2048, bf16, target=amx) and chosen(rows, 2048, 2048, i8, target=amx)
        assert not chosen(rows, 2048, 2048, bf16, along_depth=False, target=amx)
        assert not chosen(rows, 2048, 2040, bf16, target=amx) and not chosen(rows, 2048, 2040, i8, target=amx)
    assert chosen(512, 2304, 768, i8, target=amx) and not chosen(512, 768, 3072, i8, target=amx)
    assert not chosen(512, 2304, 768, bf16, target=amx)
    assert not chosen(8, 2048, 2048, bf16, target=amx, numerics="strict")
    assert not chosen(8, 2048, 2048, bf16, target=replace(amx, ops=AVX512.ops | {"avx512bf16"}))
