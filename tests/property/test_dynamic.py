"""A few of the programs of ``dynamic``: sizes known only when called, each artifact called with four of them."""

import os

import pytest

from tests.property.dynamic import check

COUNT = int(os.environ.get("LOWC_SEEDS", "12"))


@pytest.mark.parametrize("kind", ["x86", "nvptx"])
@pytest.mark.parametrize("seed", range(COUNT))
def test_one_artifact_for_every_size(seed: int, kind: str) -> None:
    assert check(seed, 4, kind) == ""
