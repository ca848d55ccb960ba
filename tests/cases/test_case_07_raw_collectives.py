"""A collective that autograd does not see, on a tensor that wants a gradient: refused, and the typed one is named.

`dist.all_gather` and its kindred, in place and as methods of a process group. The functional ones know their gradient.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import meshwright.spmd as spmd
from meshwright.errors import SpmdTypeError
from tests.cases.agreement import Held, agrees, alternatives
from tests.check.judged import on
from tests.denotation import sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def parts(x):
    return [torch.empty(x.shape, dtype=x.dtype) for _ in range(2)]


def twice(x):
    return torch.empty((2 * x.shape[0], *x.shape[1:]), dtype=x.dtype)


def half(x):
    return torch.empty((x.shape[0] // 2, *x.shape[1:]), dtype=x.dtype)


GATHERS = {
    "all_gather": lambda x, group: dist.all_gather(parts(x), x, group=group),
    "all_gather, group by place": lambda x, group: dist.all_gather(parts(x), x, group),
    "all_gather, by name": lambda x, group: dist.all_gather(tensor_list=parts(x), tensor=x, group=group),
    "all_gather later": lambda x, group: dist.all_gather(parts(x), x, group=group, async_op=True),
    "all_gather_into_tensor": lambda x, group: dist.all_gather_into_tensor(twice(x), x, group=group),
    "all_gather_into_tensor, by name": lambda x, group: dist.all_gather_into_tensor(
        output_tensor=twice(x), input_tensor=x, group=group
    ),
    "gather": lambda x, group: dist.gather(x, parts(x) if dist.get_rank(group) == 0 else None, group=group),
    "all_to_all_single": lambda x, group: dist.all_to_all_single(torch.empty(x.shape, dtype=x.dtype), x, group=group),
}
SUMS = {
    "all_reduce": lambda x, group: dist.all_reduce(x, group=group),
    "all_reduce, op by name": lambda x, group: dist.all_reduce(x, op=dist.ReduceOp.SUM, group=group),
    "all_reduce, by place": lambda x, group: dist.all_reduce(x, dist.ReduceOp.SUM, group),
    "all_reduce, by name": lambda x, group: dist.all_reduce(tensor=x, group=group),
    "reduce": lambda x, group: dist.reduce(x, 0, group=group),
    "reduce_scatter_tensor": lambda x, group: dist.reduce_scatter_tensor(half(x), x, group=group),
    "reduce_scatter": lambda x, group: dist.reduce_scatter(half(x), list(x.chunk(2)), group=group),
}
OF_THE_GROUP = {
    "allreduce": lambda x, group: group.allreduce(x),
    "allreduce of a list": lambda x, group: group.allreduce([x]),
    "allgather": lambda x, group: group.allgather([parts(x)], [x]),
    "broadcast": lambda x, group: group.broadcast(x, 0),
}


def problem_of(mesh, call, kind, axis, whole):
    wants = torch.ones(whole, dtype=torch.float64).requires_grad_()
    with spmd.set_current_mesh(mesh), spmd.typecheck():
        x = spmd.assert_type(wants * 1.0, {axis: kind})
        with pytest.raises(SpmdTypeError) as error:
            call(x, mesh.get_group(axis))
    (problem,) = error.value.problems
    assert problem.why
    assert problem.where
    return problem


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(GATHERS)),
    axis=st.sampled_from(["tp", "dp"]),
    kind=st.sampled_from([V, S(0)]),
    rows=st.sampled_from([2, 4]),
    width=st.integers(1, 3),
)
def test_a_gather_is_refused_and_the_typed_one_is_named(mesh, name, axis, kind, rows, width):
    problem = problem_of(mesh, GATHERS[name], kind, axis, (rows, width))
    assert f"axis {axis!r}" in problem.what
    assert f"(x, {axis!r}, src=" in problem.fix
    assert "gradient" in problem.why


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(SUMS)),
    axis=st.sampled_from(["tp", "dp"]),
    rows=st.sampled_from([2, 4]),
    width=st.integers(1, 3),
)
def test_so_is_a_sum(mesh, name, axis, rows, width):
    problem = problem_of(mesh, SUMS[name], P, axis, (rows, width))
    assert f"axis {axis!r}" in problem.what
    assert f"(x, {axis!r}, src=P" in problem.fix


@pytest.mark.parametrize("name", sorted(OF_THE_GROUP))
@pytest.mark.parametrize("axis", ["tp", "dp"])
def test_so_is_a_method_of_a_process_group(mesh, name, axis):
    assert "ProcessGroup" in problem_of(mesh, OF_THE_GROUP[name], P, axis, (2, 3)).what


@pytest.mark.parametrize(
    ("call", "kind"),
    [(GATHERS["all_gather"], S(0)), (SUMS["all_reduce"], P), (SUMS["reduce_scatter_tensor"], P)],
    ids=["all_gather", "all_reduce", "reduce_scatter"],
)
@pytest.mark.parametrize("axis", ["tp", "dp"])
def test_the_named_call_has_the_gradient_of_one_device(mesh, call, kind, axis):
    problem = problem_of(mesh, call, kind, axis, (2, 3))
    ((fix,),) = alternatives(problem.fix)
    assert agrees(lambda x: x * 1.0, on(axis, 2), [fix], x=Held(sample((4, 3), seed=1), {axis: kind}))


KNOWN = {
    "all_reduce": (P, lambda x, group: functional.all_reduce(x, "sum", group), R),
    "all_gather": (S(0), lambda x, group: functional.all_gather_tensor(x, 0, group), R),
    "reduce_scatter": (P, lambda x, group: functional.reduce_scatter_tensor(x, "sum", 0, group), S(0)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_functional_one_has_a_gradient_and_starts_from_what_it_reduces(mesh, name):
    kind, call, gives = KNOWN[name]
    with spmd.set_current_mesh(mesh), spmd.typecheck():
        x = spmd.assert_type(torch.ones(4, 3).requires_grad_(), {"tp": kind})
        assert spmd.layout_of(functional.wait_tensor(call(x, mesh.get_group("tp")))) == {"tp": gives}
        for other in {R, I, P, S(0)} - {kind}:
            wrong = spmd.assert_type(torch.ones(4, 3).requires_grad_(), {"tp": other})
            with pytest.raises(SpmdTypeError, match="'tp'"):
                call(wrong, mesh.get_group("tp"))


WITHOUT = {
    "all_reduce": (P, lambda x, group: (dist.all_reduce(x, group=group), x)[1], R),
    "all_gather_into_tensor": (
        S(0),
        lambda x, group: (lambda out: (dist.all_gather_into_tensor(out, x, group=group), out)[1])(twice(x)),
        R,
    ),
    "all_reduce on a detached one": (P, lambda x, group: functional.all_reduce(x.detach(), "sum", group), R),
}


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_without_a_gradient_it_is_typed_like_ours(mesh, name):
    kind, call, gives = WITHOUT[name]
    with spmd.set_current_mesh(mesh), spmd.typecheck():
        x = spmd.assert_type(torch.ones(2, 3), {"tp": kind})
        assert spmd.layout_of(call(x, mesh.get_group("tp"))) == {"tp": gives}


@pytest.mark.parametrize("kind", [R, I, S(0), V])
def test_a_sum_of_what_is_no_sum_is_refused_without_a_gradient_too(mesh, kind):
    with spmd.set_current_mesh(mesh), spmd.typecheck():
        x = spmd.assert_type(torch.ones(2, 3), {"tp": kind})
        with pytest.raises(
            SpmdTypeError, match=f"takes a tensor that is {kind!r}".replace("(", r"\(").replace(")", r"\)")
        ):
            dist.all_reduce(x, group=mesh.get_group("tp"))


def test_nothing_is_said_of_it_where_nobody_checks(mesh):
    x = torch.ones(2, 3, requires_grad=True)
    dist.all_gather(parts(x), x.detach(), group=mesh.get_group("tp"))
    assert dist.all_gather.__module__ == "torch.distributed.distributed_c10d"
