"""The host program: binding of inputs and sizes, memory of results, extern calls, views, errors."""

import threading
import weakref

import pytest
import torch
from hosts import artifact, at, buffer, launch, load, whole

from lowc.errors import LowcError
from lowc.ir import types
from lowc.ir.index import Symbol, ix
from lowc.ir.nodes import Extern, Module, View
from lowc.runtime import arena
from lowc.runtime.host import render
from lowc.runtime.program import bind

S = Symbol("s0", 0, None)


def module(inputs=(), temps=(), outputs=(), steps=(), symbols=(), placed=(), workspace=0) -> Module:
    return Module(
        "MACHINE",
        tuple(symbols),
        tuple(inputs),
        tuple(temps),
        tuple(outputs),
        tuple(steps),
        tuple(placed),
        ix(workspace),
    )


def test_one_native_call_gets_all_slots_at_once() -> None:
    x, y = buffer("x", 3, 4), buffer("y", 3, 4)
    like = y
    program = load(
        module([x], [y], [whole(y)], [launch([x], [y])]), f0=lambda x, y: at(y, like).copy_(at(x, like) + 1)
    )
    given = torch.randn(3, 4)
    args = [given]
    (out,) = program.call(args)
    assert args == []
    assert torch.equal(out, given + 1)
    assert program.source.count("pack(") == 1 and "slots" not in program.source


def test_outputs_have_the_planned_strides() -> None:
    x, y = buffer("x", 3, 4), buffer("y", 3, 4, strides=(1, 3))
    program = load(module([x], [y], [whole(y)], [launch([x], [y])]), f0=lambda x, y: None)
    assert program.call([torch.randn(3, 4)])[0].stride() == (1, 3)


def test_native_calls_around_an_extern_call_share_slots() -> None:
    like = buffer("like", 3, 3)
    x, a, b, c = buffer("x", 3, 3), buffer("a", 3, 3), buffer("b", 3, 3), buffer("c", 3, 3)
    mm = Extern("aten.mm.default", (whole(a), whole(a)), (), (b,))
    program = load(
        module([x], [a, b, c], [whole(c)], [launch([x], [a]), mm, launch([b], [c])]),
        f0=lambda x, a, **_: at(a, like).copy_(at(x, like) * 2),
        f1=lambda b, c, **_: at(c, like).copy_(at(b, like) - 1),
    )
    given = torch.randn(3, 3)
    assert torch.allclose(program.call([given])[0], (2 * given) @ (2 * given) - 1)
    assert "del x" in program.source


def test_inputs_and_temps_die_after_their_last_use() -> None:
    x, a, b, c = buffer("x", 3, 3), buffer("a", 3, 3), buffer("b", 3, 3), buffer("c", 3, 3)
    seen: list[bool] = []
    relu = Extern("aten.relu.default", (whole(x),), (), (a,))
    neg = Extern("aten.neg.default", (whole(a),), (), (b,))
    program = load(
        module([x], [a, b, c], [whole(c)], [relu, neg, launch([b], [c])]),
        f0=lambda **_: seen.append(alive() is None) and None,
    )
    given = torch.randn(3, 3)
    alive = weakref.ref(given)
    args = [given]
    del given
    program.call(args)
    assert seen == [True]


def test_placed_temps_live_in_the_workspace_and_feed_extern_calls() -> None:
    x, a, b, c = buffer("x", 4, 4), buffer("a", 4, 4), buffer("b", 2, 4), buffer("c", 2, 4)
    upper = View(a, types.f32, (ix(2), ix(4)), (ix(4), ix(1)), ix(4))
    mm = Extern("aten.mm.default", (upper, whole(x)), (), (b,))

    def first(x: int, workspace: int, **_: int) -> None:
        at(workspace + 64, a).copy_(at(x, a) + 1)

    def second(workspace: int, c: int, **_: int) -> None:
        at(c, b).copy_(at(workspace + 128, b))

    program = load(
        module(
            [x],
            [a, b, c],
            [whole(c)],
            [launch([x], [a]), mm, launch([b], [c])],
            placed=[("a", ix(64)), ("b", ix(128))],
            workspace=192,
        ),
        f0=first,
        f1=second,
    )
    given = torch.randn(4, 4)
    assert torch.allclose(program.call([given])[0], (given + 1)[1:3] @ given)


