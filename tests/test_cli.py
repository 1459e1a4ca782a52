"""The command ``lowc``, run in this process on the examples and on files made here."""

import re
from pathlib import Path

import pytest

from lowc.cli import main
from lowc.cli.load import load
from lowc.errors import LowcError
from lowc.ir.parser import parse_module
from lowc.ir.verify import verify_module
from lowc.scheduler.pipeline import PASSES

ROOT = Path(__file__).resolve().parent.parent
SOFTMAX = f"{ROOT / 'examples' / 'softmax.py'}:softmax"
GOLDEN = sorted((ROOT / "tests" / "ir" / "golden").glob("*.lowc"))

SMALL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
    def forward(self, x):
        return self.linear(x).tanh() + x.frexp().mantissa.sum()

net = Net()
def make_net():
    return Net()
def inputs():
    return torch.ones(7, 5)

def breaks(x):
    y = x * 2
    print(float(y.sum()))
    return y.exp()

def no_graph(x):
    return 3

def two(x, y):
    return x + y
def two_inputs():
    return torch.ones(4), torch.ones(4)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    return path


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error that ``lowc ARGUMENTS`` prints: status 2, at most a dozen lines, nothing on standard output."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    while lines and not lines[0].startswith("lowc: "):  # torch's own log
        del lines[0]
    assert captured.out == "" and 0 < len(lines) <= 12, captured.err
    return "\n".join(lines)


def prints(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.match(
        r"lowc \d+\.\d+\.\d+, Python 3\.\d+.*, torch 2\..*, llvmlite 0\.", prints(capsys, "--version")
    )


# ---------------------------------------------------------------- FILE.py:FN


def test_load_finds_functions_modules_and_factories(small: Path) -> None:
    net, args = load(f"{small}:net")
    assert type(net).__name__ == "Net" and args[0].shape == (7, 5)
    assert type(load(f"{small}:make_net")[0]).__name__ == "Net"
    assert type(load(f"{small}:Net")[0]).__name__ == "Net"
    two, args = load(f"{small}:two")
    assert two.__name__ == "two" and len(args) == 2


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("softmax", "not of the form FILE.py:FN"),
        ("{}:missing", "nothing to call by the name 'missing'"),
        ("{}:SMALL SIZE", "not of the form FILE.py:FN"),
    ],
)
def test_load_says_what_is_wrong(small: Path, place: str, message: str) -> None:
    with pytest.raises(LowcError, match=re.escape(message)):
        load(place.format(small))


