"""Expert gradients are sums over the ranks whose tokens an expert saw; a mean is over all ranks of the world, once.

World 2, ep 2, contributions 2 and 4, mean over ranks: 3, not 6. Also where the shard degree is 1.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.check import typecheck
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError
from tests.audit.expert_recipes import Averaged, becomes
from tests.cases.mixtures import EXPERTS, SPREAD, mixtures, planted
from tests.denotation import sample
from tests.parity.harness import global_batch, largest_error, on_threads, one_device

R, P, S = spmd.R, spmd.P, spmd.S


def on_sparse(dims, program):
    """`program(rank)` on every rank, judged, under the mesh that experts see."""

    def checked(rank):
        with typecheck():
            return program(rank)

    return [found.item() for found in run_ranks(dims, checked, dims.sparse())]


def expert_step(tokens, dims, divide=lambda loss, world: loss / world):
    """The gradient of each rank's expert, a factor of all tokens that it is sent: tokens[source, expert]."""

    def gradient(rank):
        place = dims.index(rank, dims.sparse())
        source = place["efsdp"] * dims.degrees(dims.sparse())["ep"] + place["ep"]
        expert = spmd.assert_type(torch.ones(1, dtype=torch.float64).requires_grad_(), {"ep": S(0), "efsdp": R})
        mine = spmd.assert_type(tokens[source][:, None].clone(), {"efsdp": S(1), "ep": S(1)})
        sent = spmd.all_to_all(mine, "ep", src=S(1), dst=S(0))
        loss = divide((expert[:, None] * sent).sum(), dims.world)
        loss.backward()
        assert spmd.layout_of(expert.grad) == {"ep": S(0), "efsdp": P}
        return spmd.all_reduce(expert.grad, "efsdp", src=P, dst=R).detach()

    return gradient


def test_a_mean_over_ranks_is_three_and_not_six():
    dims = ParallelismDims(dp_shard=2, ep=2)
    tokens = torch.tensor([[2.0, 1.0], [4.0, 5.0]], dtype=torch.float64)
    assert on_sparse(dims, expert_step(tokens, dims)) == [3.0, 3.0]


@settings(max_examples=10)
@given(degrees=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (3, 3), (3, 1)]), seed=st.integers(0, 99))
def test_whatever_the_expert_and_the_shard_degree(degrees, seed):
    """dp_shard, of which ep takes a part; efsdp is what is left, 1 where ep takes all."""
    dp, ep = degrees
    dims = ParallelismDims(dp_shard=dp, ep=ep)
    tokens = sample((dp, ep), seed)
    found = on_sparse(dims, expert_step(tokens, dims))
    mean = (tokens.sum(0) / dp).tolist()
    assert found == [pytest.approx(mean[rank % ep]) for rank in range(dp)]


def test_a_mean_by_the_number_of_ranks_of_one_axis_is_another_number():
    """What the division by a shard degree of 1, or by ep, would give."""
    dims = ParallelismDims(dp_shard=2, ep=2)
    tokens = torch.tensor([[2.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    assert on_sparse(dims, expert_step(tokens, dims, lambda loss, world: loss / 1))[0] == 6.0


def test_the_gradient_of_an_expert_is_not_reduced_over_the_ranks_that_hold_others():
    dims = ParallelismDims(dp_shard=2, ep=2)

    def program(rank):
        expert = spmd.assert_type(torch.ones(1, requires_grad=True), {"ep": S(0), "efsdp": R})
        loss = spmd.convert((expert * expert).sum(), "efsdp", src=R, dst=P)
        loss.backward()
        spmd.all_reduce(expert.grad, "ep", src=P, dst=R)

    with pytest.raises(SpmdTypeError) as error:
        on_sparse(dims, program)
    (problem,) = error.value.problems
    assert "x is S(0) on axis 'ep', not P" in problem.what


def test_an_axis_of_one_rank_has_a_type_too():
    """An unreduced gradient is refused even where the shard degree is 1."""
    dims = ParallelismDims(dp_shard=2, ep=2)

    def program(rank):
        expert = spmd.assert_type(torch.ones(1, requires_grad=True), {"ep": S(0), "efsdp": R})
        tokens = spmd.assert_type(torch.ones(1, 3), {"ep": S(0), "efsdp": S(1)})
        (expert[:, None] * tokens).sum().backward()
        torch.optim.SGD([expert], lr=1.0).step()

    with pytest.raises(SpmdTypeError, match="P on axis 'efsdp'"):
        on_sparse(dims, program)


@settings(max_examples=8)
@given(
    config=mixtures([*SPREAD, {"dp_shard": 4, "ep": 2}, {"dp_replicate": 2, "dp_shard": 2, "ep": 2}]),
    seed=st.integers(0, 99),
)
def test_the_experts_of_a_model_have_gradients_that_are_summed_once(config, seed):
    """Tokens of all ranks reach an expert; the loss is divided by the tokens of all of them, and by nothing else."""
    batches = [global_batch(config, seed)]
    mine, true = (run(config, batches).grads for run in (on_threads, one_device))
    names = [f"{EXPERTS}.{state}" for state in ("w1", "w2", "w3")]
    assert all(true[name].abs().max() > 0 for name in names)
    assert largest_error({name: mine[name] for name in names}, {name: true[name] for name in names})[0] < 1e-5


@settings(max_examples=4)
@given(
    config=mixtures([{"dp_shard": 2, "ep": 2}, {"tp": 2, "ep": 2}, {"dp_shard": 2, "tp": 2, "ep": 4}]),
    seed=st.integers(0, 99),
)
def test_divided_by_the_ranks_of_ep_they_are_too_small(config, seed):
    batches = [global_batch(config, seed)]
    mine = on_threads(planted(config, becomes(EXPERTS, Averaged)), batches).grads[f"{EXPERTS}.w1"]
    true = one_device(config, batches).grads[f"{EXPERTS}.w1"]
    torch.testing.assert_close(mine * config.parallel.ep, true, rtol=1e-4, atol=1e-6)
