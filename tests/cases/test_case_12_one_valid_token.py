"""One token of a sequence counts: where the sequence is cut does not matter to any gradient.

Sequence of 8, one unmasked token, cp 1, 2 and 4: identical gradients, and never NaN on the ranks that have none.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE
from tests.cases.backends import everywhere
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample
from tests.marks import slow
from tests.parity.harness import assert_same, global_batch, one_device, small
from tests.parity.processes import on_processes

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S


def gradient(tokens, labels, dims, axis="cp", *, count=lambda valid, axis: spmd.all_reduce(valid, axis, src=P, dst=R)):
    """Of the head, from the sum of the losses of valid tokens divided once by their number over all ranks."""

    def program(rank):
        head = spmd.assert_type(torch.ones(3, tokens.shape[-1], dtype=torch.float64).requires_grad_(), {axis: R})
        x = spmd.assert_type(local({axis: S(0)}, tokens, dims, rank), {axis: S(0)})
        y = spmd.assert_type(local({axis: S(0)}, labels, dims, rank), {axis: S(0)})
        total = F.cross_entropy(x @ head.T, y, ignore_index=-100, reduction="sum")
        valid = count((y != -100).sum(), axis)
        (total / valid).backward()
        grad = spmd.all_reduce(head.grad, axis, src=P, dst=R)
        return grad

    return program


def alone(tokens, labels):
    head = torch.ones(3, tokens.shape[-1], dtype=torch.float64).requires_grad_()
    F.cross_entropy(tokens @ head.T, labels, ignore_index=-100).backward()
    return head.grad


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_wherever_the_token_is(cp, place):
    tokens, labels = sample((8, 2), seed=1), torch.full((8,), -100)
    labels[place] = 1
    for found in judged(gradient(tokens, labels, on("cp", cp)), on("cp", cp)):
        assert torch.equal(found, alone(tokens, labels))


@settings(max_examples=8)
@given(
    axis=st.sampled_from(["cp", "dp"]),
    degree=st.sampled_from([1, 2, 4]),
    each=st.integers(1, 3),
    valid=st.sets(st.integers(0, 3), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_however_many_count(axis, degree, each, valid, seed):
    dims, tokens = on(axis, degree), sample((4 * each, 3), seed)
    labels = torch.full((4 * each,), -100)
    labels[list(valid)] = 2
    for found in judged(gradient(tokens, labels, dims, axis), dims):
        torch.testing.assert_close(found, alone(tokens, labels), rtol=1e-12, atol=1e-12)


def test_the_mean_of_each_rank_is_refused():
    def program(rank):
        head = spmd.assert_type(torch.ones(3, 2, dtype=torch.float64).requires_grad_(), {"cp": R})
        x = spmd.assert_type(torch.ones(4, 2, dtype=torch.float64), {"cp": S(0)})
        F.cross_entropy(x @ head.T, spmd.assert_type(torch.full((4,), 1), {"cp": S(0)}))

    says(refusal(program, on("cp", 2)), "cp", "S(0)", 'reduction="sum"')


def test_the_number_of_this_ranks_tokens_is_no_divisor():
    """The count is P until it is summed."""
    tokens, labels = sample((8, 2), seed=1), torch.full((8,), 1)
    wrong = gradient(tokens, labels, on("cp", 2), count=lambda valid, axis: valid)
    says(refusal(wrong, on("cp", 2)), "cp", "P", "P -> R")


@pytest.mark.parametrize(
    ("world", "layouts"),
    [(2, [{"cp": 2}, {"pp": 2}]), slow(4, [{"cp": 4}, {"cp": 2, "pp": 2}])],
    ids=["two", "four"],
)
def test_on_every_backend_and_through_a_pipeline(world, layouts):
    """The token stands where the second to last rank of cp 4 has its tail."""
    whole = global_batch(small())
    labels = torch.full_like(whole.labels, IGNORE)
    labels[1, 11] = 5
    batches = [Batch(whole.tokens, labels, whole.positions, whole.documents)]
    alone = one_device(small(), batches)
    for outcome in on_processes(everywhere(small(), layouts), batches, world):
        assert_same(outcome, alone)
