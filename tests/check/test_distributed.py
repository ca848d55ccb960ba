"""Collectives of torch.distributed, in all the ways in which they are called, on a process group without processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def x(kind, *shape, wants=False):
    return spmd.assert_type(torch.ones(shape).requires_grad_(wants), {"tp": kind})


def in_place(call):
    def run(given, tp):
        call(given, tp)
        return given

    return run


def into(call, *shape):
    def run(given, tp):
        out = torch.empty(shape)
        call(out, given, tp)
        return out

    return run


def listed(given, tp):
    parts = [torch.empty(4) for _ in range(2)]
    dist.all_gather(parts, given, group=tp)
    return parts[1]


TYPED = {
    "all_reduce": (P, in_place(lambda g, tp: dist.all_reduce(g, group=tp)), R),
    "all_reduce by keyword": (P, in_place(lambda g, tp: dist.all_reduce(tensor=g, op=dist.ReduceOp.SUM, group=tp)), R),
    "all_reduce of the largest": (V, in_place(lambda g, tp: dist.all_reduce(g, dist.ReduceOp.MAX, tp)), R),
    "all_gather": (S(0), into(lambda o, g, tp: dist.all_gather_into_tensor(o, g, group=tp), 8), R),
    "all_gather of a list": (V, listed, R),
    "reduce_scatter": (P, into(lambda o, g, tp: dist.reduce_scatter_tensor(o, g, group=tp), 2), S(0)),
    "all_to_all": (V, into(lambda o, g, tp: dist.all_to_all_single(o, g, group=tp), 4), V),
    "broadcast": (V, in_place(lambda g, tp: dist.broadcast(g, group_src=0, group=tp)), R),
    "functional all_reduce": (P, lambda g, tp: functional.all_reduce(g, "sum", tp) * 1, R),
    "functional all_gather": (S(0), lambda g, tp: functional.all_gather_tensor(g, 0, tp) * 1, R),
    "functional reduce_scatter": (P, lambda g, tp: functional.reduce_scatter_tensor(g, "sum", 0, tp) * 1, S(0)),
    "by the op's name": (
        P,
        lambda g, tp: torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(g, "sum", tp.group_name)
        ),
        R,
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_raw_collective_has_a_type_where_no_gradient_is_lost(name, tp):
    kind, call, after = TYPED[name]
    assert spmd.layout_of(call(x(kind, 4), tp)) == {"tp": after}


LOSES = [name for name in TYPED if "functional" not in name and "op's name" not in name and "largest" not in name]


@pytest.mark.parametrize("name", sorted(set(TYPED) - set(LOSES) - {"all_reduce of the largest"}))
def test_of_the_functional_ones_torch_has_the_gradient(name, tp):
    kind, call, after = TYPED[name]
    assert spmd.layout_of(call(x(kind, 4, wants=True) * 1, tp)) == {"tp": after}


@pytest.mark.parametrize("name", LOSES)
def test_it_is_refused_on_a_tensor_that_wants_a_gradient(name, tp):
    kind, call, _ = TYPED[name]
    with pytest.raises(SpmdTypeError) as error:
        call(x(kind, 4, wants=True) * 1, tp)
    (problem,) = error.value.problems
    assert problem.code is Code.RAW_COLLECTIVE
    assert "autograd does not see it" in problem.why


WRONG = {
    "a whole value is summed": (R, lambda g, tp: dist.all_reduce(g, group=tp), "R"),
    "shards are summed": (S(0), lambda g, tp: dist.all_reduce(g, group=tp), "S(0)"),
    "a list is summed": (V, lambda g, tp: dist.all_reduce(g, group=tp), "V"),
    "the largest part of a sum": (P, lambda g, tp: dist.all_reduce(g, dist.ReduceOp.MAX, tp), "P"),
    "the mean of parts": (P, lambda g, tp: dist.all_reduce(g, dist.ReduceOp.AVG, tp), "P"),
    "parts are gathered": (P, lambda g, tp: dist.all_gather_into_tensor(torch.empty(8), g, group=tp), "P"),
    "one rank's part is sent": (P, lambda g, tp: dist.broadcast(g, group_src=0, group=tp), "P"),
    "functional": (R, lambda g, tp: functional.all_reduce(g, "sum", tp), "R"),
    "functional, the largest": (P, lambda g, tp: functional.all_reduce(g, "max", tp), "P"),
    "of the group": (P, lambda g, tp: tp.allreduce([g]), "ProcessGroup"),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_where_the_type_does_not_fit(name, tp):
    kind, call, says = WRONG[name]
    with pytest.raises(SpmdTypeError) as error:
        call(x(kind, 4), tp)
    (problem,) = error.value.problems
    assert problem.code is Code.RAW_COLLECTIVE
    assert says in problem.what


def test_the_whole_world_is_all_axes(tp):
    both = spmd.assert_type(torch.ones(4), {"dp": P, "tp": P})
    dist.all_reduce(both)
    assert spmd.layout_of(both) == {"dp": R, "tp": R}
    with pytest.raises(SpmdTypeError, match="axis 'dp'"):
        dist.all_reduce(spmd.assert_type(torch.ones(4), {"dp": R, "tp": P}))


def test_a_group_that_is_no_axis_is_refused(tp):
    with pytest.raises(SpmdTypeError, match="no axis of the current mesh"):
        dist.all_reduce(x(P, 4), group=dist.new_group([0, 1]))


def test_ranks_say_where_they_come_from(tp):
    assert spmd.layout_of(x(R, 4) * dist.get_rank(tp)) == {"tp": V}
    with pytest.raises(SpmdTypeError, match="another number on every rank"):
        x(R, 4) * dist.get_rank()


def test_what_has_no_type_is_left_to_torch(tp):
    y = torch.ones(4)
    dist.all_reduce(y, group=tp)
    tp.allreduce([y]).wait()
    assert spmd.layout_of(y) == {}


INSTEAD = {
    "all_reduce of R": (R, lambda x, tp: dist.all_reduce(x, group=tp), "leave the call out"),
    "all_reduce of S": (S(1), lambda x, tp: dist.all_reduce(x, group=tp), "all_gather(x, 'tp', src=S(1), dst=R)"),
    "all_reduce of V": (V, lambda x, tp: dist.all_reduce(x, group=tp), "reinterpret(x, 'tp', src=V, dst=P)"),
    "all_gather of R": (R, lambda x, tp: dist.all_gather([x, x], x, group=tp), "leave the call out"),
    "all_gather of P": (P, lambda x, tp: dist.all_gather([x, x], x, group=tp), "all_reduce(x, 'tp', src=P, dst=R)"),
    "all_gather of S": (
        S(1),
        lambda x, tp: dist.all_gather([x, x], x.requires_grad_(), group=tp),
        "all_gather(x, 'tp', src=S(1), dst=R)",
    ),
    "all_to_all of S": (
        S(1),
        lambda x, tp: dist.all_to_all_single(x, x.requires_grad_(), group=tp),
        "all_to_all(x, 'tp', src=S(1), dst=S(dim))",
    ),
}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_to_write_instead_fits_what_the_tensor_is(mesh, name):
    kind, call, instead = INSTEAD[name]
    with spmd.set_current_mesh(mesh), spmd.typecheck(), pytest.raises(spmd.SpmdTypeError) as error:
        call(spmd.assert_type(torch.ones(2, 2), {"tp": kind}), mesh.get_group("tp"))
    assert instead in error.value.problems[0].fix
