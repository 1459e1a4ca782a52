"""fuse: LOOPS → LOOPS.  Kernels that share data become one kernel with common loops.

Before: a kernel for the row maxima, one for the sums of exponentials, one for the quotient.  After: one loop over rows with
three stages.  Joined are a producer with its consumer, and siblings that read the same large buffer, wherever ``merge`` can join
their outer loops; the consumer's loops are first permuted or split (``i`` over B*S becomes ``i // S, i % S``) if that makes
them those of the producer.  Bytes saved are what is loaded twice no more; refused is what would leave too few iterations to share
among cores, or a kernel too large for registers and for linear compile time.  To a contraction only maps over its result join, as
its epilogue.

Precondition: a kernel's params are the module's own buffers.  Does not remove stores that have become useless
(``forward``).  Near-linear: each kernel tries a bounded number of partners.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lowc.ir.index import Axis, Index, Symbol, constant, depends_on, ix, split
from lowc.ir.nodes import Acc, Buffer, Extern, For, Kernel, Launch, Let, Module, Stmt, Store, Update
from lowc.ir.walk import Substitution, loads, names, statements, stores
from lowc.options import Options
from lowc.scheduler import contraction, convolution
from lowc.scheduler.merge import Cache, merge
from lowc.scheduler.nest import (
    chain,
    estimate,
    iterations,
    nested,
    numel,
    one_loop,
    plain_axis,
    prune,
    step_reads,
    step_writes,
)
from lowc.scheduler.rename import apart, fresh
from lowc.target import Target

MAX_STATEMENTS = 160  # of a fused kernel
MAX_PARAMS = 48
MAX_PARTNERS = 4  # kernels that one kernel tries to join
LARGE = 256  # elements of a buffer that is worth sharing among siblings
MUCH = 65536  # iterations of a kernel that should be spread over the cores
ROW = 32  # elements of a reduced row that are worth a warp
SMALL = 8  # a map with so many times fewer elements than another is small
FEW = 16  # outer iterations below which a large kernel would starve the cores


@dataclass(slots=True, eq=False)
class _Group:
    """A step, or a kernel in the making: its body, its params, the names bound in it, the ops in it.

    ``size`` counts statements, ``work`` the iterations of its largest nest; ``contracts``: there are sums of products in it.
    """

    step: Launch | Extern
    reads: set[int]
    writes: set[int]
    body: tuple[Stmt, ...] = ()
    params: tuple[Buffer, ...] = ()
    sizes: tuple[Symbol, ...] = ()
    names: frozenset[str] = frozenset()
    origin: tuple[str, ...] = ()
    name: str = ""
    size: int = 0
    work: int = 0
    contracts: bool = False


def run(module: Module, target: Target, options: Options) -> Module:
    """``module`` with kernels joined; repeated until nothing joins, since a join can make another possible."""
    groups = [_group(step) for step in module.steps]
    cache: Cache = {}
    for _ in range(3):
        before = len(groups)
        groups = _sweep(groups, cache, target)
        if len(groups) == before:
            break
    return prune(module, [_finished(g) for g in groups])


def _group(step: Launch | Extern) -> _Group:
    group = _Group(step, {id(b) for b in step_reads(step)}, {id(b) for b in step_writes(step)})
    if isinstance(step, Launch):
        kernel = step.kernel
        group.body, group.params, group.sizes = kernel.body, kernel.params, kernel.sizes
        group.names, group.origin, group.name = frozenset(names(kernel.body)), step.origin, kernel.name
        group.size = len(statements(kernel.body))
        group.work = _work(kernel.body)
        group.contracts = contraction.has_products(kernel.body)
    return group


def _finished(group: _Group) -> Launch | Extern:
    """The step that ``group`` has become."""
    if isinstance(group.step, Launch) and group.body is not group.step.kernel.body:
        body = apart(group.body, {p.name for p in group.params})
        return Launch(Kernel(group.name, group.params, group.sizes, body), group.params, group.origin)
    return group.step


def _work(body: Sequence[Stmt]) -> int:
    return max((max(1, estimate(s.axis.extent)) * _work(s.body) for s in body if isinstance(s, For)), default=1)


def _sweep(groups: list[_Group], cache: Cache, target: Target) -> list[_Group]:
    """One pass over the kernels in order, each joining a kernel before it if it can."""
    done: list[_Group | None] = []
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    large = _large_buffers(groups)
    for group in groups:
        place = None
        if isinstance(group.step, Launch):
            for candidate in _candidates(group, done, writers, readers, large):
                other = done[candidate]
                assert other is not None
                spot = _spot(other, group, candidate, len(done), writers, readers)
                if spot is None or (joined := _join(other, group, cache, target)) is None:
                    continue
                done[candidate] = None
                place, group = spot, joined
                break
        if place is None or place == len(done):
            place = len(done)
            done.append(group)
        else:
            done[place] = group
        for buffer in group.reads:
            readers.setdefault(buffer, []).append(place)
        for buffer in group.writes:
            writers.setdefault(buffer, []).append(place)
    return [g for g in done if g is not None]


def _large_buffers(groups: Sequence[_Group]) -> set[int]:
    found: set[int] = set()
    for group in groups:
        if isinstance(group.step, Launch):
            found |= {id(b) for b in group.params if estimate(numel(b.shape)) >= LARGE}
    return found


def _candidates(
    group: _Group, done: list[_Group | None], writers: dict[int, list[int]], readers: dict[int, list[int]], large: set[int]
) -> list[int]:
    """Positions of kernels to try: producers of what ``group`` reads, contractions first, whose results then need not go through
    memory, then readers of the same large buffers; nearest first."""
    found: dict[int, None] = {}
    for numbers in (
        [n for b in group.reads for n in writers.get(b, ())[-2:]],
        [n for b in group.reads if b in large for n in readers.get(b, ())[-3:]],
    ):
        able = [(o.contracts, n) for n in numbers if (o := done[n]) is not None and isinstance(o.step, Launch)]
        found.update((number, None) for _, number in sorted(able, reverse=True))
    return list(found)[:MAX_PARTNERS]


def _spot(
    first: _Group, second: _Group, at: int, end: int, writers: dict[int, list[int]], readers: dict[int, list[int]]
) -> int | None:
    """Where the joined kernel may stand: at ``at`` if ``second`` can move up, at ``end`` if ``first`` can move down."""

    def touched(buffers_: set[int], table: dict[int, list[int]]) -> bool:
        return any(at < n < end for b in buffers_ for n in table.get(b, ()))

    if not touched(second.reads, writers) and not touched(second.writes, readers) and not touched(second.writes, writers):
        return at
    if not touched(first.writes, readers) and not touched(first.writes, writers) and not touched(first.reads, writers):
        return end
    return None


# ---------------------------------------------------------------- joining two kernels


def _join(first: _Group, second: _Group, cache: Cache, target: Target) -> _Group | None:
    """One kernel for both, or None if no outer loop joins or it would not pay."""
    if first.size + second.size > MAX_STATEMENTS:
        return None
    params = tuple({id(p): p for p in (*first.params, *second.params)}.values())
    if len(params) > MAX_PARAMS:
        return None
    mine = apart(second.body, set(first.names) | {p.name for p in first.params})
    for head, body in _variants(first.body, mine):
        block, joined = merge(head, body, cache)
        if (first.contracts or second.contracts) and not _stays_contraction(block):
            continue
        if (joined or _is_epilogue(second, first)) and _wide_enough(block, first, second, target):
            return _Group(
                first.step,
                first.reads | second.reads,
                first.writes | second.writes,
                tuple(block),
                params,
                tuple(dict.fromkeys((*first.sizes, *second.sizes))),
                first.names | frozenset(names(mine)) | (frozenset(names(block)) if head is not first.body else frozenset[str]()),
                tuple(dict.fromkeys((*first.origin, *second.origin))),
                _name(first.name, second.name),
                first.size + second.size,
                max(first.work, second.work),
                first.contracts or second.contracts,
            )
    return None


def _stays_contraction(block: Sequence[Stmt]) -> bool:
    """Whether ``block`` is a contraction with an epilogue: its tiles are worth more than what any other join saves."""
    if len(block) != 1 or not isinstance(block[0], For):
        return False
    return contraction.find(block[0]) is not None or convolution.find(block[0]) is not None


def _is_epilogue(second: _Group, first: _Group) -> bool:
    """Whether ``second`` only does scalar work on what ``first`` has made."""
    return not any(isinstance(s, For) for s in second.body) and not first.writes.isdisjoint(second.reads)


def _name(a: str, b: str) -> str:
    """A name that tells the first and the last op."""
    head = a.split("__")[0]
    return a if head == b else f"{head}__{b.split('__')[-1]}"


def _wide_enough(block: Sequence[Stmt], first: _Group, second: _Group, target: Target) -> bool:
    """Whether enough iterations are left outside for the cores, or the kernel is small, or its loops joined all the way down; and
    whether the threads of a GPU's block can still share what is inside."""
    gpu = target.kind == "nvptx"
    if gpu and _nested_rows(block) and not _nested_rows(first.body) and not _nested_rows(second.body):
        return False
    if gpu and _reads_windows(block):
        return False
    few = max(FEW, 2 * target.cores) if gpu else FEW
    if max(first.work, second.work) < MUCH:
        return True
    for stmt in block:
        if isinstance(stmt, For):
            outer = 1
            body: Sequence[Stmt] = (stmt,)
            while len(body) == 1 and isinstance(body[0], For):
                outer *= max(1, estimate(body[0].axis.extent))
                body = body[0].body
            nests = _nests(body) if gpu else sum(isinstance(s, For) for s in body)
            if outer < few and nests > 1:
                return False
    return True


