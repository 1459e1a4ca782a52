"""A case as a Python file that needs torch and lowc alone, and fails as the case does."""

import base64
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lowc.faults.cut import Case
from lowc.faults.trial import Verdict
from lowc.frontend.dtypes import TORCH_OF
from lowc.ir.graph import GraphArg, Node, Ref, TensorMeta
from lowc.ir.index import Index, Symbol, constant, sole_atom, text
from lowc.ir.types import DType
from lowc.runtime import externs

WRITTEN_OUT = 64
"""Elements of an input up to which it is a list of numbers."""
DIFFERS = "differs from eager"


def script(
    case: Case, verdict: Verdict, options: Mapping[str, Any], recipes: Mapping[str, str], before: Sequence[str] = ()
) -> str:
    """The file's text.  ``recipes``: Python for inputs, by name; ``before``: Python to run first, whole files.

    Run as a program it exits with 1 where results, or what inputs hold afterwards, are not near eager's; it lets an exception
    through, and crashes where the case does.  ``fn`` and ``fn_inputs`` in it are for the other commands of lowc.
    """
    graph = case.graph
    names = ", ".join(i.name for i in graph.inputs)
    symbols = [f"    {name} = {source}" for name, source in _symbols(case).items()]
    several = {n.name for n in graph.nodes if len(n.outputs) != 1 or _returns_list(n.target)}
    lines = [f"    {n.name} = {_call(n, several)}" + (f"  # {n.where}" if n.where else "") for n in graph.nodes]
    outputs = "".join(f"{_arg(o, several)}, " for o in graph.outputs).strip()
    values = [f"    {i.name} = {_value(v, recipes.get(i.name))}" for i, v in zip(graph.inputs, case.inputs, strict=True)]
    relative, absolute = _apart(case)
    custom = any(n.target.startswith("lowc.") for n in graph.nodes)
    parts = [f'"""{_clean(str(verdict))}"""', *before, "import sys", "import torch"]
    if custom:
        register = "".join(f"{each}.register()\n" for each in ("flex_attention", "random", "wrapped"))
        parts.append(f"from lowc.frontend import flex_attention, random, wrapped\n\n{register.strip()}")
    parts.append("\n".join([f"def fn({names}):", *symbols, *lines, f"    return ({outputs})" if outputs else "    return ()"]))
    parts.append("\n".join(["def fn_inputs():", *values, f"    return ({names},)"]))
    parts.append(
        _MAIN.format(options=dict(options), dynamic=bool(graph.symbols), relative=relative, absolute=absolute, differs=DIFFERS)
    )
    return "\n\n".join(parts) + "\n"


_MAIN = '''def main():
    compiled = torch.compile(fn, backend="lowc", dynamic={dynamic}, options={options})
    with torch.no_grad():
        for turn in range(2):
            given, ours = fn_inputs(), fn_inputs()
            right, found = [*fn(*given), *given], [*compiled(*ours), *ours]
            for number, (a, b) in enumerate(zip(found, right)):
                if not isinstance(b, torch.Tensor):
                    continue
                alike = (a.dtype, a.shape) == (b.dtype, b.shape) and (b.numel() == 0 or a.stride() == b.stride())
                if not alike or not torch.allclose(a.double(), b.double(), rtol={relative}, atol={absolute}, equal_nan=True):
                    print(f"value {{number}} {differs}\\n{{a}}\\n{{b}}")
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())'''


def confirmed(file: str, verdict: Verdict, seconds: float) -> bool:
    """Whether ``file``, run by itself, fails as ``verdict`` says."""
    paths = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": paths}
    try:
        done = subprocess.run([sys.executable, file], env=env, capture_output=True, text=True, timeout=seconds + 60, check=False)
    except subprocess.TimeoutExpired:
        return verdict.status == "timeout"
    if verdict.status == "wrong":
        return done.returncode == 1 and DIFFERS in done.stdout
    if verdict.status == "crash":
        return done.returncode < 0
    return verdict.status == "error" and done.returncode == 1 and verdict.kind in done.stderr


