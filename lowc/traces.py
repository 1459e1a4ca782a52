"""The cache as the place for what AOTAutograd has traced: see ``frontend/kept.py``, which says what and when.

An entry is torch's pickle of it, under a key that has Dynamo's graph where others have AOTAutograd's.  It names the entries of
its graphs by the digests of their keys; all are evicted each for itself, and without one of them there is no hit.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from lowc.cache import key as keys
from lowc.cache.folder import Folder
from lowc.options import Options
from lowc.reuse import Compiled, bound, facts_of

SEVERAL = 4
"""How many of one key are kept, which differ in what they take for granted of sizes."""


class Traces:
    """``frontend.kept.Place`` in ``folder``, for graphs compiled with ``options``."""

    def __init__(self, folder: Folder, options: Options) -> None:
        self._folder, self._options = folder, options

    def _key(self, text: str, devices: list[str]) -> str:
        from lowc.runtime.tensors import torch_version

        facts = [facts_of(name, self._options) for name in sorted({"cpu", *devices})]
        return keys.graph_key(keys.base_key(self._folder), text, self._options, facts, torch_version())

    def get(self, text: str, devices: list[str]) -> list[bytes]:
        """What was kept for ``text``, the newest first."""
        key = self._key(text, devices)
        sections = self._folder.get(key) if key else None
        return list(sections.values()) if sections else []

    def put(self, text: str, devices: list[str], content: bytes) -> None:
        key = self._key(text, devices)
        if not key:
            return
        known = [old for old in (self._folder.get(key) or {}).values() if old != content]
        self._folder.put(key, {f"traced {n}": each for n, each in enumerate([content, *known][:SEVERAL])})

    def bind(self, name: str, digest: str, constants: list[Any]) -> tuple[Compiled, Callable[[], None]] | None:
        """The graph ``name`` whose entry's key has this digest, and what is to be called when it is used; None without that
        entry."""
        begun = time.perf_counter()
        entry = self._folder.get_by_digest(digest)
        found = entry and bound(self._folder, *entry, name, constants, self._options)
        if not found:
            return None
        taken = time.perf_counter() - begun

        def used() -> None:
            if self._options.time:
                from lowc.trace import Trace

                trace = Trace()
                trace.add("cache", taken)
                print(f"lowc: {name} (cache hit, not traced)\n{trace.report()}", file=sys.stderr)

        return found.call, used
