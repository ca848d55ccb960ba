"""A norm weight that every rank holds meets tokens that are split over ranks: its gradient is a sum over ranks.

Tokens [1,2], [3,4] | [5,6], [7,8], weight ones, loss = sum of weight * token: [16, 20] on both ranks, of [4, 6] and
[12, 14]. Weight I meets S: refused, naming I -> R. Weight R: its gradient is P, which no optimizer takes.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.threads import run_ranks
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample

TOKENS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
TWO = on("tp", 2)


def parts(kind, axis, tokens, dims, rank):
    """The weight and this rank's tokens, typed; tokens are split along the dim before the features."""
    split = {axis: spmd.S(tokens.dim() - 2)}
    weight = torch.ones(tokens.shape[-1], dtype=tokens.dtype, requires_grad=True)
    held = local(split, tokens, dims, rank)
    return spmd.assert_type(weight, {axis: kind}), spmd.assert_type(held, split)


def test_each_rank_computes_its_own_part_of_the_gradient():
    def gradient(rank):
        weight, tokens = parts(spmd.R, "tp", TOKENS, TWO, rank)
        (weight * tokens).sum().backward()
        return weight.grad.tolist()

    assert run_ranks(TWO, gradient) == [[4.0, 6.0], [12.0, 14.0]]


def as_invariant(axis, tokens, dims, convert):
    def gradient(rank):
        weight, held = parts(spmd.I, axis, tokens, dims, rank)
        used = spmd.convert(weight, axis, src=spmd.I, dst=spmd.R) if convert else weight
        loss = (used * held).sum()
        assert spmd.layout_of(loss) == {axis: spmd.P}
        loss.backward()
        assert spmd.layout_of(weight.grad) == {axis: spmd.I}
        torch.optim.SGD([weight], lr=0.5).step()
        return weight.grad.tolist(), weight.tolist()

    return gradient


def as_replicated(axis, tokens, dims, reduce):
    def gradient(rank):
        weight, held = parts(spmd.R, axis, tokens, dims, rank)
        (weight * held).sum().backward()
        assert spmd.layout_of(weight.grad) == {axis: spmd.P}
        if reduce:
            weight.grad = spmd.all_reduce(weight.grad, axis, src=spmd.P, dst=spmd.R)
        torch.optim.SGD([weight], lr=0.5).step()
        return weight.grad.tolist(), weight.tolist()

    return gradient


def test_an_invariant_weight_is_refused_and_the_conversion_sums_its_gradient():
    says(refusal(as_invariant("tp", TOKENS, TWO, convert=False), TWO), "tp", "I, S(0)", "I -> R: convert(input, 'tp'")
    assert judged(as_invariant("tp", TOKENS, TWO, convert=True), TWO) == [([16.0, 20.0], [-7.0, -9.0])] * 2


def test_a_replicated_weight_is_stepped_only_after_its_gradient_is_reduced():
    problem = refusal(as_replicated("tp", TOKENS, TWO, reduce=False), TWO)
    says(problem, "tp", "P, R", "P -> R: p.grad = all_reduce(p.grad, 'tp', src=P, dst=R)")
    assert "assert_type(weight" in problem.what, "the line that typed a parameter of no module stands for its name"
    assert judged(as_replicated("tp", TOKENS, TWO, reduce=True), TWO) == [([16.0, 20.0], [-7.0, -9.0])] * 2


@settings(max_examples=15)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3, 4]),
    batch=st.lists(st.integers(1, 3), max_size=1),
    rows=st.integers(1, 3),
    features=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_whatever_the_axis_and_the_shape(axis, degree, batch, rows, features, seed):
    dims, tokens = on(axis, degree), sample((*batch, rows * degree, features), seed)
    split, total = f"S({len(batch)})", tokens.flatten(0, -2).sum(0)
    stepped = (total.tolist(), (1 - 0.5 * total).tolist())
    says(refusal(as_invariant(axis, tokens, dims, convert=False), dims), axis, f"I, {split}", "I -> R")
    assert judged(as_invariant(axis, tokens, dims, convert=True), dims) == [stepped] * degree
    says(refusal(as_replicated(axis, tokens, dims, reduce=False), dims), axis, "P, R", "P -> R")
    assert judged(as_replicated(axis, tokens, dims, reduce=True), dims) == [stepped] * degree


NORMS = {
    "rms_norm": lambda x, weight: F.rms_norm(x, weight.shape, weight),
    "layer_norm": lambda x, weight: F.layer_norm(x, weight.shape, weight),
    "by hand": lambda x, weight: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight,
}


@pytest.mark.parametrize("norm", NORMS)
def test_the_norms_themselves(norm):
    tokens = sample((4, 8), seed=3)
    alone = torch.ones(8, dtype=torch.float64, requires_grad=True)
    NORMS[norm](tokens, alone).square().sum().backward()

    def gradient(kind):
        def program(rank):
            weight, held = parts(kind, "tp", tokens, TWO, rank)
            used = spmd.redistribute(weight, "tp", src=kind, dst=spmd.R)
            NORMS[norm](held, used).square().sum().backward()
            return weight.grad if kind is spmd.I else spmd.all_reduce(weight.grad, "tp", src=spmd.P, dst=spmd.R)

        return program

    def unconverted(rank):
        weight, held = parts(spmd.I, "tp", tokens, TWO, rank)
        NORMS[norm](held, weight)

    says(refusal(unconverted, TWO), "tp", "I, S(0)", "I -> R")
    for kind in (spmd.I, spmd.R):
        for found in judged(gradient(kind), TWO):
            torch.testing.assert_close(found, alone.grad)


@pytest.mark.parametrize("clip", [torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_])
def test_a_gradient_that_is_not_reduced_is_not_clipped_either(clip):
    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2))

    def program(rank, reduce):
        model = torch.nn.Sequential(Norm())
        weight = spmd.assert_type(model[0].scale, {"tp": spmd.R})
        held = spmd.assert_type(local({"tp": spmd.S(0)}, TOKENS, TWO, rank), {"tp": spmd.S(0)})
        (weight * held).sum().backward()
        if reduce:
            weight.grad = spmd.all_reduce(weight.grad, "tp", src=spmd.P, dst=spmd.R)
        clip(model.parameters(), 1.0)
        return weight.grad.tolist()

    problem = refusal(lambda rank: program(rank, reduce=False), TWO)
    says(problem, "tp", "P", "P -> R")
    assert "gradient of 0.scale" in problem.what
    first, second = judged(lambda rank: program(rank, reduce=True), TWO)
    assert first == second
    assert max(first) <= 1.0
