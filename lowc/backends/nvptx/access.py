"""Loads and stores: contiguous, aligned lanes 16 bytes at a time, one element for all lanes, or lane by lane; masks; checks."""

from collections.abc import Callable, Sequence

from lowc.backends.llvm.types import memory as memory_type
from lowc.backends.llvm.values import Val, binary, const, select
from lowc.backends.nvptx.atomics import add_four, atomic, combine
from lowc.backends.nvptx.operations import AMPERE, FOUR_SUMS, cast, narrow_pair
from lowc.backends.nvptx.thread import WORD, Memory, Number, Thread, Vals, flat, lanes_of, plus, total, varies
from lowc.errors import CodegenError
from lowc.ir.index import Index, constant, depends_on, ix, split
from lowc.ir.nodes import Buffer
from lowc.ir.ops import identity
from lowc.ir.types import DType, bf16, bool_, f32
from lowc.ir.walk import Substitution

WIDE = 16  # bytes of the widest access
LINE, PIECES = 128, 8  # bytes, and pieces of 16 bytes, over which memory for tensor cores is swizzled
WIDE_LOCAL = 4  # of memory that becomes registers
POINTER = {0: "ptr", 1: "ptr addrspace(1)", 3: "ptr addrspace(3)"}


def address(t: Thread, buffer: Buffer, place: Index, lane: int) -> str:
    """The pointer to an element."""
    pointer, number = _address(t, buffer, place, lane)
    where, element = t.memory[buffer.name], memory_type(buffer.dtype)
    return t.b.pure(f"getelementptr {element}, {POINTER[where.space]} {pointer}, i64 {number}", "g") if number else pointer


def apart(t: Thread, buffer: Buffer, place: Index) -> tuple[str, int]:
    """A pointer, and how many elements behind it an element is."""
    return _address(t, buffer, place, 0)


def prepare(t: Thread, buffer: Buffer, place: Index) -> None:
    """Computes what addresses at ``place`` have in common, so that accesses in branches from here on find it."""
    _address(t, buffer, place, 0)


