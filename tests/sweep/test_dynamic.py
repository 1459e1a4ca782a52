"""Some ops of ``dynamic``, of each kind; all of them by ``python -m tests.sweep.dynamic``."""

import pytest

pytest.importorskip("expecttest")  # torch's own samples need it

from tests.sweep.dynamic import sweep_op  # noqa: E402

OPS = (
    "add", "cat", "cumsum", "diff", "gather", "index_select", "logsumexp", "masked_fill", "nn.functional.gelu",
    "nn.functional.layer_norm", "nn.functional.pad.constant", "roll", "softmax", "std", "sum", "transpose", "tril", "where",
)  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_three_sizes_in_one_artifact(name: str) -> None:
    counts, lines = sweep_op(name, "float32", 12, check=True)
    assert not lines
    assert counts["right"] >= 3
