"""``lowc view``: what is on the page, what belongs together on it, and that it needs nothing but itself."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from lowc.cli import main
from lowc.cli.compilation import compile_all
from lowc.cli.load import load
from lowc.cli.page.model import Page, build
from lowc.cli.page.render import render
from lowc.ir.nodes import Launch
from lowc.ir.printer import print_kernel
from lowc.options import Options

ROOT = Path(__file__).resolve().parent.parent.parent
SOFTMAX = f"{ROOT / 'examples' / 'softmax.py'}:softmax"
VOID = {"meta", "link", "br", "hr", "img", "input"}

GPT = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import torch
from demo import Block

def block_inputs():
    return (torch.randn(2, 128, 128, generator=torch.Generator().manual_seed(0)),)
block = Block
"""


class Tree(HTMLParser):
    """Elements of a page as (tag, attributes, tags around it, own text), which raises where tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[int] = []
        self.elements: list[tuple[str, dict[str, str | None], tuple[int, ...], list[str]]] = []
        self.feed(text)
        self.close()
        assert not self.open, [self.elements[n][0] for n in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), attrs
        self.elements.append((tag, dict(attrs), tuple(self.open), []))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.open.pop()][0] == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        for number in self.open:
            self.elements[number][3].append(data)

    def find(self, tag: str, **wanted: str) -> list[int]:
        return [
            number
            for number, (name, attributes, _, _) in enumerate(self.elements)
            if name == tag and all(attributes.get(key.replace("_", "-")) == value for key, value in wanted.items())
        ]

    def text(self, number: int) -> str:
        return "".join(self.elements[number][3])

    def pane(self, number: int) -> str:
        """The number of the pane that an element is in, "" if it is in none."""
        around = [self.elements[n] for n in self.elements[number][2]]
        return next((str(a["data-pane"]) for tag, a, _, _ in around if tag == "section"), "")

    def numbers(self, key: str, *panes: str) -> dict[str, list[int]]:
        """Elements by the numbers that they have under ``data-key``, in ``panes`` ("": in no pane)."""
        found: dict[str, list[int]] = {}
        for number, (_, attributes, _, _) in enumerate(self.elements):
            words = (attributes.get(f"data-{key}") or "").split()
            if words and self.pane(number) in panes:
                for word in words:
                    found.setdefault(word, []).append(number)
        return found


def page_of(place: str, options: Options | None = None, target: str = "") -> Page:
    from lowc.backends.nvptx.devices import model

    options = options or Options()
    fn, inputs = load(place)
    gpu = model(target) if target else None
    return build(place, compile_all(fn, inputs, options, gpu=gpu, measure=True), options)


def check_it_is_one_small_file_that_asks_for_nothing(parsed: Tree, text: str, target: str) -> None:
    assert 100_000 < len(text.encode()) < 3_000_000
    assert not [a for _, a, _, _ in parsed.elements if {"src", "href", "action", "srcset"} & set(a)]
    assert "http" not in re.sub(r"http-equiv", "", text) and "@import" not in text and "url(" not in text
    assert "default-src 'none'" in text
    assert [t for t, *_ in parsed.elements if t in ("link", "iframe", "img", "object")] == []


def check_every_link_has_both_ends(parsed: Tree, text: str, target: str) -> None:
    machine = parsed.numbers("m", "3")
    for pane in "245":
        found = parsed.numbers("m", pane)
        assert found and set(found) <= set(machine), pane
    ops = parsed.numbers("n", "1")
    assert set(parsed.numbers("n", "2")) <= set(ops) and set(parsed.numbers("n", "")) <= set(ops)
    assert all(len(each) == 1 for each in ops.values())
    source = parsed.numbers("s", "0")
    assert source and set(parsed.numbers("s", "1")) == set(source)
    codes = {a["data-code"] for t, a, _, _ in parsed.elements if t == "pre" and "data-code" in a}
    rows = [a for t, a, _, _ in parsed.elements if t == "tr" and "data-row" in a]
    kernels = {a["data-code"] for a in rows if a["class"] == "kernel"}
    assert kernels == codes and all("data-code" not in a for a in rows if a["class"] == "aten")
    loops = {a["data-row"] for t, a, _, _ in parsed.elements if t == "pre" and "data-row" in a}
    assert loops == {a["data-row"] for a in rows}


def check_each_statement_that_stores_has_code(parsed: Tree, text: str, target: str) -> None:
    llvm, code = parsed.numbers("m", "4"), parsed.numbers("m", "5")
    written = [
        (number, parsed.text(element))
        for number, (element, *_) in parsed.numbers("m", "3").items()
        if re.match(r"\s*\w+\[.*\] = ", parsed.text(element))
    ]
    assert len(written) > 10
    # What has a name already, put into an array that lives in registers, takes no instruction.
    texts = [parsed.text(element) for element, *_ in parsed.numbers("m", "3").values()]
    local = {found[1] for text in texts if (found := re.match(r"\s*alloc (\w+): .* @local", text))}
    moved = [text for _, text in written if (found := re.fullmatch(r"\s*(\w+)\[.*\] = \w+", text)) and found[1] in local]
    assert len(moved) < len(written) / 4
    assert [text for number, text in written if number not in llvm and text not in moved] == []
    # In assembly a store of a kernel's own array may be none, or part of another instruction.
    assert sum(number in code for number, _ in written) > len(written) * 0.8


def check_times_are_measured_on_the_cpu_only(parsed: Tree, text: str, target: str) -> None:
    heads = [parsed.text(n) for n in parsed.find("th", scope="col")]
    assert ("time" in heads, "GB/s" in heads, "launch" in heads) == (not target, not target, bool(target))
    assert len(parsed.find("meter")) == (0 if target else len(parsed.find("th", scope="row")))
    assert ("sm_90a" in text) == bool(target)
    labels = [parsed.elements[n][1]["aria-label"] for n in parsed.find("section")]
    assert labels == ["source", "FX graph", "loops", "machine", "LLVM IR", "PTX" if target else "assembly"]


def check_it_can_be_used_without_a_mouse(parsed: Tree, text: str, target: str) -> None:
    rows = [a for t, a, _, _ in parsed.elements if t == "tr" and "data-row" in a]
    assert rows and all("tabindex" in a for a in rows)
    boxes = [a for t, a, _, _ in parsed.elements if a.get("class") == "scroll"]
    assert len(boxes) == 6 and all(a["tabindex"] == "0" for a in boxes)
    assert all("aria-pressed" in parsed.elements[n][1] for n in parsed.find("button"))
    assert parsed.elements[parsed.find("html")[0]][1]["lang"] == "en"
    assert "prefers-color-scheme: dark" in text and "focus-visible" in text


@pytest.mark.parametrize("target", ["", "sm_90"], ids=["cpu", "sm_90"])
def test_the_page_of_a_transformer_block(target: str, tmp_path: Path) -> None:
    """Forward and backward; one test, since compiling is most of it."""
    (tmp_path / "gpt.py").write_text(GPT)
    text = render(page_of(f"{tmp_path / 'gpt.py'}:block", target=target), "test")
    parsed = Tree(text)
    check_it_is_one_small_file_that_asks_for_nothing(parsed, text, target)
    check_every_link_has_both_ends(parsed, text, target)
    check_each_statement_that_stores_has_code(parsed, text, target)
    check_times_are_measured_on_the_cpu_only(parsed, text, target)
    check_it_can_be_used_without_a_mouse(parsed, text, target)


@pytest.fixture(scope="module")
def softmax() -> Page:
    return page_of(SOFTMAX)


def test_a_line_leads_to_its_op_and_to_its_instructions(softmax: Page) -> None:
    ((graph,), (code,)) = softmax.graphs, softmax.codes
    names = {line.text.split(":")[0].strip(): line for line in graph.ops if line.nodes}
    assert list(names) == ["amax", "sub", "exp", "sum_1", "div"]
    (row,) = graph.rows
    assert row.nodes == tuple(n for line in names.values() for n in line.nodes)
    assert row.seconds is not None and row.seconds > 0 and row.cost.bytes == 2 * 4 * 2048 * 2048
    (exp,) = [line for line in row.loops if "v_exp = exp(" in line.text]
    assert exp.nodes == names["exp"].nodes
    ((_, source),) = [
        each for each in softmax.sources[0].lines if each[1].source and each[1].source == names["exp"].source
    ]
    assert source.text.strip() == "powers = shifted.exp()"
    # exp is a polynomial by now: its line and the temporaries that are for it alone
    own = [line.text.strip() for line in code.machine if set(line.statements) & set(exp.statements)]
    assert own[-1].startswith("v_exp = ") and any(text.startswith("t1 = ") for text in own)
    (divided,) = [line for line in row.loops if line.text.strip().startswith("div[")]
    assert divided.nodes == names["div"].nodes
    instructions = [line.text for line in code.assembly if set(line.statements) & set(divided.statements)]
    assert any("divps" in text for text in instructions)
    assert not any("divps" in line.text for line in code.assembly if set(line.statements) & set(exp.statements))
    # sums and maxima are lines of their own, and what they are of is not guessed
    (largest,) = [line for line in row.loops if "v0 max= " in line.text]
    assert largest.nodes == () and largest.statements


def test_an_op_alone_in_its_kernel_has_all_of_its_lines(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import torch\ndef f(x):\n    return x.sum(0)\ndef inputs():\n    return torch.ones(64, 8)\n"
    )
    page = page_of(f"{tmp_path / 'one.py'}:f")
    (row,) = page.graphs[0].rows
    assert all(line.nodes == row.nodes for line in row.loops if line.text.strip() != "}")


def test_listings_are_those_of_the_compiler(softmax: Page) -> None:
    fn, inputs = load(SOFTMAX)
    (compiled,) = compile_all(fn, inputs, Options()).graphs
    (launch,) = [step for step in compiled.machine.steps if isinstance(step, Launch)]
    assert "\n".join(line.text for line in softmax.codes[0].machine) + "\n" == print_kernel(launch.kernel)
    (launch,) = [step for step in compiled.fused.steps if isinstance(step, Launch)]
    assert "\n".join(line.text for line in softmax.graphs[0].rows[0].loops) + "\n" == print_kernel(launch.kernel)


def test_markup_in_a_program_is_text(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import torch\n\ndef f(x):\n    return x + (1 if '<script>' < '&amp;' else 2)  # </pre><b>\n"
        "def inputs():\n    return torch.ones(4)\n"
    )
    text = render(page_of(f"{tmp_path / 'odd.py'}:f"), "test")
    parsed = Tree(text)
    (source,) = [n for n in parsed.find("pre") if "'<script>' < '&amp;'" in parsed.text(n)]
    assert "# </pre><b>" in parsed.text(source) and len(parsed.find("script")) == 1


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["view", f"{ROOT / 'examples' / 'block.py'}:broken", "-o", str(out)]) == 0
    assert "page.html" in capsys.readouterr().err
    parsed = Tree(out.read_text(encoding="utf-8"))
    assert "Graph break" in "".join(parsed.text(n) for n in parsed.find("ul", **{"class": "notes"}))
    assert main(["view", SOFTMAX, "-o", str(tmp_path / "missing" / "page.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_function_without_graphs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.py").write_text("def f(x):\n    return 3\ndef inputs():\n    return 1\n")
    assert main(["view", f"{tmp_path / 'none.py'}:f", "-o", str(tmp_path / "page.html")]) == 2
    assert "gives no graph" in capsys.readouterr().err


# ---------------------------------------------------------------- in a browser, where there is one

STEPS = """
const key = (key) => new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
const press = (name) => document.activeElement.dispatchEvent(key(name));
const all = (what) => [...document.querySelectorAll(what)];
const texts = (pane, what) => all(`.pane[data-pane="${pane}"] .${what}`).map((e) => e.textContent.trim());
const said = [];
document.querySelector("tbody tr").focus();
press("ArrowRight");
said.push(["cursor", texts(0, "cursor")]);
const exp = all("pre[data-row] span").find((e) => e.textContent.includes("v_exp ="));
exp.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
said.push(["op", texts(1, "strong")], ["source", texts(0, "strong")]);
said.push(["machine", texts(3, "strong")], ["code", texts(5, "strong")]);
const largest = all("pre[data-row] span").find((e) => e.textContent.includes("v0 max="));
largest.click();
said.push(["weak", texts(1, "weak")]);
press("Escape");
said.push(["none", texts(1, "weak")]);
press("6");
said.push(["hidden", [String(document.querySelector('.pane[data-pane="5"]').hidden)]]);
document.title = "DONE" + JSON.stringify(Object.fromEntries(said));
"""


def test_the_script_in_a_browser(softmax: Page, tmp_path: Path) -> None:
    import json

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs Chromium on the PATH")
    path = tmp_path / "page.html"
    path.write_text(render(softmax, "test").replace("</body>", f"<script>{STEPS}</script></body>"), encoding="utf-8")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (title,) = re.findall(r"<title>DONE(.*?)</title>", done.stdout)
    from html import unescape

    said = json.loads(unescape(title))
    assert len(said["cursor"]) == 1
    assert len(said["op"]) == 1 and said["op"][0].startswith("exp: ")
    assert len(said["source"]) == 1 and said["source"][0].endswith("powers = shifted.exp()")
    assert said["machine"][-1].startswith("v_exp = ") and len(said["code"]) > 4
    assert len(said["weak"]) == 5 and said["none"] == [] and said["hidden"] == ["true"]


def test_the_script_is_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node on the PATH")
    script = ROOT / "lowc" / "cli" / "page" / "page.js"
    assert subprocess.run([node, "--check", script], capture_output=True, check=False).returncode == 0


def test_what_a_function_writes_is_written_once() -> None:
    """Steps are timed on copies of the inputs, which have their strides."""
    base = torch.zeros(40, 30)
    x = base.t()[1::2]
    report = compile_all(lambda t: t.add_(1).sum(), (x,), Options(), backward=False, measure=True)
    assert base.sum() == x.numel() and x.eq(1).all()
    (compiled,) = report.graphs
    assert compiled.result.artifact is not None
    assert set(compiled.result.seconds) == set(range(len(compiled.result.artifact.module.steps)))
    assert min(compiled.result.seconds.values()) > 0