def test_results_of_an_op_without_an_out_form_are_copied_into_the_workspace() -> None:
    x, a, b, y = buffer("x", 4, 4), buffer("a", 2, 4), buffer("b", 2, 4), buffer("y", 2, 4)
    split = Extern("aten.split.Tensor", (whole(x), 2), (), (a, b))
    program = load(
        module(
            [x],
            [a, b, y],
            [whole(y)],
            [split, launch([a, b], [y])],
            placed=[("a", ix(0)), ("b", ix(64))],
            workspace=128,
        ),
        f0=lambda workspace, y, **_: at(y, a).copy_(at(workspace + 64, a)),
    )
    given = torch.randn(4, 4)
    assert torch.equal(program.call([given])[0], given[2:])


def test_a_workspace_of_no_bytes() -> None:
    x, a, y = buffer("x", 3, 0), buffer("a", 3, 0), buffer("y", 3, 3)
    mm = Extern(
        "aten.mm.default", (whole(a), View(x, types.f32, (ix(0), ix(3)), (ix(1), ix(0)), ix(0))), (), (y,)
    )
    program = load(
        module([x], [a, y], [whole(y)], [launch([x], [a]), mm], placed=[("a", ix(0))]), f0=lambda **_: None
    )
    assert program.call([torch.ones(3, 0)])[0].tolist() == [[0.0] * 3] * 3


def test_a_result_that_is_a_view_of_the_workspace_is_copied() -> None:
    like = buffer("like", 4, 4)
    x, a, v = buffer("x", 4, 4), buffer("a", 4, 4), buffer("v", 16)
    view = Extern("aten.view.default", (whole(a), (16,)), (), (v,))
    program = load(
        module([x], [a, v], [whole(v)], [launch([x], [a]), view], placed=[("a", ix(0))], workspace=64),
        f0=lambda x, workspace, **_: at(workspace, like).copy_(at(x, like)),
    )
    one, two = torch.randn(4, 4), torch.randn(4, 4)
    (first,), (second,) = program.call([one]), program.call([two])
    assert torch.equal(first, one.view(16)) and torch.equal(second, two.view(16))


def test_a_result_with_other_strides_is_brought_to_the_planned_ones() -> None:
    x, y = buffer("x", 2, 3), buffer("y", 3, 2)
    t = Extern("aten.t.default", (whole(x),), (), (y,))
    given = torch.randn(2, 3)
    (out,) = load(module([x], [y], [whole(y)], [t])).call([given])
    assert out.stride() == (2, 1) and torch.equal(out, given.t())


def test_views_of_inputs_respect_the_storage_offset() -> None:
    x = buffer("x", 4, 4)
    row = View(x, types.f32, (ix(4),), (ix(1),), ix(8))
    base = torch.randn(6, 4)
    (out,) = load(module([x], [], [row])).call([base[2:]])
    assert torch.equal(out, base[4]) and out.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def test_outputs_may_be_inputs_numbers_and_none() -> None:
    x = buffer("x", 2)
    given = torch.randn(2)
    out = load(module([x, S], [], [whole(x), None, ix(S) + 1, 2.5, True], symbols=[S])).call([given, 4])
    assert out[0] is given and out[1:] == [None, 5, 2.5, True]


def test_sizes_are_found_from_shapes() -> None:
    x = buffer("x", ix(S) * 2 + 1, 3)
    y = buffer("y", S)
    seen: list[int] = []
    program = load(
        module([x], [y], [whole(y)], [launch([x], [y], sizes=[S])], symbols=[S]),
        f0=lambda s0, **_: seen.append(s0),
    )
    assert program.call([torch.randn(9, 3)])[0].shape == (4,)
    assert seen == [4]


def test_sizes_of_results_are_found_when_they_exist() -> None:
    u = Symbol("u0", 0, None)
    x, y, z = buffer("x", 5), buffer("y", u, 1, dtype=types.i64), buffer("z", u)
    nonzero = Extern("aten.nonzero.default", (whole(x),), (), (y,))
    program = load(
        module([x], [y, z], [whole(y), whole(z)], [nonzero, launch([y], [z], sizes=[u])], symbols=[u]),
        f0=lambda **_: None,
    )
    out = program.call([torch.tensor([0.0, 1, 0, 2, 3])])
    assert out[0].flatten().tolist() == [1, 3, 4] and out[1].shape == (3,)


