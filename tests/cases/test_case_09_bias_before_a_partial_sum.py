"""A bias that every rank holds is added before a sum over ranks: the sum counts it once a rank.

x [1, 1], weight of ones split by rows, bias 10, tp 2: 12, not 22. Also where it is written on local tensors.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.threads import run_ranks
from meshwright.models.layouts import state
from meshwright.types.planner import Transition
from tests.audit.expert_recipes import Biased, becomes
from tests.audit.recipes import judged as checked
from tests.cases.mixtures import CUT, EXPERTS, mixtures, planted
from tests.check.judged import judged, on, refusal, says
from tests.denotation import local, sample
from tests.parity.harness import assert_same, global_batch, on_threads, one_device

TWO = on("tp", 2)
X, WEIGHT, BIAS = torch.ones(1, 2).double(), torch.ones(1, 2).double(), torch.tensor([10.0]).double()


def summed_first(x, weight, bias, axis):
    return spmd.all_reduce(F.linear(x, weight), axis, src=spmd.P, dst=spmd.R) + bias


def converted(x, weight, bias, axis):
    out = F.linear(x, weight, spmd.convert(bias, axis, src=spmd.R, dst=spmd.P))
    return spmd.all_reduce(out, axis, src=spmd.P, dst=spmd.R)


def in_the_layer(x, weight, bias, axis):
    return spmd.all_reduce(F.linear(x, weight, bias), axis, src=spmd.P, dst=spmd.R)


def behind_the_layer(x, weight, bias, axis):
    return spmd.reduce_scatter(x @ weight.T + bias, axis, src=spmd.P, dst=spmd.S(0))


def in_place(x, weight, bias, axis):
    out = x @ weight.T
    out += bias
    return spmd.all_reduce(out, axis, src=spmd.P, dst=spmd.R)


def with_addmm(x, weight, bias, axis):
    return spmd.all_reduce(torch.addmm(bias, x, weight.T), axis, src=spmd.P, dst=spmd.R)


WRONG = [in_the_layer, behind_the_layer, in_place, with_addmm]
RIGHT = [summed_first, converted]


def on_ranks(layer, axis, dims, x, weight, bias):
    """(output, gradient of the bias) of each rank; features are split over `axis`."""

    def program(rank):
        split = {axis: spmd.S(1)}
        held = spmd.assert_type(local(split, x, dims, rank), split)
        row = spmd.assert_type(local(split, weight, dims, rank).requires_grad_(), split)
        shift = spmd.assert_type(bias.clone().requires_grad_(), {axis: spmd.R})
        out = layer(held, row, shift, axis)
        loss = spmd.convert(out, axis, src=spmd.R, dst=spmd.P).sum()
        loss.backward()
        reduced = spmd.all_reduce(shift.grad, axis, src=spmd.P, dst=spmd.R)
        return out.detach(), reduced, row.grad

    return program


def test_the_wrong_program_gives_another_number():
    found = run_ranks(TWO, on_ranks(in_the_layer, "tp", TWO, X, WEIGHT, BIAS))
    assert [out.item() for out, _, _ in found] == [22.0, 22.0]


@pytest.mark.parametrize("layer", WRONG)
def test_it_is_refused(layer):
    problem = refusal(on_ranks(layer, "tp", TWO, X, WEIGHT, BIAS), TWO)
    says(problem, "tp", "P, R", "R -> P: convert(")
    assert "P -> R: all_reduce(" in problem.fix


@pytest.mark.parametrize("layer", RIGHT)
def test_either_fix_is_right(layer):
    for out, bias_grad, row_grad in judged(on_ranks(layer, "tp", TWO, X, WEIGHT, BIAS), TWO):
        assert out.item() == 12.0
        assert bias_grad.item() == 1.0
        assert row_grad.item() == 1.0


@settings(max_examples=10)
@given(
    axis=st.sampled_from(["tp", "cp", "dp"]),
    degree=st.sampled_from([2, 3, 4]),
    rows=st.integers(1, 3),
    features=st.integers(1, 3),
    outputs=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_whatever_the_axis_and_the_shape(axis, degree, rows, features, outputs, seed):
    dims = on(axis, degree)
    x, weight = sample((rows, features * degree), seed), sample((outputs, features * degree), seed + 1)
    bias = sample((outputs,), seed + 2)
    for layer in WRONG[:1] + WRONG[2:]:
        says(refusal(on_ranks(layer, axis, dims, x, weight, bias), dims), axis, "P, R", "R -> P")
    for layer in RIGHT:
        for out, bias_grad, _ in judged(on_ranks(layer, axis, dims, x, weight, bias), dims):
            assert torch.equal(out, F.linear(x, weight, bias))
            assert torch.equal(bias_grad, torch.full_like(bias, rows))


def on_local_tensors(add, claim_first, axis="tp", dims=TWO):
    """Each rank's own features and rows, whose sum over ranks is claimed to be meant."""

    def program(rank):
        x = spmd.assert_type(torch.ones(1, 1), {axis: spmd.V})
        row = spmd.assert_type(torch.ones(1, 1, requires_grad=True), {axis: spmd.V})
        bias = spmd.assert_type(torch.tensor([10.0], requires_grad=True), {axis: spmd.R})
        out = F.linear(x, row)
        if not claim_first:
            out = add(out, bias, axis)
        out = spmd.reinterpret(out * 1.0, axis, src=spmd.V, dst=spmd.P)
        if claim_first:
            out = add(out, bias, axis)
        return spmd.all_reduce(out, axis, src=spmd.P, dst=spmd.R).item()

    return program


