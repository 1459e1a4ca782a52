"""Threads that compile and call at once, processes that are forked or spawned, loaders of data.

    python -m tests.robust.threads --threads 32 --rounds 20
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lowc import compile_graph
from tests.paths import PYTHONPATH, ROOT


def run(*arguments: str) -> str:
    """What a process prints, which must end well: one that has not run on many threads yet."""
    env = os.environ | {"PYTHONPATH": PYTHONPATH, "PYTHONWARNINGS": "ignore"}
    env.pop("LOWC_CACHE", None)
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


PARTS = [f"--through={part}" for part in ("graph", "cache", "torch")]
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
    PARTS.pop()  # torch.compile in several threads at once crashes in torch 2.11, with backend aot_eager as well


def test_threads_compile_and_call_at_once() -> None:
    lines = run("-m", "tests.robust.threads", "--threads", "8", "--rounds", "2", *PARTS).splitlines()
    assert len(lines) == len(PARTS)
    for seen in map(json.loads, lines):
        assert (seen["wrong"], seen["compiled"]) == (0, 16), seen


def test_threads_make_artifacts_at_once() -> None:
    """torch.export by itself fails there: it changes tables of the process."""

    def make(number: int) -> torch.Tensor:
        inputs = (torch.full((3, 5), float(number)),)
        return compile_graph(torch.nn.Softplus(number + 1), inputs).load()(*inputs)

    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(make, range(8))):
            torch.testing.assert_close(found, torch.nn.Softplus(number + 1)(torch.full((3, 5), float(number))))


@pytest.mark.slow
def test_thirty_two_threads() -> None:
    lines = run("-m", "tests.robust.threads", "--threads", "32", "--rounds", "6", *PARTS).splitlines()
    assert len(lines) == len(PARTS)
    for line in lines:
        assert json.loads(line)["wrong"] == 0, line


LOADED = "from tests.robust.loading import loaded\nassert loaded({method!r}, {before})"


@pytest.mark.parametrize(
    ("method", "before"), [("fork", True), pytest.param("fork", False, marks=pytest.mark.slow), ("spawn", False)]
)
def test_workers_of_a_loader(method: str, before: bool) -> None:
    run("-c", f"if __name__ == '__main__':\n    {LOADED.format(method=method, before=before).replace(chr(10), chr(10) + '    ')}")


SPAWNED = """
import multiprocessing, torch
from tests.robust.loading import OPTIONS, apart
if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    if "METHOD" == "fork":  # torch's OpenMP threads do not survive a fork
        torch.set_num_threads(1)
    fn = torch.compile(lambda x: x.sin() * 2, backend="lowc", options=OPTIONS)
    fn(torch.ones(3))
    pipes = [context.Pipe() for _ in range(3)]
    children = [context.Process(target=apart, args=(there,)) for _, there in pipes]
    for child in children:
        child.start()
    assert all(here.recv() for here, _ in pipes)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert torch.allclose(fn(torch.ones(3)), torch.ones(3).sin() * 2)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_children_compile_for_themselves(method: str, tmp_path: Path) -> None:
    """After the parent has compiled and called; the parent goes on."""
    file = tmp_path / "main.py"
    file.write_text(SPAWNED.replace("METHOD", method))
    run(str(file))


ONCE = """
import threading, time
from lowc.once import once
made = []
def make():
    time.sleep(0.1)
    made.append(1)
    return object()
get = once(make)
found = []
each = [threading.Thread(target=lambda: found.append(get())) for _ in range(8)]
for t in each: t.start()
for t in each: t.join()
assert len(made) == 1 and len(set(map(id, found))) == 1 and get.__name__ == "make"
"""


def test_what_is_to_be_done_once_is() -> None:
    run("-c", ONCE)
