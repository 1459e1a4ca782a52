"""The code blocks of the documents, run page by page; what a page says is printed is what is printed.

A fenced block has one of these words behind its fence: ``python`` (all of a page share their names), ``python gpu`` (stands
alone, and needs one), ``shell`` (calls of lowc), ``output`` (what the block before it prints: ``...`` stands for
anything), ``c`` (a program that tests/standalone compiles).  Calls of lowc in the README and in the tour are run by
``test_docs``, one by one.
"""

import contextlib
import io
import linecache
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lowc.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WORDS = ("python", "python gpu", "shell", "output", "c", "")
BEFORE = {"README.md": "import torch\nmodel = torch.nn.Linear(3, 2)\n"}  # what a reader has


@dataclass(frozen=True, slots=True)
class Block:
    word: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page; ``line`` is that of the first line inside."""
    found: list[Block] = []
    word: str | None = None
    start, lines = 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif word is None:
            word, start, lines = line[3:].strip(), number + 1, []
        else:
            found.append(Block(word, start, "\n".join(lines) + "\n"))
            word = None
    assert word is None, f"{page.name} ends inside a block"
    return found


def expected(page: Path) -> Iterator[tuple[Block, str | None]]:
    """Each block that runs, with what it prints if the page says so."""
    found = blocks(page)
    for block, following in zip(found, [*found[1:], Block("", 0, "")]):
        if block.word in ("python", "python gpu", "shell"):
            yield block, following.text if following.word == "output" else None


def matches(shown: str, printed: str) -> bool:
    def plain(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())

    return re.fullmatch(re.escape(plain(shown)).replace(r"\.\.\.", ".*?"), plain(printed), re.DOTALL) is not None


def run_python(page: Path, block: Block, names: dict[str, Any]) -> None:
    """With the page's lines, so that an error says where, and Dynamo finds the source."""
    name = f"<{page.name}:{block.line}>"
    linecache.cache[name] = (len(block.text), None, block.text.splitlines(keepends=True), name)
    exec(compile(block.text, name, "exec"), names)


def run_shell(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "lowc", f"only lowc is run: {line}"
            assert main(words[1:]) == 0, line


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the page's own in which its paths are right, and none of what another page has compiled."""
    for name in ("examples", "tests", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LOWC_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pages_with(*words: str) -> list[Path]:
    return [page for page in PAGES if any(block.word in words for block in blocks(page))]


def ours(page: Path, block: Block) -> bool:
    return block.word == "python" or (block.word == "shell" and page.name not in ("README.md", "tour.md"))


@pytest.mark.parametrize("page", [p for p in PAGES if any(ours(p, b) for b in blocks(p))], ids=lambda p: p.stem)
def test_a_page_runs_and_prints_what_it_shows(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    exec(BEFORE.get(page.name, ""), names)
    for block, shown in expected(page):
        if not ours(page, block):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if block.word == "python":
                run_python(page, block, names)
            else:
                run_shell(block)
        if shown is not None:
            assert matches(shown, printed.getvalue()), f"{page.name}:{block.line} prints\n{printed.getvalue()}"


GPU = [(page, block, shown) for page in PAGES for block, shown in expected(page) if block.word == "python gpu"]


@pytest.mark.parametrize(("page", "block", "shown"), GPU, ids=[f"{p.stem}-{b.line}" for p, b, _ in GPU])
def test_a_block_for_a_gpu_runs(page: Path, block: Block, shown: str | None) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_python(page, block, {"__name__": "__page__"})
    if shown is not None:
        assert matches(shown, printed.getvalue()), f"{page.name}:{block.line} prints\n{printed.getvalue()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    """Nothing escapes: a block is run, is what one prints, or is neither Python nor a command."""
    found = blocks(page)
    assert [block for block in found if block.word not in WORDS] == []
    for before, block in zip([Block("", 0, ""), *found], found):
        if block.word == "output":
            assert before.word in ("python", "python gpu", "shell"), f"{page.name}:{block.line} is the output of nothing"
        if not block.word:
            commands = re.findall(r"^(?:lowc (?:dump|explain|opt|view|bench)|import|from) .*", block.text, re.MULTILINE)
            assert not commands or page.name in ("README.md",), f"{page.name}:{block.line}"
    assert page.name in ("README.md", "design.md", "limits.md", "coverage.md") or found


def test_output_is_compared() -> None:
    assert matches("a ... c\n", "a b\nb c\n") and matches("a\n", "a  \n\n")
    assert not matches("a ... d\n", "a b c\n") and not matches("a.c", "abc")
