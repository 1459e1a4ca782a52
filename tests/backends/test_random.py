"""Random programs through the whole pipeline and this backend, compared with the interpreter on the program
as it was.

LOWC_SEEDS=N tries N programs instead of a few, LOWC_FIRST_SEED=M starts at another.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lowc.ir.index import evaluate
from lowc.ir.interp import poisoned, storage_size, unpack
from lowc.ir.nodes import Buffer, Extern, Module, View
from lowc.ir.numeric import storage_dtype
from lowc.options import Options
from lowc.scheduler import pipeline
from lowc.trace import Trace
from tests.backends.harness import ISAS, call, compiled, target
from tests.property.programs import Program, differences, dtypes, random_module, run

COUNT = int(os.environ.get("LOWC_SEEDS", "16"))
FIRST = int(os.environ.get("LOWC_FIRST_SEED", "0"))


def native(
    program: Program, module: Module, code: tuple[Any, Any], seed: int, given: Mapping[str, int] | None = None
) -> list[Any]:
    """Values of the outputs and inputs of ``module``, which has no extern steps and is ``compiled`` to ``code``."""
    artifact, library = code
    inputs, sizes = program.make_inputs(seed, given)
    memory: dict[str, Any] = {}
    for item, given in zip(module.inputs, inputs, strict=True):
        if isinstance(item, Buffer):
            memory[item.name] = given
    places = {name: int(evaluate(offset, sizes)) for name, offset in module.placed}
    size = int(evaluate(module.workspace, sizes))
    memory["workspace"] = poisoned(size, np.dtype(np.uint8))
    for temp in module.temps:
        if temp.name not in places:
            memory[temp.name] = poisoned(elements(temp, sizes), storage_dtype(temp.dtype))
    assert call(artifact, library, memory, sizes) == 0
    outputs: list[Any] = []
    for output in module.outputs:
        if not isinstance(output, View):
            outputs.append(evaluate(output, sizes) if not isinstance(output, int | float | bool) else output)  # type: ignore[arg-type]
            continue
        storage = memory[output.buffer.name].view(storage_dtype(output.dtype))
        shape, strides = numbers(output.shape, sizes), numbers(output.strides, sizes)
        outputs.append(unpack(storage, shape, strides, int(evaluate(output.offset, sizes))))
    return [*outputs, *inputs]


def numbers(indices: Any, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(int(evaluate(n, sizes)) for n in indices)


def elements(buffer: Buffer, sizes: dict[str, int]) -> int:
    return storage_size(numbers(buffer.shape, sizes), numbers(buffer.strides, sizes))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_native_code_means_what_the_program_means(seed: int) -> None:
    program = random_module(seed)
    isa = ISAS[seed % len(ISAS)]
    threads = seed % 2 == 0
    options = Options(isa=isa, threads=threads)
    module = pipeline.run(program.module, target(isa), options, Trace())
    if any(isinstance(step, Extern) for step in module.steps):
        pytest.skip("calls ATen")
    code = compiled(module, isa, threads)
    for call_seed in (seed, seed + 1):
        expected = run(program, program.module, call_seed)
        found = native(program, module, code, call_seed)
        different = differences(program, *(unsigned_zeros(program, r) for r in (expected, found)))
        assert not different, (isa, program.described, different)


def unsigned_zeros(program: Program, results: list[Any]) -> list[Any]:
    """-0.0 as 0.0: max and min over several of them may keep either."""
    out: list[Any] = []
    for value, dtype in zip(results, dtypes(program), strict=True):
        if dtype is not None and dtype.kind == "f":
            negative = np.uint16(0x8000) if dtype.name == "bf16" else -0.0
            value = np.where(value == negative, np.zeros_like(value), value)
        out.append(value)
    return out
