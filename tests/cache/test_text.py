"""What texts of Dynamo's graphs have of values: no two that differ have the same, however they are nested; others have none."""

import enum
import itertools
import operator
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from lowc.frontend import source
from lowc.frontend.ambient import text_of_thread
from lowc.frontend.text import NoTextError
from lowc.frontend.traced import text_of_traced

NAN = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0]
Four = enum.IntEnum("Four", {"FOUR": 4})


def text_of(*inputs: Any, args: Any = (), kwargs: dict[str, Any] | None = None, made: Any = None, trace: str = "") -> str:
    """Of a graph that calls a function with its first input and ``args``."""
    graph = fx.Graph()
    given = [graph.placeholder(f"x{n}") for n in range(len(inputs))]
    call = graph.call_function(torch.add, (*given[:1], *args), kwargs or {})
    call.meta |= {"example_value": made, "stack_trace": trace}
    graph.output((call,))
    return text_of_graph(graph, *inputs)


def text_of_graph(graph: fx.Graph, *inputs: Any) -> str:
    module: Any = fx.GraphModule({}, fx.Graph())
    module._graph = graph  # without code, in which not all values can be written
    config = SimpleNamespace(num_params_buffers=0, aot_autograd_arg_pos_to_source=None)
    return text_of_traced(module, inputs, config)[0]


NANS = float("nan"), -float("nan"), NAN
SINGLE: tuple[Any, ...] = (
    0, 1, -1, 1 << 80, True, False, None, 0.0, -0.0, 1.0, 1.0000000000000002, float("inf"), 1 + 0j,
    complex(1, -0.0), complex(-0.0, 1), "", "1", "None", "True", "1.0", "[1]", "%x0", "...", "x\n", "x\\n", "a, b", "'", '"',
    "cpu", "torch.float32", "slice(1, None, None)", ..., torch.float32, torch.float64, torch.strided, torch.contiguous_format,
    torch.channels_last, torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1),
)  # fmt: skip


def nested() -> list[Any]:
    found: list[Any] = list(SINGLE)
    for value in SINGLE:
        found += [[value], (value,), [[value]], ([value],), [(value,)], (value, value), (slice(value),)]
        found += [slice(value), slice(value, 1), slice(1, value), slice(None, None, value)]
    return [*found, (3, 4), [], (), [()], ([],)]


def test_no_two_values_have_the_same_text() -> None:
    x = torch.ones(3)
    texts: dict[str, str] = {}
    for value in nested():
        text = text_of(x, args=(value,))
        assert texts.setdefault(text, repr(value)) == repr(value) and text == text_of(x, args=(value,))
    assert len({text_of(x, args=(each,)) for each in (*NANS, "nan")} - texts.keys()) == 4
    splits = [((1, 2),), (1, 2), ([1, 2],), ([1], 2), (1, [2]), ("1, 2",), ((1,), 2)]
    assert len({text_of(x, args=each) for each in splits}) == len(splits)
    assert text_of(x, args=(1,)) != text_of(x, kwargs={"alpha": 1}) != text_of(x, kwargs={"other": 1})


def test_what_has_no_text() -> None:
    others = (b"1", bytearray(b"1"), {"a": 1}, {1}, object(), Four.FOUR, range(3), torch.device("cuda"), torch.ones(2), int)
    for value in others:
        for each in (value, [value], (1, value)):
            with pytest.raises(NoTextError):
                text_of(torch.ones(3), args=(1,), kwargs={"other": each})
    y = torch.ones(4)
    conjugate = torch.ones(3, dtype=torch.complex64).conj()
    own = y.as_subclass(type("Own", (Tensor,), {}))
    single = (2.0, True, None, y.to_sparse(), conjugate, conjugate.imag, own)
    for inputs in (*((each,) for each in single), (y, y), (y[:2], y[2:]), (y, y.view(2, 2).t())):
        with pytest.raises(NoTextError):
            text_of(*inputs)


