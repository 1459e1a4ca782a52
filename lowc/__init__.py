"""lowc, a tensor compiler in pure Python.  This docstring is the tour.

A graph passes through these packages, in this order; each has a docstring of its own that goes on where this
one stops.

``dynamo``, ``frontend``
    ``torch.compile(f, backend="lowc")`` calls ``dynamo.lowc_backend`` with a graph.  ``frontend.aot`` has
    AOTAutograd make it functional, trace the backward pass and break large ops into small ones;
    ``frontend.importer`` writes the result down as an ``ir.graph.Graph``: ATen ops by name, with dtypes,
    shapes, strides and the user's lines.  From here to the runtime nobody knows torch.
``compiler``
    ``compile_graph`` takes the graph through all stages that follow.  Read it first: it is the picture in
    code.
``lowering``
    ``lower`` turns each op into a kernel of its own, a loop nest over buffers (level LOOPS of ``ir.nodes``),
    or into a call of ATen with the reason why.  Views become index arithmetic.
``ir``
    The language between the stages: ``types``, ``index`` (integers: sizes and addresses), ``ops`` (scalar
    operations), ``nodes`` (loops, loads, stores, kernels, modules).  It has a ``printer``, a ``parser``, a
    verifier (``verify``), and an interpreter (``interp``) which says what a program means.
``scheduler``
    ``pipeline`` is a table of passes from LOOPS to MACHINE: kernels fuse, loops are split, bound to vectors
    and threads, temps get places in one workspace, functions like exp become arithmetic.  One pass, one file.
``backends``
    ``x86`` writes each kernel as a function in LLVM IR; ``llvm`` has the builder of that text, and makes it an
    object file in memory.  The result is an ``artifact.Artifact``: code, and the steps of one call.
``runtime``
    ``host`` writes the steps down as a Python function, ``program`` binds that to tensors, native code and
    ATen, and gives the callable back.

``reuse``, ``cache``
    The short cut: a graph that was compiled before, by any process, is bound from the cache.

``package``, ``standalone``
    The way out: ``lowc compile`` writes a model as one file, ``lowc.load`` runs it where there is no torch.

Beside the way: ``options`` (every option and environment variable), ``target`` (what the scheduler knows of
the machine), ``machine`` (what the system says of it), ``trace`` (times and dumps), ``errors``, and ``cli``
(``lowc dump``, ``lowc explain``, ...).

Importing this package imports no other part of lowc; its public names are loaded when they are first used.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["LowcError", "Options", "compile_graph", "load", "lowc_backend", "synchronize"]

_HOMES = {
    "LowcError": "lowc.errors",
    "Options": "lowc.options",
    "compile_graph": "lowc.package",
    "load": "lowc.standalone.loader",
    "synchronize": "lowc.runtime.cuda.device",
    "lowc_backend": "lowc.dynamo",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lowc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
