"""The rules for pipelines and instructions in a kernel for a GPU (docs/design.md 6): where they stand and what they are.

A pipeline is at block level, in no thread loop; there is one in a kernel.  Its body is what ``tiles.pipeline`` knows: tiles, a
fill of each, a product of two of them.  Fills and products stand nowhere else, and nobody else touches a tile: threads and the
engine that copies wait for one another there only.
"""

from lowc.ir.nodes import Alloc, For, Kernel, Load, Stmt, Store
from lowc.ir.tiles import FILLS, TMA, WGMMA, Pipeline, box, pipeline, pipelines
from lowc.ir.walk import exprs, parts, statements


def broken(kernel: Kernel) -> tuple[Stmt | Kernel, str] | None:
    """A statement that breaks a rule, and the rule; None if none does."""
    loops = pipelines(kernel.body)
    inside = {id(s) for loop in loops for s in statements(loop.body)}
    for stmt in statements(kernel.body):
        if isinstance(stmt, For) and stmt.kind.name == "instr":
            if stmt.kind.key not in (*FILLS, WGMMA):
                return stmt, f"a GPU has no instruction {stmt.kind.key}"
            if id(stmt) not in inside:
                return stmt, f"instr({stmt.kind.key}) outside a pipeline"
    if not loops:
        return None
    if len(loops) > 1:
        return loops[1], "a second pipeline in a kernel"
    found = pipeline(loops[0])
    if found is None:
        return loops[0], "a pipeline is tiles in shared memory, one fill of each, and one product of two of them"
    for stmt in statements(kernel.body):
        if isinstance(stmt, For) and stmt.kind.name in ("thread", "vector") and loops[0] in statements(stmt.body):
            return loops[0], "a pipeline in a loop of threads or lanes"
    return _parts(kernel, found, inside)


def _parts(kernel: Kernel, found: Pipeline, inside: set[int]) -> tuple[Stmt | Kernel, str] | None:
    for each in found.fills:
        if each.key == TMA and box(each) is None:
            return each.loops[0], f"what fills {each.tile.name} is no box of a buffer"
    product = found.product
    sums = next((s for s in statements(kernel.body) if isinstance(s, Alloc) and s.buffer is product.sums), None)
    if sums is None or sums.reducer != "add" or sums.buffer.space != "local":
        return product.loop, f"{product.sums.name} is no local array of sums"
    own = {id(t) for t in found.tiles}
    for stmt in statements(kernel.body):
        if id(stmt) in inside:
            continue
        if isinstance(stmt, Store) and id(stmt.buffer) in own:
            return stmt, f"{stmt.buffer.name} is a tile of a pipeline"
        if any(isinstance(p, Load) and id(p.buffer) in own for e in exprs(stmt) for p in parts(e)):
            return stmt, "a tile of a pipeline is read outside it"
    return None
