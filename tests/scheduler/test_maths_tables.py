"""The coefficients in the sources are those that the tool derives."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lowc.scheduler import maths_tables

pytest.importorskip("mpmath")
PATH = Path(__file__).parents[2] / "tools" / "derive_coefficients.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("derive_coefficients", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["derive_coefficients"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["EXP", "SIN", "TANH", "LOG2_WIDE"])
def test_sources_hold_what_the_tool_derives(tool: ModuleType, name: str) -> None:
    coefficients, error = tool.derive(tool.FITS[name])
    assert coefficients == getattr(maths_tables, name)
    assert error < 2.0**-24


@pytest.mark.slow
def test_all_sources_hold_what_the_tool_derives(tool: ModuleType) -> None:
    for name, fit in tool.FITS.items():
        assert tool.derive(fit)[0] == getattr(maths_tables, name), name


def test_constants_and_the_bits_of_two_over_pi(tool: ModuleType) -> None:
    for name, (value, bits) in tool.SPLITS.items():
        parts = tool.split_constant(value, bits)
        assert getattr(maths_tables, name) == (parts if len(parts) > 1 else parts[0])
    assert tuple(tool.two_over_pi()) == maths_tables.TWO_OVER_PI_BITS
    assert tuple(tool.two_over_pi(19, 34, 64)) == maths_tables.TWO_OVER_PI_WORDS


def test_everything_in_the_tables_is_derived(tool: ModuleType) -> None:
    public = {name for name in vars(maths_tables) if name.isupper()}
    assert public == {*tool.FITS, *tool.SPLITS, "TWO_OVER_PI_BITS", "TWO_OVER_PI_WORDS"}


def test_a_fit_is_as_good_as_theory_says(tool: ModuleType) -> None:
    """The minimax error of |x| <= 1 by even quadratics is that of the Chebyshev polynomial: x**4 by 1, x**2: 1/8."""
    import mpmath as mp

    fit = tool.Fit("x**4", lambda x: x**4, (0, 2), 0, 1, lambda x: mp.mpf(1), 53)
    coefficients, error = tool.derive(fit)
    assert coefficients == pytest.approx((-0.125, 1.0), abs=1e-4)
    assert error == pytest.approx(0.125, rel=1e-4)
