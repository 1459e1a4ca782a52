"""Each planted fault is found by ``lowc bisect``, in its kernel and at its stage, and shrunk by ``lowc reduce``.

    python -m pytest -m "slow or not slow" tests/faults      # all ten, some three minutes on two cores
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.faults.find import FAULTS, Planted
from tests.paths import PYTHONPATH, ROOT

QUICK = ("lowering_maximum", "emission_address")


def found(*names: str) -> dict[str, Any]:
    """What ``tests.faults.find`` says of ``names``, in a process that can fork: one that has run nothing on several threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.find", *names], cwd=ROOT, env=os.environ | {"PYTHONPATH": PYTHONPATH},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}


def check(planted: Planted, seen: dict[str, Any]) -> None:
    status, said = seen["bisect"]
    assert status == 1, said
    assert f": {planted.status}" in said.splitlines()[0], said
    stages = {"lowering": "lowering:", "code": "the backend:", "linker": "lowc's linker:", "host program": "the host program"}
    assert f"at fault: {stages.get(planted.stage, 'pass ' + planted.stage)}" in said, said
    kernel = said[said.index("kernel:") : said.index("at fault:")]
    assert f"= {planted.op}" in kernel and "victims.py" in kernel, said
    assert len(seen["files"]) > 1 or planted.status == "error", seen["files"]
    status, said = seen["reduce"]
    assert status == 1 and "fails in the same way" in said, said
    assert 1 <= seen["script"].count(" = torch.ops.") <= planted.most, seen["script"]


@pytest.fixture(scope="module")
def quickly() -> dict[str, Any]:
    return found(*QUICK)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("planted", [p for p in FAULTS if p.name in QUICK], ids=lambda p: p.name)
def test_a_planted_fault_is_found(planted: Planted, quickly: dict[str, Any]) -> None:
    check(planted, quickly[planted.name])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", [p for p in FAULTS if p.name not in QUICK], ids=lambda p: p.name)
def test_every_planted_fault_is_found(planted: Planted) -> None:
    check(planted, found(planted.name)[planted.name])


def test_there_are_faults_of_every_kind() -> None:
    kinds = [p.name.partition("_")[0] for p in FAULTS]
    assert len(FAULTS) == 10
    assert [kinds.count(k) for k in ("lowering", "schedule", "emission", "runtime")] == [2, 2, 2, 2]
    assert kinds.count("inline") + kinds.count("fold") == 2
