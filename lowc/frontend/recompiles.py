"""Why Dynamo compiles a function again: the guard that failed, in its words, and the user's line.

Dynamo knows the reason only while it compiles, so this asks it from inside the backend.
"""

import logging
from typing import Any, NamedTuple

from torch import fx
from torch._dynamo.utils import get_metrics_context
from torch._guards import CompileContext

from lowc.frontend.source import user_line

log = logging.getLogger("lowc")


class Recompile(NamedTuple):
    """``reason``: "tensor 'x' size mismatch at index 0. expected 3, actual 5"; ``where``: "file.py:12 in forward: code", the
    first line of the function that makes something ("" if unknown)."""

    reason: str
    where: str


def recompile(gm: fx.GraphModule) -> Recompile | None:
    """Why ``gm``, which Dynamo is compiling, has been compiled before for other inputs; None if it has not."""
    current = CompileContext.current_compile_id()
    if current is None or not current.frame_compile_id:
        return None
    # No public function has it; without it the line at least tells which function it is.
    said: Any = getattr(get_metrics_context(), "_metrics", {}).get("recompile_reason")
    reason = str(said or "torch does not say why").strip().splitlines()[0]
    number, _, rest = reason.partition(": ")
    reason = rest if number.replace("/", "").isdigit() else reason  # "0/0: " counts Dynamo's compilations
    lines = (user_line(node) for node in gm.graph.nodes if node.op.startswith("call"))
    return Recompile(reason, next((line for line in lines if line), ""))


def log_recompile(gm: fx.GraphModule) -> None:
    """Says at level INFO of logger "lowc" why ``gm`` is compiled again, if it is."""
    if (found := recompile(gm)) is not None:
        log.info("compiled again: %s%s", found.reason, f" (at {found.where})" if found.where else "")
