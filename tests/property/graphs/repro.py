"""A file that shows a failure on its own: it needs torch and lowc, nothing of the tests."""

import inspect

from tests.property.graphs.program import SPECIAL, Input, Program, values


def repro(program: Program, detail: str, device: str = "cpu", numerics: str = "fast") -> str:
    """The text of the file.  It compares with eager (values nearly, but those that are to be exact bit by bit; one NaN is as good
    as another) and exits with 1 where they differ."""
    apart = "0.0" if "exact, but" in detail else "8 * torch.finfo(b.dtype).eps if b.is_floating_point() else 0.0"
    made = [_input(spec, device) for spec in program.inputs]
    names = ", ".join(spec.name for spec in program.inputs)
    wanted = [i.name for i in program.inputs if i.grad]
    gradients = (
        f"""
    wanted = [{", ".join(wanted)}]
    ends = [r for r in results if r.requires_grad]
    weights = [torch.linspace(0.5, 1.5, e.numel(), dtype=torch.float64).reshape(e.shape).to(e) for e in ends]
    results += torch.autograd.grad(ends, wanted, weights, allow_unused=True) if ends else []"""
        if wanted
        else ""
    )
    return f'''"""Graph {program.seed}: {detail.replace(chr(34), chr(39))}"""

import sys

import torch
import torch.nn.functional as F

SPECIAL = {_special()}


{inspect.getsource(values).replace("Tensor:", "torch.Tensor:", 1)}

{program.source()}


def inputs():
    {(chr(10) + "    ").join(made)}
    return [{names}]


def run(f):
    {names}{"," if len(program.inputs) == 1 else ""} = given = inputs()
    with torch.device({device!r}):
        results = list(f(*given))
    results += given{gradients}
    return results


torch.set_grad_enabled({program.grad})
eager = run(program)
ours = run(torch.compile(program, backend="lowc", dynamic=False, options={{"numerics": {numerics!r}}}))
different = False
for number, (a, b) in enumerate(zip(ours, eager)):
    if b is None:
        continue
    apart = {apart}
    signs = apart == 0.0 and bool(((a == 0) & (a.signbit() != b.signbit())).any())
    if signs or a.stride() != b.stride() or not torch.allclose(a.double(), b.double(), rtol=apart, atol=0.0, equal_nan=True):
        different = True
        print(f"number {{number}}: {{a}}\\n  in eager: {{b}}")
sys.exit(different)
'''


def _special() -> str:
    return "(" + ", ".join(f'float("{x}")' for x in SPECIAL) + ")"


def _input(spec: Input, device: str) -> str:
    place = f"as_strided({spec.shape}, {spec.strides}, {spec.offset})"
    if spec.base:
        return f"{spec.name} = {spec.base}.{place}"
    grad = ".requires_grad_()" if spec.grad else ""
    moved = "" if device == "cpu" else f".to({device!r})"
    return f"{spec.name} = values({spec.kind!r}, {spec.seed}, torch.{spec.dtype}, {spec.count}){moved}.{place}{grad}"
