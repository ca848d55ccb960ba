"""A list with one entry for each rank is made, and taken apart, of tensors of which another dim is a product."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.comm.grid import ParallelismDims
from tests.cases.agreement import Held, agrees
from tests.check.judged import refusal
from tests.denotation import sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
DIMS = ParallelismDims(dp_shard=2, cp=2, tp=2)
X = Held(sample((2, 4, 3), 1), {"dp": S(0), "cp": S(1), "tp": R})


def stacked(x):
    """The tokens of each rank of tp, one above the other."""
    tokens = x.flatten(0, 1)
    if spmd.current_mesh() is None:
        return torch.stack([tokens, tokens]).sum(0)
    own = spmd.reinterpret(tokens, "tp", src=R, dst=V)
    return spmd.all_gather(own, "tp", src=V, dst=R).sum(0)


def taken_apart(x):
    """Each rank of tp takes its entry, and they are summed."""
    tokens = x.flatten(0, 1)
    both = torch.stack([tokens, 2.0 * tokens])
    if spmd.current_mesh() is None:
        return both.sum(0)
    own = spmd.convert(both, "tp", src=R, dst=V)
    return spmd.all_reduce(spmd.reinterpret(own, "tp", src=V, dst=P), "tp", src=P, dst=R)


@pytest.mark.parametrize("program", [stacked, taken_apart])
def test_it_is_what_one_device_has(program):
    assert agrees(lambda x: program(x).unflatten(0, x.shape[:2]), DIMS, x=X) == X.layout


def test_a_product_that_is_cut_is_no_list():
    def program(rank):
        spmd.convert(X.on_rank(DIMS, rank).flatten(0, 1), "tp", src=R, dst=V)

    assert refusal(program, DIMS).code is Code.NO_STEP
