"""Text form: printing and reading back are inverse, and what cannot be read is refused with the place."""

from pathlib import Path

import pytest

from lowc.ir.nodes import Kernel, Module
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.printer import print_kernel, print_module

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.lowc"))


def parse(text: str) -> Kernel | Module:
    return parse_module(text) if text.startswith("module") else parse_kernel(text)


def show(program: Kernel | Module) -> str:
    return print_module(program) if isinstance(program, Module) else print_kernel(program)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_round_trip(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert show(parse(text)) == text