def test_item_is_a_size() -> None:
    u = Symbol("u0", 0, None)
    x, y = buffer("x", dtype=types.i64), buffer("y", u)
    item = Extern("aten._local_scalar_dense.default", (whole(x),), (), (u,))
    full = Extern(
        "aten.full.default", ((ix(u),), float("-inf")), (("dtype", types.f32), ("device", "device:cpu")), (y,)
    )
    (out,) = load(module([x], [y], [whole(y)], [item, full], symbols=[u])).call([torch.tensor(3)])
    assert out.tolist() == [float("-inf")] * 3


def test_a_size_that_nothing_tells_is_an_error() -> None:
    y = buffer("y", S)
    with pytest.raises(LowcError, match="s0 cannot be found"):
        render(artifact(module([], [y], [whole(y)], symbols=[S])))


def test_marked_strings_and_lists_reach_aten() -> None:
    x, y, z = (
        buffer("x", 2, 3, 4, 5),
        buffer("y", 2, 3, 4, 5, strides=(60, 1, 15, 3)),
        buffer("z", 4, 3, 4, 5),
    )
    clone = Extern(
        "aten.clone.default", (whole(x),), (("memory_format", "memory_format:channels_last"),), (y,)
    )
    cat = Extern("aten.cat.default", ((whole(x), whole(y)), 0), (), (z,))
    given = torch.randn(2, 3, 4, 5)
    out = load(module([x], [y, z], [whole(y), whole(z)], [clone, cat])).call([given])
    assert (
        out[0].stride() == (60, 1, 15, 3)
        and torch.equal(out[0], given)
        and torch.equal(out[1], torch.cat([given, given]))
    )


def test_mutated_inputs_have_a_new_version() -> None:
    x = buffer("x", 3)
    program = load(module([x], [], [], [launch([x], [x])]), f0=lambda x: at(x, buffer("x", 3)).add_(1))
    given = torch.zeros(3)
    version = given._version
    assert program.call([given]) == []
    assert given.tolist() == [1, 1, 1] and given._version > version


def test_extern_calls_that_write_an_input() -> None:
    x, y = buffer("x", 3), buffer("y", 3)
    copy = Extern("aten.copy_.default", (whole(x), whole(y)), (), (None,), (x,))
    to, source = torch.zeros(3), torch.randn(3)
    assert load(module([x, y], [], [], [copy])).call([to, source]) == []
    assert torch.equal(to, source)


def test_constants_are_bound_once() -> None:
    x, c, y = buffer("x", 3), buffer("c", 3), buffer("y", 3)
    add = Extern("aten.add.Tensor", (whole(x), whole(c)), (), (y,))
    program = load(module([x, c], [y], [whole(y)], [add]), [torch.ones(3)])
    assert program.call([torch.zeros(3)])[0].tolist() == [1, 1, 1]
    assert program.call([torch.ones(3)])[0].tolist() == [2, 2, 2]


def test_parameters_that_require_grad_need_no_copies_and_record_nothing() -> None:
    x, y = buffer("x", 3), buffer("y", 3)
    neg = Extern("aten.neg.default", (whole(x),), (), (y,))
    (out,) = load(module([x], [y], [whole(y)], [neg])).call([torch.nn.Parameter(torch.ones(3))])
    assert not out.requires_grad and out.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("code", "kind", "words"), [(1, IndexError, "index out of range"), (2, RuntimeError, "ZeroDivisionError")]
)
def test_error_codes_are_eagers_exceptions_with_the_users_line(
    code: int, kind: type[Exception], words: str
) -> None:
    x, y = buffer("x", 3), buffer("y", 3)
    steps = [launch([x], [y], "first"), launch([x], [y], "aten.gather (model.py:7 in forward: x[i])")]
    program = load(module([x], [y], [whole(y)], steps), f0=lambda **_: code + 16)
    with pytest.raises(kind, match=words) as error:
        program.call([torch.randn(3)])
    assert "model.py:7" in str(error.value) and "first" not in str(error.value)


