"""Products whose rows are two launches: whole rounds of tiles, and the rest."""

import numpy as np
import pytest

from lowc.errors import ScheduleError
from lowc.ir.nodes import Launch
from lowc.scheduler import choose_tensor_cores as choose
from lowc.scheduler.choose_tensor_cores import Size, best, divided
from lowc.scheduler.divide_rows import divide_rows
from tests.scheduler.products import TARGET, product, result
from tests.scheduler.test_slice_depth import SILU, keys, launches, ran, whole_numbers


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("rows", "first", "slices"), [(136, 128, 1), (100, 64, 2), (67, 64, 1)], ids=str)
def test_meaning_is_kept(rows: int, first: int, slices: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest's depth in slices, too."""
    monkeypatch.setattr(choose, "first_rows", lambda found, target: first)
    monkeypatch.setattr(choose, "slices", lambda found, target: slices if choose.size_of(found).rows < first else 1)
    kernel = product(rows, 40, 200, form, batch=2)
    steps = launches(kernel)
    assert len(steps) == (2 if slices == 1 else 3)
    assert all("wgmma" in keys(s) for s in steps[:2])
    np.testing.assert_array_equal(ran(kernel, steps, whole_numbers(kernel)), result(kernel, {}))


def test_epilogues_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "first_rows", lambda found, target: 64)
    kernel = product(72, 24, 64, result=SILU)
    found, expected = ran(kernel, launches(kernel), whole_numbers(kernel)), result(kernel, {})
    np.testing.assert_allclose(found, expected, rtol=2**-8)


def test_both_need_rows() -> None:
    kernel = product(72, 24, 64)
    for first in (0, 72, 100):
        with pytest.raises(ScheduleError, match="rows and others"):
            divide_rows(Launch(kernel, kernel.params), first)


def test_it_pays_where_the_last_round_is_short_and_long() -> None:
    cores = TARGET.cores
    deep = Size(1, 1536, 3072, 16384)  # 144 tiles of 128 x 256
    time, rows = divided(deep, cores)
    assert rows == 11 * 128
    assert time < 0.95 * best(deep, cores)[0]
    for whole in (Size(1, 4096, 4096, 4096), Size(1, 256, 256, 16384), Size(64, 512, 512, 128), Size(1, 768, 3072, 16384)):
        assert divided(whole, cores) == (best(whole, cores)[0], 0)
    assert len(launches(product("m", 3072, 16384))) == 1
