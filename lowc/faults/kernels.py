"""Parts of a graph that are a kernel: the first that fails by itself, given right inputs."""

from collections.abc import Collection, Sequence

from lowc import compiler
from lowc.faults.cut import Case, Source, between
from lowc.faults.trial import How, Verdict, strict, tried
from lowc.ir.nodes import Module
from lowc.scheduler import pipeline
from lowc.target import Target


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
    try:
        lowered = compiler.lowered(graph, options, target)
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
