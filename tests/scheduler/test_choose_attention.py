"""Whose attention is."""

import pytest

from lowc.ir.index import Index, Symbol, ix
from lowc.ir.types import DType, bf16, f32
from lowc.options import Options
from lowc.scheduler.choose_attention import library
from tests.scheduler.attentions import TARGET

Shape = tuple[Index, ...]


def shape(*sizes: int | Symbol) -> Shape:
    return tuple(ix(n) for n in sizes)


def why(
    q: Shape, causal: bool = False, keys: Shape | None = None, wanted: str = "result", dtype: DType = bf16,
    biased: bool = False, in_lines: bool = True, **options: str,
) -> str:  # fmt: skip
    return library(TARGET, Options(**options))(dtype, q, keys or q, keys or q, biased, causal, in_lines, wanted)  # type: ignore[arg-type]


def test_what_was_measured_to_be_faster_is_lowcs_own() -> None:
    assert why(shape(4, 16, 1024, 128), causal=True) == ""
    assert why(shape(2, 16, 4096, 64), causal=True) == ""
    assert why(shape(2, 16, 4096, 128)) == ""
    assert why(shape(1, 16, 16384, 64)) == ""


@pytest.mark.parametrize(
    ("sizes", "causal"),
    [
        ((4, 16, 1024, 128), False), ((4, 16, 2048, 64), True), ((2, 16, 4096, 64), False), ((2, 16, 4096, 96), True),
        ((1, 1, 4096, 128), True), ((1, 16, Symbol("n", 2, None), 128), True),
    ],
    ids=str,
)  # fmt: skip
def test_what_was_not_is_atens(sizes: tuple[int | Symbol, ...], causal: bool) -> None:
    assert "a library's" in why(shape(*sizes), causal)
    assert why(shape(*sizes), causal, attention="own") == ""


def test_what_only_aten_does() -> None:
    large = shape(4, 16, 4096, 128)
    assert "a library's" in why(large, True, wanted="gradients")
    assert why(large, True, wanted="gradients", attention="own") == ""
    assert "256 columns" in why(shape(4, 16, 4096, 256), True, wanted="gradients", attention="own")
    assert "share keys" in why(large, True, keys=shape(4, 4, 4096, 128), wanted="gradients", attention="own")
    assert "a library's" in why(large, True, wanted="sums")
    assert why(large, True, wanted="sums", attention="own") == ""
    assert "not f32" in why(large, True, dtype=f32, attention="own")
    assert "16 bytes" in why(large, True, in_lines=False, attention="own")
    assert "heads of 100" in why(shape(4, 16, 4096, 100), True, attention="own")
    assert "one query" in why(shape(4, 16, 1, 128), keys=large, attention="own")
    assert "a library's" in why(large, True, biased=True)
    assert "a library's" in why(large, keys=shape(4, 4, 4096, 128))
    assert "strict" in why(large, True, numerics="strict")
    assert "option attention" in why(large, True, attention="library")