def test_load_needs_inputs(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("def f(x):\n    return x\n")
    with pytest.raises(LowcError, match="f_inputs"):
        load(f"{tmp_path / 'bare.py'}:f")


def test_load_reports_what_the_file_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    assert "ZeroDivisionError" in fails(capsys, "dump", f"{tmp_path / 'bad.py'}:f")


def test_load_reports_inputs_that_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("def f(x):\n    return x\ndef f_inputs():\n    return 1 / 0\n")
    assert "ZeroDivisionError" in fails(capsys, "dump", f"{tmp_path / 'bad.py'}:f")


def test_a_function_that_raises_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import torch\ndef f(x):\n    return x @ x\ndef inputs():\n    return torch.ones(2, 3)\n"
    (tmp_path / "bad.py").write_text(text)
    for command in ("dump", "explain"):
        assert "the function raises" in fails(capsys, command, f"{tmp_path / 'bad.py'}:f")


def test_a_file_does_not_replace_a_module_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import random
    import sys
    import types

    monkeypatch.setattr(sys, "path", list(sys.path))

    (tmp_path / "random.py").write_text("def f(x):\n    return x\ndef inputs():\n    return 1\n")
    (tmp_path / "types.py").write_text("1 / 0\n")
    before = set(sys.modules)
    load(f"{tmp_path / 'random.py'}:f")
    fails(capsys, "dump", f"{tmp_path / 'types.py'}:f")
    assert sys.modules["random"] is random and sys.modules["types"] is types
    assert [name for name in sys.modules if name not in before] == ["_lowc_cli_random"]


# ---------------------------------------------------------------- dump


def test_interp_shows_code_for_this_processor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "parallel" in prints(capsys, "dump", SOFTMAX, "--stage", "machine", "-o", "isa=interp")
    monkeypatch.setenv("LOWC_ISA", "interp")
    assert "define" in prints(capsys, "dump", SOFTMAX, "--stage", "llvm")
    assert "5 ops in 1 kernel" in prints(capsys, "explain", SOFTMAX)
    assert "MACHINE" not in prints(capsys, "opt", "-p", "fuse", str(GOLDEN[0]))


def test_opt_reports_what_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.lowc").write_bytes(b"kernel \xff")
    assert "no UTF-8 text" in fails(capsys, "opt", str(tmp_path / "bad.lowc"))


@pytest.mark.parametrize(
    ("stage", "marks"),
    [
        ("graph", ["graph inference(", "aten.amax.default", "# ", "return"]),
        ("lowering", ["module @LOOPS", "launch amax_0", "launch div_0", " exp("]),
        ("loops", ["module @LOOPS", "max= ", "add= ", " exp("]),
        ("machine", ["module @MACHINE", "parallel"]),
        ("llvm", ["define", "load <"]),
        ("asm", [".text", "ret"]),
        ("host", ["def call(args):", "empty((2048, 2048), (2048, 1), float32)"]),
    ],
)
def test_dump_softmax(capsys: pytest.CaptureFixture[str], stage: str, marks: list[str]) -> None:
    out = prints(capsys, "dump", SOFTMAX, "--stage", stage)
    for mark in marks:
        assert mark in out
    assert out.count("launch") == {"lowering": 5, "loops": 1, "machine": 1}.get(stage, out.count("launch"))
    if stage in ("lowering", "loops", "machine"):
        module = parse_module(out)
        verify_module(module, module.level)


def test_dump_obeys_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Without inlining and fusion the five kernels stay; SSE2 code has no AVX registers."""
    assert prints(capsys, "dump", SOFTMAX, "-o", "off=inline,fuse").count("launch") == 5
    assembly = prints(capsys, "dump", SOFTMAX, "--stage", "asm", "-o", "isa=sse2")
    assert "xmm" in assembly and not re.search(r"[yz]mm", assembly)
    assert "options are" in fails(capsys, "dump", SOFTMAX, "-o", "speed=11")
    assert "it takes" in fails(capsys, "dump", SOFTMAX, "-o", "isa=z80")


def test_dump_shows_both_graphs_of_a_training_step(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prints(capsys, "dump", f"{small}:net", "--stage", "graph")
    assert "# ---- forward" in out and "# ---- backward" in out
    assert "backward" not in prints(capsys, "dump", f"{small}:net", "--stage", "graph", "--inference")


def test_dump_dynamic_has_symbols(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"module @LOOPS\(\w+: 2\.\.", prints(capsys, "dump", f"{small}:two", "--dynamic"))


def test_dump_of_no_graph(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no graph to compile" in fails(capsys, "dump", f"{small}:no_graph")


# ---------------------------------------------------------------- opt


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_opt_without_passes_verifies_and_prints(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = prints(capsys, "opt", str(path))
    (tmp_path / "again.lowc").write_text(out)
    assert prints(capsys, "opt", str(tmp_path / "again.lowc")) == out


def test_opt_runs_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "tests" / "ir" / "golden" / "softmax.lowc"
    out = prints(capsys, "opt", "-p", ",".join(row.name for row in PASSES), str(path))
    assert out.startswith("module @MACHINE") and " exp(" not in out


def test_opt_chains_through_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Passes one at a time, through text, give what they give together."""
    path = ROOT / "tests" / "ir" / "golden" / "softmax.lowc"
    names = [row.name for row in PASSES if row.gives == "LOOPS"]
    together = prints(capsys, "opt", "-p", ",".join(names), str(path))
    for name in names:
        out = prints(capsys, "opt", "-p", name, str(path))
        path = tmp_path / f"{name}.lowc"
        path.write_text(out)
    assert path.read_text() == together


def test_opt_fuses_two_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "two.lowc").write_text("""module @LOOPS() {
  input x: f32[64, 33]
  temp t: f32[64, 33]
  temp y: f32[64, 33]
  launch twice(x, t)
  launch shift(t, y)
  return y
}

kernel twice(a: f32[64, 33], b: f32[64, 33]) {
  for i in 64 {
    for j in 33 {
      b[i, j] = a[i, j] * 2.0
    }
  }
}

kernel shift(a: f32[64, 33], b: f32[64, 33]) {
  for i in 64 {
    for j in 33 {
      b[i, j] = a[i, j] + 1.0
    }
  }
}
""")
    out = prints(capsys, "opt", "-p", "inline", str(tmp_path / "two.lowc"))
    assert out.count("launch") == 1 and "temp t" not in out
    assert "y[i, j] = x[i, j] * 2.0 + 1.0" in prints(
        capsys, "opt", "-p", "inline,fold", str(tmp_path / "two.lowc")
    )


