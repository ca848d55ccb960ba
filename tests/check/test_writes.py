"""What a tensor holds is what its type says, whoever writes it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def r(*shape):
    return given(R, *shape, wants=False)


def v(*shape):
    return given(V, *shape, wants=False)


def through_a_list():
    x = r(4)
    spmd.reinterpret(x, "tp", src=R, dst=V).add_(v(4))


def through_a_view_of_a_list():
    x = r(2, 4)
    spmd.reinterpret(x, "tp", src=R, dst=V).view(-1)[0:4].copy_(v(4))


def data():
    r(4).data = v(4)


WRONG = {
    "into a part": lambda: r(4, 4).__setitem__((slice(None), slice(0, 2)), v(4, 2)),
    "through a view": lambda: r(4, 4).view(-1)[0:2].copy_(v(2)),
    "through a chain of views": lambda: r(4, 4).transpose(0, 1)[0].unsqueeze(0).add_(v(1, 4)),
    "another type of the same memory": through_a_list,
    "a view of another type of the same memory": through_a_view_of_a_list,
    ".data": data,
    "in place": lambda: r(4).add_(v(4)),
    "out=": lambda: torch.add(v(4), r(4), out=r(4)),
    "foreach": lambda: torch._foreach_add_([r(4), r(2)], [r(4), v(2)]),
    "inplace=True": lambda: r(4).mul_(v(4)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_write_keeps_the_type(name):
    problem = refused(WRONG[name], Code.WRITE)
    assert "'tp'" in problem.what


def siblings():
    x = r(4, 4)
    a, b = x[0], x[1]
    a.mul_(2)
    return b + x.sum()


def statistics():
    x = r(4)
    x.requires_grad_()
    with torch.no_grad():
        x.mul_(0.5)
    return x * 2


RIGHT = {
    "of the same type": lambda: r(4).add_(r(4)),
    "siblings of what was written": siblings,
    "a leaf without gradient": statistics,
    "an op in place": lambda: F.relu(r(4), inplace=True),
    "a copy of another type": lambda: spmd.reinterpret(r(4), "tp", src=R, dst=V).clone().add_(v(4)),
    "zeros take any type": lambda: torch.zeros(4).add_(v(4)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_write_of_the_same_type_is_seen_and_keeps_it(name):
    assert set(accepted(RIGHT[name])) == {"tp"}


def test_an_op_in_place_is_judged_like_the_op():
    refused(lambda: F.relu(given(P, 4, wants=False), inplace=True), Code.NOT_LINEAR)


def unseen():
    x = r(4)
    with spmd.no_typecheck("a kernel"):
        x.add_(torch.rand(4))
    return x


def test_what_nobody_saw_being_written_is_not_known_any_more():
    refused(lambda: unseen() * 2, Code.STALE)
    refused(lambda: unseen()[0], Code.STALE)


def test_its_author_may_say_what_it_is():
    assert accepted(lambda: spmd.assert_type(unseen(), {"tp": V}) * 2) == {"tp": V}


def test_a_type_may_be_overwritten_by_name():
    def program():
        buffer = v(4)
        spmd.mutate_type(buffer, "tp", src=V, dst=R)
        return buffer * 2

    assert accepted(program) == {"tp": R}
    assert "not P" in refused(lambda: spmd.mutate_type(v(4), "tp", src=P, dst=R), Code.OTHER_TYPE).what


def test_rprop_writes_where_its_masks_say():
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        weight = torch.nn.Parameter(spmd.assert_type(torch.ones(4, 3), {"tp": spmd.S(0)}))
        optimizer = torch.optim.Rprop([weight], foreach=False)
        for _ in range(2):
            weight.grad = spmd.assert_type(torch.randn(4, 3), {"tp": spmd.S(0)})
            optimizer.step()
        assert spmd.layout_of(weight) == {"tp": spmd.S(0)}
