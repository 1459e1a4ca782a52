"""Scores by functions, by tiles: every form keeps the meaning of the kernel, and keys that no row sees do not come."""

from typing import Any

import pytest

from lowc.ir.interp import run_kernel
from lowc.ir.printer import print_kernel
from lowc.ir.relays import block_body, relay
from lowc.ir.verify_gpu import verify_kernel_threads
from lowc.scheduler import attention as form_of
from lowc.scheduler import choose_attention, contract
from tests.scheduler.attentions import TARGET, ways
from tests.scheduler.functions_of_scores import FORMS, interpreted, kernel_of
from tests.scheduler.gradients_of_functions import errors
from tests.scheduler.gradients_of_functions import kernel_of as kernel_of_gradients


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("shape", "changed"),
    [((2, 2, 130, 330, 32), {"groups": 1, "keys": 64}), ((2, 1, 330, 200, 64), {}), ((1, 1, 256, 256, 64), {"groups": 1})],
    ids=str,
)
def test_meaning_is_kept(form: str, shape: Any, changed: Any) -> None:
    done, out, sums = interpreted(form, shape, **changed)
    verify_kernel_threads(done)
    assert out < 6e-3
    assert sums < 1e-4


def test_what_rows_see() -> None:
    found = [form_of.find(kernel_of(form, (1, 1, 300, 300, 32)).body[0]) for form in ("window", "late", "from one on", "slopes")]
    seen = [form_of.sees(f) for f in found if f is not None]
    assert [(str(limit), str(begin)) for limit, begin, _ in seen] == [
        ("i + 1", "i - 69"), ("i - 99", "None"), ("None", "140"), ("i + 1", "None")
    ]  # fmt: skip


def test_tiles_of_a_window() -> None:
    """Those that all rows see have no mask, and stand between those that some see."""
    found = relay(block_body(interpreted("window", (1, 1, 512, 512, 64), keys=64, groups=1)[0].body))
    assert found is not None
    assert len(found.turns) == 3


def test_what_is_known_of_a_row_is_computed_once() -> None:
    done, *_ = interpreted("slopes", (1, 1, 256, 256, 64))
    text = print_kernel(done)
    assert "of_row" in text and all("of_row" in line for line in text.splitlines() if " slopes[" in line)


@pytest.mark.parametrize(("form", "several"), [("tiles", 2), ("tiles, causal", 2)])
def test_tiles_that_data_masks_are_not_computed(form: str, several: int) -> None:
    """But for the first turn of all, which has no condition."""
    done, *_ = interpreted(form, (1, 1, 384, 384, 64))
    found = relay(block_body(done.body))
    assert found is not None
    assert [t.seen is not None for t in found.turns] == [False] + [True] * (several - 1)
    small = relay(block_body(interpreted("tiles", (1, 1, 384, 384, 64), groups=3)[0].body))  # 192 rows are of several tiles
    assert small is not None
    assert all(t.seen is None for t in small.turns)


def test_fewer_groups_where_scores_are_read_for_each_key() -> None:
    """Three have too few registers for what is loaded."""
    assert [ways(kernel_of(form, (8, 8, 4096, 400, 64)))[0].groups for form in ("slopes", "documents", "table")] == [3, 2, 2]


@pytest.mark.parametrize("form", ["window", "late", "documents", "tiles, causal", "capped", "table"])
def test_gradients_keep_their_meaning(form: str) -> None:
    """By five products, where keys are rows."""
    kernel = kernel_of_gradients(form, (2, 1, 200, 70, 32), "f16")
    (way,) = choose_attention.gradients(kernel, TARGET)[:1]
    done = contract.apply(kernel, way)
    verify_kernel_threads(done)
    found = errors(form, done, (2, 1, 200, 70, 32), lambda m: run_kernel(done, m, {}))
    assert len(found) == 3 and max(found.values()) < 2e-3


def test_caps_are_made_while_the_second_product_is() -> None:
    """One loop has what is left of the first product, the next one weights and slopes."""
    kernel = kernel_of_gradients("capped", (1, 1, 128, 128, 64))
    text = print_kernel(contract.apply(kernel, choose_attention.gradients(kernel, TARGET)[0]))
    assert text.count("rcp(") == 2 * text.count("pipeline(2)") and "tanh" not in text
