"""The local length of a sharded dim: a shape, a count of copies, but no value."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.check.programs_alone import accepted, given, refused

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S

VALUES = {
    "full_like": lambda x, n: x / torch.full_like(x, n),
    "a constant times it": lambda x, n: x * torch.ones(2, dtype=x.dtype).mul(n),
    "a constant filled with it": lambda x, n: x / torch.empty(2, dtype=x.dtype).fill_(n),
    "a constant plus it": lambda x, n: x + (torch.arange(2) + n),
    "round": lambda x, n: x / round(n),
    "divmod": lambda x, n: x * divmod(n, 2)[1],
    "divmod by it": lambda x, n: x * divmod(9, n)[0],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_made_of_a_local_length_is_refused(name):
    problem = refused(lambda: VALUES[name](given(R, 2), given(S(1), 2, 3).shape[1]), Code.LENGTH)
    assert "'tp'" in problem.what


SHAPES = {
    "view": lambda n: torch.zeros(6).view(n, -1),
    "expand": lambda n: torch.ones(1).expand(n),
    "narrow": lambda n: torch.arange(9).narrow(0, 0, n),
    "slice": lambda n: torch.arange(9)[:n],
}


@pytest.mark.parametrize("name", SHAPES)
def test_constants_take_shapes_of_a_local_length(name):
    accepted(lambda: SHAPES[name](given(S(1), 2, 3).shape[1]))


COPIES = {
    "repeat": lambda key, n: key.repeat(1, n, 1),
    "tile": lambda key, n: key.tile((1, n, 1)),
    "repeat_interleave": lambda key, n: key.repeat_interleave(n, dim=1),
    "expand": lambda key, n: key.expand(-1, n, -1),
}


@pytest.mark.parametrize("name", COPIES)
def test_as_many_copies_as_a_rank_has_heads_are_cut_as_the_heads(name):
    def program():
        heads = given(S(1), 3, 4, 5)
        return COPIES[name](given(R, 3, 1, 5), heads.shape[1]) * heads

    assert accepted(program) == {"tp": S(1)}


def test_copies_of_an_invariant_key_are_refused():
    refused(lambda: given(I, 3, 1, 5).repeat(1, given(S(1), 3, 4, 5).shape[1], 1), Code.INVARIANT_MEETS)


def test_several_positions_are_not_repeated_so_often():
    refused(lambda: given(R, 3, 2, 5).repeat(1, given(S(1), 3, 4, 5).shape[1], 1), Code.LENGTH)
