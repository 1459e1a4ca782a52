"""Tests of the cache that must not compile say so; and the digest of lowc's sources is taken once for all of them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lowc import reuse
from lowc.cache import sources


@pytest.fixture(autouse=True)
def digest_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders have nothing in them but what a test puts there."""
    real = sources.known

    def known(home: str, folder: Any, loaded: int | None = None) -> str:
        return real(home, None, loaded)

    known.__wrapped__ = real.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(sources, "known", known)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the graphs that have been compiled, not reused."""
    found: list[str] = []
    real: Callable[..., Any] = reuse._compiled

    def counted(graph: Any, *rest: Any) -> Any:
        found.append(graph.name)
        return real(graph, *rest)

    monkeypatch.setattr(reuse, "_compiled", counted)
    yield found
