"""Launches of equal kernels get one Kernel object, so that it is scheduled, and later compiled, once.

Layers of a model that are alike give kernels that differ in names alone.
"""

import re

from lowc.ir.nodes import Extern, Kernel, Launch, Module
from lowc.ir.ops import REDUCERS
from lowc.ir.printer import print_kernel
from lowc.ir.types import DTYPES
from lowc.ir.walk import names

TOKEN = re.compile(r"[A-Za-z_][\w.]*|[^A-Za-z_]+")
WORDS = {*REDUCERS, *DTYPES, "for", "in", "if", "acc", "alloc", "min", "max", "idx", "inf", "nan", "true", "false"}


def share_kernels(module: Module) -> tuple[Launch | Extern, ...]:
    """The steps of ``module``; launches of kernels that print alike, but for names of kernel and params, share the first one."""
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
