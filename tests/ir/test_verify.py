"""The verifier: accepts the golden programs, refuses programs that break one rule each, and shows the line."""

from pathlib import Path

import pytest

from lowc.ir.nodes import Module
from lowc.ir.parser import parse_kernel, parse_module
from lowc.ir.verify import verify_kernel, verify_module

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.lowc"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_programs_are_accepted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.startswith("module"):
        verify_module(parse_module(text))
    else:
        verify_kernel(parse_kernel(text), "LOOPS")
