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


class Experts(torch.nn.Module):
    """Weights that are cut, of tokens that are whole."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3, 5))
        self.inner = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3, 5))])
        self.scale = torch.nn.Parameter(torch.ones(3, 5))
        for cut in (self.w, *self.inner):
            spmd.assert_type(cut, CUT)
        spmd.assert_type(self.scale, WHOLE)

    @spmd.local_map(in_types=(None, WHOLE), out_types=CUT)
    def forward(self, tokens):
        return tokens * self.w

    @spmd.local_map(in_types=(None, WHOLE), out_types=CUT)
    def by_a_method(self, tokens):
        return self._scaled(tokens)

    @spmd.local_map(in_types=(None, WHOLE), out_types=WHOLE)
    def whole(self, tokens):
        return tokens * self.scale

    def _scaled(self, tokens):
        return tokens * self.inner[0]


HELD = [None]


def of_the_module():
    HELD[0] = w()
    return region(lambda whole: whole * HELD[0], in_types=(WHOLE,))(x())


def listed():
    held = [w(), w()]
    return region(lambda whole: sum(whole * each for each in held), in_types=(WHOLE,))(x())


def by_default():
    def scaled(whole, cut=w()):  # noqa: B008
        return whole * cut

    return region(scaled, in_types=(WHOLE,))(x())


UNDECLARED = {
    "no types": lambda: region(torch.mul)(x(), w()),
    "no gradients": lambda: region(torch.mul, in_types=(WHOLE, CUT))(x(), w()),
    "None each": lambda: region(torch.mul, in_types=(WHOLE, CUT), in_grad_types=(None, None))(x(), w()),
    "another axis": lambda: region(torch.mul, in_types=(WHOLE, CUT), in_grad_types=({"dp": R}, None))(x(), w()),
    "by keyword": lambda: region(lambda cut, held: cut * held, in_types=(CUT,))(w(), held=x()),
    "by keyword, no types": lambda: region(lambda cut, held: cut * held)(w(), held=x()),
    "nested": lambda: region(lambda pair: pair[0] * pair[1])([x(), w()]),
    "of a closure": closure,
    "of its module": lambda: Experts()(x()),
    "of a method of its module": lambda: Experts().by_a_method(x()),
    "of a list of the closure": listed,
    "of the file": of_the_module,
    "of a default": by_default,
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_an_undeclared_gradient_is_refused(name):
    problem = refused(UNDECLARED[name], Code.REGION)
    assert "the gradient is P" in problem.why
    assert "'tp'" in problem.what


DECLARED = {
    "by keyword": lambda: region(lambda held, cut: held * cut, in_types=(WHOLE, CUT), in_grad_types=({"tp": P}, None))(
        held=x(), cut=w()
    ),
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


def test_what_a_region_does_not_take_needs_no_gradient():
    """Other weights of the module are cut; the region takes one that is whole."""
    assert accepted(lambda: Experts().whole(x())) == WHOLE


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_gradient_is_taken(name):
    assert accepted(DECLARED[name]) == CUT
