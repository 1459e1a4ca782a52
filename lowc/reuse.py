"""The way around the compiler: a graph that has been compiled before, by any process, is bound from the cache.

    FX graph ─ text ─ key ─ entry? ── yes ─ runtime ─ callable
                                 └─── no ── reader ─ ir.Graph ─ compiler ─ callable, and its artifact becomes the entry

Imports nothing of the compiler unless it is needed: a process that finds all its graphs starts without lowering,
scheduler and LLVM. What is not kept: graphs of which a part was left to ATen because of an error (each process shall
warn), graphs from whose reading torch learns something about sizes, what is only interpreted, and anything while passes
are verified or dumped, as they run only if something is compiled.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from lowc.cache import key as keys
from lowc.cache.entry import Damaged, digest_of
from lowc.cache.folder import Folder
from lowc.options import Options, is_tuned, with_stream

if TYPE_CHECKING:
    from lowc.cache.codec import Stored
    from lowc.frontend.unread import Source
    from lowc.ir.graph import Graph
    from lowc.runtime.program import Program
    from lowc.trace import Trace

log = logging.getLogger("lowc.cache")

Compiled = Callable[[list[Any]], list[Any]]


def compile_or_reuse(source: "Source", options: Options, folder: Folder | None) -> Compiled:
    """``compiler.compile_graph`` of what ``source`` is read as, or what it has made of an equal one before.  Raises what these
    raise."""
    if folder is None or not is_kept(options):
        graph, constants, _ = source.read()
        return _compiled(graph, constants, options)
    from lowc.trace import Trace

    trace = Trace()
    with trace.phase("key"):
        key = key_of(source, options, folder)
    with trace.phase("cache"):
        program = key and found(folder, key, source, options)
    if program:
        source.kept = digest_of(key)
        trace.count("cache hit")
        if options.time:
            print(f"lowc: {source.name} (cache hit)\n{trace.report()}", file=sys.stderr)
        return program.call
    trace.count("cache miss")
    with trace.phase("read"):
        graph, constants, repeatable = source.read()
    call: Any = _compiled(graph, constants, options, trace)
    from lowc.ir.graph import device_of

    if key and repeatable and not trace.counters.get("fallbacks") and keep(folder, key, call.program, device_of(graph)):
        source.kept = digest_of(key)
    return call


def is_kept(options: Options) -> bool:
    """Whether what is compiled with these options is for the cache: not where passes are looked at, or nothing is compiled."""
    return not (options.dump or options.check or options.isa == "interp")


@cache
def lowered_ops(folder: Folder | None) -> frozenset[str]:
    """The ATen ops that lowc has kernels for, as "aten.exp.default".  (Importing the table of them takes as long as
    binding twenty graphs, so that the names are kept, too.)"""
    base = folder and keys.base_key(folder)
    key = f"{base}\n{OPS}" if base else ""
    if folder and key and (sections := folder.get(key)):
        return frozenset(sections.get(OPS, b"").decode().split())
    from lowc.lowering.table import TABLE

    if folder and key:
        folder.put(key, {OPS: "\n".join(sorted(TABLE)).encode()})
    return frozenset(TABLE)


OPS = "the ops that lowc has kernels for"


def _compiled(graph: "Graph", constants: Sequence[Any], options: Options, trace: "Trace | None" = None) -> Compiled:
    if is_tuned(options):
        from lowc.autotune import compile_tuned

        return compile_tuned(graph, constants, options, trace)
    from lowc.compiler import compile_graph

    return compile_graph(graph, constants, options, trace)


def key_of(source: "Source", options: Options, folder: Folder | None = None) -> str:
    """The key of ``source``; "" if it cannot be kept."""
    from lowc.runtime.tensors import torch_version

    text, devices = source.text()
    facts = [facts_of(name, options) for name in devices or ["cpu"]]
    return keys.graph_key(keys.base_key(folder), text, options, facts, torch_version())


def facts_of(name: str, options: Options) -> str:
    """What code for device ``name`` depends on; "" if that is unknown."""
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return keys.cpu()
    if kind != "cuda":
        return ""
    from lowc.errors import LowcError
    from lowc.runtime.cuda.device import facts

    try:
        return keys.gpu(str(facts(int(index or 0))), options)
    except LowcError:  # no driver: whoever compiles says so
        return ""


def found(folder: Folder, key: str, source: "Source", options: Options) -> "Program | None":
    """The program of the entry for ``key``, bound to this process; None if there is none that can be used, after a warning if it
    should have been."""
    sections = folder.get(key)
    return None if sections is None else bound(folder, key, sections, source.name, source.constants, options)


def bound(
    folder: Folder, key: str, sections: Mapping[str, bytes], name: str, constants: Sequence[Any], options: Options
) -> "Program | None":
    """The program that ``sections`` are, the entry for ``key``, for a graph ``name``; None, after a warning, if it cannot be
    used."""
    from lowc.cache.codec import decode

    try:
        return _bound(decode(sections), name, constants, options)
    except Damaged as error:
        folder.discard(key, str(error))
    except Exception as error:
        # Its checksum and its key are right, so this is a bug, or the process is not as the one that wrote it (no OpenMP, say).
        log.debug("the reason in full", exc_info=True)
        folder.discard(key, f"{type(error).__name__}: {error}")
    return None


def _bound(stored: "Stored", name: str, constants: Sequence[Any], options: Options) -> "Program":
    if any(op.startswith("lowc.") for op, _ in (*stored.host.ops.values(), *stored.host.into.values())):
        _register_ops()
    if "walker" in stored.sections:
        from lowc.runtime.cuda import program as gpu

        index = stored.sections["device"].decode().partition(":")[2]
        walker = gpu.walker_of(stored.sections["walker"]).address("walk")
        return gpu.bind(stored.artifact, walker, int(index or 0), constants, with_stream(options, name))
    from lowc.runtime import openmp
    from lowc.runtime.linker import Library
    from lowc.runtime.program import bind_host, natives_of

    natives: dict[str, Any] = {}
    if stored.code:
        natives = natives_of(Library(stored.code, stored.symbols, openmp.functions()), stored.symbols)
    return bind_host(
        lambda: stored.artifact, stored.host, natives, constants, code=stored.bytecode, forward=name == "forward"
    )


def _register_ops() -> None:
    """Makes lowc's own ops known to torch, as whoever reads a graph with such does."""
    from lowc.frontend import flex_attention, random, wrapped

    flex_attention.register()
    random.register()
    wrapped.register()


def keep(folder: Folder, key: str, program: "Program", device: str) -> bool:
    """Makes ``program``, which runs on ``device``, the entry for ``key``; whether it is.  It is a bug if that fails, but none
    that should stop anybody."""
    from lowc.cache.codec import encode

    try:
        sections = encode(program.artifact, program.host, program.code)
        if program.gpu:
            from lowc.backends.nvptx import walker

            sections |= {"walker": walker.code(), "device": device.encode()}
        return folder.put(key, sections)
    except Exception as error:
        log.warning("a compiled graph cannot be kept: %s: %s", type(error).__name__, error)
        log.debug("the reason in full", exc_info=True)
        return False
