"""The kernel, then the stage, at which a function's results leave eager's."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lowc.errors import LowcError
from lowc.faults import stages
from lowc.faults.cut import Case, Source, between
from lowc.faults.trial import How, Verdict, strict, tried
from lowc.ir.nodes import Module
from lowc.lowering.lower import lower
from lowc.scheduler import choose_library, pipeline
from lowc.target import Target


@dataclass(frozen=True)
class Finding:
    """What is wrong with one graph.

    ``verdict``: on the whole graph.  ``ops``: the nodes of the smallest part found that fails in the same way, as "name = op  #
    user's line"; ``part`` is that.  ``kernel``: the kernel at fault, "" if it is not known.  ``stage``: lowering, a pass, "host
    program", "code", "linker", or "" where every stage of the part is right by itself.  ``detail``: what the stage does.  ``files``:
    by name.  ``helps``: options with which the part is right.
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


def smallest_kernel(case: Case, verdict: Verdict, target: Target, how: How) -> tuple[Case, set[str]]:
    """The first kernel's ops that fail by themselves, given right inputs, as the whole does, and their names; else the whole."""
    source = Source(case)
    for names in kernels(case, verdict, target, how):
        part = source.cut(names)
        if part is not None and len(part.graph.nodes) < len(case.graph.nodes) and tried(part, how).like(verdict):
            return part, set(names)
    return case, {n.name for n in case.graph.nodes}


def kernels(case: Case, verdict: Verdict, target: Target, how: How) -> list[Collection[str]]:
    """Sets of nodes to try, in program order: those of each kernel that the passes make; before them, what an error names."""
    graph, options = case.graph, strict(how.options)
    found: list[Collection[str]] = []
    every = {n.name for n in graph.nodes}
    library = choose_library.library(target, options) if target.kind == "nvptx" else None
    try:
        lowered = lower(graph, options, library=library, target=target)
    except Exception:
        return [{name} for name in (n.name for n in graph.nodes)]
    silent = every - _names(lowered.steps)
    if named := _origins(verdict.origin) & every:
        found.append(between(graph, named, silent))
    for module in (_scheduled(lowered, target, how), lowered):
        for step in module.steps if module is not None else ():
            names = _origins(step.origin) & every
            if names:
                found.append(between(graph, names, silent))
    return [names for k, names in enumerate(found) if names not in found[:k]]


def _scheduled(module: Module, target: Target, how: How) -> Module | None:
    """The module @MACHINE; where a pass fails, the last one before."""
    options = strict(how.options)
    off = pipeline.switched_off(options)
    for row in pipeline.PASSES:
        if row.name not in off and row.only in ("", target.kind):
            try:
                module = pipeline.apply(row, module, target, options)
            except Exception:
                return module
    return module


def _names(steps: Sequence[object]) -> set[str]:
    return {name for step in steps for name in _origins(getattr(step, "origin", ()))}


def _origins(origin: Sequence[str]) -> set[str]:
    return {each.partition(" = ")[0] for each in origin}


def helping(part: Case, target: Target, how: How) -> tuple[str, ...]:
    """Options, each by itself, with which ``part`` is right: passes left out, and for x86 one thread and other instruction sets."""
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