def _nests(body: Sequence[Stmt]) -> int:
    """How many innermost loops there are, side by side."""
    return sum(max(1, _nests(s.body)) for s in body if isinstance(s, For))


def _reads_windows(block: Sequence[Stmt]) -> bool:
    """Whether something is stored and read again under a mask: once addresses are numbers, what is read there may as well be
    what another block stores, and one thread would do all."""
    stored = {id(s.buffer) for s in stores(block)}
    return any(load.mask is not None and id(load.buffer) in stored for load in loads(block))


def _nested_rows(block: Sequence[Stmt]) -> bool:
    """Whether one of several stages goes over long rows and reduces each: a thread of a block would walk a row by itself."""
    for stmt in block:
        if isinstance(stmt, For):
            stages = chain((stmt,))[-1].body
            for stage in stages:
                if isinstance(stage, For) and _reduces_rows(chain((stage,))[-1].body):
                    return True
    return False


def _reduces_rows(body: Sequence[Stmt]) -> bool:
    own = {v.name for s in body if isinstance(s, Acc) for v in s.vars}
    rows = [s for s in body if isinstance(s, For) and _work((s,)) >= ROW]
    return any(isinstance(u, Update) and u.vars[0].name in own for u in statements(rows))


def _variants(a: Sequence[Stmt], b: tuple[Stmt, ...]) -> list[tuple[Sequence[Stmt], tuple[Stmt, ...]]]:
    """Pairs of bodies to try: the first loops that differ made the same by a split; as they are; b's loops in a's order.

    A split comes first: it joins more loops, which leaves more of them to share among cores.
    """
    chain_a, chain_b = chain(a), chain(b)
    if not chain_a or not chain_b:
        return [(a, b)]
    out: list[tuple[Sequence[Stmt], tuple[Stmt, ...]]] = []
    extents_a, extents_b = [f.axis.extent for f in chain_a], [f.axis.extent for f in chain_b]
    common = 0
    while common < min(len(extents_a), len(extents_b)) and extents_a[common] == extents_b[common]:
        common += 1
    rest_a, rest_b = extents_a[common:], extents_b[common:]
    if rest_a and rest_b:
        if not common and contraction.has_products(a) and (count := _prefix(extents_b, extents_a[0])) > 1:
            # a contraction keeps its rows whole
            out.append((a, (one_loop(chain_b[:count], f"{chain_b[0].axis.name}_0", names((*a, *b))),)))
        elif pieces := _pieces(rest_b[0], rest_a):
            out.append((a, _split(chain_b, common, pieces, names((*a, *b)))))
        elif pieces := _pieces(rest_a[0], rest_b):
            out.append((_split(chain_a, common, pieces, names((*a, *b))), b))
        if out and not _in_step(*out[0], common):
            out.clear()
    out.append((a, b))
    if (permuted := _permuted(chain_a, a, chain_b, b)) is not None:
        out.append((a, permuted))
    return out


