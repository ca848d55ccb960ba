"""The corner ranks of a mesh run the same program, or are told where they part."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import meshwright.spmd as spmd
from meshwright.check.replay import corners
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from tests.check.programs_alone import given

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
AXES = {"dp": 2, "tp": 4}


def place(axis):
    """A plain int, of which the types know nothing."""
    return int(spmd.axis_index(axis))


def branch():
    x = given(R, 4)
    return x * 2 if place("tp") == 0 else x * 3


def skipped():
    x = given(P, 4)
    return spmd.all_reduce(x, "tp", src=P, dst=R) if place("dp") == 0 else x


def swapped():
    x, y = given(P, 4), given(P, 2)
    for each in (x, y) if place("tp") == 0 else (y, x):
        spmd.all_reduce(each, "tp", src=P, dst=R)


PARTED = {
    "a number": (lambda: given(R, 4) * place("tp"), "tp"),
    "a branch": (branch, "tp"),
    "a collective that is skipped": (skipped, "dp"),
    "collectives in another order": (swapped, "tp"),
    "an exponent": (lambda: given(R, 4) ** (2 + place("dp")), "dp"),
    "a slice": (lambda: given(R, 8)[place("tp") : place("tp") + 2], "tp"),
    "a seed": (lambda: (torch.manual_seed(place("tp")), torch.dropout(given(R, 4), 0.5, True)), "tp"),
    "a longer program": (lambda: [given(R, 4).exp() for _ in range(1 + place("dp"))], "dp"),
}


@pytest.mark.parametrize("name", PARTED)
def test_ranks_that_part_are_told_where(name):
    program, axis = PARTED[name]
    with pytest.raises(SpmdTypeError) as error:
        spmd.check(program, AXES)
    problem = error.value.problems[0]
    assert problem.code is Code.RANKS_DIFFER
    assert f"axis {axis!r}" in problem.what
    assert ".py:" in problem.where


SAME = {
    "a place as a value": lambda: given(R, 4) * spmd.axis_index("tp"),
    "a converted tensor": lambda: spmd.convert(given(R, 4), "tp", src=R, dst=S(0)) * 2,
    "a collective": lambda: spmd.all_reduce(given(P, 4), "tp", src=P, dst=R),
    "an uneven cut": lambda: spmd.convert(given(R, 5), "dp", src=R, dst=S(0, (3, 2))),
}


@pytest.mark.parametrize("name", SAME)
def test_what_differs_by_its_type_is_no_difference(name):
    program = SAME[name]
    mesh = dict.fromkeys(AXES, R)
    spmd.check(lambda: spmd.assert_type(torch.ones(2), mesh) and None if program is None else program(), AXES)


def test_all_problems_are_told_at_once():
    def program():
        x = given(P, 4)
        x.exp()
        given(S(0), 4).mean()
        return x.exp() + given(R, 4)

    with pytest.raises(SpmdTypeError) as error:
        spmd.check(program, AXES)
    assert [problem.code for problem in error.value.problems] == [Code.NOT_LINEAR, Code.ALONG_SHARD, Code.NOT_LINEAR]


def test_what_comes_of_a_problem_is_not_told_again():
    def program():
        y = given(P, 4).exp()
        return ((y + 1) * y).sum().item()

    with pytest.raises(SpmdTypeError) as error:
        spmd.check(program, AXES)
    assert len(error.value.problems) == 1


def test_the_rank_is_that_of_the_corner_that_is_played():
    with pytest.raises(SpmdTypeError, match="get_rank"):
        spmd.check(lambda: given(R, 4) * dist.get_rank(), AXES)


def test_corners_differ_on_each_axis_and_are_few():
    assert [rank for rank, _ in corners({"dp": 128, "cp": 16, "tp": 8})] == [0, 127 * 128, 15 * 8, 7, 16383]
    assert [rank for rank, _ in corners({"dp": 1, "tp": 1})] == [0]
