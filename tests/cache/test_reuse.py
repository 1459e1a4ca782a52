"""What comes back from the cache does what was compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lowc import reuse
from lowc.cache import codec
from lowc.cache.folder import default, folder_of
from lowc.errors import OptionError
from lowc.ir import types
from lowc.ir.graph import Graph, Input, Node, Ref
from lowc.ir.printer import print_module
from lowc.options import Options, parse
from tests.cache import graphs


def test_the_second_process_compiles_nothing(tmp_path: Path, compilations: list[str]) -> None:
    first = graphs.check(graphs.folder(tmp_path))
    second = graphs.check(graphs.folder(tmp_path))
    assert compilations == ["inference"]
    assert second.source == first.source and second.host == first.host
    assert print_module(second.artifact.module) == print_module(first.artifact.module)
    assert (second.artifact.code, second.artifact.slots) == (first.artifact.code, first.artifact.slots)
    assert second.artifact.program == first.artifact.program and second.artifact.target == first.artifact.target


@pytest.mark.parametrize("isa", ["auto", "sse2"])
def test_sizes_that_are_known_at_the_call(tmp_path: Path, compilations: list[str], isa: str) -> None:
    for _ in range(2):
        call: Any = graphs.compiled(graphs.product(), graphs.folder(tmp_path), isa=isa)
        for n in (2, 7, 33):
            x = torch.randn(n, n, generator=torch.Generator().manual_seed(n)) * 0.1
            torch.testing.assert_close(call([x])[0], graphs.product_of(x))
    assert len(compilations) == 1 and any(not hasattr(s, "symbol") for s in call.program.artifact.program)


def test_options_do_not_mix(tmp_path: Path, compilations: list[str]) -> None:
    for options in ({"isa": "sse2"}, {"isa": "auto"}, {"threads": False}, {"off": "fuse"}) * 2:
        program = graphs.check(graphs.folder(tmp_path), **options)
        assert ("sse2" in options.values()) == (program.artifact.target == "x86 x86-64")
    assert len(compilations) == 4


def test_a_failed_check_says_where(tmp_path: Path) -> None:
    """The module is read back for the message only."""
    x, i = graphs.meta(5), graphs.meta(3)
    index = graphs.TensorMeta(types.i64, i.shape, i.strides, i.offset, "cpu")
    node = Node("picked", "aten.index_select.default", (Ref("x"), 0, Ref("i")), (), (i,), "model.py:7 in f: x[i]")
    graph = Graph("inference", (), (Input("x", x), Input("i", index)), (node,), (Ref("picked"),))
    for _ in range(2):
        call = graphs.compiled(graph, graphs.folder(tmp_path))
        given = torch.arange(5.0)
        assert call([given, torch.tensor([4, 0, 2])])[0].tolist() == [4, 0, 2]
        with pytest.raises(IndexError, match="model.py:7"):
            call([given, torch.tensor([0, 5, 1])])


def test_the_profiler_knows_kernels_of_reused_programs(tmp_path: Path) -> None:
    graphs.check(graphs.folder(tmp_path))
    call = graphs.compiled(graphs.chain(), graphs.folder(tmp_path), [graphs.C])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call([graphs.X])
    assert any(event.key.startswith("lowc: ") for event in profile.key_averages())


def test_numbers_that_python_cannot_spell_survive(tmp_path: Path) -> None:
    for value in (float("inf"), -0.0, 1e-45, 0.1, complex(0.1, float("-inf")), "device:cpu", "text"):
        kind, text = json.loads(json.dumps(codec._plain(value)))
        back = codec._literal(kind, text)
        assert repr(back) == repr(value) and type(back) is type(value)
    assert repr(codec._literal(*codec._plain(float("nan")))) == "nan"


def test_what_was_left_to_aten_after_an_error_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from lowc.backends import x86
    from lowc.errors import CodegenError

    real = x86.compile_module

    def broken(module: Any, *rest: Any) -> Any:
        if module.steps and any("exp" in origin for s in module.steps if hasattr(s, "kernel") for origin in s.origin):
            raise CodegenError("no code for this", origin=("exp = aten.exp.default",))
        return real(module, *rest)

    monkeypatch.setattr(x86, "compile_module", broken)
    for _ in range(2):
        caplog.clear()
        graphs.check(graphs.folder(tmp_path))
        assert "no code for" in caplog.text
    monkeypatch.undo()
    assert not graphs.folder(tmp_path).items()


@pytest.mark.parametrize("options", [{"check": True}, {"isa": "interp"}, {"dump": "DIR"}])
def test_who_wants_to_see_the_passes_gets_no_cache(tmp_path: Path, compilations: list[str], options: dict[str, Any]) -> None:
    if "dump" in options:
        options = {"dump": str(tmp_path / "dump")}
    for _ in range(2):
        graphs.check(graphs.folder(tmp_path / "cache"), **options)
    assert len(compilations) == 2 and not (tmp_path / "cache").exists()


def test_a_process_that_cannot_load_an_entry_compiles(
    tmp_path: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    graphs.check(graphs.folder(tmp_path))
    from lowc.runtime import program

    real, calls = program.bind_host, []

    def once(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("something is not as it was")
        return real(*args, **kwargs)

    monkeypatch.setattr(program, "bind_host", once)
    graphs.check(graphs.folder(tmp_path))
    assert len(compilations) == 2 and "something is not as it was" in caplog.text


def test_the_ops_that_lowc_lowers_are_kept_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowc.lowering import table

    cache = graphs.folder(tmp_path)
    ops = reuse.lowered_ops.__wrapped__  # as new processes ask
    names = set(table.TABLE)
    assert ops(cache) == ops(None) == names and len(cache.items()) == 1
    monkeypatch.setattr(table, "TABLE", {})
    assert ops(cache) == names and ops(None) == frozenset()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from platformdirs import user_cache_dir

    for name in ("LOWC_CACHE", "LOWC_CACHE_DIR", "LOWC_CACHE_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    for home in ("", str(tmp_path), "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        if home != "relative":
            assert default() == user_cache_dir("lowc", appauthor=False)
        assert os.path.isabs(default())
    found = folder_of(parse(None, None))
    assert found and found.path == default() and found.limit == 1 << 30
    assert folder_of(parse(None, {"cache": False})) is None and folder_of(parse(None, {"cache_limit_mb": 0})) is None
    monkeypatch.setenv("LOWC_CACHE_DIR", str(tmp_path / "x"))
    monkeypatch.setenv("LOWC_CACHE_LIMIT", "3")
    found = folder_of(parse(None, None))
    assert found and found.path == str(tmp_path / "x") and found.limit == 3 << 20
    assert found is folder_of(parse(None, None))
    monkeypatch.setenv("LOWC_CACHE", "0")
    assert folder_of(parse(None, None)) is None and folder_of(Options()) is not None
    monkeypatch.setenv("LOWC_CACHE_LIMIT", "much")
    with pytest.raises(OptionError, match="LOWC_CACHE_LIMIT"):
        parse(None, None)


PROCESS = """
import sys, torch
def f(x, w):
    return torch.softmax(x @ w, -1).sum(0) * 2
