"""A kernel as a function of its module, and what its launch needs: ``emit_kernel``."""

from math import prod

from lowc.artifact import Entry, TensorMap
from lowc.backends.llvm.builder import Builder, ModuleText
from lowc.backends.nvptx import outlet, relay_across, relay_seen
from lowc.backends.nvptx.async_ring import async_ring, is_async
from lowc.backends.nvptx.detect import adds_four, capability
from lowc.backends.nvptx.emit import Emitter
from lowc.backends.nvptx.multiply import uniform
from lowc.backends.nvptx.operations import AMPERE, FOUR_SUMS, TIES_TO_EVEN
from lowc.backends.nvptx.outlet import Outlets
from lowc.backends.nvptx.plan import plan
from lowc.backends.nvptx.relay import RelayRing, relay_ring
from lowc.backends.nvptx.ring import Ring, part, ring, teams
from lowc.backends.nvptx.thread import Memory, Thread, operand, sized
from lowc.errors import CodegenError
from lowc.ir.index import ONE, Index, upper_bound
from lowc.ir.nodes import Barrier, For, Kernel, Stmt
from lowc.ir.tiles import GROUP, pipelines
from lowc.ir.walk import loads, statements, stores
from lowc.target import Target

SPECIAL = "llvm.nvvm.read.ptx.sreg"


def symbol(name: str) -> str:
    """The name of a kernel in PTX, which knows no dots."""
    return "k_" + name.replace(".", "$")


