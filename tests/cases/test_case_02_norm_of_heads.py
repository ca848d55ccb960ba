"""One norm is shared by all heads, and heads are split over ranks: the other operand's sharding decides, no flag does.

The weight [head_dim] is the same on every rank; activations [tokens, heads, head_dim] are S(1) on tp, whether or not
sequences are split too.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from tests.check.judged import judged, on, refusal, says
from tests.denotation import denoted, local, sample


def head_norm(x, weight):
    return F.rms_norm(x, weight.shape, weight)


def alone(whole):
    """The gradients of weight and activations on one device."""
    weight, x = torch.ones(whole.shape[-1], dtype=torch.float64, requires_grad=True), whole.clone().requires_grad_()
    head_norm(x, weight).square().sum().backward()
    return weight.grad, x.grad


def program(whole, dims, weight_kind, kind, used_as=None):
    """The norm on what a rank holds of `whole`; the weight converted to `used_as` before use."""

    def gradients(rank):
        weight = torch.ones(whole.shape[-1], dtype=torch.float64, requires_grad=True)
        weight = spmd.assert_type(weight, {"tp": weight_kind})
        x = local({"tp": kind}, whole, dims, rank).requires_grad_()
        x = spmd.assert_type(x, {"tp": kind})
        used = spmd.redistribute(weight, "tp", src=weight_kind, dst=used_as or weight_kind)
        head_norm(x, used).square().sum().backward()
        if weight_kind is spmd.R:
            weight.grad = spmd.all_reduce(weight.grad, "tp", src=spmd.P, dst=spmd.R)
        torch.optim.SGD([weight], lr=0.1).step()
        return weight.grad, x.grad

    return gradients


@settings(max_examples=15)
@given(
    degree=st.sampled_from([2, 3]),
    tokens=st.integers(1, 3),
    heads=st.integers(1, 2),
    head_dim=st.integers(1, 5),
    place=st.sampled_from([0, 1]),
    seed=st.integers(0, 99),
)
def test_split_activations_ask_for_the_sum(degree, tokens, heads, head_dim, place, seed):
    """place: of the dim that is split, tokens (sequences split) or heads (not)."""
    dims, kind = on("tp", degree), spmd.S(place)
    whole = sample([tokens, heads, head_dim], seed)
    whole = whole.repeat_interleave(degree, place)
    says(refusal(program(whole, dims, spmd.I, kind), dims), "tp", f"I, {kind!r}", "I -> R: convert(weight, 'tp'")
    weight_grad, x_grad = alone(whole)
    for held, used in ((spmd.I, spmd.R), (spmd.R, spmd.R)):
        found = judged(program(whole, dims, held, kind, used), dims)
        for grad, _ in found:
            torch.testing.assert_close(grad, weight_grad)
        torch.testing.assert_close(denoted({"tp": kind}, [x for _, x in found], dims), x_grad)


def test_activations_that_are_the_same_everywhere_ask_for_none():
    dims, whole = on("tp", 2), sample((4, 2, 3), seed=1)
    weight_grad, x_grad = alone(whole)
    for grad, x in judged(program(whole, dims, spmd.I, spmd.I), dims):
        torch.testing.assert_close(grad, weight_grad)
        torch.testing.assert_close(x, x_grad)


def test_an_invariant_weight_meets_replicated_activations():
    """Each rank's gradient of R is a part of a sum, and so would be that of the weight."""
    dims, whole = on("tp", 2), sample((4, 2, 3), seed=1)
    says(refusal(program(whole, dims, spmd.I, spmd.R), dims), "tp", "I, R", "I -> R: convert(weight, 'tp'")


@pytest.mark.parametrize("kind", [spmd.S(0), spmd.S(1)])
def test_without_the_sum_ranks_hold_different_gradients(kind):
    """What the refusals keep from happening."""
    dims, whole = on("tp", 2), sample((4, 2, 3), seed=1)

    def unreduced(rank):
        weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
        x = local({"tp": kind}, whole, dims, rank)
        head_norm(x, weight).square().sum().backward()
        return weight.grad

    first, second = (unreduced(rank) for rank in range(2))
    assert not torch.allclose(first, second)
    torch.testing.assert_close(first + second, alone(whole)[0])
