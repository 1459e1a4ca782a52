"""A smaller program that fails in the same way: fewer results, lines and inputs, smaller and plainer tensors."""

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.property.graphs.program import Input, Line, Program, make_inputs, trace

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, seconds: float = 45.0) -> Program:
    """The smallest found in ``seconds``; ``fails`` says whether a candidate still does (programs eager refuses do not)."""
    end = time.monotonic() + seconds
    best = program
    while True:
        for candidate in _candidates(best):
            if time.monotonic() > end:
                return best
            if fails(candidate):
                best = candidate
                break
        else:
            return best


def _candidates(program: Program) -> Iterator[Program]:
    """Programs that are smaller in one thing, the largest steps first."""
    for size in (8, 4, 2, 1):
        for first in range(0, len(program.outputs), size):
            kept = program.outputs[:first] + program.outputs[first + size :]
            if kept:
                yield _needed(replace(program, outputs=kept))
    for number, line in enumerate(program.lines):
        if line.writes:
            yield _needed(replace(program, lines=program.lines[:number] + program.lines[number + 1 :]))
    for number, line in reversed(list(enumerate(program.lines))):
        if not line.writes:
            yield from _replaced(program, number, line)
    for number, spec in enumerate(program.inputs):
        for simpler in _simpler(spec):
            yield replace(program, inputs=program.inputs[:number] + (simpler,) + program.inputs[number + 1 :])
        if not spec.base and not any(i.base == spec.name for i in program.inputs):
            for n in spec.shape:
                if n > 1:
                    yield _smaller(program, n, n // 2)
                    yield _smaller(program, n, n - 1)


def _needed(program: Program) -> Program:
    """Without lines and inputs on which nothing that is left depends."""
    kept: list[Line] = []
    wanted = set(program.outputs)
    written = {line.target for line in program.lines if line.writes}
    changed = _family(program, written) if written else set[str]()
    for line in reversed(program.lines):
        if line.target in wanted or (line.writes or line.target in written) and line.target in changed:
            kept.append(line)
            wanted |= {line.target, *line.uses}
    inputs = [i for i in program.inputs if i.name in wanted]
    bases = {i.base for i in inputs}
    inputs = [i for i in program.inputs if i in inputs or i.name in bases]
    return replace(program, lines=tuple(reversed(kept)), inputs=tuple(inputs))


def _family(program: Program, names: set[str]) -> set[str]:
    found = set(names)
    while True:
        before = len(found)
        for line in program.lines:
            if line.target in found:
                found |= set(line.uses)
        if len(found) == before:
            return found


def _replaced(program: Program, number: int, line: Line) -> Iterator[Program]:
    """Without a line, what it assigns being one of the values it is made of, or an input of the same type."""
    for other in dict.fromkeys(line.uses):
        yield _renamed(program, number, line.target, other)
    try:
        value = trace(program, make_inputs(program.inputs, grad=False))[line.target]
        dtype = str(value.dtype).removeprefix("torch.")
    except Exception:
        return
    shape = tuple(value.shape)
    strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    kind = "normal" if value.is_floating_point() else "whole"
    spec = Input(f"y{number}", dtype, shape, strides, 0, math.prod(shape), kind, number)
    if all(i.name != spec.name for i in program.inputs):
        renamed = _renamed(program, number, line.target, spec.name)
        yield _needed(replace(renamed, inputs=(*program.inputs, spec)))


def _renamed(program: Program, number: int, old: str, new: str) -> Program:
    def swap(line: Line) -> Line:
        text = _word(line.text, old, new)
        return replace(line, text=text, target=_word(line.target, old, new), uses=tuple(_word(u, old, new) for u in line.uses))

    lines = program.lines[:number] + tuple(swap(x) for x in program.lines[number + 1 :])
    outputs = tuple(dict.fromkeys(_word(o, old, new) for o in program.outputs))
    return _needed(replace(program, lines=lines, outputs=outputs))


def _word(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, text)


def _simpler(spec: Input) -> Iterator[Input]:
    if spec.grad:
        yield replace(spec, grad=False)
    if spec.base:
        return
    plain = tuple(math.prod(spec.shape[d + 1 :]) for d in range(len(spec.shape)))
    if spec.strides != plain or spec.offset:
        yield replace(spec, strides=plain, offset=0, count=math.prod(spec.shape))
    if spec.dtype in ("bfloat16", "float16", "float64"):
        yield replace(spec, dtype="float32")
    if spec.kind == "special":
        yield replace(spec, kind="normal")
    if spec.kind == "normal":
        yield replace(spec, kind="small")


def _smaller(program: Program, old: int, new: int) -> Program:
    """Every extent ``old`` of every input is ``new``."""

    def change(spec: Input) -> Input:
        if spec.base or old not in spec.shape:
            return spec
        shape = tuple(new if n == old else n for n in spec.shape)
        order = sorted(range(len(shape)), key=lambda d: -spec.strides[d])
        strides = list(spec.strides)
        reach = 1
        for d in reversed(order):
            if spec.strides[d]:
                strides[d] = reach
                reach *= max(shape[d], 1)
        kind = spec.kind
        if kind == f"place {old}" or kind == f"index {old}":
            kind = f"{kind.split()[0]} {new}"
        count = 0 if 0 in shape else max(reach, 1)
        return replace(spec, shape=shape, strides=tuple(strides), offset=0, count=count, kind=kind)

    def bound(spec: Input) -> Input:
        word, _, n = spec.kind.partition(" ")
        return replace(spec, kind=f"{word} {new}") if n == str(old) else spec

    return replace(program, inputs=tuple(bound(change(i)) for i in program.inputs))
