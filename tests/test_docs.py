"""What the documents promise is there: files, commands, options, passes; and nothing in them belongs to one machine."""

import re
import shlex
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from lowc.cli import main
from lowc.cli.dump import STAGES
from lowc.cli.opt import read
from lowc.ir.verify import verify_module
from lowc.options import ROWS
from lowc.scheduler.pipeline import PASSES

ROOT = Path(__file__).resolve().parent.parent
TEXT = (".md", ".py", ".toml", ".txt", ".cfg", ".yml", ".lowc", "")


def tracked() -> list[Path]:
    """Files of the repository, or of the source tree where git is not at hand."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
        files = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = [
            p
            for folder in ("lowc", "tests", "docs", "benchmarks", "examples")
            for p in (ROOT / folder).rglob("*")
        ]
    return [path for path in files if path.is_file() and path.suffix in TEXT]


DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def programs(path: Path) -> list[str]:
    """The blocks of a document that are IR text, fenced or indented."""
    blocks: list[list[str]] = [[]]
    fenced = False
    for line in path.read_text().splitlines():
        fence = line.startswith("```")
        fenced = fenced != fence
        if fence or not (fenced or line.startswith("    ") or not line):
            blocks.append([])
        else:
            blocks[-1].append(line)
    texts = [dedent("\n".join(block)).strip() for block in blocks]
    return [text for text in texts if re.match(r"(module @[A-Z]+\(|kernel \w+\()", text)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_ir_in_documents_is_valid(path: Path) -> None:
    for text in programs(path):
        module = read(text)
        verify_module(module, module.level)


def test_the_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = programs(ROOT / "README.md")
    assert main(["dump", f"{ROOT / 'examples' / 'softmax.py'}:softmax", "--stage", "loops"]) == 0
    assert capsys.readouterr().out.endswith(f"\n{shown}\n")


def test_files_that_the_readme_names_exist() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    for name in re.findall(r"(?:examples|benchmarks|lowc|tests|docs)/[\w/.-]+\.(?:py|md|lowc)", text):
        assert (ROOT / name).exists() or "NAME" in name, name
    for name, function in re.findall(r"(examples/\w+\.py):(\w+)", text):
        assert (
            f"def {function}(" in (ROOT / name).read_text() or f"\n{function} =" in (ROOT / name).read_text()
        )


def commands() -> list[str]:
    """The calls of ``lowc`` that the README and the tour show, each once."""
    lines = [line for name in ("README.md", "docs/tour.md") for line in (ROOT / name).read_text().splitlines()]
    found = [line.partition("#")[0].strip() for line in lines if re.match(r"\s*lowc (dump|explain|opt|view) ", line)]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_documents_run(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("examples", "tests"):  # what a command writes stays in this folder
        (tmp_path / name).symlink_to(ROOT / name, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    status = main(shlex.split(line)[1:])
    said = capsys.readouterr()
    if status and "--stage sass" in line:
        assert "there is no ptxas" in said.err or "neither nvdisasm nor cuobjdump" in said.err
        pytest.skip("needs ptxas and a disassembler")
    written = [path for path in tmp_path.iterdir() if path.suffix == ".html" and path.stat().st_size > 10_000]
    assert status == 0 and (written if " view " in line else said.out), said.err


def test_the_documents_show_every_command_with_a_gpu() -> None:
    shown = [line for line in commands() if "--target sm_" in line]
    assert {line.split()[1] for line in shown} == {"dump", "explain", "opt", "view"}


def test_the_tours_table_of_launches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel takes is the word of ptxas, so only where that is."""
    (shown,) = re.findall(r"^amax_0__div_0 .*$", (ROOT / "docs" / "tour.md").read_text(), re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["explain", f"{ROOT / 'examples' / 'softmax.py'}:softmax", "--target", "sm_90"]) == 0
    out = capsys.readouterr().out
    if "registers as ptxas says" not in out:
        pytest.skip("needs ptxas")
    rows = [" ".join(line.replace("│", " ").split()) for line in out.splitlines() if "│" in line]
    assert " ".join(shown.split()) in rows


def test_the_two_commands_of_the_readme() -> None:
    """A fresh machine has Python and nothing else: both commands are stdlib-only Python, and known to make.py and to make."""
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^python3 make\.py (\w+)$", readme, re.MULTILINE)
    assert commands == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        assert f"def {command}(" in (ROOT / "make.py").read_text()
        assert re.search(rf"^{command}:$", makefile, re.MULTILINE)


def test_every_option_and_pass_is_documented() -> None:
    readme, design = (ROOT / "README.md").read_text(), (ROOT / "docs" / "design.md").read_text()
    for row in ROWS:
        assert f"`{row.name}`" in readme, row.name
        if row.env:
            assert row.env in readme, row.env
        for choice in row.choices:
            assert isinstance(choice, bool) or f"`{choice}`" in readme, choice
    for each in PASSES:
        assert f"| `{each.name}` |" in design, each.name
    assert " | ".join(STAGES) in readme


def test_nothing_belongs_to_one_machine() -> None:
    # Put together here, so that this file does not contain what it looks for.
    words = [
        "/" + "work/",
        "/" + "tmp/w",
        "/" + "home/",
        "/" + "root/",
        "Users" + "\\",
        "sub" + "agent",
        "LL" + "M assistant",
    ]
    for path in tracked():
        text = path.read_text()
        for word in words:
            assert word not in text, f"{path.relative_to(ROOT)} has {word!r}"
