"""Where an FX node comes from: the user's line, and what a node takes over from the one that it is made for."""

from functools import lru_cache
from typing import Any

import torch
from torch import fx

_TORCH = str(torch.__path__[0])


def user_line(node: fx.Node) -> str:
    """ "file.py:12 in forward: y = x + 1": the innermost frame outside torch that made ``node``; empty if unknown."""
    trace = node.meta.get("stack_trace") or node.stack_trace
    return _innermost(trace) if trace else ""


@lru_cache(1 << 10)
def _innermost(trace: str) -> str:
    """The line of one trace; the ops that one call is taken apart into share it."""
    lines = trace.splitlines()
    inside = after = ""
    for line in reversed(lines):
        frame = _frame(line)
        if frame is None:
            after = line
            continue
        file, where = frame
        code = after.strip().split("    code: ")[-1].removeprefix("code: ")
        after = ""
        shown = where + (f": {code}" if code else "")
        if not file.startswith((_TORCH, "<eval_with_key>")):  # the latter is code that torch made of a graph
            return shown
        inside = inside or shown
    return inside


def _frame(line: str) -> tuple[str, str] | None:
    """The file of ``  File "model.py", line 3, in f``, and ``model.py:3 in f``; None if it is another line."""
    start, quote, rest = line.partition('File "')
    file, found, place = rest.rpartition('", line ')
    number, comma, scope = place.partition(", in ")
    if start.strip() or not (quote and found and comma and number.isdecimal()):
        return None
    return file, f"{file}:{number} in {scope}"


def inherited(node: fx.Node) -> dict[str, Any]:
    """Of ``meta``, what a node that is made for ``node`` has of it: where it comes from, and in which pass it is."""
    return {k: v for k, v in node.meta.items() if k in ("stack_trace", "partitioner_tag", "seq_nr")}
