"""Artifacts that are damaged, foreign or incomplete are refused before anything of them runs."""

import json
import os
import random
import struct
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import lowc
from lowc import package
from lowc.errors import CodegenError, LowcError
from lowc.runtime.linker import Library, _sections
from lowc.standalone import threads, weights
from lowc.standalone.container import Container, write
from lowc.standalone.loader import load_content


def refused(content: bytes, match: str = "cannot be loaded") -> None:
    with pytest.raises(LowcError, match=match):
        load_content(memoryview(content), "model.lowc")


def test_two_hundred_damaged_variants(mlp_file: Path) -> None:
    good = mlp_file.read_bytes()
    load_content(memoryview(good), "model.lowc")
    draw = random.Random(0)
    for _ in range(100):  # a flipped bit anywhere, the zeros between sections included
        bad = bytearray(good)
        bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        refused(bytes(bad))
    for _ in range(50):
        refused(good[: draw.randrange(len(good))])
    for _ in range(25):  # a piece overwritten by another
        bad = bytearray(good)
        size = draw.choice((1, 64, 512))
        a, b = draw.randrange(len(good) - size), draw.randrange(len(good) - size)
        bad[a : a + size] = good[b : b + size]
        if bad != good:
            refused(bytes(bad))
    for _ in range(24):
        place = draw.randrange(len(good) + 1)
        refused(good[:place] + bytes(draw.randrange(1, 100)) + good[place:])
    refused(swapped(good, "x86-64.o", "serial.o"))


def swapped(content: bytes, a: str, b: str) -> bytes:
    """``content`` with the bytes of two sections exchanged, as far as the shorter one goes."""
    sections = Container(memoryview(content), "").sections
    size = min(sections[a].size, sections[b].size)
    bad = bytearray(content)
    for x, y in ((a, b), (b, a)):
        bad[sections[x].start : sections[x].start + size] = content[sections[y].start : sections[y].start + size]
    return bytes(bad)


def test_every_byte_of_the_head_matters(mlp_file: Path) -> None:
    good = mlp_file.read_bytes()
    (length,) = struct.unpack_from("<I", good, 12)
    for place in range(48 + length):
        bad = bytearray(good)
        bad[place] ^= 0x10
        refused(bytes(bad))


def test_foreign_files(tmp_path: Path) -> None:
    for content in (b"", b"x", b"PK\3\4" + bytes(100), b"\x7fELF" + bytes(100), b"\x89lowc\n\x1a" + bytes(100)):
        refused(content, "no artifact of lowc")
    with pytest.raises(LowcError, match="No such file"):
        lowc.load(tmp_path / "none.lowc")
    with pytest.raises(LowcError, match="directory"):
        lowc.load(tmp_path)
    for path in ("a\0b", b"a\0b"):
        with pytest.raises(LowcError, match="cannot be read: embedded null byte"):
            lowc.load(path)  # type: ignore[arg-type]


def test_another_version_of_the_format(mlp_file: Path) -> None:
    good = mlp_file.read_bytes()
    (length,) = struct.unpack_from("<I", good, 12)
    first, head = good[:8] + struct.pack("<II", 2, length), good[48 : 48 + length]
    refused(first + sha256(first + head).digest() + good[48:], "format 2, this lowc reads format 1")


def changed(content: bytes, **fields: object) -> bytes:
    """``content`` with other entries in its manifest, all checksums right."""
    container = Container(memoryview(content), "")
    sections = {name: bytes(container.section(name)) for name in container.sections}
    data = json.loads(sections["manifest"])
    sections["manifest"] = json.dumps(data | fields).encode()
    return b"".join(write(sections))