def _address(t: Thread, buffer: Buffer, place: Index, lane: int) -> tuple[str, int]:
    """A pointer, and how many elements behind it an element is."""
    where = t.memory[buffer.name]
    margin = sum(abs(c) for m, c in place.terms if not m)
    size = constant(buffer.shape[0]) if where.space == 1 else 0
    # an address in a buffer of known size fits, whatever its parts are; outside a mask nothing is accessed
    small = (size is not None and size + margin < WORD // 2) or where.swizzled or t.fits_in_parts(place)
    bits = 32 if small else 64
    text, number = total(t, place, lane, bits)
    kind, element = POINTER[where.space], memory_type(buffer.dtype)
    pointer = where.pointers[lane if len(where.pointers) > 1 else 0]
    if where.swizzled:
        text, number = _swizzled(t, buffer, text, number)
    if text:
        pointer = t.b.pure(f"getelementptr {element}, {kind} {pointer}, i{bits} {text}", "g")
    return pointer, number


def _swizzled(t: Thread, buffer: Buffer, text: str, number: int) -> Number:
    """Where element ``text`` + ``number`` (in 32 bits) lies: piece ``p`` of line ``r`` is where ``p ^ r % 8`` would be."""
    line, piece = LINE // buffer.dtype.bytes, WIDE // buffer.dtype.bytes
    eight = number // (PIECES * line) * (PIECES * line)  # lines after which the pattern is the same again
    far = number // line * line if number % (PIECES * line) < line else eight
    at = plus(t.b, text, str(number - far), 32)
    if at[0] != "%":
        known = int(at or 0)
        return "", far + (known ^ (known // line % PIECES * piece))
    row = t.b.pure(f"lshr i32 {at}, {(line // piece).bit_length() - 1}")
    key = t.b.pure(f"and i32 {row}, {(PIECES - 1) * piece}")
    return t.b.pure(f"xor i32 {at}, {key}"), far


def _width(t: Thread, buffer: Buffer, where: Memory, place: Index) -> int:
    """How many neighbouring lanes one access may serve: 1 if they are no neighbours, or not known to be aligned.

    Registers hold pairs of 16 bits as they were loaded, so that what comes from behind a branch need not be put together again.
    """
    if t.lanes is None or (where.space == 0 and buffer.dtype.bits != 16):
        return 1
    step, rest = split(place, t.lanes.axis)
    if where.space == 1 and isinstance(t.lanes.base, int) and depends_on(rest, t.lanes.axis):
        return _in_runs(t, buffer, place)
    if constant(step) != 1 or varies(t, rest):
        return 1
    width = min((WIDE if where.space else WIDE_LOCAL) // buffer.dtype.bytes, t.lanes.count)
    base = t.lanes.base if isinstance(t.lanes.base, int) else t.lanes.count
    multiples = [t.lanes.count, base, *(_multiple(t, m, c) for m, c in rest.terms)]
    while width > 1 and any(m % width for m in multiples):
        width //= 2
    return max(1, width)


def _in_runs(t: Thread, buffer: Buffer, place: Index) -> int:
    """The same where lanes are neighbours in groups: ``(v // 2) * 4 + v % 2``."""
    lanes = t.lanes
    assert lanes is not None
    assert isinstance(lanes.base, int)
    places = [Substitution({lanes.axis: ix(lanes.base + n)}).index(place) for n in range(lanes.count)]
    apart = [constant(p - places[0]) for p in places]
    multiples = [_multiple(t, m, c) for m, c in places[0].terms]
    width = min(WIDE // buffer.dtype.bytes, lanes.count)
    while width > 1:
        groups = [apart[n : n + width] for n in range(0, lanes.count, width)]
        runs = all(g[0] is not None and g[0] % width == 0 and g == list(range(g[0], g[0] + width)) for g in groups)
        if runs and not varies(t, places[0]) and not any(m % width for m in multiples):
            return width
        width //= 2
    return 1


def _multiple(t: Thread, monomial: Sequence[object], coefficient: int) -> int:
    """A number that a term is a multiple of."""
    for atom in monomial:
        known = t.axes.get(getattr(atom, "name", ""))
        if isinstance(known, int):
            coefficient *= known
    return coefficient


def both(t: Thread, a: Vals | None, c: Vals | None) -> Vals | None:
    """The conjunction of two masks; None holds everywhere."""
    if a is None or c is None:
        return c if a is None else a
    lanes = max(len(a), len(c))
    return tuple(binary(t.b, "and", lane(a, n), lane(c, n)) for n in range(lanes))


def lane(value: Vals, number: int) -> Val:
    """The value in a lane."""
    return value[number if len(value) > 1 else 0]


def _known(mask: Vals | None) -> Vals | None:
    return None if mask is not None and all(m.text == "true" for m in mask) else mask


def _all(t: Thread, mask: Vals) -> str:
    held = mask[0]
    for other in mask[1:]:
        held = binary(t.b, "and", held, other)
    return held.text


def _any(t: Thread, mask: Vals | None) -> Vals | None:
    """Whether a mask holds in some lane; where it holds in none, the address may be none."""
    if mask is None:
        return None
    held = lane(mask, 0)
    for other in mask[1:]:
        held = binary(t.b, "or", held, other)
    return (held,)


# ---------------------------------------------------------------- loads


def load(t: Thread, buffer: Buffer, index: tuple[Index, ...], mask: Vals | None) -> Vals:
    """An element, or one a lane; 0 where ``mask`` is off."""
    where, mask = t.memory[buffer.name], _known(mask)
    place = flat(where, index, buffer.strides) if where.space != 1 else index[0]
    if len(where.pointers) > 1 and t.lanes is None:
        raise CodegenError(f"{buffer.name} of a lane is read outside its loop")
    count = max(len(where.pointers), lanes_of(t, (place,)))
    if count == 1 and mask is not None and len(mask) > 1:
        count = len(mask)
    width = _width(t, buffer, where, place) if count > 1 else 1
    if width > 1 and where.space == 1:
        t.aligned.add(buffer.name)

    none = const(False if buffer.dtype.kind == "b" else 0, buffer.dtype)
    kind = none.type
    words = width > 1 and buffer.dtype.bits == 16

    def whole() -> list[str]:
        if words:
            return [w for n in range(0, count, width) for w in _words(t, buffer, place, n, width)]
        if width > 1:
            return [v.text for n in range(0, count, width) for v in _wide(t, buffer, place, n, width)]
        return [_one(t, buffer, place, n).text for n in range(count)]

    def under(held: str) -> list[str]:
        """The whole, where ``held``.  Words are split behind the branch: halves that come from two sides no longer are."""
        otherwise = [("i32", "0")] * (count // 2) if words else [(kind, none.text)] * count
        texts = t.b.branch(held, otherwise, whole) if held else whole()
        return [half for word in texts for half in split_word(t, word)] if words else texts

    if mask is None or len(mask) == 1:
        texts = under("" if mask is None else mask[0].text)
    else:
        texts = [none.text] * count
        some = ""
        if width > 1:
            every = _all(t, mask)
            texts = under(every)
            some = t.b.pure(f"xor i1 {every}, true")

        def single() -> list[str]:
            return [_masked_one(t, buffer, place, n, lane(mask, n), texts[n]) for n in range(count)]

        texts = t.b.branch(some, [(kind, x) for x in texts], single) if some else single()
    return tuple(Val(x, buffer.dtype) for x in texts)


def _masked_one(t: Thread, buffer: Buffer, place: Index, n: int, mask: Val, other: str) -> str:
    if mask.text in ("true", "false"):
        return _one(t, buffer, place, n).text if mask.text == "true" else other
    kind = Val("", buffer.dtype).type
    (text,) = t.b.branch(mask.text, [(kind, other)], lambda: [_one(t, buffer, place, n).text])
    return text


def _emit_load(t: Thread, buffer: Buffer, type_: str, pointer: str, align: int) -> str:
    """Equal loads of what nobody writes are one."""
    where = t.memory[buffer.name]
    fixed = where.space == 1 and buffer.name not in t.written
    return (t.b.pure if fixed else t.b.op)(f"load {type_}, {POINTER[where.space]} {pointer}, align {align}")


def _one(t: Thread, buffer: Buffer, place: Index, n: int) -> Val:
    text = _emit_load(t, buffer, memory_type(buffer.dtype), address(t, buffer, place, n), buffer.dtype.bytes)
    return _from_memory(t, text, buffer.dtype)


def _from_memory(t: Thread, text: str, dtype: DType) -> Val:
    return Val(t.b.pure(f"icmp ne i8 {text}, 0") if dtype.kind == "b" else text, dtype)


def _words(t: Thread, buffer: Buffer, place: Index, first: int, width: int) -> list[str]:
    """Lanes of 16 bits as 32-bit words, whose halves widen to f32 by one instruction each."""
    type_ = f"<{width // 2} x i32>" if width > 2 else "i32"
    text = _emit_load(t, buffer, type_, address(t, buffer, place, first), width * buffer.dtype.bytes)
    if width == 2:
        return [text]
    return [t.b.pure(f"extractelement {type_} {text}, i32 {n}") for n in range(width // 2)]


def _wide(t: Thread, buffer: Buffer, place: Index, first: int, width: int) -> list[Val]:
    dtype = buffer.dtype
    type_ = f"<{width} x {memory_type(dtype)}>"
    text = _emit_load(t, buffer, type_, address(t, buffer, place, first), width * dtype.bytes)
    return [_from_memory(t, t.b.pure(f"extractelement {type_} {text}, i32 {n}"), dtype) for n in range(width)]


def split_word(t: Thread, word: str) -> tuple[str, str]:
    """The halves of an i32; where they came from is kept."""
    low = t.b.pure(f"trunc i32 {word} to i16")
    high = t.b.pure(f"trunc i32 {t.b.pure(f'lshr i32 {word}, 16')} to i16")
    t.halves[low], t.halves[high] = (word, 0), (word, 1)
    return low, high


def convert(t: Thread, value: Vals, dtype: DType) -> Vals:
    """``value`` cast to ``dtype``, to narrow floats two lanes at a time."""
    source = value[0].dtype
    if source == bf16 and dtype.kind == "f" and dtype.bits >= 32:
        return tuple(cast(t.b, _widened(t, v), dtype, t.ops) for v in value)
    if dtype.kind == "f" and dtype.bits == 16 and source != dtype and len(value) % 2 == 0 and AMPERE in t.ops:
        singles = [cast(t.b, v, f32, t.ops) for v in value]
        out: list[Val] = []
        for x, y in zip(singles[::2], singles[1::2], strict=True):
            out += [Val(half, dtype) for half in split_word(t, narrow_pair(t.b, x, y, dtype))]
        return tuple(out)
    return tuple(cast(t.b, v, dtype, t.ops) for v in value)


def _widened(t: Thread, v: Val) -> Val:
    found = t.halves.get(v.text)
    if found is None:
        return cast(t.b, v, f32, t.ops)
    word, high = found
    bits = t.b.pure(f"and i32 {word}, -65536" if high else f"shl i32 {word}, 16")
    return Val(t.b.pure(f"bitcast i32 {bits} to float"), f32)


# ---------------------------------------------------------------- stores


def store(
    t: Thread, buffer: Buffer, index: tuple[Index, ...], value: Vals, mask: Vals | None, reducer: str
) -> None:
    """Writes where ``mask`` holds or, with a ``reducer``, combines: by an atomic operation where others may as well."""
    where, mask = t.memory[buffer.name], _known(mask)
    place = flat(where, index, buffer.strides) if where.space != 1 else index[0]
    count = max(len(where.pointers), lanes_of(t, (place,)))
    inside = t.lanes.count if t.lanes is not None else 1
    if count == 1 and inside > 1:
        # all lanes meet in one element
        if not reducer and (len(value) > 1 or (mask is not None and len(mask) > 1)):
            raise CodegenError(f"lanes meet in one element of {buffer.name}")
        if reducer and not (buffer.dtype.kind == "f" and buffer.dtype.bits == 16):
            value, mask = (_merged(t, value, mask, reducer, inside),), _any(t, mask)
        else:
            count = inside if reducer else 1
    if reducer:
        wide = t.beside and FOUR_SUMS in t.ops and reducer == "add" and buffer.dtype.name == "f32" and where.space == 1
        if wide and mask is None and count > 1 and _width(t, buffer, where, place) == count == WIDE // buffer.dtype.bytes:
            t.aligned.add(buffer.name)
            add_four(t, address(t, buffer, place, 0), [lane(value, n) for n in range(count)])
            return
        for n in range(count):
            _under(t, mask, n, lambda n=n: _combine(t, buffer, place, n, lane(value, n), reducer))
        return
    width = _width(t, buffer, where, place) if count > 1 else 1
    if width > 1 and where.space == 1:
        t.aligned.add(buffer.name)

    def whole() -> list[str]:
        for n in range(0, count, width):
            if width > 1:
                _store_wide(t, buffer, place, n, [lane(value, n + k) for k in range(width)])
            else:
                _store_one(t, buffer, place, n, lane(value, n))
        return []

    if mask is None:
        whole()
    elif len(mask) == 1:
        t.b.branch(mask[0].text, [], whole)
    elif width > 1:
        every = _all(t, mask)
        t.b.branch(every, [], whole)

        def single() -> list[str]:
            for n in range(count):
                _under(t, mask, n, lambda n=n: _store_one(t, buffer, place, n, lane(value, n)))
            return []

        t.b.branch(t.b.pure(f"xor i1 {every}, true"), [], single)
    else:
        for n in range(count):
            _under(t, mask, n, lambda n=n: _store_one(t, buffer, place, n, lane(value, n)))


def _merged(t: Thread, value: Vals, mask: Vals | None, reducer: str, lanes: int) -> Val:
    """What all lanes give to one element."""
    dtype = value[0].dtype
    neutral = const(identity(reducer, dtype), dtype)
    each = [lane(value, n) for n in range(lanes)]
    if mask is not None:
        each = [select(t.b, lane(mask, n), v, neutral) for n, v in enumerate(each)]
    while len(each) > 1:
        rest = each[len(each) // 2 * 2 :]
        each = [combine(t, x, y, reducer) for x, y in zip(each[::2], each[1::2], strict=False)] + rest
    return each[0]


def _under(t: Thread, mask: Vals | None, n: int, body: Callable[[], None]) -> None:
    held = "true" if mask is None else lane(mask, n).text

    def then() -> list[str]:
        body()
        return []

    if held == "true":
        body()
    elif held != "false":
        t.b.branch(held, [], then)


def _to_memory(t: Thread, value: Val) -> str:
    return t.b.pure(f"zext i1 {value.text} to i8") if value.dtype.kind == "b" else value.text


def _store_one(t: Thread, buffer: Buffer, place: Index, n: int, value: Val) -> None:
    pointer, kind = address(t, buffer, place, n), POINTER[t.memory[buffer.name].space]
    element = memory_type(buffer.dtype)
    t.b.line(f"store {element} {_to_memory(t, value)}, {kind} {pointer}, align {buffer.dtype.bytes}")


def _store_wide(t: Thread, buffer: Buffer, place: Index, first: int, values: list[Val]) -> None:
    store_together(t, f"{POINTER[t.memory[buffer.name].space]} {address(t, buffer, place, first)}", values)


def store_together(t: Thread, pointer: str, values: list[Val]) -> None:
    """Neighbours in memory by one store to ``pointer`` (with its type)."""
    dtype = values[0].dtype
    element, texts = memory_type(dtype), [_to_memory(t, v) for v in values]
    align = len(values) * dtype.bytes
    if dtype.bits == 16:
        element, texts = "i32", [_word(t, x, y) for x, y in zip(texts[::2], texts[1::2], strict=True)]
    if len(texts) == 1:
        t.b.line(f"store {element} {texts[0]}, {pointer}, align {align}")
        return
    type_, out = f"<{len(texts)} x {element}>", "poison"
    for n, x in enumerate(texts):
        out = t.b.pure(f"insertelement {type_} {out}, {element} {x}, i32 {n}")
    t.b.line(f"store {type_} {out}, {pointer}, align {align}")


def _word(t: Thread, low: str, high: str) -> str:
    """Two i16 as one i32."""
    a, c = t.halves.get(low), t.halves.get(high)
    if a is not None and c is not None and a[0] == c[0] and (a[1], c[1]) == (0, 1):
        return a[0]
    wide = [t.b.pure(f"zext i16 {x} to i32") for x in (low, high)]
    return t.b.pure(f"or i32 {t.b.pure(f'shl i32 {wide[1]}, 16')}, {wide[0]}")


def _combine(t: Thread, buffer: Buffer, place: Index, n: int, value: Val, reducer: str) -> None:
    where = t.memory[buffer.name]
    if where.space:
        atomic(t, address(t, buffer, place, n), POINTER[where.space], value, reducer)
        return
    _store_one(t, buffer, place, n, combine(t, _one(t, buffer, place, n), value, reducer))


# ---------------------------------------------------------------- checks


def checked_index(t: Thread, value: Val, size: Val, mask: Val) -> Val:
    """``value`` if 0 <= value < size and the mask holds, else 0; a failure under the mask is noted as error 1."""
    inside = Val(t.b.pure(f"icmp ult {value.type} {value.text}, {size.text}"), bool_)
    _note(t, inside, mask, 1)
    return select(t.b, binary(t.b, "and", inside, mask), value, const(0, value.dtype))


def checked_nonzero(t: Thread, value: Val, mask: Val) -> Val:
    """``value``, or 1 where it is 0; a 0 under the mask is noted as error 2."""
    fine = binary(t.b, "ne", value, const(0, value.dtype))
    _note(t, fine, mask, 2)
    return select(t.b, fine, value, const(1, value.dtype))


def _note(t: Thread, fine: Val, mask: Val, kind: int) -> None:
    failed = binary(t.b, "and", mask, binary(t.b, "xor", fine, const(True, bool_)))

    def then() -> list[str]:
        code = t.b.pure("shl i64 %step, 4")
        t.b.line(f"store i64 {plus(t.b, code, str(kind), 64)}, ptr addrspace(1) %error, align 8")
        return []

    if failed.text != "false":
        t.b.branch(failed.text, [], then)