def plain(out, bias, axis):
    return out + bias


def scaled(out, bias, axis):
    return (out + bias).unsqueeze(0)[0] * 1.0


def as_a_part(out, bias, axis):
    return out + spmd.convert(bias, axis, src=spmd.R, dst=spmd.P)


@pytest.mark.parametrize("add", [plain, scaled])
def test_on_local_tensors_it_is_refused_before_the_claim(add):
    problem = refusal(on_local_tensors(add, claim_first=False), TWO)
    says(problem, "tp", "V, R", "R -> P: convert(bias, 'tp', src=R, dst=P)")
    assert run_ranks(TWO, on_local_tensors(add, claim_first=False)) == [22.0, 22.0]


def test_on_local_tensors_it_is_refused_behind_the_claim():
    says(refusal(on_local_tensors(plain, claim_first=True), TWO), "tp", "P, R", "R -> P")


def test_on_local_tensors_the_fix_is_right():
    assert judged(on_local_tensors(as_a_part, claim_first=True), TWO) == [12.0, 12.0]


def test_a_constant_for_each_position_of_a_rank_may_be_summed_over_them():
    """sum(1 - p) over the positions of all ranks: each position is counted once, wherever it is."""

    def program(rank):
        p = spmd.assert_type(torch.full((2,), 0.25 * (rank + 1)), {"tp": spmd.V})
        part = spmd.reinterpret((1 - p).sum(), "tp", src=spmd.V, dst=spmd.P)
        return spmd.all_reduce(part, "tp", src=spmd.P, dst=spmd.R).item()

    assert judged(program, TWO) == [2.5, 2.5]


ONCE = becomes(EXPERTS, Biased, b2=Transition(state(spmd.R), state(spmd.P)))
ONCE_A_RANK = becomes(EXPERTS, Biased, b2=state(spmd.R))


@settings(max_examples=3)
@given(config=mixtures(CUT), seed=st.integers(0, 99))
def test_a_bias_of_experts_that_are_cut_is_added_by_one_rank(config, seed):
    """Inside the region of the experts, where their last product is a sum over tp."""
    (problem,) = checked(planted(config, ONCE_A_RANK)).problems
    assert problem.where.startswith(f"{EXPERTS}.forward: ")
    says(problem, "tp", "P, R", "R -> P: convert(other, 'tp', src=R, dst=P)")
    assert checked(planted(config, ONCE)).right
    batches = [global_batch(config, seed)]
    true = one_device(planted(config, ONCE), batches)
    assert_same(on_threads(planted(config, ONCE), batches), true)
    twice = on_threads(planted(config, ONCE_A_RANK), batches)
    assert abs(twice.loss - true.loss) > 1e-4 * true.loss