def _pieces(extent: Index, others: Sequence[Index]) -> list[Index]:
    """Extents, the leading ones of ``others``, into which a loop over ``extent`` can be split; empty if it cannot."""
    if (count := _prefix(others, extent)) > 1:
        return list(others[:count])
    whole, part = constant(extent), constant(others[0])
    if whole is not None and part is not None and 1 < part < whole and whole % part == 0:
        return [others[0], ix(whole // part)]
    return []


def _in_step(a: Sequence[Stmt], b: Sequence[Stmt], at: int) -> bool:
    """Whether the loops at ``at`` move ``a`` and ``b`` on by the same distance in some buffer of both: over rows both.  Loops
    over rows and over columns, of which one number divides the other, would share nothing."""
    steps_a, steps_b = _steps(a, chain(a)[at].axis), _steps(b, chain(b)[at].axis)
    return any(not steps.isdisjoint(steps_b.get(buffer, ())) for buffer, steps in steps_a.items())


def _steps(body: Sequence[Stmt], axis: Axis) -> dict[int, set[Index]]:
    """By buffer, how far in memory its accesses move with ``axis``; those that do not move are left out."""
    found: dict[int, set[Index]] = {}
    for each in (*loads(body), *stores(body)):
        address = ix(0)
        for index, stride in zip(each.index, each.buffer.strides, strict=True):
            address = address + index * stride
        step, rest = split(address, axis)
        if step.terms and not depends_on(rest, axis):
            found.setdefault(id(each.buffer), set()).add(step)
    return found


def _prefix(extents: Sequence[Index], product: Index) -> int:
    """How many leading extents have that product, 0 if none."""
    total = ix(1)
    for count, extent in enumerate(extents, 1):
        total = total * extent
        if total == product:
            return count
    return 0


def _split(nest: Sequence[For], at: int, extents: Sequence[Index], taken: set[str]) -> tuple[Stmt, ...]:
    """The loops ``nest``, one in another, with the one at ``at`` as a nest of ``extents``."""
    axes: list[Axis] = []
    position = ix(0)
    loop = nest[at]
    for number, extent in enumerate(extents):
        axis = Axis(fresh(f"{loop.axis.name}_{number}", taken), extent)
        axes.append(axis)
        position = position * extent + axis
    inner = nested(axes, Substitution({loop.axis: position}).body(loop.body))
    return nested([f.axis for f in nest[:at]], inner) if at else inner


def _permuted(chain_a: list[For], a: Sequence[Stmt], chain_b: list[For], b: tuple[Stmt, ...]) -> tuple[Stmt, ...] | None:
    """The map ``b`` with those of its loops outermost that go over what a's outer loops go over; None if that changes nothing, or
    if only a small map would be spared and results no longer be walked as they lie."""
    inner = chain_b[-1].body
    if any(isinstance(s, For) for s in inner) or not all(isinstance(s, Let | Store) for s in inner):
        return None
    wanted: list[Axis] = []
    for outer in chain_a:
        axis = _counterpart(outer.axis, a, b)
        if axis is None or axis in wanted:
            break
        wanted.append(axis)
    order = [*wanted, *(f.axis for f in chain_b if f.axis not in wanted)]
    if not wanted or order == [f.axis for f in chain_b]:
        return None
    if chain_b[-1].axis in wanted and not any(isinstance(s, For) for s in chain_a[-1].body):
        if SMALL * iterations(chain_a) <= iterations(chain_b):
            return None
    return nested(order, inner)


def _counterpart(axis: Axis, a: Sequence[Stmt], b: Sequence[Stmt]) -> Axis | None:
    """The axis of ``b`` that goes over a dimension of some common buffer as ``axis`` does in ``a``."""
    written = {id(s.buffer): s.index for s in stores(a)}
    for load in loads(b):
        index = written.get(id(load.buffer))
        for mine, theirs in zip(load.index, index or (), strict=False):
            found = plain_axis(mine)
            if found is not None and plain_axis(theirs) == axis and found.extent == axis.extent:
                return found
    return None
