"""Locations in LLVM IR: they change nothing but what they add, and say which statement a line is for."""

import re
from importlib import import_module
from typing import Any

import pytest
import torch

from lowc.backends import x86
from lowc.backends.llvm.places import of_assembly, of_llvm
from lowc.backends.nvptx.devices import model
from lowc.cli.compilation import Compiled, compile_all
from lowc.ir.nodes import Launch, Store
from lowc.ir.printer import print_kernel_lines
from lowc.ir.walk import statements
from lowc.options import Options


def everything(x: torch.Tensor, i: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Loops of each kind: parallel, vector, serial, unrolled, transposing, masked, checked, scanning, atomic."""
    return (
        torch.softmax(x, 1),
        x[i] + x.sum(0),
        x.t().contiguous() * 2,
        x.cumsum(1),
        torch.zeros_like(x).index_add(0, i, x),
        torch.where(h > 0, h, h.exp()).argmax(0),
        x.var(1) + x[:, 3],
    )


def compiled(target: str, isa: str) -> Compiled:
    args = (torch.randn(70, 50), torch.randint(0, 70, (70,)), torch.randn(33, 9).half())
    options = Options(isa=isa, off="fuse")
    (found,) = compile_all(everything, args, options, gpu=model(target) if target else None).graphs
    return found


CASES = [("", "auto"), ("", "sse2"), ("sm_80", "auto")]


@pytest.mark.parametrize(("target", "isa"), CASES, ids=["widest", "sse2", "sm_80"])
def test_code_with_locations_is_the_same_code(target: str, isa: str) -> None:
    found = compiled(target, isa)
    options = Options(isa=isa, off="fuse")
    backend: Any = import_module("lowc.backends.nvptx" if target else "lowc.backends.x86")
    kernels = {id(s.kernel): s.kernel for s in found.machine.steps if isinstance(s, Launch)}
    assert len(kernels) >= 5
    shown = [s for k in kernels.values() for _, s in print_kernel_lines(k) if s is not None]
    numbers = {id(stmt): n for n, stmt in enumerate(shown, 1)}
    located = backend.located(found.machine, found.target, options, numbers)
    plain = backend.stages(found.target, options)
    assert list(located) == list(plain)
    for extension, lines in located.items():
        wanted = plain[extension](found.machine)
        assert [text.rstrip() for text, _ in lines if text.strip()] == [t.rstrip() for t in wanted.splitlines() if t.strip()]
    llvm, code = ({number for _, number in lines} for lines in located.values())
    assert code <= llvm <= {0, *numbers.values()}
    stored = {numbers[id(s)] for k in kernels.values() for s in statements(k.body) if isinstance(s, Store)}
    assert stored <= llvm


def test_a_store_is_found_again() -> None:
    found = compiled("", "sse2")
    (launch,) = [s for s in found.machine.steps if isinstance(s, Launch) and any("aten.var" in o for o in s.origin)]
    store = [s for s in statements(launch.kernel.body) if isinstance(s, Store)][-1]
    located = x86.located(found.machine, found.target, Options(isa="sse2"), {id(store): 7})
    llvm, code = ([text.strip() for text, number in lines if number == 7] for lines in located.values())
    assert any(re.match(r"store (<4 x float>|float) ", text) for text in llvm)
    assert any(re.match(r"mov[aus]?[sp]s\s", text) for text in code)
    assert not [text for lines in located.values() for text, _ in lines if "dbg" in text or ".loc" in text]


def test_text_without_locations_stays_as_it_is() -> None:
    llvm = "define void @f() #0 {\nentry:\n  ret void\n}\n"
    assert of_llvm(llvm) == tuple((line, 0) for line in llvm.splitlines())
    assembly = "\t.text\nf:\n\tret\n.Lfunc_end0:\n\t.size\tf, .Lfunc_end0-f\n"
    assert of_assembly(assembly) == tuple((line, 0) for line in assembly.splitlines())
