"""Functions that call `torch.distributed` inside: simulated ranks serve it, and no process takes part."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import meshwright.spmd as spmd
from meshwright.codes import Code

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def function(forward, backward, declared):
    """Of (x, group); forward and backward take both."""

    def ran(ctx, x, group):
        ctx.group = group
        return forward(x, group)

    members = {
        "forward": ran,
        "backward": lambda ctx, g: (backward(g, ctx.group), None),
        "spmd_typecheck": lambda *, x: declared,
    }
    return type("Mine", (torch.autograd.Function,), {name: staticmethod(each) for name, each in members.items()})


def judged(mesh, kind, *parts):
    """The layout of what it returns, and what was taken on trust."""
    with spmd.set_current_mesh(mesh), spmd.typecheck() as report:
        x = spmd.assert_type(torch.randn(4, 4, dtype=torch.float64, requires_grad=True), {"tp": kind})
        y = function(*parts).apply(x, mesh.get_group("tp"))
        return dict(spmd.layout_of(y)), [claim.reason for claim in report.claims]


def same(x, group):
    return x.clone()


def total(x, group):
    out = x.clone()
    work = dist.all_reduce(out, group=group, async_op=True)
    work.wait()
    return out


def gathered(x, group):
    out = x.new_empty(dist.get_world_size(group) * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def gathered_last(x, group):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    parts[dist.get_rank(group)] = x
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, -1).contiguous()


def scattered(g, group):
    out = g.new_empty(g.shape[0] // dist.get_world_size(group), *g.shape[1:])
    dist.reduce_scatter_tensor(out, g.contiguous(), group=group)
    return out


def scattered_by_list(g, group):
    parts = [each.contiguous() for each in g.chunk(dist.get_world_size(group))]
    out = torch.empty_like(parts[0])
    dist.reduce_scatter(out, parts, group=group)
    return out


def own(g, group):
    rows = g.shape[0] // dist.get_world_size(group)
    return g[dist.get_rank(group) * rows : (dist.get_rank(group) + 1) * rows].contiguous()


def own_last(g, group):
    return g.split(g.shape[-1] // dist.get_world_size(group), -1)[dist.get_rank(group)].contiguous()


def exchanged(x, group):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.contiguous(), group=group)
    return out


def exchanged_by_list(x, group):
    sent = [each.contiguous() for each in x.chunk(dist.get_world_size(group))]
    received = [torch.empty_like(each) for each in sent]
    dist.all_to_all(received, sent, group=group)
    return torch.cat(received)


def functional_gathered(x, group):
    return functional.wait_tensor(functional.all_gather_tensor(x, 0, group))


def functional_scattered(g, group):
    return functional.wait_tensor(functional.reduce_scatter_tensor(g, "sum", 0, group))


def functional_total(x, group):
    return functional.wait_tensor(functional.all_reduce(x, "sum", group))


RIGHT = {
    "enters": (I, same, total, {"tp": R}),
    "leaves": (P, total, same, {"tp": I}),
    "leaves, for what is spread": (P, total, total, {"tp": R}),
    "gathers": (S(0), gathered, scattered, {"tp": R}),
    "gathers, and scatters a list": (S(0), gathered, scattered_by_list, {"tp": R}),
    "gathers for what is not spread": (S(0), gathered, own, {"tp": I}),
    "gathers along the last dim": (S(1), gathered_last, own_last, {"tp": I}),
    "picks its part": (I, own_last, gathered_last, {"tp": S(1)}),
    "scatters": (P, scattered, gathered, {"tp": S(0)}),
    "exchanges": (V, exchanged, exchanged, {"tp": V}),
    "exchanges lists": (V, exchanged_by_list, exchanged, {"tp": V}),
    "gathers by a functional collective": (S(0), functional_gathered, functional_scattered, {"tp": R}),
    "reduces by a functional collective": (P, functional_total, functional_total, {"tp": R}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted_and_nothing_is_taken_on_trust(mesh, name):
    kind, *parts = RIGHT[name]
    assert judged(mesh, kind, *parts) == (parts[-1], [])


WRONG = {
    "not exchanged back": (V, exchanged, same, {"tp": V}),
    "exchanged in another order": (V, exchanged, lambda g, group: exchanged(g, group).flip(0), {"tp": V}),
    "scattered twice as much": (S(0), gathered, lambda g, group: 2 * scattered(g, group), {"tp": R}),
    "the part of another rank": (S(1), gathered_last, lambda g, group: own_last(g.roll(4, -1), group), {"tp": I}),
    "a mean for a sum": (P, total, lambda g, group: total(g, group) / dist.get_world_size(group), {"tp": R}),
    "functional, scattered in another order": (
        S(0),
        functional_gathered,
        lambda g, group: functional_scattered(g, group).flip(0),
        {"tp": R},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_by_values_of_several_ranks(mesh, name):
    kind, *parts = WRONG[name]
    with pytest.raises(spmd.SpmdTypeError) as error:
        judged(mesh, kind, *parts)
    (problem,) = error.value.problems
    assert problem.code is Code.FUNCTION
    assert "on 2 simulated ranks of 'tp'" in problem.what


def unseen(part):
    def run(x, group):
        with spmd.no_typecheck("values are to tell"):
            return part(x, group)

    return run


def test_what_differs_from_rank_to_rank_is_not_r(mesh):
    with pytest.raises(spmd.SpmdTypeError, match="R on axis 'tp', and simulated ranks find different values"):
        judged(mesh, V, unseen(same), unseen(same), {"tp": R})
    with pytest.raises(spmd.SpmdTypeError, match="for x of Mine is I on axis 'tp', and simulated ranks find different"):
        judged(mesh, I, unseen(same), unseen(same), {"tp": R})


def test_a_group_that_is_no_axis_is_taken_on_trust_with_the_reason(mesh):
    other = dist.new_group([0, 1, 2])
    _, reasons = judged(mesh, R, unseen(lambda x, group: total(x, other)), unseen(same), {"tp": R})
    assert any("a process group that is no axis of the mesh" in reason for reason in reasons)
