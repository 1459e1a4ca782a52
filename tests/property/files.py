"""Damaged files of every kind that lowc reads: refused by an error of its own, or unharmed.

    python -m tests.property.files --cases 20000 [--kind artifact]

    artifact   a .lowc file with bytes changed, cut off, exchanged: refused
    manifest   one with another manifest and right checksums: refused, or it runs without a crash
    entry      a cache entry with bytes changed: refused
    sections   one with sections changed and right checksums: refused, or read (not its bytecode: Python's reader trusts it)
    object     an object file with bytes changed: lowc's linker refuses it, or loads it (what it loads is not run)
    archive    a packed cache with bytes changed: unpacked or refused
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lowc.cache import archive, entry
from lowc.cache.codec import decode
from lowc.cache.folder import Folder
from lowc.errors import LowcError
from lowc.runtime.linker import Library
from lowc.standalone.container import Container, write
from lowc.standalone.loader import load_content
from tests.property.children import BAD, Outcome, explored, said

KINDS = ("artifact", "manifest", "entry", "sections", "object", "archive")
KEY = "a key"


def changed(rng: random.Random, content: bytes) -> bytes:
    """``content`` with a few bits or bytes changed, cut off, repeated, exchanged or put in."""
    bad = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        size = min(rng.choice((1, 2, 8, 64, 600)), max(len(bad) - 1, 1))
        a, b = rng.randrange(max(len(bad) - size, 1)), rng.randrange(max(len(bad) - size, 1))
        how = rng.randrange(7)
        if how == 0 and bad:
            bad[a] ^= 1 << rng.randrange(8)
        elif how == 1:
            bad[a : a + size] = rng.randbytes(size)
        elif how == 2:
            bad[a : a + size] = bytes([rng.choice((0, 0xFF))]) * size
        elif how == 3:
            del bad[rng.randrange(len(bad) + 1) :]
        elif how == 4:
            bad[a:a] = bad[b : b + size]
        elif how == 5:
            bad[a : a + size] = bad[b : b + size]
        else:
            del bad[a : a + size]
    return bytes(bad)


def changed_data(rng: random.Random, data: Any) -> Any:
    """JSON data with one value in it changed."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        name = rng.choice(sorted(data))
        if rng.random() < 0.1:
            return {k: v for k, v in data.items() if k != name}
        return data | {name: changed_data(rng, data[name])}
    if isinstance(data, list) and data and rng.random() < 0.9:
        place = rng.randrange(len(data))
        if rng.random() < 0.2:
            return data[:place] + data[place + 1 :] if rng.random() < 0.5 else [*data, data[place]]
        return [changed_data(rng, v) if k == place else v for k, v in enumerate(data)]
    if type(data) is int and rng.random() < 0.8:
        return rng.choice((data + 1, data - 1, -data, 0, data * 2, 1 << 31, 1 << 62, 1 << 64))
    return rng.choice((None, True, 0, -1, 1, 3, 2.5, 1e300, "", "f32", "s0", "x", [], {}, [0], [[]]))


class Samples:
    """Sound files to begin with, made once."""

    def __init__(self, folder: Path) -> None:
        import torch

        from lowc import package
        from lowc.compiler import compile_graph
        from lowc.frontend.exported import export
        from lowc.options import Options
        from tests.cache import graphs

        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(19, 33), torch.nn.GELU(), torch.nn.Linear(33, 7)).eval()
        program = export(model, (torch.randn(5, 19),), dynamic=({0: torch.export.Dim("batch", max=64)},))
        package.compile_program(program, name="mlp", levels=("x86-64-v3", "x86-64")).save(folder / "mlp.lowc")
        self.artifact = (folder / "mlp.lowc").read_bytes()
        container = Container(memoryview(self.artifact), "")
        self.parts = {name: bytes(container.section(name)) for name in container.sections}
        cache = graphs.folder(folder / "cache")
        graphs.check(cache)
        graphs.check(cache, 2.0)
        item = max(cache.items(), key=lambda i: i.size)
        self.key, self.sections = entry.read(Path(item.path).read_bytes())
        self.entry = Path(item.path).read_bytes()
        archive.pack(cache, str(folder / "packed.zip"))
        self.archive = (folder / "packed.zip").read_bytes()
        call: Any = compile_graph(graphs.product(), (), Options(cache=False))
        self.object = call.program.artifact.code
        self.symbols = [step.symbol for step in call.program.artifact.program if hasattr(step, "symbol")]


