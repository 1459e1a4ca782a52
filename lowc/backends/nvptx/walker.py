"""The walker of launch tables: one x86 function that takes the records of ``artifact.Record`` in order and calls the driver.

    i64 walk(ptr functions, ptr records, i64 count, ptr slots, i64 stream)

``functions``: the context's handle, then addresses in the order of ``artifact.DRIVER_FUNCTIONS``.  ``slots``: the values of one
call, its own; the walker writes the slots of OFFSET records and the scratch slots.  Tables are only read, so any number of
threads may walk one at the same time.  It makes the context current in this thread if it is not, skips launches without
blocks, and stops at the first error.

It returns 0, or the driver's error code + (number of the record << 32); that number is ``count`` if the context could not be
made current.  More than 2^31 - 1 blocks are CUDA_ERROR_INVALID_VALUE.
"""

from functools import cache

from lowc.artifact import DRIVER_FUNCTIONS, MAP_RANK, MAP_SLOTS, MAP_VALUES, RECORD_WORDS, Record
from lowc.backends.llvm import toolchain
from lowc.once import same

INVALID_VALUE = 1
SWIZZLE, PROMOTION = 3, 2  # CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B


def _word(name: str, number: int, type_: str = "i64") -> str:
    """``name`` = a word of the current record."""
    return f"""\
  %{name}.at = getelementptr i64, ptr %record, i64 {number}
  %{name} = load {type_}, ptr %{name}.at, align 8
"""


def _either(name: str, number: int) -> str:
    """``name`` = a word of the record, or the value of the slot of which it is the inverted number."""
    return f"""{_word(name + ".word", number)}\
  %{name}.literal = icmp sge i64 %{name}.word, 0
  %{name}.not = xor i64 %{name}.word, -1
  %{name}.which = select i1 %{name}.literal, i64 0, i64 %{name}.not
  %{name}.slot = getelementptr i64, ptr %slots, i64 %{name}.which
  %{name}.from = select i1 %{name}.literal, ptr %{name}.word.at, ptr %{name}.slot
  %{name} = load i64, ptr %{name}.from, align 8
"""


def _stream(name: str, number: int) -> str:
    """``name`` = the stream that a word of the record means."""
    return f"""{_word(name + ".word", number)}\
  %{name}.own = icmp sge i64 %{name}.word, 0
  %{name}.slot = getelementptr i64, ptr %slots, i64 %{name}.word
  %{name}.from = select i1 %{name}.own, ptr %{name}.slot, ptr %main
  %{name} = load ptr, ptr %{name}.from, align 8
"""


def _slot(name: str, number: int, type_: str = "i64") -> str:
    """``name`` = the value of the slot that a word of the record names."""
    return f"""{_word(name + ".word", number)}\
  %{name}.from = getelementptr i64, ptr %slots, i64 %{name}.word
  %{name} = load {type_}, ptr %{name}.from, align 8
"""


def _functions() -> str:
    return "".join(
        f"""\
  %{name}.at = getelementptr i64, ptr %functions, i64 {number}
  %{name} = load ptr, ptr %{name}.at, align 8
"""
        for number, name in enumerate(DRIVER_FUNCTIONS, 1)
    )


