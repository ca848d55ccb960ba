"""The gate of a router is the same on every tp rank, and its scores are split over tp for dispatch.

Contributions 0.2 and 0.5: the gate's gradient is 0.7 on both ranks.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.models.layouts import state
from meshwright.parity.step import thread_parts
from tests.audit.expert_recipes import states
from tests.audit.recipes import applied
from tests.audit.recipes import judged as checked
from tests.cases.mixtures import GATE, mixtures, planted
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample
from tests.parity.harness import assert_same, global_batch, on_threads, one_device


def program(tokens, weights, axis, dims, reduce, held=spmd.R):
    """scores = tokens @ gate, each rank dispatches its own, weighted by `weights`; the gradient of the gate."""

    def gradient(rank):
        gate = torch.ones(tokens.shape[-1], dtype=tokens.dtype, requires_grad=True)
        gate = spmd.assert_type(gate, {axis: held})
        x = spmd.assert_type(tokens.clone(), {axis: spmd.R})
        mine = spmd.assert_type(local({axis: spmd.S(0)}, weights, dims, rank), {axis: spmd.S(0)})
        scores = x @ gate
        dispatched = spmd.convert(scores, axis, src=held, dst=spmd.S(0))
        (dispatched * mine).sum().backward()
        if reduce:
            gate.grad = spmd.all_reduce(gate.grad, axis, src=spmd.P, dst=spmd.R)
        torch.optim.SGD([gate], lr=1.0).step()
        return gate.grad.tolist()

    return gradient


def test_contributions_are_summed():
    dims = on("tp", 2)
    tokens, weights = torch.tensor([[1.0], [1.0]], dtype=torch.float64), torch.tensor([0.2, 0.5], dtype=torch.float64)
    problem = refusal(program(tokens, weights, "tp", dims, reduce=False), dims)
    says(problem, "tp", "P, R", "P -> R: p.grad = all_reduce(p.grad, 'tp', src=P, dst=R)")
    assert judged(program(tokens, weights, "tp", dims, reduce=True), dims) == [[pytest.approx(0.7)]] * 2


def test_an_invariant_gate_is_summed_by_the_split_itself():
    dims = on("tp", 2)
    tokens, weights = torch.tensor([[1.0], [1.0]], dtype=torch.float64), torch.tensor([0.2, 0.5], dtype=torch.float64)
    assert judged(program(tokens, weights, "tp", dims, False, held=spmd.I), dims) == [[pytest.approx(0.7)]] * 2


@settings(max_examples=10)
@given(
    axis=st.sampled_from(["tp", "cp"]),
    degree=st.sampled_from([2, 4]),
    each=st.integers(1, 3),
    features=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_whatever_the_axis_and_the_shape(axis, degree, each, features, seed):
    dims = on(axis, degree)
    tokens, weights = sample((each * degree, features), seed), sample((each * degree,), seed + 1)
    says(refusal(program(tokens, weights, axis, dims, reduce=False), dims), axis, "P, R", "P -> R")
    expected = (weights @ tokens).tolist()
    assert judged(program(tokens, weights, axis, dims, reduce=True), dims) == [expected] * degree
    assert judged(program(tokens, weights, axis, dims, reduce=False, held=spmd.I), dims) == [expected] * degree


def test_a_gradient_that_was_reduced_is_not_reduced_again():
    dims = on("tp", 2)

    def twice(rank):
        gate = spmd.assert_type(torch.ones(1, requires_grad=True), {"tp": spmd.R})
        held = spmd.assert_type(torch.full((1,), 0.2 + 0.3 * rank), {"tp": spmd.S(0)})
        (gate * held).sum().backward()
        gate.grad = spmd.all_reduce(gate.grad, "tp", src=spmd.P, dst=spmd.R)
        gate.grad = spmd.all_reduce(gate.grad, "tp", src=spmd.P, dst=spmd.R)

    says(refusal(twice, dims), "tp", "R, P", "leave the call out")


def test_nothing_is_added_to_a_gradient_that_was_reduced():
    dims = on("tp", 2)

    def program(rank, clear):
        gate = spmd.assert_type(torch.ones(1, requires_grad=True), {"tp": spmd.R})
        held = spmd.assert_type(torch.full((1,), 0.2 + 0.3 * rank), {"tp": spmd.S(0)})
        for _ in range(2):
            if clear:
                gate.grad = None
            (gate * held).sum().backward()
            gate.grad = spmd.all_reduce(gate.grad, "tp", src=spmd.P, dst=spmd.R)
        return gate.grad.item()

    says(refusal(lambda rank: program(rank, clear=False), dims), "tp", "R, P", "reduce once")
    assert judged(lambda rank: program(rank, clear=True), dims) == [pytest.approx(0.7)] * 2


@settings(max_examples=8)
@given(config=mixtures(), seed=st.integers(0, 99))
def test_a_routers_gate_has_the_gradient_of_one_device(config, seed):
    """Ranks route their own tokens, or make a part of what each expert gives: their parts are summed."""
    batches = [global_batch(config, seed)]
    assert_same(on_threads(config, batches), one_device(config, batches))


@settings(max_examples=4)
@given(config=mixtures([{"tp": 2, "ep": 2}, {"tp": 2}, {"dp_shard": 2, "tp": 2, "ep": 4}]), seed=st.integers(0, 99))
def test_a_gate_whose_gradient_nobody_sums_is_refused_and_else_wrong(config, seed):
    fault = states(GATE, weight=state(spmd.I))
    faulty = planted(config, fault)
    (problem,) = checked(faulty).problems
    assert problem.where == f"{GATE}.sharding_config.state_shardings['weight']"
    says(problem, "tp", "I")
    assert checked(planted(config, fault, applied(problem))).right
    batches = [global_batch(config, seed)]
    own = [part.grads[f"{GATE}.weight"] for part in thread_parts(faulty, batches)]
    true = one_device(config, batches).grads[f"{GATE}.weight"]
    assert all((each - true).norm() > 1e-3 * true.norm() for each in own)
