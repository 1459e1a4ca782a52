"""The walker as machine code against a driver of callbacks: exact calls in exact order."""

import ctypes
import threading

import pytest
from fakes import CONTEXT, Fake

from lowc.artifact import DRIVER_FUNCTIONS, RECORD_WORDS, Record
from lowc.backends.nvptx import walker

STREAM = 0x55
WALK = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)(walker.address())


def words(values: list[int]) -> "ctypes.Array[ctypes.c_int64]":
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def functions(fake: Fake) -> "ctypes.Array[ctypes.c_int64]":
    return words([CONTEXT, *fake.addresses(DRIVER_FUNCTIONS)])


def walk(
    fake: Fake, records: list[tuple[int, ...]], slots: list[int], stream: int = STREAM
) -> tuple[int, list[int]]:
    """(result, the slots afterwards)."""
    flat = [int(w) for r in records for w in (*r, *[0] * (RECORD_WORDS - len(r)))]
    array = words(slots)
    result = WALK(functions(fake), words(flat), len(records), array, stream)
    return result, list(array)


def kernel(fake: Fake, name: str, params: int) -> int:
    handle = fake.function(0, name)
    fake.counts[name] = params
    return handle


def launch(
    fake: Fake,
    name: str,
    params: list[int],
    blocks: int,
    scratch: int,
    stream: int = -1,
    threads: tuple[int, int] = (128, 2),
) -> tuple[int, ...]:
    array = words(params)
    fake._memory.append(array)
    return (
        Record.LAUNCH,
        kernel(fake, name, len(params)),
        blocks,
        threads[0] + (threads[1] << 32),
        4096,
        stream,
        ctypes.addressof(array),
        len(params) + (scratch << 32),
    )


def fixed(fake: Fake, value: int) -> int:
    cell = ctypes.c_int64(value)
    fake._memory.append(cell)
    return ~ctypes.addressof(cell)


def test_a_launch_passes_slots_and_fixed_values() -> None:
    fake = Fake()
    record = launch(fake, "k", [1, 0, fixed(fake, -7)], blocks=9, scratch=2)
    assert walk(fake, [record], [11, 22, 0, 0, 0])[0] == 0
    assert fake.log == [("launch", "k", 9, (128, 2), 4096, STREAM, (22, 11, -7))]


def test_all_records_in_order() -> None:
    fake = Fake()
    records = [
        (Record.OFFSET, 2, 0, 256),
        (Record.MEMSET, 2, 0xFF, 64, -1),
        (Record.RECORD, 3, -1),
        (Record.WAIT, 3, 4),
        launch(fake, "a", [2], 1, 6, stream=4),
        (Record.OFFSET, 1, 0, ~5),
        launch(fake, "b", [1, 2], 2, 6),
    ]
    code, slots = walk(fake, records, [1000, 0, 0, 0xE, 0x51, 8, 0, 0])
    assert code == 0
    assert slots[:6] == [1000, 1008, 1256, 0xE, 0x51, 8]
    assert fake.log == [
        ("memset", 1256, 0xFF, 64, STREAM),
        ("record", 0xE, STREAM),
        ("wait", 0x51, 0xE),
        ("launch", "a", 1, (128, 2), 4096, 0x51, (1256,)),
        ("launch", "b", 2, (128, 2), 4096, STREAM, (1008, 1256)),
    ]


@pytest.mark.parametrize("blocks", [1, 7, 2**31 - 1])
def test_blocks_from_a_slot(blocks: int) -> None:
    fake = Fake()
    assert walk(fake, [launch(fake, "k", [], ~1, 2)], [0, blocks])[0] == 0
    assert [entry[2] for entry in fake.log] == [blocks]


@pytest.mark.parametrize("blocks", [0, -1, -(2**40)])
def test_no_blocks_no_launch(blocks: int) -> None:
    fake = Fake()
    records = [launch(fake, "k", [0], ~1, 2), launch(fake, "next", [0], 1, 2), (Record.MEMSET, 0, 0, ~1, -1)]
    assert walk(fake, records, [0, blocks, 0])[0] == 0
    assert [entry[:2] for entry in fake.log] == [("launch", "next")]


@pytest.mark.parametrize("blocks", [2**31, 2**32, 2**32 + 1, 2**62])
def test_too_many_blocks_are_an_error_and_never_truncated(blocks: int) -> None:
    fake = Fake()
    records = [launch(fake, "first", [0], 1, 2), launch(fake, "k", [0], ~1, 2)]
    assert walk(fake, records, [0, blocks, 0])[0] == 1 + (1 << 32)
    assert [entry[1] for entry in fake.log] == ["first"]


@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuMemsetD8Async", "cuEventRecord", "cuStreamWaitEvent"])
def test_an_error_stops_the_walk_and_names_its_record(name: str) -> None:
    fake = Fake()
    number = ["cuLaunchKernel", "cuMemsetD8Async", "cuEventRecord", "cuStreamWaitEvent"].index(name)
    fake.fail[name] = (0, 700)
    records = [
        launch(fake, "k", [0], 1, 1),
        (Record.MEMSET, 0, 0, 4, -1),
        (Record.RECORD, 0, -1),
        (Record.WAIT, 0, -1),
        (Record.MEMSET, 0, 0, 4, -1),
    ]
    assert walk(fake, records, [5, 0])[0] == 700 + (number << 32)
    assert len(fake.log) == number + 1