def _clean(detail: str) -> str:
    return detail.replace("\\", "/").replace('"', "'")


def _apart(case: Case) -> tuple[float, float]:
    """Relative and absolute tolerance: of eager's own rounding."""
    found = [TORCH_OF[m.dtype] for node in case.graph.nodes for m in node.outputs if isinstance(m, TensorMeta)]
    floats = [torch.finfo(d).eps for d in found if d.is_floating_point]
    if not floats:
        return 0.0, 0.0
    values = [e.eager.double().abs().nan_to_num(0.0, 0.0, 0.0) for e in case.expected() if _holds(e.eager)]
    scale = max((float(v.max()) for v in values), default=1.0)
    unit = max(floats)
    return 32 * unit, 32 * unit * max(scale, 1e-30)


def _holds(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.numel()) and value.is_floating_point()


def _symbols(case: Case) -> dict[str, str]:
    """Where each symbol's value is found."""
    found: dict[str, str] = {}
    for given in case.graph.inputs:
        meta = given.meta
        sources = [(meta, given.name)] if isinstance(meta, Index) else []
        if isinstance(meta, TensorMeta):
            sources = [(n, f"{given.name}.shape[{d}]") for d, n in enumerate(meta.shape)]
            sources += [(n, f"{given.name}.stride({d})") for d, n in enumerate(meta.strides)]
        for index, source in sources:
            if isinstance(atom := sole_atom(index), Symbol) and atom.name != source:
                found.setdefault(atom.name, source)
    return found


def _returns_list(target: str) -> bool:
    returns = externs.overload(target)._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


def _call(node: Node, several: set[str]) -> str:
    given = [*(_arg(a, several) for a in node.args), *(f"{name}={_arg(a, several)}" for name, a in node.kwargs)]
    return f"torch.ops.{node.target}({', '.join(given)})"


def _arg(arg: GraphArg, several: set[str]) -> str:
    """``several``: nodes whose results come as a sequence."""
    if isinstance(arg, Ref):
        return f"{arg.name}[{arg.number}]" if arg.name in several else arg.name
    if isinstance(arg, tuple):
        return f"[{', '.join(_arg(a, several) for a in arg)}]"
    if isinstance(arg, Index):
        number = constant(arg)
        return text(arg) if number is None else str(number)
    if isinstance(arg, DType):
        return str(TORCH_OF[arg])
    if isinstance(arg, str):
        kind, _, rest = arg.partition(":")
        if kind == "device":
            return f"torch.device({rest!r})"
        return f"torch.{rest}" if kind in ("layout", "memory_format") else repr(arg)
    return f"float({str(arg)!r})" if isinstance(arg, float) and arg - arg != 0 else repr(arg)


def _value(value: Any, recipe: str | None) -> str:
    if recipe is not None:
        return recipe
    if not isinstance(value, torch.Tensor):
        return repr(value)
    value = value.detach().cpu()
    count = (sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) + 1) if value.numel() else 0
    flat = torch.as_strided(value, (count,), (1,), value.storage_offset())
    shown = f".as_strided({list(value.shape)}, {list(value.stride())})"
    finite = not (flat.is_floating_point() or flat.is_complex()) or bool(flat.isfinite().all())
    if count <= WRITTEN_OUT and finite and not flat.is_complex() and flat.element_size() > (1 if flat.is_floating_point() else 0):
        return f"torch.tensor({flat.tolist()}, dtype={value.dtype}){shown}"
    content = base64.b85encode(zlib.compress(flat.view(torch.uint8).numpy().tobytes(), 9)).decode()
    unpacked = f"bytearray(__import__('zlib').decompress(__import__('base64').b85decode({content!r})))"
    return f"torch.frombuffer({unpacked}, dtype={value.dtype}){shown}"
