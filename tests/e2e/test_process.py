"""lowc as a guest in the process: no child processes, one OpenMP runtime, threads, errors with eager's
types.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lowc.runtime import openmp

_SPAWNED: list[str] = []


def _hook(event: str, _args: Any) -> None:
    if event in (
        "subprocess.Popen",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
    ):
        _SPAWNED.append(event)


@pytest.fixture
def spawned() -> Iterator[list[str]]:
    """Events of child processes since the test began (an audit hook can never be removed, so there is one for
    all).
    """
    if not getattr(_hook, "installed", False):
        sys.addaudithook(_hook)
        _hook.installed = True  # type: ignore[attr-defined]
    _SPAWNED.clear()
    yield _SPAWNED


def test_compiling_and_running_starts_no_process(compiler: Any, spawned: list[str]) -> None:
    compiler.check(lambda x: (x @ x).softmax(-1), torch.randn(9, 9, requires_grad=True), train=True)
    assert spawned == []


def test_there_is_one_openmp_runtime(compiler: Any) -> None:
    before = openmp.loaded()
    compiler.check(lambda x: x.exp().sum(), torch.randn(2, 1000))
    assert openmp.loaded() == before and len(before) <= 1
    assert not before or "GOMP_parallel" in openmp.functions()
    found = openmp.library()
    assert found is None if not before else found and os.path.samefile(found, before[0])


def test_two_threads_may_run_one_function(compiler: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = (x + x.sum(1, keepdim=True)).exp()
        return (y.cumsum(0) / y.sum(0)) @ y.t()

    compiled = compiler.compile(f)
    given = [torch.rand(8, 16) * k * 0.01 for k in range(1, 5)]
    expected = [f(x) for x in given]
    compiled(given[0])
    wrong: list[int] = []

    def run(k: int) -> None:
        for _ in range(20):
            if not torch.allclose(compiled(given[k]), expected[k], rtol=1e-4):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_an_index_out_of_range_is_an_index_error(compiler: Any) -> None:
    compiled = compiler.compile(lambda x, i: x[i] * 2)
    x = torch.randn(5)
    assert torch.equal(compiled(x, torch.tensor([0, 4, -5])), x[torch.tensor([0, 4, 0])] * 2)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, 5, 1]))


def test_integer_division_by_zero_is_eagers_error(compiler: Any) -> None:
    compiled = compiler.compile(lambda x, y: x // y)
    x, y = torch.tensor([7, -7]), torch.tensor([2, 2])
    assert compiled(x, y).tolist() == [3, -4]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, torch.tensor([1, 0]))


PARTLY_READ: dict[str, Callable[..., torch.Tensor]] = {
    "index": lambda w, i, a, b: w[i][:4] + 1,
    "embedding": lambda w, i, a, b: F.embedding(i, w)[:4] * 2,
    "gather": lambda w, i, a, b: w.gather(0, i[:, None])[:4].sin(),
    "floordiv": lambda w, i, a, b: (a // b)[:4] + 1,
    "crop": lambda w, i, a, b: F.pad(w[i], (-1, -1, -2, -20)) * 2,
    "through_a_map": lambda w, i, a, b: (w[i] + 1)[:4].exp(),
    "picked": lambda w, i, a, b: w[i][3, 2] + w.sum(),
    "sum_of_some_columns": lambda w, i, a, b: w[i][:, 1:].sum(1),
    "broadcast": lambda w, i, a, b: w[i][:, :1] * w[:1],
}
WHOLLY_READ: dict[str, Callable[..., torch.Tensor]] = {
    "embedding": lambda w, i, a, b: F.embedding(i, w) * 2,
    "flat": lambda w, i, a, b: F.embedding(i.view(4, 6), w).view(-1) * 2,
    "transposed": lambda w, i, a, b: (w[i].t() + 1).relu(),
    "summed": lambda w, i, a, b: w[i].sum(0),
    "broadcast": lambda w, i, a, b: w[i][:, None] * w[:2],
}


def checked_arguments() -> tuple[torch.Tensor, ...]:
    return torch.randn(10, 5), torch.arange(24) % 10, torch.arange(24), torch.ones(24, dtype=torch.int64)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [*PARTLY_READ.values(), *WHOLLY_READ.values()], ids=[*PARTLY_READ, *WHOLLY_READ])
def test_a_check_of_what_nobody_reads_fails_nevertheless(compiler: Any, fn: Any, dynamic: bool) -> None:
    """Row 20 is wrong, and most of the functions read a few others only."""
    compiled = compiler.compile(fn, dynamic=dynamic)
    w, i, a, b = checked_arguments()
    torch.testing.assert_close(compiled(w, i, a, b), fn(w, i, a, b))
    i[20], b[20] = 99, 0
    for run in (fn, compiled):
        with pytest.raises((IndexError, RuntimeError), match="out of range|out of bounds|ZeroDivisionError"):
            run(w, i, a, b)


@pytest.mark.parametrize("name", WHOLLY_READ)
def test_a_checked_map_that_is_read_wholly_is_inlined(compiler: Any, name: str) -> None:
    compiler.compile(WHOLLY_READ[name], dynamic=False)(*checked_arguments())
    if compiler.programs[0].artifact.module.level == "MACHINE":
        assert len(compiler.programs[0].artifact.module.steps) == 1
        assert not compiler.programs[0].artifact.module.temps[1:]


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_the_number_of_threads(compiler: Any, threads: int) -> None:
    compiled = compiler.compile(lambda x: (x.sum(), x.sum(0), x.softmax(-1)))
    x = torch.randn(64, 257)
    before = torch.get_num_threads()
    reference = compiled(x)
    try:
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x), reference, strict=True))
    finally:
        torch.set_num_threads(before)


def test_importing_lowc_imports_nothing() -> None:
    code = "import sys, lowc; bad = {'torch', 'llvmlite', 'numpy', 'cuda'} & set(sys.modules); sys.exit(', '.join(bad) or 0)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
    )
    assert result.returncode == 0, result.stderr


def test_the_profiler_shows_kernels_by_name(compiler: Any) -> None:
    compiled = compiler.compile(lambda x: x.softmax(-1))
    x = torch.randn(3, 5)
    compiled(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out = compiled(x)
    assert torch.allclose(out, x.softmax(-1))
    assert any("softmax" in event.key and event.key.startswith("lowc: ") for event in profile.key_averages())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_can_go_on(compiler: Any) -> None:
    compiled = compiler.compile(lambda x: (x.exp().sum(1), x @ x))
    x = torch.randn(257, 257)
    expected = compiled(x)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        torch.set_num_threads(1)  # as torch's data loaders do: OpenMP's threads do not survive a fork
        os._exit(0 if all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(compiled(x), expected, strict=True)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
