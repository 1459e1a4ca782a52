"""Phases, dumps and counters of a trace."""

import os

from lowc.trace import Trace, fresh_directory


def test_phases_nest_and_add_up() -> None:
    trace = Trace()
    for _ in range(3):
        with trace.phase("outer"), trace.phase("inner"):
            pass
    with trace.phase("other"):
        pass
    outer = trace.root.inner["outer"]
    assert (outer.calls, list(trace.root.inner), list(outer.inner)) == (3, ["outer", "other"], ["inner"])
    assert outer.seconds >= outer.inner["inner"].seconds >= 0
    lines = trace.report().splitlines()
    assert [line.split()[0] for line in lines] == ["outer", "inner", "other"] and lines[1].startswith(
        "  inner"
    )


def test_a_phase_ends_when_it_raises() -> None:
    trace = Trace()
    try:
        with trace.phase("outer"), trace.phase("inner"):
            raise KeyError
    except KeyError:
        pass
    with trace.phase("next"):
        pass
    assert list(trace.root.inner) == ["outer", "next"]


def test_dumps_are_numbered_files(tmp_path) -> None:
    trace = Trace(fresh_directory(str(tmp_path), "forward"))
    trace.dump("fuse", lambda: "text")
    trace.dump("object", lambda: b"\0\1", "o")
    assert sorted(os.listdir(tmp_path / "forward.0")) == ["00_fuse.lowc", "01_object.o"]
    assert (tmp_path / "forward.0" / "01_object.o").read_bytes() == b"\0\1"
    assert fresh_directory(str(tmp_path), "forward").endswith("forward.1")


def test_without_a_directory_nothing_is_rendered() -> None:
    Trace(fresh_directory("", "x")).dump("fuse", lambda: 1 / 0)


def test_counters() -> None:
    trace = Trace()
    trace.count("a")
    trace.count("a", 2)
    assert trace.counters == {"a": 3}
