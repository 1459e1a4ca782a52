"""The rules for pipelines, instructions and teams in a kernel for a GPU (docs/design.md 6): where they stand and what they are.

A pipeline is at block level, in no thread loop.  One of a kernel multiplies: its body is what ``tiles.pipeline`` knows (tiles, a
fill of each, a product of two of them).  Others take results out: what ``outlets.outlet`` knows.  Fills, drains and products are
nowhere else, and nobody else touches a tile or a strip: threads and the engine that copies wait for one another there only.

Or several pipelines in turn multiply twice each: what ``relays.relay`` knows, with one resident tile that is filled before them.
Threads combine what four of them have of a row by ``relays.quad``, anywhere at block level.

A loop of teams is all that blocks do but for lets; teams wait neither for one another nor for all threads, and one knows how long
another multiplies, whichever tile it has.
"""

from collections.abc import Collection, Iterator, Sequence

from lowc.ir.index import Axis, Opaque, atoms
from lowc.ir.nodes import Acc, Alloc, Barrier, Buffer, For, Kernel, Let, Load, Stmt, Store
from lowc.ir.outlets import Outlet, outlet, outlets
from lowc.ir.outlets import box as drained
from lowc.ir.pieces import is_async
from lowc.ir.relays import QUAD, SPREAD, Relay, block_body, has_relay, quad, relay
from lowc.ir.tiles import APART, ASYNC, FILLS, MMA, TMA, WGMMA, Pipeline, box, pipeline, pipelines
from lowc.ir.walk import exprs, parts, statements

Broken = tuple[Stmt | Kernel, str] | None


def broken(kernel: Kernel) -> Broken:
    """A statement that breaks a rule, and the rule; None if none does."""
    loops, out = pipelines(kernel.body), outlets(kernel.body)
    inside = {id(s) for loop in (*loops, *out) for s in statements(loop.body)}
    found_relay = relay(block_body(kernel.body))
    if found_relay is not None:
        inside.update(id(f.loops[0]) for f in found_relay.residents)
    for stmt in statements(kernel.body):
        if isinstance(stmt, For) and stmt.kind.name == "instr":
            if stmt.kind.key not in (*FILLS, WGMMA, APART, MMA, QUAD, SPREAD):
                return stmt, f"a GPU has no instruction {stmt.kind.key}"
            if id(stmt) not in inside and stmt.kind.key != QUAD:
                return stmt, f"instr({stmt.kind.key}) outside a pipeline"
        if isinstance(stmt, For) and stmt.kind.name in ("thread", "vector"):
            for other in statements(stmt.body):
                if isinstance(other, For) and other.kind.name in ("pipeline", "teams"):
                    return other, f"{other.kind.name} in a loop of threads or lanes"
                if isinstance(other, For) and other.kind.key == QUAD and quad(stmt) is None:
                    return other, "four threads combine what each has of a row, number by number"
    if found_relay is not None:
        return _relay(kernel, found_relay)
    if has_relay(kernel.body):
        return loops[0], "pipelines that multiply twice share one resident tile, and stand at block level"
    if len(loops) > 1:
        return loops[1], "a second pipeline in a kernel"
    if not loops:
        return (out[0], "results taken out of a kernel that multiplies nothing") if out else _teams(kernel)
    found = pipeline(loops[0])
    if found is None:
        return loops[0], "a pipeline is tiles in shared memory, one fill of each, and one product of two of them"
    own: list[tuple[For, Collection[Buffer]]] = [(found.loop, found.tiles)]
    return _parts(kernel, found) or _outlets(kernel) or _own(kernel, own) or _teams(kernel)


def _relay(kernel: Kernel, found: Relay) -> Broken:
    for each in (*found.residents, *(f for t in found.turns for f in t.fills)):
        if each.key != TMA or box(each) is None:
            return each.loops[0], f"what fills {each.tile.name} is no box of a buffer"
    if any(isinstance(s, For) and s.kind.name == "teams" for s in statements(kernel.body)):
        return found.turns[0].loop, "teams that multiply twice"
    own: list[tuple[For, Collection[Buffer]]] = [(t.loop, [f.tile for f in t.fills]) for t in found.turns]
    own += [(t.loop, (*t.across.gathered, t.across.spread.tile)) for t in found.turns if t.across is not None]
    for each in found.turns:
        tiles = {id(f.tile) for f in (*each.fills, *found.residents)}
        if each.across is not None:
            tiles.add(id(each.across.spread.tile))
        for stmt in statements(each.work):
            if any(id(load.buffer) in tiles for load in _loads(stmt)):
                return stmt, "a tile of a pipeline is read by threads"
    firsts = [p.loop for t in found.turns for p in (*t.firsts, *((t.across.product,) if t.across is not None else ()))]
    fills = {id(s) for s in statements((*(f.loops[0] for f in found.residents), *firsts))}
    residents = {id(f.tile): f.tile.name for f in found.residents}
    for stmt in statements(kernel.body):
        touched = [load.buffer for load in _loads(stmt)] + ([stmt.buffer] if isinstance(stmt, Store) else [])
        name = next((residents[id(b)] for b in touched if id(b) in residents), "")
        if id(stmt) not in fills and name:
            return stmt, f"{name} is the left factor of products alone"
    return _outlets(kernel) or _own(kernel, own)


