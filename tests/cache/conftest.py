"""Tests of the cache that must not compile say so."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lowc import reuse


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