def case(kind: str, samples: Samples, folder: Path, seed: int) -> Outcome:
    rng = random.Random(f"{kind} {seed}")
    try:
        return _TRIES[kind](rng, samples, folder)
    except (LowcError, entry.Damaged):
        return Outcome("refused")
    except Exception as error:
        return Outcome("exception", f"{kind}: {said(error)}")


def _artifact(rng: random.Random, samples: Samples, folder: Path) -> Outcome:
    content = changed(rng, samples.artifact)
    load_content(memoryview(content), "model.lowc")
    return Outcome("same") if content == samples.artifact else Outcome("wrong", "a changed artifact is loaded")


def _manifest(rng: random.Random, samples: Samples, folder: Path) -> Outcome:
    data = json.loads(samples.parts["manifest"])
    for _ in range(rng.choice((1, 1, 2))):
        data = changed_data(rng, data)
    content = b"".join(write({**samples.parts, "manifest": json.dumps(data).encode()}))
    model = load_content(memoryview(content), "model.lowc")
    model(np.ones((5, 19), np.float32))
    return Outcome("runs")


def _entry(rng: random.Random, samples: Samples, folder: Path) -> Outcome:
    content = changed(rng, samples.entry)
    entry.expect(content, samples.key)
    return Outcome("same") if content == samples.entry else Outcome("wrong", "a changed entry is read")


def _sections(rng: random.Random, samples: Samples, folder: Path) -> Outcome:
    sections = dict(samples.sections)
    name = rng.choice([n for n in sorted(sections) if n != "bytecode"])
    if name == "meta" and rng.random() < 0.7:
        sections[name] = json.dumps(changed_data(rng, json.loads(sections[name]))).encode()
    elif rng.random() < 0.1:
        del sections[name]
    else:
        sections[name] = changed(rng, sections[name])
    stored = decode(entry.expect(entry.write(samples.key, sections), samples.key))
    stored.artifact  # noqa: B018
    return Outcome("read")


def _object(rng: random.Random, samples: Samples, folder: Path) -> Outcome:
    from lowc.runtime import openmp

    Library(changed(rng, samples.object), samples.symbols, openmp.functions())
    return Outcome("loaded")


def _archive(rng: random.Random, samples: Samples, folder: Path) -> Outcome:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "packed.zip"
        path.write_bytes(changed(rng, samples.archive))
        archive.unpack(Folder(str(Path(place) / "cache"), 1 << 24), str(path))
    return Outcome("unpacked")


_TRIES: dict[str, Callable[[random.Random, Samples, Path], Outcome]] = {
    "artifact": _artifact, "manifest": _manifest, "entry": _entry, "sections": _sections, "object": _object, "archive": _archive,
}  # fmt: skip


def main() -> int:
    """1 if anything fails."""
    p = argparse.ArgumentParser(prog="python -m tests.property.files", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--cases", type=int, default=1000, help="of each kind (default: %(default)s)")
    p.add_argument("--start", type=int, default=0, help="the first seed (default: %(default)s)")
    p.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    p.add_argument("--kind", choices=KINDS, action="append", help="one kind (default: all)")
    chosen = p.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = Samples(folder)
        for kind in chosen.kind or KINDS:
            counts, began = Counter[str](), time.monotonic()
            seeds = range(chosen.start, chosen.start + chosen.cases)
            for seed, outcome in explored(lambda s, k=kind: case(k, samples, folder, s), seeds, chosen.jobs, 20.0):
                counts[outcome.status] += 1
                if outcome.bad:
                    print(f"{kind} {seed}: {outcome.status}: {outcome.detail}", flush=True)
            shown = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            print(f"{kind}: {sum(counts.values())} in {time.monotonic() - began:.0f} s: {shown}", flush=True)
            failed |= any(status in BAD for status in counts)
    print(f"largest process {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
