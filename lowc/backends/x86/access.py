"""Loads and stores: contiguous lanes as one vector access, one element for all lanes, or lane by lane; with
masks; checks.
"""

from lowc.backends.llvm import literals
from lowc.backends.llvm.types import memory, suffix, vector
from lowc.backends.x86.accumulators import any_lane, not_
from lowc.backends.x86.operations import Val, apply, binary, const, select, splat
from lowc.backends.x86.region import Region, lane_numbers, scalar_index, varies, vector_index
from lowc.errors import CodegenError
from lowc.ir.index import Index, constant, split
from lowc.ir.nodes import Buffer
from lowc.ir.types import bool_, i32, i64

STEPS = (-1, 2, 3, 4)  # distances of lanes that shuffles bring together faster than a gather


def address(r: Region, buffer: Buffer, index: Index) -> str:
    """Pointer to an element (to that of lane 0 for the vector axis, or in memory of which each lane has its
    own).
    """
    place = scalar_index(r, index)
    if buffer.name in r.laned:
        place = r.b.pure(f"mul i64 {place}, {r.laned[buffer.name]}")
    return r.b.pure(f"getelementptr {memory(buffer.dtype)}, ptr {r.pointers[buffer.name]}, i64 {place}", "g")


def _is_contiguous(r: Region, buffer: Buffer, index: Index) -> bool:
    """Whether the lanes are neighbours in memory."""
    assert r.lanes is not None
    if buffer.name in r.laned:
        return not varies(r, index)
    step, rest = split(index, r.lanes.axis)
    return constant(step) == 1 and not varies(r, rest)


def _distance(r: Region, buffer: Buffer, index: Index) -> int:
    """Elements from one lane to the next; 0 if they are not known or not equal."""
    assert r.lanes is not None
    step, rest = split(index, r.lanes.axis)
    return 0 if buffer.name in r.laned or varies(r, rest) else constant(step) or 0


def _per_lane(r: Region, buffer: Buffer, index: Index) -> bool:
    return r.lanes is not None and (buffer.name in r.laned or varies(r, index))


def both(r: Region, a: Val | None, b: Val | None) -> Val | None:
    """The conjunction of two masks; None holds everywhere."""
    if a is None or b is None:
        return b if a is None else a
    lanes = max(a.lanes, b.lanes)
    return binary(r.b, "and", splat(r.b, a, lanes), splat(r.b, b, lanes))


# ---------------------------------------------------------------- loads


