"""memory: SCHEDULED → BUFFERED.  Temps get places in one workspace, shared where lifetimes allow; equal kernels become one.

A temp that a launch makes, and that the call does not return, lives in the workspace from its first to its last step; places are
given first-fit by offset.  Symbolic sizes: a place is shared only between temps of equal size, new places follow one another.
What extern calls make, and what is returned, are tensors of their own.
"""

import re
from dataclasses import dataclass

from lowc.ir.index import Index, constant, ix
from lowc.ir.nodes import Buffer, Extern, Kernel, Launch, Module
from lowc.ir.ops import REDUCERS
from lowc.ir.printer import print_kernel
from lowc.ir.types import DTYPES
from lowc.ir.walk import names, storage_size
from lowc.options import Options
from lowc.scheduler.nest import prune, returned, step_reads, step_writes
from lowc.target import Target

TOKEN = re.compile(r"[A-Za-z_][\w.]*|[^A-Za-z_]+")
WORDS = {*REDUCERS, *DTYPES, "for", "in", "if", "acc", "alloc", "min", "max", "idx", "inf", "nan", "true", "false"}
ALIGN = 64  # bytes; a cache line, and the widest vector


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with ``placed`` and ``workspace`` filled in and one Kernel object for launches of equal text."""
    module = prune(module, module.steps)
    placed, workspace = _plan(module)
    steps = _share_kernels(module)
    return Module(
        "BUFFERED", module.symbols, module.inputs, module.temps, module.outputs, steps, placed, workspace
    )


@dataclass(slots=True)
class _Life:
    """``size`` in bytes, first and last step that touches it."""

    buffer: Buffer
    size: Index
    first: int
    last: int


def _plan(module: Module) -> tuple[tuple[tuple[str, Index], ...], Index]:
    outside = returned(module)
    outside |= {id(r) for s in module.steps if isinstance(s, Extern) for r in s.results}
    lives: dict[int, _Life] = {}
    temps = {id(t) for t in module.temps}
    for number, step in enumerate(module.steps):
        for buffer in (*_reads(step), *_writes(step)):
            if id(buffer) not in temps:
                continue
            life = lives.get(id(buffer))
            if life is None:
                lives[id(buffer)] = _Life(buffer, storage_size(buffer) * buffer.dtype.bytes, number, number)
            else:
                life.last = number
    wanted = [life for key, life in lives.items() if key not in outside]
    numeric = [life for life in wanted if constant(life.size) is not None]
    symbolic = [life for life in wanted if constant(life.size) is None]
    placed: list[tuple[str, Index]] = []
    top = _place_numeric(numeric, placed)
    end = _place_symbolic(symbolic, placed, top)
    return tuple(placed), end


def _place_numeric(lives: list[_Life], placed: list[tuple[str, Index]]) -> int:
    """First fit by offset; returns the bytes used."""
    active: list[tuple[int, int, int]] = []  # (offset, end, last step)
    top = 0
    for life in sorted(lives, key=lambda x: x.first):
        size = -(-(constant(life.size) or 0) // ALIGN) * ALIGN
        active = sorted(a for a in active if a[2] >= life.first)
        offset = 0
        for start, end, _ in active:
            if offset + size <= start:
                break
            offset = max(offset, end)
        active.append((offset, offset + size, life.last))
        placed.append((life.buffer.name, ix(offset)))
        top = max(top, offset + size)
    return top


def _place_symbolic(lives: list[_Life], placed: list[tuple[str, Index]], top: int) -> Index:
    """Equal sizes reuse a place whose temp has died; returns the bytes used."""
    free_at: dict[Index, list[tuple[int, Index]]] = {}
    end = ix(top)
    for life in sorted(lives, key=lambda x: x.first):
        size = (life.size + (ALIGN - 1)) // ALIGN * ALIGN
        places = free_at.setdefault(size, [])
        for number, (last, offset) in enumerate(places):
            if last < life.first:
                places[number] = (life.last, offset)
                placed.append((life.buffer.name, offset))
                break
        else:
            places.append((life.last, end))
            placed.append((life.buffer.name, end))
            end = end + size
    return end


def _reads(step: Launch | Extern) -> list[Buffer]:
    """Module buffers that ``step`` touches (a launch's args: its kernel's params are its own)."""
    return list(step.args) if isinstance(step, Launch) else step_reads(step)


def _writes(step: Launch | Extern) -> list[Buffer]:
    return [] if isinstance(step, Launch) else step_writes(step)


def _share_kernels(module: Module) -> tuple[Launch | Extern, ...]:
    """Launches of kernels that print alike, but for names of kernel and params, share the first of them."""
    known: dict[str, Kernel] = {}
    steps: list[Launch | Extern] = []
    used: set[str] = set()
    for step in module.steps:
        if not isinstance(step, Launch):
            steps.append(step)
            continue
        text = _shape_of(step.kernel)
        kernel = known.get(text)
        if kernel is None:
            kernel = known[text] = _renamed(step.kernel, used)
        steps.append(Launch(kernel, step.args, step.origin))
    return tuple(steps)


def _shape_of(kernel: Kernel) -> str:
    """The text of ``kernel`` with the names bound in it numbered by their place."""
    text = print_kernel(kernel)
    order: dict[str, str] = {}
    out: list[str] = []
    bound = {kernel.name, *(p.name for p in kernel.params)} | names(kernel.body)
    if bound & WORDS:
        return text
    tokens = [*TOKEN.findall(text), ""]
    for number, token in enumerate(tokens):
        # A buffer may be called like an op, which is followed by "("; so is the kernel's name, the third token.
        if token in bound and (number < 3 or not tokens[number + 1].startswith("(")):
            token = order.setdefault(token, f"%{len(order)}")
        out.append(token)
    return "".join(out)


def _renamed(kernel: Kernel, used: set[str]) -> Kernel:
    """``kernel`` under a name that no other kernel has."""
    name, number = kernel.name, 1
    while name in used:
        number += 1
        name = f"{kernel.name}_{number}"
    used.add(name)
    return kernel if name == kernel.name else Kernel(name, kernel.params, kernel.sizes, kernel.body)