def test_manifests_that_are_none(mlp_file: Path) -> None:
    good = mlp_file.read_bytes()
    load_content(memoryview(changed(good)), "")
    refused(changed(good, abi=3), "calls of version 3")
    refused(changed(good, inputs=3), "manifest cannot be read")
    refused(changed(good, symbols=[]), "manifest cannot be read")
    refused(changed(good, returns=["tuple", [0, 1]]), "returned that is not there")
    refused(changed(good, code=[]), "no code for a CPU")
    code = json.loads(bytes(Container(memoryview(good), "").section("manifest")))["code"]
    refused(changed(good, code=[c | {"format": "spirv"} for c in code]), "no code for a CPU, but for x86-64-v3, x86-64")
    refused(changed(good, code=[c | {"format": "ptx"} for c in code]), "does not say how it is launched")
    refused(changed(good, code=[c | {"needs": ["avx9000"]} for c in code]), "there is no avx9000")
    refused(changed(good, code=[c | {"slots": [["weight", 99]]} for c in code]), "weight 99, which is not there")
    refused(changed(good, code=[c | {"section": "none"} for c in code]), "no section none")
    refused(changed(good, code=[c | {"symbol": "other"} for c in code]), "has no other")
    later = {"level": "vulkan", "format": "spirv", "section": 3, "slots": [["image", 0]], "gpu": {"queues": 1}}
    assert load_content(memoryview(changed(good, code=[later, *code])), "").level == "x86-64-v3"


def test_manifests_for_other_sizes(mlp_file: Path) -> None:
    """Checksums right, all well-formed: native code would read or write past the memory that such a manifest describes."""
    good = mlp_file.read_bytes()
    data = json.loads(bytes(Container(memoryview(good), "").section("manifest")))
    for part, number, fields in [
        ("inputs", 0, {"shape": ["s0", 1]}),
        ("inputs", 0, {"strides": [0, 1]}),
        ("inputs", 0, {"dtype": "u8"}),
        ("outputs", 0, {"shape": [0, 7]}),
        ("outputs", 0, {"shape": [-1, 7]}),
        ("outputs", 0, {"dtype": "u8"}),
        ("weights", 0, {"shape": [1, 1]}),
        ("symbols", 0, {"high": 1 << 40}),
        ("symbols", 0, {"source": [0, 0, 1, -7]}),
        ("code", 0, {"workspace": 0}),
        ("code", 0, {"slots": []}),
    ]:
        symbol = data["symbols"][0]["name"]
        rows = [dict(row) for row in data[part]]
        rows[number] |= json.loads(json.dumps(fields).replace("s0", symbol))
        refused(changed(good, **{part: rows}), "compiled for other sizes than its manifest says")


def test_manifests_with_entries_that_are_none(mlp_file: Path) -> None:
    good = mlp_file.read_bytes()
    data = json.loads(bytes(Container(memoryview(good), "").section("manifest")))
    output, symbol, code = data["outputs"][0], data["symbols"][0], data["code"][0]
    for fields in [
        {"outputs": [output | {"dtype": "f33"}]},
        {"outputs": [output | {"shape": [1 << 63, 7]}]},
        {"outputs": [{"name": "output", "value": 3}]},
        {"symbols": [symbol | {"high": float("inf")}]},
        {"symbols": [symbol | {"low": -(10**30)}]},
        {"symbols": [symbol, symbol]},
        {"returns": ["dict", [0]]},
        {"returns": True},
        {"weights_file": {}},
        {"weights_file": {"name": "..", "size": 1, "sha256": ""}},
        {"weights_file": {"name": "/etc/passwd", "size": 1, "sha256": ""}},
        {"code": [code | {"checks": []}]},
    ]:
        refused(changed(good, **fields), "its manifest cannot be read")


@pytest.mark.parametrize("head", [b"[]", b"[" * 100000, b'{"a": {"dtype": "F32", "shape": [Infinity], "data_offsets": [0, 0]}}'])
def test_weights_with_a_head_that_is_none(head: bytes) -> None:
    with pytest.raises(ValueError, match="its head cannot be read"):
        weights.read(memoryview(struct.pack("<Q", len(head)) + head))