def test_no_two_kinds_of_inputs_have_the_same_text() -> None:
    base = torch.zeros(64)
    with torch.inference_mode():
        inferred = torch.zeros(4, 5)
    kinds: list[Tensor] = [
        torch.zeros(4, 5), torch.zeros(5, 4), torch.zeros(20), torch.zeros(4, 5, 1), torch.zeros(5, 4).t(),
        torch.zeros(4, 1).expand(4, 5), base[1:21].view(4, 5), torch.zeros(4, 5, dtype=torch.float64),
        torch.zeros(4, 5, dtype=torch.int32), torch.zeros(4, 5, device="meta"), base[:20].view(4, 5),
        torch.zeros(4, 5, requires_grad=True), torch.zeros(4, 5, requires_grad=True) * 1, inferred,
    ]  # fmt: skip
    assert len({text_of(kind) for kind in kinds}) == len(kinds)
    assert len({text_of(kind, 7) for kind in kinds}) == len(kinds)
    x = torch.ones(3)
    made = [None, 3, *kinds[:10], tuple(kinds[:2]), tuple(kinds[1:3]), (kinds[0],)]
    assert len({text_of(x, made=value) for value in made}) == len(made)


@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "Autograd", "AutogradCPU"])
def test_a_kernel_of_a_user_is_seen_among_torchs(key: str) -> None:
    before = text_of_thread()
    library = torch.library.Library("aten", "IMPL")
    library.impl("special_i1e", lambda x: x, key)
    try:
        with pytest.raises(NoTextError, match="replaced"):
            text_of_thread()
    finally:
        library._destroy()
    assert text_of_thread() == before


HERE = '  File "model.py", line 3, in f\n    y = g(x)\n'
INSIDE = f'  File "{torch.__path__[0]}/nn/m.py", line 9, in call\n    z()\n'
LINES: dict[str, tuple[str, str]] = {
    "one": (HERE, "model.py:3 in f: y = g(x)"),
    "torch inside": (HERE + INSIDE, "model.py:3 in f: y = g(x)"),
    "the innermost": (HERE + HERE.replace("3", "5") + INSIDE * 2, "model.py:5 in f: y = g(x)"),
    "torch alone": (INSIDE + INSIDE.replace("9", "10"), f"{torch.__path__[0]}/nn/m.py:10 in call: z()"),
    "no code": (HERE.splitlines()[0] + "\n" + INSIDE, "model.py:3 in f"),
    "marks below": (HERE + "        ^^^^\n", "model.py:3 in f: y = g(x)"),
    "what torch.export writes": (HERE.replace("y =", "code: y ="), "model.py:3 in f: y = g(x)"),
    "a name with quotes": (HERE.replace("model.py", 'a", line 4, in b.py'), 'a", line 4, in b.py:3 in f: y = g(x)'),
    "a graph of torch's": ('  File "<eval_with_key>.1", line 4, in g\n' + HERE, "model.py:3 in f: y = g(x)"),
    "none": ("something else\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_the_line_of_a_trace(case: str) -> None:
    trace, line = LINES[case]
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["stack_trace"] = trace
    assert source.user_line(node) == line
    assert (f"line {line}" in text_of(torch.ones(3), trace=trace)) == bool(line)


def test_a_function_that_was_put_in_the_place_of_another_has_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    functions: list[Callable[..., Any]] = [torch.add, operator.add, torch.nn.functional.gelu, torch.ops.aten.add.Tensor]

    def text(function: Callable[..., Any]) -> str:
        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(function, (x, x)),))
        return text_of_graph(graph, torch.ones(3))

    assert all(text(a) != text(b) for a, b in itertools.combinations(functions, 2))
    old = torch.nn.functional.silu
    assert "silu" in text(old)
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x, y: x)
    for function in (old, torch.nn.functional.silu):
        with pytest.raises(NoTextError):
            text(function)
