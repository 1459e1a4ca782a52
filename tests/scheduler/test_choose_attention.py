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
    biased: bool = False, in_lines: bool = True, other: str = "cudnn", **options: str,
) -> str:  # fmt: skip
    asked = library(TARGET, Options(**options))  # type: ignore[arg-type]
    return asked(dtype, q, keys or q, keys or q, biased, causal, in_lines, wanted, other)


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


@pytest.mark.parametrize("wanted", ["result", "sums", "sums of gradients"])
def test_beside_flash_all_that_was_measured_is_lowcs_own(wanted: str) -> None:
    for deep in (64, 128):
        for causal in (False, True):
            for batch, rows in ((4, 1024), (1, 16384)):
                for other in ("flash", "cpu"):  # "cpu": with --target
                    assert why(shape(batch, 16, rows, deep), causal, wanted=wanted, other=other) == ""
    for sizes in ((4, 16, 1000, 64), (1, 4, 4096, 64), (4, 16, 4096, 96)):
        assert why(shape(*sizes), wanted=wanted, other="flash") != ""
    assert why(shape(4, 16, 4096, 64), keys=shape(4, 4, 4096, 64), wanted=wanted, other="flash") != ""
    assert why(shape(4, 16, 4096, 64), biased=True, wanted=wanted, other="flash") != ""
    assert why(shape(4, 16, 4096, 64), wanted=wanted, other="efficient") != ""


def test_gradients_beside_cudnn() -> None:
    """Where both passes are lowc's own, or the backward pass alone."""
    for sizes, causal, forward, backward in (
        ((4, 16, 1024, 128), True, True, True), ((4, 48, 8192, 128), True, True, True), ((2, 16, 4096, 128), False, False, True),
        ((4, 16, 1024, 64), True, False, True), ((2, 16, 4096, 64), True, True, True), ((1, 16, 16384, 64), False, False, True),
        ((4, 16, 1000, 128), True, False, False), ((1, 4, 2048, 64), True, False, False),
    ):  # fmt: skip
        found = [why(shape(*sizes), causal, wanted=wanted) == "" for wanted in ("sums", "sums of gradients")]
        assert found == [forward, backward], (sizes, causal)


def test_few_queries() -> None:
    cache, large, shared = shape(1, 32, 8192, 128), shape(8, 32, 8192, 128), shape(8, 8, 32768, 128)
    for other in ("flash", "cpu", "efficient", "cudnn"):
        for rows in (1, 16):
            assert why(shape(1, 32, rows, 128), keys=cache, other=other) == ""
            assert "a library's" in why(shape(1, 32, rows, 128), keys=cache, other=other, wanted="sums")
            assert "a library's" in why(shape(1, 32, rows, 128), keys=cache, other=other, biased=True)
            assert "a library's" in why(shape(1, 32, rows, 128), keys=shape(1, 32, 1024, 128), other=other)
            assert (why(shape(8, 32, rows, 128), keys=large, other=other) == "") == (other != "cudnn")
            assert (why(shape(8, 32, rows, 128), keys=shared, other=other) == "") == (other != "cudnn" or rows > 1)
        assert "a library's" in why(shape(1, 32, 17, 128), keys=cache, other=other)
        assert "a library's" in why(shape(1, 32, 1, 128), keys=shape(1, 32, Symbol("n", 2, None), 128), other=other)


def test_what_only_aten_does() -> None:
    large = shape(4, 16, 4096, 128)
    assert why(large, True, wanted="gradients", attention="own") == ""
    assert "256 columns" in why(shape(4, 16, 4096, 256), True, wanted="gradients", attention="own")
    assert "share keys" in why(large, True, keys=shape(4, 4, 4096, 128), wanted="gradients", attention="own")
    assert "a library's" in why(large, wanted="sums")
    assert why(large, wanted="sums", attention="own") == ""
    for other in ("flash", "cudnn"):  # by deterministic algorithms
        assert "a library's" in why(large, True, wanted="gradients", other=other)
    assert "not f32" in why(large, True, dtype=f32, attention="own")
    assert "16 bytes" in why(large, True, in_lines=False, attention="own")
    assert "heads of 100" in why(shape(4, 16, 4096, 100), True, attention="own")
    assert why(shape(4, 16, 1, 128), keys=large, attention="own") == ""
    assert "one query" in why(shape(4, 16, 1, 128), keys=large, wanted="gradients", attention="own")
    assert "a library's" in why(large, True, biased=True)
    assert "a library's" in why(large, keys=shape(4, 4, 4096, 128))
    assert "strict" in why(large, True, numerics="strict")
    assert "option attention" in why(large, True, attention="library")
