"""Label smoothing where the vocabulary is split: what is spread evenly is spread over all words, on whatever rank.

logits 0, .25 ... 1.75, target 5, smoothing 0.1 over the other 7, tp 2: 1.90614, not 1.97994 or 1.84661. To divide a
sum over all words by the number of this rank's words is refused.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.threads import run_ranks
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample

R, I, P, S = spmd.R, spmd.I, spmd.P, spmd.S
LOGITS = torch.arange(8).double() * 0.25


def smoothed(logits, target, smoothing, dims, axis="tp", words=lambda x: spmd.size(x, 0)):
    """The loss and the gradient of this rank's logits. words: how many words there are."""

    def program(rank):
        x = spmd.assert_type(local({axis: S(0)}, logits, dims, rank).requires_grad_(), {axis: S(0)})
        vocab = spmd.assert_type(local({axis: S(0)}, torch.arange(len(logits)), dims, rank), {axis: S(0)})
        log_sum = spmd.all_reduce(x.exp().sum(), axis, src=P, dst=R).log()
        log_p = x - log_sum
        hit = spmd.all_reduce(log_p.masked_fill(vocab != target, 0.0).sum(), axis, src=P, dst=R)
        total = spmd.all_reduce(log_p.sum(), axis, src=P, dst=R)
        each = smoothing / (words(x) - 1)  # a float that asks nothing of the number behind it
        loss = -(1 - smoothing) * hit - each * (total - hit)
        spmd.convert(loss, axis, src=R, dst=P).backward()
        return loss.item(), x.grad

    return program


def alone(logits, target, smoothing):
    x = logits.clone().requires_grad_()
    log_p = x.log_softmax(0)
    others = (log_p.sum() - log_p[target]) / (len(logits) - 1)
    loss = -(1 - smoothing) * log_p[target] - smoothing * others
    loss.backward()
    return loss.item(), x.grad


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_number(tp):
    dims = on("tp", tp)
    assert [loss for loss, _ in judged(smoothed(LOGITS, 5, 0.1, dims), dims)] == [pytest.approx(1.90614, abs=1e-5)] * tp


LOCAL = {
    "shape": lambda x: x.shape[0],
    "size": lambda x: x.size(0),
    "numel": lambda x: x.numel(),
    "size of all": lambda x: x.size()[-1],
    "shape, in arithmetic": lambda x: x.shape[0] * 2 - x.shape[0],
}


@pytest.mark.parametrize("words", LOCAL)
@pytest.mark.parametrize("axis", ["tp", "dp"])
def test_the_number_of_this_ranks_words_is_no_divisor(words, axis):
    problem = refusal(smoothed(LOGITS, 5, 0.1, on(axis, 2), axis, LOCAL[words]), on(axis, 2))
    says(problem, axis, "")
    assert "what this rank holds of a dim that is sharded" in problem.what
    assert ("spmd.axis_size(" if words == "numel" else "spmd.size(") in problem.fix


def test_unchecked_it_would_give_another_number():
    wrong = run_ranks(on("tp", 2), smoothed(LOGITS, 5, 0.1, on("tp", 2), words=lambda x: x.shape[0]))
    assert abs(wrong[0][0] - 1.90614) > 0.05


def test_a_mean_over_this_ranks_words_is_refused_too():
    def program(rank):
        x = spmd.assert_type(local({"tp": S(0)}, LOGITS, on("tp", 2), rank), {"tp": S(0)})
        return x.mean()

    problem = refusal(program, on("tp", 2))
    says(problem, "tp", "S(0)", "8 is the count over all ranks")


@settings(max_examples=8)
@given(
    degree=st.sampled_from([2, 3]),
    each=st.integers(1, 4),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_whatever_the_vocabulary(degree, each, smoothing, seed, data):
    logits, dims = sample((each * degree,), seed), on("tp", degree)
    target = data.draw(st.integers(0, len(logits) - 1))
    loss, grad = alone(logits, target, smoothing)
    found = judged(smoothed(logits, target, smoothing, dims), dims)
    assert [each for each, _ in found] == [pytest.approx(loss)] * degree
    torch.testing.assert_close(torch.cat([part for _, part in found]), grad)
