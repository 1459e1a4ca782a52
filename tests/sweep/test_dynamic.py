"""Some ops of ``dynamic``, of each kind; all of them by ``python -m tests.sweep.dynamic``."""

import pytest

pytest.importorskip("expecttest")  # torch's own samples need it

from tests.sweep.resized import messages  # noqa: E402
from tests.sweep.workers import BAD, Task  # noqa: E402

OPS = (
    "add", "cat", "cumsum", "diff", "gather", "index_select", "logsumexp", "masked_fill", "nn.functional.gelu",
    "nn.functional.layer_norm", "nn.functional.pad.constant", "roll", "softmax", "std", "sum", "transpose", "tril", "where",
)  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_three_sizes_in_one_artifact(name: str) -> None:
    said = list(messages(Task(name, "float32", False, 12, 0, check=True), 0))
    results = [(status, detail) for kind, status, detail, *_ in said if kind == "result"]
    assert not [r for r in results if r[0] in BAD]
    assert sum(status == "right" for status, _ in results) >= 3
