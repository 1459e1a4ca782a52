"""Code on its way to the driver: a cubin where there is one, what kernels take, files of what is rejected, NVTX ranges."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import pytest
import torch
from programs import ADD, CALLER, add

from lowc.artifact import Usage
from lowc.errors import CodegenError
from lowc.options import Options, parse
from lowc.runtime.cuda.device import facts
from lowc.runtime.cuda.modules import rejected
from lowc.runtime.cuda.program import bind

CUBIN = b"\x7fELF"
REJECTED = (0, "cuModuleLoadDataEx failed: CUDA_ERROR_NO_BINARY_FOR_GPU", "")


def with_cubin(on: Any) -> Any:
    made = replace(fakes.artifact(ADD), cubin=CUBIN)
    on[1].counts["add"] = 4
    on[1].kernels["add"] = add
    return bind(made, 1, 0, options=CALLER, on=on[0])


def test_a_cubin_is_loaded_instead_of_ptx() -> None:
    on = fakes.device()
    program = with_cubin(on)
    assert on[1].loaded == [CUBIN]
    assert torch.equal(program.call([torch.ones(3, 4)])[0], torch.full((3, 4), 2.0))


def test_a_cubin_that_the_driver_rejects_gives_way_to_ptx(caplog: pytest.LogCaptureFixture) -> None:
    on = fakes.device()
    on[1].load_results[CUBIN] = REJECTED
    program = with_cubin(on)
    assert on[1].loaded == [CUBIN, program.artifact.code]
    (record,) = caplog.records
    assert "NO_BINARY_FOR_GPU" in record.getMessage() and "the driver compiles the PTX" in record.getMessage()
    assert torch.equal(program.call([torch.ones(3, 4)])[0], torch.full((3, 4), 2.0))


def test_ptx_that_is_rejected_as_well_is_an_error() -> None:
    on = fakes.device()
    on[1].load_result = REJECTED
    with pytest.raises(CodegenError, match="the driver rejects the PTX"):
        with_cubin(on)


def test_what_kernels_take_is_the_drivers_word() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on)
    assert program.gpu.loaded.module.usage() == {"add": Usage(40, 0, 0, 32)}


def test_of_local_memory_the_driver_knows_no_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    on = fakes.device()
    program = fakes.load(ADD, on)
    monkeypatch.setattr(on[1], "function_attribute", lambda function, name: 16)
    assert program.gpu.loaded.module.usage() == {"add": Usage(16, 16, None, 16)}


def test_files_of_rejected_ptx_do_not_replace_one_another(tmp_path: Path) -> None:
    hints = [rejected(text, "no", "", str(tmp_path), {}).hint for text in (b"one", b"two")]
    assert [Path(hint.rpartition(" ")[2]).read_bytes() for hint in hints] == [b"one", b"two"]


def test_where_no_file_can_be_written_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "no file" in rejected(b"", "no", "", str(tmp_path / "file"), {}).hint


def test_bandwidth_is_clock_times_width() -> None:
    class Driver(fakes.Fake):
        def attribute(self, index: int, name: str) -> int:
            return {"MEMORY_CLOCK_RATE": 3_201_000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}.get(name, 9)

    assert facts(0, Driver()).bandwidth == 4_916_736_000_000  # type: ignore[arg-type]


# ---------------------------------------------------------------- NVTX


def test_native_calls_are_ranges_by_kernel_name() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, options=CALLER._replace(nvtx=True), add=add)
    assert torch.equal(program.call([torch.ones(3, 4)])[0], torch.full((3, 4), 2.0))
    assert [what[:2] for what in on[1].log] == [("push", "lowc: add"), ("launch", "add"), ("pop",)]


def test_a_range_ends_when_a_launch_fails() -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, options=CALLER._replace(nvtx=True))
    on[1].fail["cuLaunchKernel"] = (0, 1)
    with pytest.raises(Exception, match="launching kernel add"):
        program.call([torch.ones(3, 4)])
    assert on[1].log[-1] == ("pop",)


def test_without_the_option_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    on = fakes.device()
    program = fakes.load(ADD, on, options=CALLER, add=add)
    program.call([torch.ones(3, 4)])
    assert [what[0] for what in on[1].log] == ["launch"]
    assert not Options().nvtx
    monkeypatch.setenv("LOWC_NVTX", "1")
    assert parse(None, None).nvtx