def test_opt_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(ROOT / "tests" / "ir" / "golden" / "softmax.lowc")
    assert "inline, fuse" in fails(capsys, "opt", "-p", "fuze", path)
    assert "takes a module @BUFFERED" in fails(capsys, "opt", "-p", "legalise", path)
    assert "cannot read" in fails(capsys, "opt", "nowhere.lowc")
    (tmp_path / "bad.lowc").write_text("kernel k(x: f32[4]) {\n  x[0] = y[1]\n}\n")
    assert "y" in fails(capsys, "opt", str(tmp_path / "bad.lowc"))
    (tmp_path / "wrong.lowc").write_text("kernel k(x: f32[4]) {\n  x[0] = 1.0:f64\n}\n")
    assert "> " in fails(capsys, "opt", str(tmp_path / "wrong.lowc"))


def test_opt_lists_passes(capsys: pytest.CaptureFixture[str]) -> None:
    out = prints(capsys, "opt", "--list")
    assert [line.split()[0] for line in out.splitlines()] == [row.name for row in PASSES]


# ---------------------------------------------------------------- explain


def test_explain_softmax_is_one_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    out = prints(capsys, "explain", SOFTMAX)
    assert "amax, sub, exp, sum, div" in out
    # Read once, written once: 2 * 2048 * 2048 * 4 bytes.
    assert "5 ops in 1 kernel moving 33.6 MB; 0 calls of ATen" in out
    assert "softmax.py:11" in out and "No graph breaks" in out


def test_explain_calls_of_aten_and_graph_breaks(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = prints(capsys, "explain", f"{small}:net")
    assert re.search(r"aten\.frexp\.Tensor.*no lowering", out)
    assert "aten.addmm.default" in out and "backward: kernels" in out
    out = prints(capsys, "explain", f"{small}:breaks")
    line = SMALL.splitlines().index("    print(float(y.sum()))") + 1
    assert "Graph break: " in out and f"small.py:{line} in breaks: print" in out


GPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, wide=128, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, x):
        b, n, wide = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, wide))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

block = Block().eval().requires_grad_(False)

def inputs():
    return torch.randn(2, 64, 128)
"""


def test_explain_a_block_of_gpt(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two norms, four products with what follows them, attention."""
    for name in ("LOWC_MATMUL", "LOWC_ATTENTION"):
        monkeypatch.setenv(name, "own")
    (tmp_path / "gpt_block.py").write_text(GPT)
    out = prints(capsys, "explain", f"{tmp_path / 'gpt_block.py'}:block")
    found = re.search(r"ops in (\d+) kernels moving .*; 0 calls of ATen", out)
    assert found is not None and int(found[1]) == 7


def test_explain_says_why_further_calls_were_compiled_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sizes.py").write_text(
        "import torch\n\ndef f(x, y):\n    return x.exp() + y\n\n"
        "def f_inputs():\n    return torch.ones(4, 5), torch.ones(5)\n\n"
        "def f_calls():\n    return [(torch.ones(n, 5), torch.ones(5)) for n in (6, 7, 1000)]\n"
    )
    shown = prints(capsys, "explain", f"{tmp_path / 'sizes.py'}:f")
    assert shown.count("Recompiled: ") == 1  # automatic dynamic: the second size makes it one artifact for all others
    assert "size mismatch at index 0. expected 4, actual 6" in shown
    assert "sizes.py:4 in f: return x.exp() + y" in shown


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "explain" in capsys.readouterr().out
