"""A ``Page`` as one HTML file that needs nothing else: no network, no other file, and of scripts only for highlighting.

What belongs together is in attributes, so that it can be read without running the script: ``data-s`` numbers lines of the
user's, ``data-n`` ops, ``data-m`` statements @MACHINE; several are separated by spaces.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from lowc.cli.page.links import Line
from lowc.cli.page.model import GraphPage, Page, Row
from lowc.cli.page.source import SourceFile

HERE = Path(__file__).resolve().parent

KEYS = (
    ("↑ ↓", "step of the table, or line of a pane"),
    ("← →", "pane"),
    ("Enter", "keep what is highlighted, and bring it into view"),
    ("Esc", "let go"),
    ("1 - 6", "show or hide a pane"),
    ("[ ]", "graph"),
)


def render(page: Page, made_by: str) -> str:
    """The file; ``made_by``: what stands at its end."""
    panes = ("source", "FX graph", "loops", "machine", "LLVM IR", page.assembly)
    bodies = (
        "".join(map(_source, page.sources)) or _empty("no source"),
        "".join(_listing(g.ops, f'data-graph="{n}"') for n, g in enumerate(page.graphs)),
        "".join(
            _listing(row.loops, f'data-row="{n}.{r}"') for n, g in enumerate(page.graphs) for r, row in enumerate(g.rows)
        ),
        "".join(_listing(code.machine, f'data-code="{n}"') for n, code in enumerate(page.codes)),
        "".join(_listing(code.llvm, f'data-code="{n}"') for n, code in enumerate(page.codes)),
        "".join(_listing(code.assembly, f'data-code="{n}"') for n, code in enumerate(page.codes)),
    )
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-pane="{n}">{n + 1} {escape(name)}</button>'
        for n, name in enumerate(panes)
    )
    sections = "".join(
        f'<section class="pane" data-pane="{n}" aria-label="{escape(name)}"><h2>{escape(name)}</h2>'
        f'<div class="scroll" tabindex="0">{body}</div></section>'
        for n, (name, body) in enumerate(zip(panes, bodies, strict=True))
    )
    keys = "".join(f"<dt><kbd>{escape(key)}</kbd></dt><dd>{escape(what)}</dd>" for key, what in KEYS)
    names = [graph.name for graph in page.graphs]
    tabs = "".join(_tab(n, graph, names.count(graph.name) == 1) for n, graph in enumerate(page.graphs))
    notes = "".join(f"<li>{escape(note)}</li>" for note in page.notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{escape(page.title)}</title>
<style>
{(HERE / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<h1>{escape(page.title)} <small>{escape(page.machine)}</small></h1>
<nav aria-label="graphs">{tabs}</nav>
<nav aria-label="panes">{buttons}</nav>
<details><summary>Keys</summary><dl>{keys}</dl></details>
</header>
{f'<ul class="notes">{notes}</ul>' if notes else ""}
<main>
<div class="tables">{"".join(_table(n, g) for n, g in enumerate(page.graphs))}</div>
<div class="panes">{sections}</div>
</main>
<footer>{escape(made_by)}</footer>
<script>
{(HERE / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _tab(number: int, graph: GraphPage, alone: bool) -> str:
    """``alone``: no other graph of the page has its name."""
    pressed = "true" if number == 0 else "false"
    name = graph.name if alone else f"{graph.name} {number + 1}"
    return f'<button type="button" aria-pressed="{pressed}" data-graph="{number}">{escape(name)}</button>'


# ---------------------------------------------------------------- listings


def _listing(lines: Iterable[Line], attribute: str) -> str:
    return f"<pre {attribute} hidden>{''.join(_line(line) for line in lines)}</pre>"


def _line(line: Line, prefix: str = "") -> str:
    tags = _tags(line)
    shown = escape(prefix + line.text, quote=False)
    return f"<span{tags}>{shown}</span>\n" if tags else f"{shown}\n"


def _tags(line: Line) -> str:
    source = (line.source,) if line.source else ()
    found = (("n", line.nodes), ("s", source), ("m", line.statements))
    return "".join(f' data-{key}="{_words(numbers)}"' for key, numbers in found if numbers)


def _words(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def _source(file: SourceFile) -> str:
    width = max((len(str(number)) for number, _ in file.lines), default=1)
    lines = "".join(_line(line, f"{number or '⋮':>{width}}  ") for number, line in file.lines)
    return f"<h3>{escape(file.name)}</h3><pre>{lines}</pre>"


def _empty(what: str) -> str:
    return f"<p>{escape(what)}</p>"


# ---------------------------------------------------------------- the table of steps


def _table(number: int, graph: GraphPage) -> str:
    timed = [row.seconds for row in graph.rows if row.seconds is not None]
    shaped = any(row.shape for row in graph.rows)
    head = ["step", "ops", "at", "bytes", "FLOPs"] + ["time", "GB/s"] * bool(timed) + ["launch"] * shaped
    columns = "".join(f'<th scope="col"{_right(name)}>{name}</th>' for name in head)
    body = "".join(_row(number, n, row, sum(timed), bool(timed), shaped) for n, row in enumerate(graph.rows))
    kernels = [row for row in graph.rows if not row.because]
    called = [row for row in graph.rows if row.because]
    moved = si(sum(row.cost.bytes for row in kernels))
    spent = [f" in {micro(sum(row.seconds or 0.0 for row in rows))}" if timed and rows else "" for rows in (kernels, called)]
    total = f"{_many(len(kernels), 'kernel')} moving {moved}B{spent[0]}, {_many(len(called), 'call')} of ATen{spent[1]}"
    return (
        f'<table data-graph="{number}" hidden><caption>{escape(graph.name)}: {total}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    )


def _right(column: str) -> str:
    return ' class="number"' if column in ("bytes", "FLOPs", "time", "GB/s") else ""


def _row(graph: int, number: int, row: Row, total: float, timed: bool, shaped: bool) -> str:
    ops = ", ".join(name if times == 1 else f"{name} ×{times}" for name, times in row.ops)
    places = [f"{file}:{line}" for file, line in row.where]
    where = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    because = f' <span class="because">{escape(row.because)}</span>' if row.because else ""
    cells = [
        f'<th scope="row">{escape(row.name)}{because}</th>',
        f"<td>{escape(ops)}</td>",
        f"<td>{escape(where)}</td>",
        f'<td class="number">{si(row.cost.bytes)}</td>',
        f'<td class="number">{si(row.cost.flops) if row.cost.flops or not row.because else ""}</td>',
    ]
    if timed:
        seconds = row.seconds
        share = seconds / total if seconds and total else 0.0
        cells.append(
            f'<td class="number"><meter min="0" max="1" value="{share:.3f}"></meter> {micro(seconds)}</td>'
            if seconds is not None
            else '<td class="number"></td>'
        )
        cells.append(f'<td class="number">{row.cost.bytes / seconds / 1e9:.3g}</td>' if seconds else '<td class="number"></td>')
    if shaped:
        cells.append(f"<td>{escape(row.shape)}</td>")
    nodes = f' data-n="{_words(row.nodes)}"' if row.nodes else ""
    code = f' data-code="{row.code}"' if row.code >= 0 else ""
    kind = "aten" if row.because else "kernel"
    return f'<tr class="{kind}" tabindex="-1" data-row="{graph}.{number}"{nodes}{code}>{"".join(cells)}</tr>'


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def si(number: float) -> str:
    """1234567 as "1.23 M"."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}"
    return f"{number:.3g} "


def micro(seconds: float | None) -> str:
    """Seconds as "12.3 us" or "1.23 ms"."""
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
