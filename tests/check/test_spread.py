"""One position that is expanded to as many as a rank has of a cut dim: the number may come from anywhere."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from tests.cases.agreement import Held, agrees
from tests.check.judged import on, refusal
from tests.denotation import sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S


def heads(k):
    """How many a rank has, as its config says."""
    return int(k.shape[2])


def rotary(k, r):
    """The part that turns, shared by all heads, behind the part of each."""
    return torch.cat([k, r.unsqueeze(2).expand(-1, -1, heads(k), -1)], -1)


USES = {
    "behind it": rotary,
    "added": lambda k, r: k[..., :2] + r.unsqueeze(2).expand(-1, -1, heads(k), -1),
    "multiplied": lambda k, r: r.unsqueeze(2).expand(-1, -1, heads(k), 2) * k[..., :2],
    "in a product": lambda k, r: torch.einsum(
        "blhd,blhd->blh", k[..., :2], r.unsqueeze(2).expand(-1, -1, heads(k), -1)
    ),
}


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("name", USES)
def test_it_is_right_on_one_device(name, degree):
    k, r = Held(sample((2, 5, 6, 4), 1), {"tp": S(2)}), Held(sample((2, 5, 2), 2), {"tp": R})
    assert agrees(USES[name], on("tp", degree), k=k, r=r) == {"tp": S(2)}


@pytest.mark.parametrize("name", USES)
def test_what_is_invariant_is_made_replicated_first(name):
    k, r = Held(sample((2, 5, 6, 4), 1), {"tp": S(2)}), Held(sample((2, 5, 2), 2), {"tp": I})
    dims = on("tp", 2)
    problem = refusal(lambda rank: USES[name](k.on_rank(dims, rank), r.on_rank(dims, rank)), dims)
    assert problem.code is Code.INVARIANT_MEETS
    assert problem.fix.startswith("I -> R: convert(")


def test_positions_that_are_not_one_do_not_fit():
    k, r = Held(sample((2, 5, 6, 4), 1), {"tp": S(2)}), Held(sample((2, 5, 3, 4), 2), {"tp": R})
    dims = on("tp", 2)
    problem = refusal(lambda rank: k.on_rank(dims, rank) + r.on_rank(dims, rank), dims)
    assert problem.code is Code.WHOLE_MEETS_SHARD


def test_other_tensors_of_the_same_types_are_judged_for_themselves():
    k, one, many = (Held(sample(shape, 1), {"tp": kind}) for shape, kind in USED)
    dims = on("tp", 2)

    def program(rank):
        heads, whole = k.on_rank(dims, rank), many.on_rank(dims, rank)
        spmd.layout_of(heads + one.on_rank(dims, rank).expand(-1, -1, 3, -1))
        return heads + whole

    assert refusal(program, dims).code is Code.WHOLE_MEETS_SHARD


USED = (((2, 5, 6, 4), S(2)), ((2, 5, 1, 4), R), ((2, 5, 3, 4), R))
