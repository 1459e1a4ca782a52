"""Loads and stores: contiguous lanes as one vector access, one element for all lanes, or lane by lane; with masks."""

from lowc.backends.llvm.types import memory, suffix, vector
from lowc.backends.x86.operations import Val, apply, binary, const, select, splat
from lowc.backends.x86.region import Region, scalar_index, varies, vector_index
from lowc.errors import CodegenError
from lowc.ir.index import Index, constant, split
from lowc.ir.nodes import Buffer
from lowc.ir.types import bool_


def address(r: Region, buffer: Buffer, index: Index) -> str:
    """Pointer to an element (to that of lane 0 for the vector axis)."""
    return r.b.pure(f"getelementptr {memory(buffer.dtype)}, ptr {r.pointers[buffer.name]}, i64 {scalar_index(r, index)}", "g")


def _is_contiguous(r: Region, index: Index) -> bool:
    assert r.lanes is not None
    step, rest = split(index, r.lanes.axis)
    return constant(step) == 1 and not varies(r, rest)


def both(r: Region, a: Val | None, b: Val | None) -> Val | None:
    """The conjunction of two masks; None holds everywhere."""
    if a is None or b is None:
        return b if a is None else a
    lanes = max(a.lanes, b.lanes)
    return binary(r.b, "and", splat(r.b, a, lanes), splat(r.b, b, lanes))


def load(r: Region, buffer: Buffer, index: Index, mask: Val | None, reread: bool) -> Val:
    """An element, or one a lane; 0 where ``mask`` is off.  ``reread``: the buffer is also written, so equal loads may differ."""
    if r.lanes is not None and varies(r, index):
        full = both(r, mask, r.lanes.mask)
        if _is_contiguous(r, index):
            return _load_vector(r, buffer, index, full, reread)
        return _gather(r, buffer, index, full, reread)
    if mask is not None and mask.lanes:
        assert r.lanes is not None
        return _gather(r, buffer, index, both(r, mask, r.lanes.mask), reread)
    return _load_scalar(r, buffer, index, mask, reread)


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
    count, element = r.lanes.count, memory(buffer.dtype)
    type_ = vector(element, count)
    pointer = address(r, buffer, index)
    if mask is None:
        return _from_memory(r, _emit(r, f"load {type_}, ptr {pointer}, align {buffer.dtype.bytes}", reread), buffer, count)
    mask = splat(r.b, mask, count)
    function = f"llvm.masked.load.{suffix(element, count)}.p0"
    r.b.module.declare(function, type_, f"ptr, i32, <{count} x i1>, {type_}")
    text = _emit(
        r,
        f"call {type_} @{function}(ptr {pointer}, i32 {buffer.dtype.bytes}, {mask.type} {mask.text}, {type_} zeroinitializer)",
        reread,
    )
    return _from_memory(r, text, buffer, count)


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
    assert r.lanes is not None
    offsets = vector_index(r, index)
    return r.b.pure(
        f"getelementptr {memory(buffer.dtype)}, ptr {r.pointers[buffer.name]}, {offsets.type} {offsets.text}", "g"
    )


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


def store(r: Region, buffer: Buffer, index: Index, value: Val, mask: Val | None, reducer: str) -> None:
    """Writes or, with a ``reducer``, combines; no other core touches the same element (a schedule binds no such axis to cores)."""
    if r.lanes is not None and varies(r, index):
        full = both(r, mask, r.lanes.mask)
        if not _is_contiguous(r, index):
            if reducer:
                raise CodegenError(f"lanes may meet in {buffer.name}")
            _scatter(r, buffer, index, splat(r.b, value, r.lanes.count), full)
            return
        if reducer:
            old = _load_vector(r, buffer, index, full, True)
            value = apply(r.b, reducer, [old, splat(r.b, value, r.lanes.count)], buffer.dtype, r.ops)
        _store_vector(r, buffer, index, splat(r.b, value, r.lanes.count), full)
        return
    if value.lanes or (mask is not None and mask.lanes):
        raise CodegenError(f"lanes meet in one element of {buffer.name}")
    pointer = address(r, buffer, index)
    element = memory(buffer.dtype)
    if mask is not None:
        scratch = r.b.alloca("[64 x i8]", 64)
        pointer = r.b.pure(f"select i1 {mask.text}, ptr {pointer}, ptr {scratch}")
    if reducer:
        old = Val(r.b.op(f"load {element}, ptr {pointer}, align {buffer.dtype.bytes}"), buffer.dtype)
        value = apply(r.b, reducer, [_from_memory(r, old.text, buffer, 0), value], buffer.dtype, r.ops)
    r.b.line(f"store {element} {_to_memory(r, value)}, ptr {pointer}, align {buffer.dtype.bytes}")


def _store_vector(r: Region, buffer: Buffer, index: Index, value: Val, mask: Val | None) -> None:
    element, count = memory(buffer.dtype), value.lanes
    type_, pointer, text = vector(element, count), address(r, buffer, index), _to_memory(r, value)
    if mask is None:
        r.b.line(f"store {type_} {text}, ptr {pointer}, align {buffer.dtype.bytes}")
        return
    mask = splat(r.b, mask, count)
    function = f"llvm.masked.store.{suffix(element, count)}.p0"
    r.b.module.declare(function, "void", f"{type_}, ptr, i32, <{count} x i1>")
    r.b.line(f"call void @{function}({type_} {text}, ptr {pointer}, i32 {buffer.dtype.bytes}, {mask.type} {mask.text})")


def _scatter(r: Region, buffer: Buffer, index: Index, value: Val, mask: Val | None) -> None:
    element, count = memory(buffer.dtype), value.lanes
    type_, pointers, text = vector(element, count), _pointers(r, buffer, index), _to_memory(r, value)
    mask = splat(r.b, mask if mask is not None else const(True, bool_), count)
    function = f"llvm.masked.scatter.{suffix(element, count)}.v{count}p0"
    r.b.module.declare(function, "void", f"{type_}, <{count} x ptr>, i32, <{count} x i1>")
    r.b.line(
        f"call void @{function}({type_} {text}, <{count} x ptr> {pointers}, i32 {buffer.dtype.bytes}, {mask.type} {mask.text})"
    )


def checked_index(r: Region, value: Val, size: Val, mask: Val) -> Val:
    """``value`` if 0 <= value < size and the mask holds, else 0; a failure under the mask is noted as error 1."""
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
    failed = binary(r.b, "and", mask, binary(r.b, "xor", fine, const(True, bool_, fine.lanes)))
    if failed.lanes:
        active = r.lanes.mask if r.lanes is not None else None
        if active is not None:
            failed = binary(r.b, "and", failed, active)
        word = r.b.pure(f"bitcast {failed.type} {failed.text} to i{failed.lanes}")
        any_ = r.b.pure(f"icmp ne i{failed.lanes} {word}, 0")
    else:
        any_ = failed.text

    def write() -> list[str]:
        r.b.line(f"store i64 {code}, ptr {r.error}, align 8")
        return []

    r.b.branch(any_, [], write)


