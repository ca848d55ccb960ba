"""A gradient by its names, over several steps: what is cleared begins anew, and a name of an old one says nothing."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, P, S = spmd.R, spmd.P, spmd.S

CLEARED = {
    "by the optimizer": lambda optimizer, p: optimizer.zero_grad(),
    "by the optimizer, in place": lambda optimizer, p: optimizer.zero_grad(set_to_none=False),
    "itself": lambda optimizer, p: p.grad.zero_(),
    "its data": lambda optimizer, p: p.grad.data.zero_(),
    "detached": lambda optimizer, p: p.grad.detach().zero_(),
    "several at once": lambda optimizer, p: torch._foreach_zero_([p.grad]),
    "filled": lambda optimizer, p: p.grad.fill_(0),
    "replaced": lambda optimizer, p: setattr(p, "grad", torch.zeros_like(p)),
}


def trained(clear, kind, reduces=True):
    def program():
        x = given(R, 4, 6, wants=False, dp=S(0))
        p = given(S(1), 6, 4, dp=R)
        optimizer = torch.optim.AdamW([p], foreach=kind)
        for _ in range(3):
            (x @ p).square().sum().backward()
            if reduces:
                with torch.no_grad():
                    p.grad.copy_(spmd.all_reduce(p.grad, "dp", src=P, dst=R))
            optimizer.step()
            clear(optimizer, p)

    return program


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", CLEARED)
def test_what_is_cleared_is_summed_anew(name, foreach):
    accepted(trained(CLEARED[name], foreach))


@pytest.mark.parametrize("name", CLEARED)
def test_it_is_reduced_at_each_step(name):
    assert refused(trained(CLEARED[name], False, reduces=False), Code.REDUCED)


OLD = {
    "itself": lambda p: p.grad,
    "flat": lambda p: p.grad.view(-1),
    "its data": lambda p: p.grad.data,
    "detached": lambda p: p.grad.detach(),
}
GONE = {
    "cleared": lambda p: setattr(p, "grad", None),
    "copied": lambda p: setattr(p, "grad", p.grad.clone()),
}


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("name", OLD)
def test_a_name_of_an_old_gradient_says_nothing_of_the_new_one(name, gone):
    def program():
        x, p = given(R, 4, 6, wants=False, dp=S(0)), given(S(1), 6, 4, dp=R)
        (x @ p).square().sum().backward()
        old = OLD[name](p)
        GONE[gone](p)
        (x @ p).square().sum().backward()
        old.copy_(spmd.all_reduce(old, "dp", src=P, dst=R))
        torch.optim.SGD([p]).step()

    assert "P on axis 'dp'" in refused(program, Code.REDUCED).what


def test_a_parameter_that_is_not_used_is_stepped_by_zeros():
    def program():
        x = given(R, 4, 6, wants=False, dp=S(0))
        used, other = given(S(1), 6, 4, dp=R), given(S(1), 6, 4, dp=R)
        optimizer = torch.optim.SGD([used, other])
        ((x @ used).square().sum() + (x @ other).square().sum()).backward()
        for p in (used, other):
            p.grad = spmd.all_reduce(p.grad, "dp", src=P, dst=R)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        (x @ used).square().sum().backward()
        used.grad = spmd.all_reduce(used.grad, "dp", src=P, dst=R)
        optimizer.step()

    accepted(program)
