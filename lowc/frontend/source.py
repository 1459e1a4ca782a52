"""Where an FX node comes from: the user's line, and what a node takes over from the one that it is made for."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<scope>.*)$')
_TORCH = str(Path(torch.__path__[0]))


def user_line(node: fx.Node) -> str:
    """ "file.py:12 in forward: y = x + 1": the innermost frame outside torch that made ``node``; empty if unknown."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    return _innermost(trace) if trace else ""


@lru_cache(1 << 10)
def _innermost(trace: str) -> str:
    """The line of one trace; the ops that one call is taken apart into share it."""
    lines = trace.splitlines()
    best = inside = ""
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is None:
            continue
        code = (
            lines[number + 1].strip()
            if number + 1 < len(lines) and not _FRAME.match(lines[number + 1])
            else ""
        )
        code = code.split("    code: ")[-1].removeprefix("code: ")
        shown = f"{frame['file']}:{frame['line']} in {frame['scope']}" + (f": {code}" if code else "")
        if frame["file"].startswith((_TORCH, "<eval_with_key>")):  # the latter is code that torch made of a graph
            inside = shown
        else:
            best = shown
    return best or inside


def inherited(node: fx.Node) -> dict[str, Any]:
    """Of ``meta``, what a node that is made for ``node`` has of it: where it comes from, and in which pass it is."""
    return {k: v for k, v in node.meta.items() if k in ("stack_trace", "partitioner_tag", "seq_nr")}