def _parts(kernel: Kernel, found: Pipeline) -> Broken:
    for each in found.fills:
        if each.key == TMA and box(each) is None:
            return each.loops[0], f"what fills {each.tile.name} is no box of a buffer"
        if each.key == ASYNC and not is_async(each):
            return each.loops[0], f"what fills {each.tile.name} are no pieces of a buffer"
    product = found.product
    teams = any(isinstance(s, For) and s.kind.name == "teams" for s in statements(kernel.body))
    if product.key == MMA and (teams or outlets(kernel.body)):
        return product.loop, "threads that fill and multiply have no teams, and store results themselves"
    sums = next((s for s in statements(kernel.body) if isinstance(s, Alloc) and s.buffer is product.sums), None)
    if sums is None or sums.reducer != "add" or sums.buffer.space != "local":
        return product.loop, f"{product.sums.name} is no local array of sums"
    return None


def _outlets(kernel: Kernel) -> Broken:
    found: list[Outlet] = []
    for loop in outlets(kernel.body):
        one = outlet(loop)
        if one is None:
            return loop, "what takes results out is strips in shared memory, a thread loop that sets them, and one drain of each"
        found.append(one)
    for one in found:
        for each in one.drains:
            if drained(each) is None:
                return each.loops[0], f"where {each.strip.name} goes is no box of a buffer"
        strips = {id(s) for s in one.strips}
        for stmt in statements(one.work.body):
            if any(id(load.buffer) in strips for load in _loads(stmt)):
                return stmt, "a strip is read by threads"
            if isinstance(stmt, Alloc) and stmt.buffer.space == "shared":
                return stmt, f"{stmt.buffer.name} in shared memory in a pipeline"
    return None


def _own(kernel: Kernel, tiles: Sequence[tuple[For, Collection[Buffer]]]) -> Broken:
    """Whether somebody else touches a tile or a strip; ``tiles``: by pipeline."""
    ways = list(tiles)
    ways += [(one.loop, one.strips) for one in map(outlet, outlets(kernel.body)) if one is not None]
    for loop, buffers in ways:
        own, inside = {id(b) for b in buffers}, {id(s) for s in statements(loop.body)}
        for stmt in statements(kernel.body):
            if id(stmt) in inside:
                continue
            if isinstance(stmt, Store) and id(stmt.buffer) in own:
                return stmt, f"{stmt.buffer.name} is a tile of a pipeline"
            if any(id(load.buffer) in own for load in _loads(stmt)):
                return stmt, "a tile of a pipeline is read outside it"
    return None


def _loads(stmt: Stmt) -> Iterator[Load]:
    return (p for e in exprs(stmt) for p in parts(e) if isinstance(p, Load))


def _teams(kernel: Kernel) -> Broken:
    found = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind.name == "teams"]
    if not found:
        return None
    body: Sequence[Stmt] = kernel.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind.name == "block":
        body = body[0].body
    loop = found[0]
    if len(found) > 1 or body[-1] is not loop or not all(isinstance(s, Let) for s in body[:-1]):
        return found[-1], "teams have the iterations of one loop, which is all that a block does"
    multiplies = pipelines(loop.body)
    if not multiplies:
        return loop, "teams without a pipeline"
    if any(isinstance(a, Axis | Opaque) for a in atoms(multiplies[0].axis.extent)):
        return multiplies[0], "how long a team multiplies differs from iteration to iteration"
    inside = {id(s) for p in (*multiplies, *outlets(loop.body)) for s in statements(p.body)}
    for stmt in statements(loop.body):
        shared = isinstance(stmt, Alloc) and stmt.buffer.space == "shared" and id(stmt) not in inside
        if shared or isinstance(stmt, Barrier) or (isinstance(stmt, Acc) and not _in_threads(loop, stmt)):
            return stmt, "teams share nothing and do not wait for one another"
    return None


def _in_threads(loop: For, stmt: Stmt) -> bool:
    return any(
        stmt in statements(s.body) for s in statements(loop.body) if isinstance(s, For) and s.kind.name == "thread"
    )