def tensor_map(fake: Fake, values: list[int], form: list[int], blocks: int, target: int) -> tuple[int, ...]:
    array, words_32 = words(values), (ctypes.c_int32 * len(form))(*form)
    fake._memory += [array, words_32]
    return (Record.MAP, blocks, 0, target, ctypes.addressof(array), ctypes.addressof(words_32))


VALUES = [32, ~1, 40, 3, 1, 1, 80, ~2, 0, 0]
FORM = [9, 3, 64, 128, 1, 1, 1, 1, 1, 1, 1, 1, 0, *[0] * 6]
PLACES = [9, 4, 64, 128, 1, 1, 1, 1, 2, 1, 1, 1, 1, -1, -2, 0, -3, 4, 0]


def test_a_map_is_encoded_into_its_slots() -> None:
    fake = Fake()
    code, slots = walk(fake, [tensor_map(fake, VALUES, FORM, 1, 4)], [1000, 72, 3200, 0, *[0] * 16, 5])
    assert code == 0
    assert fake.log == [("map", 9, 1032, [72, 40, 3], [80, 3200], [64, 128, 1], (0, 3, 2, 0))]
    assert slots == [1000, 72, 3200, 0, *range(100, 116), 5]


def test_a_map_of_places() -> None:
    fake = Fake()
    values = [32, ~1, 40, 30, 5, 1, 144, 5760, ~2, 0]
    code, slots = walk(fake, [tensor_map(fake, values, PLACES, 1, 4)], [1000, 72, 3200, 0, *[0] * 16, 5])
    assert code == 0
    said = ("places", 9, 1032, [72, 40, 30, 5], [144, 5760, 3200], [-1, -2], [-3, 4], (64, 128), [1, 2, 1, 1], (0, 3, 2, 0))
    assert fake.log == [said]
    assert slots == [1000, 72, 3200, 0, *range(100, 116), 5]
    fake.fail["cuTensorMapEncodeIm2col"] = (0, 1)
    assert walk(fake, [tensor_map(fake, values, PLACES, 1, 4)], [1000, 72, 3200, 0, *[0] * 16])[0] == 1


def test_a_map_of_a_launch_without_blocks_is_none() -> None:
    fake = Fake()
    code, slots = walk(fake, [tensor_map(fake, VALUES, FORM, ~3, 4)], [1000, 72, 3200, 0, *[0] * 16])
    assert (code, fake.log, slots[4:]) == (0, [], [0] * 16)


def test_a_map_that_the_driver_refuses_ends_the_walk() -> None:
    fake = Fake()
    fake.fail["cuTensorMapEncodeTiled"] = (0, 1)
    records = [tensor_map(fake, VALUES, FORM, 1, 4), launch(fake, "k", [], 1, 2)]
    assert walk(fake, records, [1000, 72, 3200, 0, *[0] * 16])[0] == 1
    assert len(fake.log) == 1


def test_an_unknown_record_is_an_error() -> None:
    assert walk(Fake(), [(99,)], [0])[0] == 1


def test_nothing_to_do() -> None:
    fake = Fake()
    assert walk(fake, [], [])[0] == 0
    assert fake.log == []


def test_the_context_is_made_current_once() -> None:
    fake = Fake()
    fake.context = 0x1
    walk(fake, [(Record.RECORD, 0, -1)], [5])
    assert fake.context == CONTEXT and fake.calls["cuCtxSetCurrent"] == 1
    walk(fake, [(Record.RECORD, 0, -1)], [5])
    assert fake.calls["cuCtxSetCurrent"] == 1 and fake.calls["cuCtxGetCurrent"] == 2


@pytest.mark.parametrize("name", ["cuCtxGetCurrent", "cuCtxSetCurrent"])
def test_a_context_that_cannot_be_used(name: str) -> None:
    fake = Fake()
    fake.fail[name] = (0, 201)
    assert walk(fake, [(Record.RECORD, 0, -1)], [5])[0] == 201 + (1 << 32)
    assert fake.log == []


def test_threads_share_a_table() -> None:
    fake = Fake()
    fake.context = CONTEXT
    record = launch(fake, "k", [0, 1], 1, 2)
    flat = words([int(w) for w in record] * 3)
    table = functions(fake)
    wrong: list[int] = []

    def many(mine: int) -> None:
        for n in range(200):
            slots = words([mine, n, 0, 0])
            if WALK(table, flat, 3, slots, mine):
                wrong.append(mine)

    threads = [threading.Thread(target=many, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for mine in range(8):
        seen = [entry[6] for entry in fake.log if entry[5] == mine]
        assert seen == [(mine, n) for n in range(200) for _ in range(3)]
