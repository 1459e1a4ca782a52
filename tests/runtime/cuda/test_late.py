"""Failed checks that nobody is to hear of: of calls that lowc makes by itself, to measure."""

import ctypes
from typing import Any

import fakes
import pytest

import lowc
from lowc import autotune
from lowc.ir.elsewhere import on_gpu
from lowc.lowering.asked import UNDECIDED
from lowc.options import Options
from lowc.runtime.cuda import device as devices
from lowc.runtime.failures import DIVISION, INDEX
from tests.cache import graphs


def write(device: devices.Device, code: int) -> None:
    ctypes.c_int64.from_address(device.word.device).value = code


def test_what_is_reported_inside_is_forgotten_and_what_was_before_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a device that is first used inside, and if what is inside fails."""
    old, new = fakes.device(), fakes.device()
    known = {0: old[0]}
    monkeypatch.setattr(devices, "_devices", known)
    write(old[0], DIVISION)
    with pytest.raises(KeyError), devices.unreported():
        old[0].word.look()
        known[1] = new[0]
        write(old[0], INDEX)
        write(new[0], INDEX)
        raise KeyError
    assert ("synchronize",) in new[1].log
    lowc.synchronize(1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        lowc.synchronize(0)
    with devices.unreported():
        write(old[0], INDEX)
    lowc.synchronize()


def test_measuring_is_not_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made inputs may fail checks that the user's pass; the user's next call is told nothing of them."""
    on = fakes.device()[0]
    monkeypatch.setattr(devices, "_devices", {0: on})

    def measured(*_: Any) -> None:
        write(on, INDEX)
        on.word.look()

    monkeypatch.setattr(autotune, "_measured", measured)
    assert autotune.decide(on_gpu(graphs.chain()), (), Options()) == UNDECIDED
    monkeypatch.setattr(autotune, "_measured", lambda *_: write(on, INDEX))
    autotune.decide(on_gpu(graphs.chain()), (), Options())
    lowc.synchronize()