def test_names_that_python_or_the_program_reserves() -> None:
    x, y, z = buffer("class", 3), buffer("empty", 3), buffer("0-x", 3)
    steps = [
        Extern("aten.neg.default", (whole(x),), (), (y,)),
        Extern("aten.neg.default", (whole(y),), (), (z,)),
    ]
    given = torch.randn(3)
    assert torch.equal(load(module([x], [y, z], [whole(z)], steps)).call([given])[0], given)


def test_concurrent_calls_share_no_slots_and_no_workspace() -> None:
    x, a, y = buffer("x", 64), buffer("a", 64), buffer("y", 64)
    barrier = threading.Barrier(2)

    def native(x: int, y: int, workspace: int) -> None:
        at(workspace, a).copy_(at(x, a))
        barrier.wait()
        at(y, a).copy_(at(workspace, a))

    program = load(
        module(
            [x],
            [a, y],
            [whole(y)],
            [launch([x], [a]), launch([a], [y])],
            placed=[("a", ix(0))],
            workspace=256,
        ),
        f0=native,
    )
    given = [torch.randn(64), torch.randn(64)]
    got: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda i=i: got.setdefault(i, program.call([given[i]])[0])) for i in range(2)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(got[i], given[i]) for i in range(2))


@pytest.mark.parametrize(("size", "kept"), [(arena.SMALL, True), (arena.SMALL + 64, False)])
def test_a_forward_pass_frees_large_workspaces_that_lie_idle(size: int, kept: bool) -> None:
    x, y = buffer("x", 3), buffer("y", 3)
    made = module([x], [y], [whole(y)], [Extern("aten.neg.default", (whole(x),), (), (y,))])
    pool = arena.Pool()
    spare = pool.take(size)
    address = spare.address
    pool.give(spare)
    del spare
    bind(artifact(made), {}, pool=pool).call([torch.randn(3)])
    assert [a.address for a in pool._spare] == [address]
    bind(artifact(made), {}, pool=pool, forward=True).call([torch.randn(3)])
    assert bool(pool._spare) == kept


def test_a_workspace_taken_while_large_ones_are_freed_is_one_calls_alone() -> None:
    pool = arena.Pool()
    taken: list[arena.Arena] = []

    class Slow(arena.Arena):
        """While somebody asks for its size, another thread takes a workspace."""

        @property
        def size(self) -> int:  # type: ignore[override]
            if not taken:
                taken.append(pool.take(64))
            return 64

        @size.setter
        def size(self, size: int) -> None:
            pass

    for made in (arena.Arena(64), arena.Arena(64), Slow(64)):
        pool.give(made)
    pool.shrink()
    taken.append(pool.take(64))
    taken.append(pool.take(64))
    assert len({a.address for a in taken}) == 3


def test_checked_programs_refuse_other_inputs() -> None:
    x, y = buffer("x", S, 3), buffer("y", S, 3)
    neg = Extern("aten.add.Tensor", (whole(x), whole(y)), (), (buffer("z", S, 3),))
    made = module([x, y], [], [], [neg], symbols=[S])
    call = bind(artifact(made), {}, checked=True).call
    good = torch.ones(2, 3)
    assert call([good, torch.ones(1, 3).expand(2, 3).contiguous()]) == []
    others = [
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(4, 3),
        torch.ones(3, 2).t(),
        torch.ones(2, 3, device="meta"),
        1,
        None,
    ]
    for bad in others:
        with pytest.raises(LowcError, match="input y is .* was compiled for torch.float32"):
            call([good, bad])
    with pytest.raises(LowcError, match="takes 2 inputs, not 1"):
        call([good])
    assert call([torch.ones(1, 3), torch.ones(3, 1).t()]) == []


def test_a_result_of_another_dtype_than_planned_is_converted() -> None:
    """As with what batch norm keeps, of which torch's fake tensors have another idea than ATen."""
    x, y = buffer("x", 4), buffer("y", 4, dtype=types.f64)
    program = load(module([x], [y], [whole(y)], [Extern("aten.mul.Tensor", (whole(x), whole(x)), (), (y,))]))
    given = torch.randn(4)
    (out,) = program.call([given])
    assert out.dtype == torch.float64 and torch.equal(out, (given * given).double())