def emit_kernel(text: ModuleText, kernel: Kernel, target: Target) -> Entry:
    """Adds ``kernel`` to ``text``.  Raises CodegenError for what has no code."""
    b = Builder(text)
    b.at(kernel)
    name = symbol(kernel.name)
    shape = plan(kernel)
    abilities = target.ops | ({AMPERE} if capability(target) >= 80 else frozenset[str]())
    abilities |= {FOUR_SUMS} if adds_four(target) else frozenset[str]()
    abilities |= {TIES_TO_EVEN} if capability(target) >= 90 else frozenset[str]()
    rings = pipelines(kernel.body)
    alone = bool(rings) and is_async(rings[0])  # threads that multiply fill the ring as well
    beside = GROUP if rings and not alone else 0
    several = teams(kernel)
    tid = {d: special(b, f"tid.{d}", n * several + beside if d == "x" else n) for d, n in shape.threads.items()}
    thread = Thread(b, abilities, shape.threads, tid, beside=beside)
    thread.written = frozenset(s.buffer.name for s in stores(kernel.body))
    for param in kernel.params:
        thread.memory[param.name] = Memory((f'%"p.{param.name}"',), 1)
    for size in kernel.sizes:
        thread.sizes[size.name] = f'%"s.{size.name}"'
    blocks, body = block_loops(kernel.body)
    grid = bind_blocks(thread, blocks)
    emitter = Emitter(thread, kernel, shape, name)
    threads = shape.threads["x"], shape.threads["y"]
    maps: tuple[TensorMap, ...] = ()
    bound = f'"nvvm.maxntid"="{threads[0]},{threads[1]},1"'
    if alone:
        own = async_ring(thread, rings[0], emitter.fresh)
        emitter.shared, emitter.dynamic, emitter.pipeline = own.bytes, True, own.run
        emitter.body(body)
    elif rings:
        made = relay_ring(thread, kernel) or ring(thread, kernel, rings[0])
        out = outlet.collect(thread, kernel, made.bytes, len(made.maps))
        emitter.shared, emitter.dynamic = -(-(out.start + several * out.size) // 16) * 16, True
        in_roles(emitter, made, out, body)
        maps = (*made.maps, *out.maps)
        threads = threads[0] * several + beside, 1
        bound = f'"nvvm.reqntid"="{threads[0]},1,1" "nvvm.minctasm"="1"'
    else:
        emitter.body(body)
    params = [parameter(kernel, thread, p.name) for p in kernel.params]
    params += [f"i64 {thread.sizes[s.name]}" for s in kernel.sizes]
    params += ["ptr addrspace(1) %error", "i64 %step"]
    params += [f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %m{n}' for n in range(len(maps))]
    b.finish(f"ptx_kernel void @{name}({', '.join(params)}) {bound}")
    aligned = tuple(n for n, p in enumerate(kernel.params) if p.name in thread.aligned)
    return Entry(name, grid, threads, emitter.shared, aligned, maps)


def in_roles(emitter: Emitter, made: Ring | RelayRing, out: Outlets, body: tuple[Stmt, ...]) -> None:
    """``body`` as the threads of the kernel do it, and beside them those who fill the ring."""
    t, b = emitter.t, emitter.b
    each, tid = t.threads["x"], t.tid["x"]
    count = each * made.teams
    if t.threads["y"] != 1:
        raise CodegenError("threads in two dimensions around a pipeline")
    made.prepare(b.pure(f"icmp eq i32 {tid}, 0"))
    registers = made.registers
    if isinstance(made, RelayRing):
        emitter.placed, made.emit, made.evaluate = made.placed, emitter.body, emitter.fresh

    def take(number: int, word: str) -> None:
        if registers:
            b.module.declare(f"llvm.nvvm.setmaxnreg.{word}.sync.aligned.u32", "void", "i32")
            b.line(f"call void @llvm.nvvm.setmaxnreg.{word}.sync.aligned.u32(i32 {number})")

    def filling() -> None:
        take(registers[0] if registers else 0, "dec")
        thread = b.pure(f"sub i32 {tid}, {count}")

        def pipeline(loop: For) -> None:
            if isinstance(made, RelayRing) and made.across is not None and made.turns(loop).seen is not None:
                relay_seen.fill(made, loop)
            else:
                made.fill(loop, thread, emitter.fresh)

        emitter.pipeline = pipeline
        emitter.resident = made.fill_resident if isinstance(made, RelayRing) else None

        def fill() -> list[str]:
            made.begin(1)
            emitter.body(part(body))
            return []

        if made.engine_only:
            b.branch(b.pure(f"icmp eq i32 {thread}, 0"), [], fill)
        else:
            fill()

    def multiplying() -> None:
        take(registers[1] if registers else 0, "inc")
        made.begin(0)
        emitter.resident = None
        if isinstance(made, Ring) and made.teams > 1:
            t.team = uniform(t, b.pure(f"lshr i32 {tid}, {each.bit_length() - 1}"))
            t.tid["x"] = b.pure(f"and i32 {tid}, {each - 1}")
            emitter.step = t.team, made.teams
            made.take_turns()
        emitter.unset = made.unset
        if isinstance(made, RelayRing) and made.across is not None:
            relayed = made
            emitter.pipeline = lambda loop: relay_across.multiply(relayed, loop, t.tid["x"], emitter.fresh)
        else:
            emitter.pipeline = lambda loop: made.multiply(loop, t.tid["x"])
        emitter.outlet = out.emit
        emitter.body(body)
        out.finish()

    b.either(b.pure(f"icmp sge i32 {tid}, {count}"), filling, multiplying)


def special(b: Builder, register: str, count: int) -> str:
    """The thread's number in a dimension of ``count`` threads."""
    if count == 1:
        return "0"
    b.module.declare(f"{SPECIAL}.{register}", "i32", "")
    return b.op(f"call range(i32 0, {count}) i32 @{SPECIAL}.{register}()", "t")


def parameter(kernel: Kernel, thread: Thread, name: str) -> str:
    """A buffer as a parameter.  What the kernel only reads goes through the read-only path; where threads read what others wrote,
    LLVM must not take the memory for private."""
    written = name in thread.written
    shared = written and any(isinstance(s, Barrier) for s in statements(kernel.body))
    private = not (shared and any(load.buffer.name == name for load in loads(kernel.body)))
    words = ["ptr addrspace(1)", "noalias" if private else "", "" if written else "readonly"]
    words += ["align 16" if name in thread.aligned else "", f'%"p.{name}"']
    return " ".join(w for w in words if w)


def block_loops(body: tuple[Stmt, ...]) -> tuple[list[For], tuple[Stmt, ...]]:
    """The block loops around a kernel, from the outermost, and what is in them."""
    loops: list[For] = []
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind.name == "block":
        loops.append(body[0])
        body = body[0].body
    return loops, body


def bind_blocks(t: Thread, loops: list[For]) -> Index:
    """Gives the axes of block loops their values; returns the number of blocks."""
    grid = prod((loop.axis.extent for loop in loops), start=ONE)
    if not loops:
        return grid
    t.b.module.declare(f"{SPECIAL}.ctaid.x", "i32", "")
    number = t.b.op(f"call i32 @{SPECIAL}.ctaid.x()", "b")
    while len(loops) > 1 and upper_bound(loops[0].axis.extent) == 1:
        t.axes[loops[0].axis.name] = ("0", 32)
        loops = loops[1:]
    for loop in reversed(loops[1:]):
        extent, bits = operand(t, loop.axis.extent)
        extent = sized(t.b, extent, bits, 32)
        row = t.b.pure(f"udiv i32 {number}, {extent}")
        before = t.b.pure(f"mul i32 {row}, {extent}")
        t.axes[loop.axis.name] = (t.b.pure(f"sub i32 {number}, {before}"), 32)
        number = row
    t.axes[loops[0].axis.name] = (number, 32)
    t.blocks = frozenset(loop.axis.name for loop in loops)
    return grid