def load(r: Region, buffer: Buffer, index: Index, mask: Val | None, reread: bool) -> Val:
    """An element, or one a lane; 0 where ``mask`` is off.  ``reread``: the buffer is also written, so equal
    loads may differ.
    """
    if buffer.name in r.tiles:
        rows = r.tiles[buffer.name]
        return _from_memory(r, rows[int(scalar_index(r, index)) // len(rows)], buffer, len(rows))
    if r.lanes is not None and _per_lane(r, buffer, index):
        full = both(r, mask, r.lanes.mask)
        if _is_contiguous(r, buffer, index):
            return _load_vector(r, buffer, index, full, reread)
        step = _distance(r, buffer, index)
        if full is None and step in STEPS and r.lanes.count >= step:
            return _load_apart(r, buffer, index, step, reread)
        return _gather(r, buffer, index, full, reread)
    if mask is not None and mask.lanes:
        # one element for all lanes that want it, read if any does
        assert r.lanes is not None
        full = both(r, mask, r.lanes.mask)
        assert full is not None
        one = _load_scalar(r, buffer, index, Val(any_lane(r.b, full), bool_), reread)
        return select(r.b, full, one, const(0, buffer.dtype, full.lanes))
    return _load_scalar(r, buffer, index, mask, reread)


def fetch(r: Region, buffer: Buffer, index: Index) -> None:
    """Asks for the line of an element, to be in the L2 cache soon."""
    r.b.module.declare("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
    r.b.line(f"call void @llvm.prefetch.p0(ptr {address(r, buffer, index)}, i32 0, i32 2, i32 1)")


def _emit(r: Region, text: str, reread: bool) -> str:
    return r.b.op(text) if reread else r.b.pure(text)


def _load_scalar(r: Region, buffer: Buffer, index: Index, mask: Val | None, reread: bool) -> Val:
    pointer = address(r, buffer, index)
    if mask is not None:
        pointer = r.b.pure(f"select i1 {mask.text}, ptr {pointer}, ptr {_nothing(r)}")
    element = memory(buffer.dtype)
    text = _emit(r, f"load {element}, ptr {pointer}, align {buffer.dtype.bytes}", reread)
    value = _from_memory(r, text, buffer, 0)
    if mask is None:
        return value
    return select(r.b, mask, value, const(0, buffer.dtype))


def _nothing(r: Region) -> str:
    """A place that may be read (zeros) where a masked-off scalar load would have read."""
    r.b.module.globals.setdefault("zeros", "@zeros = internal constant [64 x i8] zeroinitializer, align 64")
    return "@zeros"


def _load_vector(r: Region, buffer: Buffer, index: Index, mask: Val | None, reread: bool) -> Val:
    assert r.lanes is not None
    known = None if mask is None else literals.read(mask.text, r.lanes.count)
    if known is not None and sum(known) < 2:
        return _load_one_lane(r, buffer, index, known, reread)
    count, element = r.lanes.count, memory(buffer.dtype)
    type_ = vector(element, count)
    pointer = address(r, buffer, index)
    if mask is None:
        return _from_memory(
            r, _emit(r, f"load {type_}, ptr {pointer}, align {buffer.dtype.bytes}", reread), buffer, count
        )
    text = _emit(r, masked_load(r, element, count, pointer, buffer.dtype.bytes, mask), reread)
    return _from_memory(r, text, buffer, count)


def masked_load(r: Region, element: str, count: int, pointer: str, align: int, mask: Val) -> str:
    """The instruction that loads ``count`` of LLVM's type ``element`` from ``pointer``, zeros where ``mask`` is off."""
    type_, mask = vector(element, count), splat(r.b, mask, count)
    function = f"llvm.masked.load.{suffix(element, count)}.p0"
    r.b.module.declare(function, type_, f"ptr, i32, <{count} x i1>, {type_}")
    return f"call {type_} @{function}(ptr {pointer}, i32 {align}, {mask.type} {mask.text}, {type_} zeroinitializer)"


def _load_one_lane(r: Region, buffer: Buffer, index: Index, known: tuple[int, ...], reread: bool) -> Val:
    """A vector load of which the mask leaves at most one lane."""
    zeros = const(0, buffer.dtype, len(known))
    if not any(known):
        return zeros
    lane = known.index(1)
    place = r.b.pure(
        f"getelementptr {memory(buffer.dtype)}, ptr {address(r, buffer, index)}, i64 {lane}", "g"
    )
    text = _emit(r, f"load {memory(buffer.dtype)}, ptr {place}, align {buffer.dtype.bytes}", reread)
    one = _from_memory(r, text, buffer, 0)
    return Val(
        r.b.pure(f"insertelement {zeros.type} {zeros.text}, {one.type} {one.text}, i64 {lane}"),
        one.dtype,
        len(known),
    )


def _gather(r: Region, buffer: Buffer, index: Index, mask: Val | None, reread: bool) -> Val:
    assert r.lanes is not None
    count, element = r.lanes.count, memory(buffer.dtype)
    pointers = _pointers(r, buffer, index)
    type_ = vector(element, count)
    mask = splat(r.b, mask if mask is not None else const(True, bool_), count)
    function = f"llvm.masked.gather.{suffix(element, count)}.v{count}p0"
    r.b.module.declare(function, type_, f"<{count} x ptr>, i32, <{count} x i1>, {type_}")
    text = _emit(
        r,
        f"call {type_} @{function}(<{count} x ptr> {pointers}, i32 {buffer.dtype.bytes}, {mask.type} {mask.text}, "
        f"{type_} zeroinitializer)",
        reread,
    )
    return _from_memory(r, text, buffer, count)


def _pointers(r: Region, buffer: Buffer, index: Index) -> str:
    """A pointer for each lane."""
    assert r.lanes is not None
    size = constant(buffer.shape[0]) if len(buffer.shape) == 1 else None
    if buffer.name in r.laned:
        own = r.laned[buffer.name]
        offsets = vector_index(r, index)
        offsets = binary(r.b, "mul", offsets, const(own, offsets.dtype, offsets.lanes))
        offsets = binary(r.b, "add", offsets, lane_numbers(offsets.lanes))
    else:
        # AVX-512 gathers twice as many elements at a time by 32-bit offsets
        offsets = vector_index(r, index, i32 if size is not None and size < 2**31 else i64)
    return r.b.pure(
        f"getelementptr {memory(buffer.dtype)}, ptr {r.pointers[buffer.name]}, {offsets.type} {offsets.text}",
        "g",
    )


def _load_apart(r: Region, buffer: Buffer, index: Index, step: int, reread: bool) -> Val:
    """Lanes at equal distances: the vectors that cover them (the last one ends with the last lane), shuffled."""
    assert r.lanes is not None
    count, element = r.lanes.count, memory(buffer.dtype)
    type_, first = vector(element, count), address(r, buffer, index)
    starts = [n * count for n in range(step - 1)] + [(step - 1) * (count - 1)] if step > 0 else [1 - count]
    vectors: list[str] = []
    for start in starts:
        place = r.b.pure(f"getelementptr {element}, ptr {first}, i64 {start}", "g") if start else first
        vectors.append(_emit(r, f"load {type_}, ptr {place}, align {buffer.dtype.bytes}", reread))
    if step < 0:
        return _from_memory(r, _reversed(r, vectors[0], type_, count), buffer, count)
    out = vectors[0]
    for number, text in enumerate(vectors):
        if not number:
            order = [n * step if n * step < count else 0 for n in range(count)]
            other = "poison"
        else:
            low = starts[number]
            order = [
                n if n * step < number * count else min(count + n * step - low, 2 * count - 1)
                for n in range(count)
            ]
            other = text
        mask = ", ".join(f"i32 {n}" for n in order)
        out = r.b.pure(f"shufflevector {type_} {out}, {type_} {other}, <{count} x i32> <{mask}>")
    return _from_memory(r, out, buffer, count)


def _reversed(r: Region, text: str, type_: str, count: int) -> str:
    order = ", ".join(f"i32 {n}" for n in reversed(range(count)))
    return r.b.pure(f"shufflevector {type_} {text}, {type_} poison, <{count} x i32> <{order}>")


def _from_memory(r: Region, text: str, buffer: Buffer, lanes: int) -> Val:
    if buffer.dtype.kind != "b":
        return Val(text, buffer.dtype, lanes)
    type_ = vector("i8", lanes)
    zero = "zeroinitializer" if lanes else "0"
    return Val(r.b.pure(f"icmp ne {type_} {text}, {zero}"), buffer.dtype, lanes)


def _to_memory(r: Region, value: Val) -> str:
    if value.dtype.kind != "b":
        return value.text
    return r.b.pure(f"zext {value.type} {value.text} to {vector('i8', value.lanes)}")


# ---------------------------------------------------------------- stores


def store(r: Region, buffer: Buffer, index: Index, value: Val, mask: Val | None, reducer: str) -> None:
    """Writes or, with a ``reducer``, combines; no other core touches the same element (a schedule binds no
    such axis to cores).
    """
    if r.lanes is not None and _per_lane(r, buffer, index):
        full = both(r, mask, r.lanes.mask)
        value = splat(r.b, value, r.lanes.count)
        if full is None and not reducer and _distance(r, buffer, index) == -1:
            type_, element = vector(memory(buffer.dtype), value.lanes), memory(buffer.dtype)
            place = r.b.pure(
                f"getelementptr {element}, ptr {address(r, buffer, index)}, i64 {1 - value.lanes}", "g"
            )
            text = _reversed(r, _to_memory(r, value), type_, value.lanes)
            r.b.line(f"store {type_} {text}, ptr {place}, align {buffer.dtype.bytes}")
            return
        if not _is_contiguous(r, buffer, index):
            if reducer:
                _one_by_one(r, buffer, _pointers(r, buffer, index), value, full, reducer)
            else:
                _scatter(r, buffer, index, value, full)
            return
        if reducer:
            old = _load_vector(r, buffer, index, full, True)
            value = apply(r.b, reducer, [old, value], buffer.dtype, r.ops)
        _store_vector(r, buffer, index, value, full)
        return
    pointer = address(r, buffer, index)
    if r.lanes is not None and (reducer or value.lanes or (mask is not None and mask.lanes)):
        # every lane stores to this one element
        if not reducer:
            raise CodegenError(f"lanes meet in one element of {buffer.name}")
        count = r.lanes.count
        pointers = splat_pointer(r, pointer, count)
        _one_by_one(r, buffer, pointers, splat(r.b, value, count), both(r, mask, r.lanes.mask), reducer)
        return
    if mask is not None:
        r.scratch = r.scratch or r.b.alloca("[64 x i8]", 64)
        pointer = r.b.pure(f"select i1 {mask.text}, ptr {pointer}, ptr {r.scratch}")
    _combine_one(r, buffer, pointer, value, reducer)


def splat_pointer(r: Region, pointer: str, count: int) -> str:
    """``pointer`` in every lane."""
    one = r.b.pure(f"insertelement <{count} x ptr> poison, ptr {pointer}, i64 0")
    return r.b.pure(
        f"shufflevector <{count} x ptr> {one}, <{count} x ptr> poison, <{count} x i32> zeroinitializer"
    )


def _combine_one(r: Region, buffer: Buffer, pointer: str, value: Val, reducer: str) -> None:
    element = memory(buffer.dtype)
    if reducer:
        text = r.b.op(f"load {element}, ptr {pointer}, align {buffer.dtype.bytes}")
        value = apply(r.b, reducer, [_from_memory(r, text, buffer, 0), value], buffer.dtype, r.ops)
    r.b.line(f"store {element} {_to_memory(r, value)}, ptr {pointer}, align {buffer.dtype.bytes}")


def _one_by_one(r: Region, buffer: Buffer, pointers: str, value: Val, mask: Val | None, reducer: str) -> None:
    """Combines lane after lane: several may have the same place."""
    count = value.lanes
    if mask is not None:
        mask = splat(r.b, mask, count)

    def each(lane: str, _: list[str]) -> list[str]:
        pointer = r.b.pure(f"extractelement <{count} x ptr> {pointers}, i64 {lane}")
        one = Val(r.b.pure(f"extractelement {value.type} {value.text}, i64 {lane}"), value.dtype)

        def write() -> list[str]:
            _combine_one(r, buffer, pointer, one, reducer)
            return []

        if mask is None:
            return write()
        wanted = r.b.pure(f"extractelement {mask.type} {mask.text}, i64 {lane}")
        return r.b.branch(wanted, [], write)

    r.b.loop("0", str(count), 1, [], each, True)


def _store_vector(r: Region, buffer: Buffer, index: Index, value: Val, mask: Val | None) -> None:
    """Contiguous lanes.

    LLVM 22 miscompiles a masked store of narrowed integers whose mask it knows to have a single lane:
    AVX-512 code then writes an element of the type before narrowing.  Such masks become scalar stores here,
    and those that LLVM may still find out to be constant (the lanes are at a known place) go lane by lane.
    """
    assert r.lanes is not None
    element, count = memory(buffer.dtype), value.lanes
    type_, pointer = vector(element, count), address(r, buffer, index)
    known = None if mask is None else literals.read(mask.text, count)
    if mask is None or (known is not None and all(known)):
        r.b.line(f"store {type_} {_to_memory(r, value)}, ptr {pointer}, align {buffer.dtype.bytes}")
        return
    if known is not None and sum(known) < 2:
        if any(known):
            lane = known.index(1)
            one = Val(r.b.pure(f"extractelement {value.type} {value.text}, i64 {lane}"), value.dtype)
            place = r.b.pure(f"getelementptr {element}, ptr {pointer}, i64 {lane}", "g")
            _combine_one(r, buffer, place, one, "")
        return
    if (
        known is None
        and r.lanes.base[0] != "%"
        and buffer.dtype.bits < 64
        and buffer.dtype.name not in ("f32", "f64")
    ):
        offsets = lane_numbers(count)
        pointers = r.b.pure(f"getelementptr {element}, ptr {pointer}, {offsets.type} {offsets.text}", "g")
        _one_by_one(r, buffer, pointers, value, mask, "")
        return
    mask = splat(r.b, mask, count)
    function = f"llvm.masked.store.{suffix(element, count)}.p0"
    r.b.module.declare(function, "void", f"{type_}, ptr, i32, <{count} x i1>")
    text = _to_memory(r, value)
    r.b.line(
        f"call void @{function}({type_} {text}, ptr {pointer}, i32 {buffer.dtype.bytes}, {mask.type} {mask.text})"
    )


def _scatter(r: Region, buffer: Buffer, index: Index, value: Val, mask: Val | None) -> None:
    element, count = memory(buffer.dtype), value.lanes
    type_, pointers, text = vector(element, count), _pointers(r, buffer, index), _to_memory(r, value)
    mask = splat(r.b, mask if mask is not None else const(True, bool_), count)
    function = f"llvm.masked.scatter.{suffix(element, count)}.v{count}p0"
    r.b.module.declare(function, "void", f"{type_}, <{count} x ptr>, i32, <{count} x i1>")
    r.b.line(
        f"call void @{function}({type_} {text}, <{count} x ptr> {pointers}, i32 {buffer.dtype.bytes}, {mask.type} {mask.text})"
    )


# ---------------------------------------------------------------- checks


def checked_index(r: Region, value: Val, size: Val, mask: Val) -> Val:
    """``value`` if 0 <= value < size and the mask holds, else 0; a failure under the mask is noted as error
    1.
    """
    lanes = max(value.lanes, size.lanes, mask.lanes)
    value, size, mask = (splat(r.b, v, lanes) for v in (value, size, mask))
    inside = Val(r.b.pure(f"icmp ult {value.type} {value.text}, {size.text}"), bool_, lanes)
    _note(r, inside, mask, 1)
    return select(r.b, binary(r.b, "and", inside, mask), value, const(0, value.dtype, lanes))


def checked_nonzero(r: Region, value: Val, mask: Val) -> Val:
    """``value``, or 1 where it is 0; a 0 under the mask is noted as error 2."""
    lanes = max(value.lanes, mask.lanes)
    value, mask = splat(r.b, value, lanes), splat(r.b, mask, lanes)
    fine = binary(r.b, "ne", value, const(0, value.dtype, lanes))
    _note(r, fine, mask, 2)
    return select(r.b, fine, value, const(1, value.dtype, lanes))


def _note(r: Region, fine: Val, mask: Val, code: int) -> None:
    """Notes error ``code`` and leaves the function if the check fails anywhere: nothing is then read at a
    place that is none.
    """
    failed = binary(r.b, "and", mask, not_(r.b, fine))
    active = r.lanes.mask if r.lanes is not None else None
    if active is not None:
        failed = binary(r.b, "and", splat(r.b, failed, active.lanes), active)
    r.b.leave(any_lane(r.b, failed), [f"store i64 {code}, ptr {r.error}, align 8"])
