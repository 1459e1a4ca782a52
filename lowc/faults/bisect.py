"""The kernel, then the stage, at which a function's results leave eager's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lowc.errors import LowcError
from lowc.faults import stages
from lowc.faults.cut import Case, Source
from lowc.faults.kernels import smallest_kernel
from lowc.faults.smaller import fewer_nodes
from lowc.faults.trial import How, Verdict, tried
from lowc.scheduler import pipeline
from lowc.target import Target


@dataclass(frozen=True)
class Finding:
    """What is wrong with one graph.

    ``verdict``: on the whole graph.  ``part``: the smallest part found that fails in the same way, and ``ops`` those of it that
    are at fault, as "name = op  # user's line".  ``kernel``: the kernel at fault, "" if it is not known.  ``stage``: lowering, a
    pass, "host program", "code", "linker", or "" where every stage of the part is right by itself.  ``detail``: what the stage
    does.  ``files``: texts, by name.  ``helps``: options with which the part is right.
    """

    graph: str
    verdict: Verdict
    ops: tuple[str, ...]
    part: Case
    kernel: str
    stage: str
    detail: str
    files: Mapping[str, str]
    helps: tuple[str, ...]


def find(case: Case, target: Target, how: How) -> Finding | None:
    """The fault in ``case``; None if it is right."""
    verdict = tried(case, how)
    if not verdict.bad:
        return None
    part, names = smallest_kernel(case, verdict, target, how)
    if part is case:  # no kernel fails alone: as few ops as will do
        part = fewer_nodes(case, verdict, how, 0.5 * how.seconds)
        names = {n.name for n in part.graph.nodes}
    stage = stages.first_wrong(part, target, how)
    if not stage.name and part is not case:
        part, names = case, {n.name for n in case.graph.nodes}
        stage = stages.first_wrong(part, target, how)
    if stage.name == "lowering" and len(part.graph.nodes) > 1:
        part, names, stage = _op(part, names, stage, target, how)
    kernel, at = stage.launch
    own = {o.partition(" = ")[0] for o in at} & names
    ops = tuple(
        f"{n.name} = {n.target}" + (f"  # {n.where}" if n.where else "")
        for n in part.graph.nodes
        if n.name in own or not own
    )
    detail = str(stage.verdict) if stage.name else str(verdict)
    return Finding(case.graph.name, verdict, ops, part, kernel, stage.name, detail, stage.files, helping(part, target, how))


def _op(
    part: Case, names: set[str], stage: stages.Stage, target: Target, how: How
) -> tuple[Case, set[str], stages.Stage]:
    """The first op of ``part`` whose lowering is at fault; all of it if none is by itself."""
    source = Source(part)
    for node in part.graph.nodes:
        alone = source.cut({node.name})
        if alone is not None and (found := stages.first_wrong(alone, target, how)).name == "lowering":
            return alone, {node.name}, found
    return part, names, stage


def helping(part: Case, target: Target, how: How) -> tuple[str, ...]:
    """Options, each by itself, with which ``part`` is right: passes left out; for x86 one thread, other instruction sets."""
    ways: list[tuple[str, object]] = [("off", p.name) for p in pipeline.PASSES if not p.required and p.only in ("", target.kind)]
    if target.kind == "x86":
        ways += [("threads", False), ("isa", "avx2"), ("isa", "sse2")]
    found: list[str] = []
    for name, value in ways:
        off = f"{how.options.off},{value}" if name == "off" and how.options.off else value
        try:
            other = replace(how, options=how.options._replace(**{name: off}))
        except LowcError:
            continue
        if how.options != other.options and not tried(part, other).bad:
            found.append(f"{name}={str(value).lower()}")
    return tuple(found)
