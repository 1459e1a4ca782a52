"""What Inductor lowers to kernels of its own and lowc does not, over the entries of ``op_db``.

An entry counts as lowered by Inductor if each ATen op of its graphs (first samples, forward and backward, with Inductor's
decompositions) has a row in ``lowering.lowerings`` that is no fallback; as lowered by lowc if its compiled programs call no ATen.
Matrix products, convolutions and attention are library calls in both by default and count for neither.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified

from tests.sweep.samples import Case, cases, copied, entries
from tests.sweep.trial import attempt, graph_module, run

SAMPLES = 3
CONTRACTIONS = (
    "mm addmm bmm baddbmm addbmm mv addmv dot vdot convolution convolution_backward _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_mm _int_mm _scaled_grouped_mm _grouped_mm"
).split()


def show(console: Console, names: list[str] | None = None) -> int:
    """Prints the share, and the calls of ATen that keep lowc from lowering the rest."""
    both: list[str] = []
    missing: dict[str, list[str]] = defaultdict(list)
    lacking: set[str] = set()
    for name in track(names or list(entries()), console=console):
        op = entries()[name]
        dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if op.supports_dtype(d, "cpu")), None)
        if dtype is None:
            continue
        grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        try:
            tried = list(cases(op, dtype, grad, SAMPLES, 0))
        except Exception:
            continue
        theirs = [inductor_lowers(case, grad) for case in tried]
        if not tried or not all(theirs):
            continue
        both.append(name)
        for case in tried:
            for target, reason in lowc_calls(op, case, grad):
                lacking.add(name)
                if name not in missing[f"{target}: {reason}"]:
                    missing[f"{target}: {reason}"].append(name)
    for what, users in sorted(missing.items(), key=lambda item: (-len(item[1]), item[0])):
        console.print(f"{len(users):4d}  {what}  ({', '.join(users[:6])})", markup=False, highlight=False, soft_wrap=True)
    lowered = len(both) - len(lacking)
    share = 100 * lowered / max(len(both), 1)
    console.print(f"lowc lowers {lowered} of the {len(both)} entries that Inductor lowers: {share:.1f} %")
    return 0


def inductor_lowers(case: Case, grad: bool) -> bool:
    """Whether all of its ops have lowerings that are no fallbacks (contractions aside)."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import fallbacks, lowerings

    found: set[Any] = set()

    def record(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.update(n.target for n in gm.graph.nodes if n.op == "call_function")
        return gm

    tensors = case.tensors if grad else [t.detach() for t in case.tensors]
    try:
        inputs = [copied(t) for t in tensors]
        gm = graph_module(case, len(inputs))
        run(
            aot_module_simplified(gm, inputs, fw_compiler=record, decompositions=select_decomp_table()), tensors, grad
        )
    except Exception:
        return False
    ops = [t for t in found if isinstance(t, torch._ops.OpOverload) and _packet(t) not in CONTRACTIONS]
    others = [t for t in found if isinstance(t, torch._ops.HigherOrderOperator)]
    return bool(found) and not others and all(op in lowerings and op not in fallbacks for op in ops)


def lowc_calls(op: Any, case: Case, grad: bool) -> list[tuple[str, str]]:
    """The calls of ATen in what lowc makes of it, contractions left out."""
    out = attempt(op, case, grad)
    if out.status in ("lowered", "extern"):
        return [(t, why) for t, why in out.externs if t.split(".")[1] not in CONTRACTIONS]
    return [(op.name, f"{out.status} {out.detail}")]


def _packet(op: Any) -> str:
    return op._schema.name.partition("::")[2]
