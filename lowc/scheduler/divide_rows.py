"""Division of a product's rows into two launches: as many as fill all multiprocessors for whole rounds of tiles, and the rest.

    for i in 1536 { for j in 3072 { … out[i, j] = f(s) } }   →  for i in 1408 { for j in 3072 { … out[i, j] = f(s) } }
                                                                for i in 128 { for j in 3072 { … out[i + 1408, j] = f(s) } }

Of 144 tiles, 132 multiprocessors would do 12 in a second round, as long as the first.  As a product of its own, the rest is done
another way: in smaller tiles, or in slices of its depth (``slice_depth``).  ``choose_tensor_cores.first_rows`` says where that
pays.
"""

from lowc.errors import ScheduleError
from lowc.ir.index import Axis, Index, constant, ix
from lowc.ir.nodes import For, Launch
from lowc.ir.walk import Substitution, buffers, make_kernel, names
from lowc.scheduler.contraction import find
from lowc.scheduler.nest import nested
from lowc.scheduler.rename import fresh, renewed


def divide_rows(step: Launch, first: int) -> tuple[Launch, Launch]:
    """``step``, a launch of one contraction, as one of its ``first`` rows and one of the others; raises ScheduleError where there
    are not as many."""
    kernel = step.kernel
    found = find(kernel.body[0]) if len(kernel.body) == 1 and isinstance(kernel.body[0], For) else None
    if found is None or found.rows is None:
        raise ScheduleError(f"{kernel.name} is no product of two matrices")
    rows = constant(found.rows.axis.extent) or 0
    if not 0 < first < rows:
        raise ScheduleError(f"no {first} rows and others in {rows}")
    taken = names(kernel.body)

    def part(name: str, start: int, count: int) -> Launch:
        assert found is not None
        assert found.rows is not None
        new = [Axis(fresh(f.axis.name, taken), ix(count) if f is found.rows else f.axis.extent) for f in found.outer]
        at: list[Index] = [ix(a) + (start if f is found.rows else 0) for f, a in zip(found.outer, new, strict=True)]
        put = Substitution({f.axis: i for f, i in zip(found.outer, at, strict=True)})
        body = nested(new, renewed(put, found.outer[-1].body, taken))
        touched = {id(b) for b in buffers(body)}
        pairs = [(p, a) for p, a in zip(kernel.params, step.args, strict=True) if id(p) in touched]
        made = make_kernel(f"{kernel.name}_{name}", body, [p for p, _ in pairs])
        return Launch(made, tuple([a for _, a in pairs]), step.origin)

    return part("rounds", 0, first), part("rest", first, rows - first)
