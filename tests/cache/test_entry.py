"""The format of an entry: what is written is read back, and what is damaged is refused."""

import json
import random
from pathlib import Path

import pytest

from lowc.cache import entry
from lowc.cache.codec import decode
from tests.cache import graphs

SECTIONS = {"code": bytes(range(256)), "empty": b"", "text": "ünï\n".encode()}


def test_what_is_written_is_read_back() -> None:
    content = entry.write("a key\nof two lines", SECTIONS)
    assert entry.read(content) == ("a key\nof two lines", SECTIONS)
    assert entry.expect(content, "a key\nof two lines") == SECTIONS


def test_another_key_is_refused() -> None:
    with pytest.raises(entry.Damaged, match="something else"):
        entry.expect(entry.write("one", SECTIONS), "two")


def test_every_flipped_bit_and_every_truncation_is_refused() -> None:
    content = entry.write("key", {"a": b"x", "b": b"yz"})
    for place in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(entry.Damaged):
            entry.expect(bytes(flipped), "key")
    for length in range(len(content)):
        with pytest.raises(entry.Damaged):
            entry.expect(content[:length], "key")
    with pytest.raises(entry.Damaged):
        entry.expect(content + b"\0", "key")


def test_a_head_that_lies_is_refused_though_the_checksum_is_right() -> None:
    assert entry.read(_signed(b'{"key": 1, "sections": [["a", 2]]}', b"kab")) == ("k", {"a": b"ab"})
    for sections in ('[["a", 99]]', '[["a", -1]]', '[["a", 1e999]]', "[[1, 2, 3]]", '[["a"]]', "7", '[["a", "b"]]'):
        with pytest.raises(entry.Damaged):
            entry.read(_signed(f'{{"key": 1, "sections": {sections}}}'.encode(), b"k"))
    for key, content in (("1", b"\xff"), ("-1", b""), ("2", b"k"), ("0", b"k"), ('"k"', b"k"), ("1e999", b"k"), ("null", b"")):
        with pytest.raises(entry.Damaged):
            entry.read(_signed(f'{{"key": {key}, "sections": []}}'.encode(), content))
    for head in (b"", b"\xff", b"[]", b"{}", b"[" * 5000):
        with pytest.raises(entry.Damaged):
            entry.read(_signed(head))


def _signed(head: bytes, rest: bytes = b"") -> bytes:
    from hashlib import sha256

    body = len(head).to_bytes(8, "little") + head + rest
    return entry.MAGIC + sha256(body).digest() + body


def damaged(content: bytes, key: str) -> list[bytes]:
    """200 variants of a file: bits and bytes flipped, cut off, parts of it exchanged, sections exchanged and signed anew."""
    rng = random.Random(0)
    variants: list[bytes] = []
    for _ in range(80):
        other = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 16))):
            other[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        variants.append(bytes(other))
    variants += [content[: rng.randrange(len(content))] for _ in range(40)]
    for _ in range(30):
        a, b = sorted(rng.sample(range(len(content)), 2))
        variants.append(content[:a] + content[b:] + content[a:b])
    for _ in range(15):
        start = rng.randrange(len(content))
        variants.append(content[:start] + rng.randbytes(min(64, len(content) - start)) + content[start + 64 :])
    _, sections = entry.read(content)
    names = list(sections)
    for first in names:
        for second in names:
            if first < second:
                swapped = dict(sections)
                swapped[first], swapped[second] = sections[second], sections[first]
                variants.append(entry.write(key, swapped))
    variants += [entry.write(key, {n: s for n, s in sections.items() if n != name}) for name in names]
    variants += [entry.write(key, sections | {name: sections[name][: len(sections[name]) // 2]}) for name in ("code", "meta")]
    variants += [entry.write(key + "x", sections), entry.write("", {}), b"", bytes(1000), entry.MAGIC]
    variants += [content[:7] + b"\x02" + content[8:]]  # a newer format
    variants += [content + bytes(n) for n in range(1, 201 - len(variants))]
    return variants


def test_200_damaged_variants_are_refused_or_do_no_harm(tmp_path: Path, compilations: list[str]) -> None:
    cache = graphs.folder(tmp_path)
    graphs.check(cache)
    (item,) = cache.items()
    sound = Path(item.path).read_bytes()
    key, _ = entry.read(sound)
    variants = damaged(sound, key)
    assert len(variants) == 200
    for variant in variants:
        Path(item.path).write_bytes(variant)
        before = len(compilations)
        graphs.check(graphs.folder(tmp_path))
        if len(compilations) > before:  # then it has been replaced
            assert entry.read(Path(item.path).read_bytes())[0] == key
        graphs.check(graphs.folder(tmp_path))
        assert len(compilations) <= before + 1
    # What passes has what belongs to somebody who only looks (the text of the host program, that of the module) exchanged.
    assert len(compilations) > 195


def test_sections_that_say_something_else_are_damage(tmp_path: Path) -> None:
    """Checksum and key right: found by ``tests.property.files``, as exceptions of other kinds."""
    cache = graphs.folder(tmp_path)
    graphs.check(cache)
    (item,) = cache.items()
    _, sections = entry.read(Path(item.path).read_bytes())
    module = sections["module"]
    broken = (b"\xff" + module, module[:40], b"", module.replace(b"f32", b"f31"))
    for text in broken:
        with pytest.raises(entry.Damaged):
            decode({**sections, "module": text}).artifact  # noqa: B018
    for name, value in (("entries", 3), ("slots", None), ("target", None), ("symbols", [])):
        meta = {k: v for k, v in json.loads(sections["meta"]).items() if k != name} | ({} if value is None else {name: value})
        with pytest.raises(entry.Damaged):
            decode({**sections, "meta": json.dumps(meta).encode()}).artifact  # noqa: B018