def text() -> str:
    """The walker as LLVM IR."""
    return f"""\
define i64 @walk(ptr %functions, ptr %records, i64 %count, ptr %slots, i64 %stream) nounwind {{
entry:
  %main = alloca i64, align 8
  store i64 %stream, ptr %main, align 8
  %current.at = alloca i64, align 8
  %map = alloca [{MAP_SLOTS} x i64], align 64
  %values = alloca [{MAP_VALUES} x i64], align 8
  store i64 0, ptr %current.at, align 8
{_functions()}\
  %got = call i32 %cuCtxGetCurrent(ptr %current.at)
  %got.bad = icmp ne i32 %got, 0
  br i1 %got.bad, label %no.context, label %compare
compare:
  %context = load ptr, ptr %functions, align 8
  %current = load ptr, ptr %current.at, align 8
  %same = icmp eq ptr %current, %context
  br i1 %same, label %begin, label %set
set:
  %was.set = call i32 %cuCtxSetCurrent(ptr %context)
  %set.bad = icmp ne i32 %was.set, 0
  br i1 %set.bad, label %no.context, label %begin
no.context:
  %why = phi i32 [ %got, %entry ], [ %was.set, %set ]
  %why.wide = zext i32 %why to i64
  %past = shl i64 %count, 32
  %refused = or i64 %past, %why.wide
  ret i64 %refused
begin:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %loop, label %done

loop:
  %i = phi i64 [ 0, %begin ], [ %i.next, %next ]
  %start = mul i64 %i, {RECORD_WORDS}
  %record = getelementptr i64, ptr %records, i64 %start
  %kind = load i64, ptr %record, align 8
  switch i64 %kind, label %unknown [
    i64 {Record.LAUNCH}, label %launch
    i64 {Record.MEMSET}, label %memset
    i64 {Record.RECORD}, label %record.event
    i64 {Record.WAIT}, label %wait.event
    i64 {Record.OFFSET}, label %offset
    i64 {Record.MAP}, label %map.begin
  ]
unknown:
  br label %check

launch:
{_either("blocks", 2)}\
  %some = icmp sgt i64 %blocks, 0
  br i1 %some, label %few, label %next
few:
  %many = icmp sgt i64 %blocks, 2147483647
  br i1 %many, label %check, label %params
params:
  %list.at = getelementptr i64, ptr %record, i64 6
  %list = load ptr, ptr %list.at, align 8
{_word("sizes", 7)}\
  %taken = and i64 %sizes, 4294967295
  %first = lshr i64 %sizes, 32
  %scratch = getelementptr i64, ptr %slots, i64 %first
  %some.params = icmp ne i64 %taken, 0
  br i1 %some.params, label %param, label %call
param:
  %j = phi i64 [ 0, %params ], [ %j.next, %param ]
  %entry.at = getelementptr i64, ptr %list, i64 %j
  %what = load i64, ptr %entry.at, align 8
  %in.slot = icmp sge i64 %what, 0
  %inverted = xor i64 %what, -1
  %fixed = inttoptr i64 %inverted to ptr
  %given = getelementptr i64, ptr %slots, i64 %what
  %value.at = select i1 %in.slot, ptr %given, ptr %fixed
  %place = getelementptr ptr, ptr %scratch, i64 %j
  store ptr %value.at, ptr %place, align 8
  %j.next = add i64 %j, 1
  %more = icmp ult i64 %j.next, %taken
  br i1 %more, label %param, label %call
call:
{_word("function", 1, "ptr")}\
{_word("threads", 3)}\
{_word("shared", 4)}\
{_stream("launch.stream", 5)}\
  %grid = trunc i64 %blocks to i32
  %x = trunc i64 %threads to i32
  %high = lshr i64 %threads, 32
  %y = trunc i64 %high to i32
  %bytes = trunc i64 %shared to i32
  %launched = call i32 %cuLaunchKernel(
    ptr %function, i32 %grid, i32 1, i32 1, i32 %x, i32 %y, i32 1, i32 %bytes, ptr %launch.stream, ptr %scratch, ptr null)
  br label %check

memset:
{_slot("memory", 1)}\
{_word("byte", 2)}\
{_either("length", 3)}\
{_stream("memset.stream", 4)}\
  %some.bytes = icmp sgt i64 %length, 0
  br i1 %some.bytes, label %fill, label %next
fill:
  %byte.8 = trunc i64 %byte to i8
  %filled = call i32 %cuMemsetD8Async(i64 %memory, i8 zeroext %byte.8, i64 %length, ptr %memset.stream)
  br label %check

record.event:
{_slot("recorded.event", 1, "ptr")}\
{_stream("record.stream", 2)}\
  %recorded = call i32 %cuEventRecord(ptr %recorded.event, ptr %record.stream)
  br label %check

wait.event:
{_slot("awaited.event", 1, "ptr")}\
{_stream("wait.stream", 2)}\
  %waited = call i32 %cuStreamWaitEvent(ptr %wait.stream, ptr %awaited.event, i32 0)
  br label %check

offset:
{_word("target", 1)}\
{_slot("base", 2)}\
{_either("distance", 3)}\
  %destination = getelementptr i64, ptr %slots, i64 %target
  %sum = add i64 %base, %distance
  store i64 %sum, ptr %destination, align 8
  br label %next

map.begin:
{_either("map.blocks", 1)}\
  %map.some = icmp sgt i64 %map.blocks, 0
  br i1 %map.some, label %map.list, label %next
map.list:
{_word("map.values", 4, "ptr")}\
  br label %map.value
map.value:
  %m = phi i64 [ 0, %map.list ], [ %m.next, %map.value ]
  %m.at = getelementptr i64, ptr %map.values, i64 %m
  %m.word = load i64, ptr %m.at, align 8
  %m.literal = icmp sge i64 %m.word, 0
  %m.not = xor i64 %m.word, -1
  %m.which = select i1 %m.literal, i64 0, i64 %m.not
  %m.slot = getelementptr i64, ptr %slots, i64 %m.which
  %m.from = select i1 %m.literal, ptr %m.at, ptr %m.slot
  %m.value = load i64, ptr %m.from, align 8
  %m.to = getelementptr i64, ptr %values, i64 %m
  store i64 %m.value, ptr %m.to, align 8
  %m.next = add i64 %m, 1
  %m.more = icmp ult i64 %m.next, {MAP_VALUES}
  br i1 %m.more, label %map.value, label %map.encode
map.encode:
{_slot("map.base", 2)}\
{_word("map.form", 5, "ptr")}\
  %map.offset = load i64, ptr %values, align 8
  %map.from = add i64 %map.base, %map.offset
  %map.address = inttoptr i64 %map.from to ptr
  %map.sizes = getelementptr i64, ptr %values, i64 1
  %map.strides = getelementptr i64, ptr %values, i64 {1 + MAP_RANK}
  %map.dtype = load i32, ptr %map.form, align 4
  %map.rank.at = getelementptr i32, ptr %map.form, i64 1
  %map.rank = load i32, ptr %map.rank.at, align 4
  %map.box = getelementptr i32, ptr %map.form, i64 2
  %map.steps = getelementptr i32, ptr %map.form, i64 {2 + MAP_RANK}
  %map.kind.at = getelementptr i32, ptr %map.form, i64 {2 + 2 * MAP_RANK}
  %map.kind = load i32, ptr %map.kind.at, align 4
  %map.tiled = icmp eq i32 %map.kind, 0
  br i1 %map.tiled, label %map.box.encode, label %map.places.encode
map.box.encode:
  %mapped.box = call i32 %cuTensorMapEncodeTiled(
    ptr %map, i32 %map.dtype, i32 %map.rank, ptr %map.address, ptr %map.sizes, ptr %map.strides, ptr %map.box, ptr %map.steps,
    i32 0, i32 {SWIZZLE}, i32 {PROMOTION}, i32 0)
  br label %map.encoded
map.places.encode:
  %map.lower = getelementptr i32, ptr %map.form, i64 {3 + 2 * MAP_RANK}
  %map.upper = getelementptr i32, ptr %map.form, i64 {1 + 3 * MAP_RANK}
  %map.channels = load i32, ptr %map.box, align 4
  %map.places.at = getelementptr i32, ptr %map.box, i64 1
  %map.places = load i32, ptr %map.places.at, align 4
  %mapped.places = call i32 %cuTensorMapEncodeIm2col(
    ptr %map, i32 %map.dtype, i32 %map.rank, ptr %map.address, ptr %map.sizes, ptr %map.strides, ptr %map.lower, ptr %map.upper,
    i32 %map.channels, i32 %map.places, ptr %map.steps, i32 0, i32 {SWIZZLE}, i32 {PROMOTION}, i32 0)
  br label %map.encoded
map.encoded:
  %mapped = phi i32 [ %mapped.box, %map.box.encode ], [ %mapped.places, %map.places.encode ]
  %map.bad = icmp ne i32 %mapped, 0
  br i1 %map.bad, label %check, label %map.keep
map.keep:
{_word("map.target", 3)}\
  br label %map.copy
map.copy:
  %c = phi i64 [ 0, %map.keep ], [ %c.next, %map.copy ]
  %c.from = getelementptr i64, ptr %map, i64 %c
  %c.word = load i64, ptr %c.from, align 8
  %c.slot = add i64 %map.target, %c
  %c.to = getelementptr i64, ptr %slots, i64 %c.slot
  store i64 %c.word, ptr %c.to, align 8
  %c.next = add i64 %c, 1
  %c.more = icmp ult i64 %c.next, {MAP_SLOTS}
  br i1 %c.more, label %map.copy, label %next

check:
  %code = phi i32 [ {INVALID_VALUE}, %unknown ], [ {INVALID_VALUE}, %few ], [ %launched, %call ],
    [ %filled, %fill ], [ %recorded, %record.event ], [ %waited, %wait.event ],
    [ %mapped, %map.encoded ]
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %next
failed:
  %code.wide = zext i32 %code to i64
  %number = shl i64 %i, 32
  %result = or i64 %number, %code.wide
  ret i64 %result
next:
  %i.next = add i64 %i, 1
  %again = icmp slt i64 %i.next, %count
  br i1 %again, label %loop, label %done
done:
  ret i64 0
}}
"""


@cache
def code() -> bytes:
    """The walker as an object file, whose one function is "walk"; it calls nothing by name."""
    return toolchain.emit_object(text(), "x86-64", "")


@same
def _library() -> toolchain.Library:
    return toolchain.Library(code(), ["walk"], {})


def address() -> int:
    """The walker's address; compiled once in a process, never unloaded."""
    return _library().address("walk")
