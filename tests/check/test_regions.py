"""Where R meets what differs from rank to rank in a region, its gradient is declared, however the tensors come in."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
WHOLE, CUT = {"tp": R}, {"tp": S(1)}


def x():
    return given(R, 3, 5)


def w():
    return given(S(1), 3, 5)


def region(function, **declared):
    return spmd.local_map(out_types=CUT, **declared)(function)


def closure():
    held = x()
    return region(lambda cut: cut * held, in_types=(CUT,))(w())


UNDECLARED = {
    "no types": lambda: region(torch.mul)(x(), w()),
    "no gradients": lambda: region(torch.mul, in_types=(WHOLE, CUT))(x(), w()),
    "None each": lambda: region(torch.mul, in_types=(WHOLE, CUT), in_grad_types=(None, None))(x(), w()),
    "another axis": lambda: region(torch.mul, in_types=(WHOLE, CUT), in_grad_types=({"dp": R}, None))(x(), w()),
    "by keyword": lambda: region(lambda cut, held: cut * held, in_types=(CUT,))(w(), held=x()),
    "by keyword, no types": lambda: region(lambda cut, held: cut * held)(w(), held=x()),
    "nested": lambda: region(lambda pair: pair[0] * pair[1])([x(), w()]),
    "of a closure": closure,
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_an_undeclared_gradient_is_refused(name):
    problem = refused(UNDECLARED[name], Code.REGION)
    assert "the gradient is P" in problem.why
    assert "'tp'" in problem.what


DECLARED = {
    "alike": lambda: region(torch.mul, in_types=(WHOLE, CUT), in_grad_types=({"tp": P}, None))(x(), w()),
    "a list": lambda: region(torch.mul, in_types=(WHOLE, CUT), in_grad_types=[{"tp": P}, CUT])(x(), w()),
    "no types": lambda: region(torch.mul, in_grad_types=({"tp": P}, None))(x(), w()),
    "a dict": lambda: region(
        lambda both: both["x"] * both["w"],
        in_types=({"x": WHOLE, "w": CUT},),
        in_grad_types=({"x": {"tp": P}, "w": None},),
    )({"x": x(), "w": w()}),
    "no gradient wanted": lambda: region(torch.mul)(x().detach(), w()),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_gradient_is_taken(name):
    assert accepted(DECLARED[name]) == CUT
