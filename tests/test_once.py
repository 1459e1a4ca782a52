"""What threads that ask for it at the same time get."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from lowc.once import once, same
from lowc.standalone import threads


def from_threads(count: int, get: Callable[[], Any]) -> list[Any]:
    """What ``get`` gives in each of ``count`` threads that call it together."""
    found: list[Any] = []
    each = [threading.Thread(target=lambda: found.append(get())) for _ in range(count)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    assert len(found) == count
    return found


def test_what_is_made_twice_at_once_is_the_same_for_both() -> None:
    both_at_it = threading.Barrier(2)

    def make(name: str) -> object:
        both_at_it.wait(30)
        return [name]

    get = same(make)
    found = from_threads(2, lambda: get("a"))
    assert found[0] is found[1] is get("a")
    both_at_it.abort()
    with pytest.raises(threading.BrokenBarrierError):
        get("b")


def test_what_may_be_made_once_only_is() -> None:
    made: list[int] = []
    begun = threading.Event()

    def make() -> object:
        made.append(1)
        begun.wait(0.05)
        return object()

    found = from_threads(4, once(make))
    assert len(made) == 1 and len(set(map(id, found))) == 1


def test_artifacts_loaded_at_once_run_on_one_piece_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions that they call are unloaded with the object that holds them."""
    both_at_it = threading.Barrier(2)

    class Loaded:
        def __init__(self, *given: object) -> None:
            both_at_it.wait(30)

        def address(self, name: str) -> int:
            return id(self)

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(threads, "Library", Loaded)
    first, second = from_threads(2, lambda: threads.functions(lambda name: memoryview(b"of no artifact")))
    assert first == second
