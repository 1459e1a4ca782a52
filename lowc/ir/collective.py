"""Collectives of a process group, by name: ops in which the ranks of a job meet.

    r = extern _c10d_functional.all_gather_into_tensor.default(x, 2, "0")      starts, and returns while it runs
    …                                                                         r is nobody's to read, x nobody's to write
    extern _c10d_functional.wait_tensor.default(r, x) writes r                 from here on r has its value

A start gives memory that is filled later; waiting for it is an extern step that *writes* that memory, so that whatever reads it
stays behind the wait by the rule that holds for all steps.  What the running collective still reads is an operand of the wait,
too (ATen's op has only the first): its memory is not used again, nor written, before.

Every rank has to start the same collectives in the same order, or all of them wait for ever.  So none is merged with an equal
one, dropped because nothing needs its result, or moved past another; ranks need not have compiled the same code.
"""

SPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "fsdp", "symm_mem"})
"""Namespaces of ops that talk to other ranks, or may."""

WAIT = "_c10d_functional.wait_tensor.default"

_STARTS = {
    "all_reduce": False,
    "all_reduce_coalesced": False,
    "broadcast": False,
    "all_gather_into_tensor": True,
    "all_gather_into_tensor_coalesced": True,
    "reduce_scatter_tensor": True,
    "reduce_scatter_tensor_coalesced": True,
    "all_to_all_single": True,
}
"""Ops of ``_c10d_functional`` that start a collective: whether it reads its operand while it runs (the others copy it first).
Their results are contiguous."""


def is_collective(target: str) -> bool:
    """Whether the op called ``target``, e.g. "_c10d_functional.all_reduce.default", is one of those above or waits for one."""
    return target.partition(".")[0] in SPACES


def starts(target: str) -> bool:
    """Whether ``target`` returns results that have to be waited for."""
    return _name(target) in _STARTS


def reads_late(target: str) -> bool:
    """Whether a start reads its operands until it has been waited for."""
    return _STARTS.get(_name(target), True)


def _name(target: str) -> str:
    space, _, rest = target.partition(".")
    return rest.partition(".")[0] if space == "_c10d_functional" else ""