def test_a_function_outside_of_its_section(mlp_file: Path) -> None:
    container = Container(memoryview(mlp_file.read_bytes()), "")
    code = bytearray(container.section("x86-64.o"))
    Library(bytes(code), ("run_0",), dict.fromkeys(threads.NAMES, 1))
    table = next(s for s in _sections(bytes(code)) if s.kind == 2)
    for place in range(table.start, table.start + table.size, 24):
        if code[place + 6 : place + 8] != bytes(2):
            struct.pack_into("<Q", code, place + 8, 1 << 20)
    with pytest.raises(CodegenError, match="outside of its section"):
        Library(bytes(code), ("run_0",), dict.fromkeys(threads.NAMES, 1))


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LowcError, match="it is no file"):
        lowc.load(tmp_path / "pipe")


def test_weights_beside(mlp_package: package.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, beside = tmp_path / "m.lowc", tmp_path / "m.safetensors"
    sizes = mlp_package.save(path, weights_path=beside)
    assert sizes == (path.stat().st_size, beside.stat().st_size)
    x = np.ones((2, 19), np.float32)
    wanted = mlp_package.load()(x)
    np.testing.assert_array_equal(lowc.load(path)(x), wanted)
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(lowc.load("m.lowc")(x), wanted)
    good = beside.read_bytes()
    for bad in (good[:-1], good + b"\0", good[:500] + b"?" + good[501:], b""):
        beside.write_bytes(bad)
        with pytest.raises(LowcError, match="not those that the artifact was made with"):
            lowc.load(path)
    beside.unlink()
    with pytest.raises(LowcError, match="weights of the artifact are missing"):
        lowc.load(path)


def test_weights_are_a_safetensors_file(mlp_package: package.Package, tmp_path: Path) -> None:
    mlp_package.save(tmp_path / "m.lowc", weights_path=tmp_path / "m.safetensors")
    content = (tmp_path / "m.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    head = json.loads(content[8 : 8 + length])
    row = head["0.weight"]
    assert row["dtype"] == "F32" and row["shape"] == [33, 19]
    begin, end = row["data_offsets"]
    import models

    model, _ = models.mlp()
    data = np.frombuffer(content[8 + length + begin : 8 + length + end], np.float32).reshape(33, 19)
    np.testing.assert_array_equal(data, model[0].weight.detach().numpy())


def test_no_room_and_no_folder(mlp_package: package.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LowcError, match="No such file"):
        mlp_package.save(tmp_path / "none" / "m.lowc")
    with pytest.raises(LowcError, match="is no file"):
        mlp_package.save("/dev/full")
    with pytest.raises(LowcError, match="cannot be written: .*embedded null"):
        mlp_package.save(tmp_path / "a\0b")
    with pytest.raises(LowcError, match="two files shall have this name"):
        mlp_package.save(tmp_path / "m.lowc", weights_path=tmp_path / "m.lowc")
    path = tmp_path / "m.lowc"
    path.write_bytes(b"before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LowcError, match="No space left"):
        mlp_package.save(path)
    with pytest.raises(LowcError, match="No space left"):
        mlp_package.save(path, weights_path=tmp_path / "w.safetensors")
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["m.lowc"]


@pytest.mark.parametrize("beside", [False, True])
def test_a_disk_that_ends_in_the_middle(mlp_package: package.Package, tmp_path: Path, beside: bool) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(LowcError, match="File too large"):
            mlp_package.save(tmp_path / "m.lowc", weights_path=tmp_path / "w.safetensors" if beside else None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_read_only_disk(mlp_package: package.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused_(path: str, *_: object) -> int:
        raise OSError(30, "Read-only file system", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refused_)
        with pytest.raises(LowcError, match="Read-only file system"):
            mlp_package.save(tmp_path / "m.lowc")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(mlp_package: package.Package, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LowcError, match="Permission denied"):
        mlp_package.save(tmp_path / "m.lowc")