w = torch.ones(4, 4, requires_grad=True)
x = torch.arange(12.0).view(3, 4) / 10
out = torch.compile(f, backend="lowc", fullgraph=True)(x, w)
torch.testing.assert_close(out, f(x, w))
out[0].backward()
torch._dynamo.reset()
dynamic = torch.compile(f, backend="lowc", dynamic=True)
torch.testing.assert_close(dynamic(x, w), f(x, w))
print(sorted({m.split(".")[1] for m in sys.modules if m.startswith("lowc.")} & {"lowering", "scheduler", "backends", "compiler"}))
print("llvmlite" in sys.modules)
print(*sorted(m for m in sys.modules if m.startswith(("lowc.ir.", "lowc.frontend."))))
"""


def test_a_new_process_hits_and_needs_no_compiler(tmp_path: Path) -> None:
    environment = os.environ | {"LOWC_CACHE": "1", "LOWC_CACHE_DIR": str(tmp_path), "LOWC_TIME": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    seen = []
    for seed in ("1", "2"):  # nothing of a key depends on the order of a set
        environment["PYTHONHASHSEED"] = seed
        done = subprocess.run([sys.executable, "-c", PROCESS], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        seen.append((done.stdout.split("\n"), [line for line in done.stderr.splitlines() if line.startswith("lowc:")]))
    assert seen[0][1] == [f"lowc: {name} (cache miss)" for name in ("forward", "backward") * 2]
    assert seen[1][1] == [f"lowc: {name} (cache hit, not traced)" for name in ("forward", "backward") * 2]
    assert seen[1][0][:2] == ["[]", "False"]
    assert not {"lowc.ir.graph", "lowc.ir.index", "lowc.frontend.importer"} & set(seen[1][0][2].split())


WARM = """
import sys
import torch
import torch._dynamo, torch._functorch.aot_autograd, torch._functorch.partitioners
before = set(sys.modules)
import lowc.dynamo
torch.compile(lambda x: torch.softmax(x, -1), backend="lowc")(torch.randn(3, 4))
new = [m for name, m in sys.modules.items() if name not in before and name.partition(".")[0] in ("lowc", "llvmlite")]
made = [c for m in new for c in vars(m).values() if isinstance(c, type) and "__dataclass_fields__" in vars(c)]
print(len(new), *sorted({c.__module__ for c in made} - before))
print(*(m.__name__ for m in new if m.__name__.startswith(("llvmlite", "lowc.scheduler", "lowc.lowering", "lowc.backends"))))
needless = ("aten_graphs", "channels_last", "cse", "random", "read", "recompiles", "saved", "unread")
print(*(name for name in needless if f"lowc.frontend.{name}" in sys.modules))
"""


def test_a_warm_start_loads_no_compiler_and_makes_no_dataclasses(tmp_path: Path) -> None:
    """They would be most of its time: benchmarks/results/warm.md."""
    environment = os.environ | {"LOWC_CACHE": "1", "LOWC_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", WARM], env=environment, capture_output=True, text=True, check=True)
    (count, *dataclasses), compiler, unneeded = (line.split() for line in done.stdout.splitlines()[-3:])
    assert 20 < int(count) < 30 and dataclasses == [] and compiler == [] and unneeded == []
