"""Faults that layers of experts have had: each is refused, and what is said names the axis."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.comm.grid import ParallelismDims
from meshwright.errors import Problem, SpmdTypeError
from tests.check import moe
from tests.check.moe import BATCH, EXPERTS, LENGTH, WIDTH, I, P, R, S, V
from tests.denotation import sample

DIMS = ParallelismDims(dp_shard=2, tp=2, ep=4)
X, WEIGHTS = sample((BATCH, LENGTH, WIDTH), 7), moe.Weights.drawn()


def reported(program, axis: str, code: Code, dims: ParallelismDims = DIMS) -> Problem:
    """What is said of a program that is refused."""
    with pytest.raises(SpmdTypeError) as error:
        moe.on_ranks(dims, program)
    (problem,) = error.value.problems
    assert problem.code is code, problem
    assert f"axis {axis!r}" in problem.where + problem.what
    assert problem.fix
    return problem


def test_the_gradient_of_the_gate_is_not_summed_over_tp():
    def program(rank):
        x, gate = moe.held(X, moe.TOKENS, DIMS, rank), moe.held(WEIGHTS.gate, moe.BOTH, DIMS, rank)
        moe.softmax(F.linear(x, gate), WEIGHTS.bias)[0].square().sum().backward()
        gate.grad = spmd.all_reduce(gate.grad, "dp", src=P, dst=R)
        torch.optim.SGD([gate], lr=0.1).step()

    reported(program, "tp", Code.REDUCED)


def test_the_gate_is_held_as_if_its_gradient_were_the_same_on_all_of_tp():
    def program(rank):
        gate = moe.held(WEIGHTS.gate, {"dp": R, "tp": I}, DIMS, rank)
        return F.linear(moe.held(X, moe.TOKENS, DIMS, rank), gate)

    assert "I -> R" in reported(program, "tp", Code.INVARIANT_MEETS).fix


def cut_experts(rank, used):
    """The products of cut experts, which are owed, and `used(y, bias)` of them."""
    rows = moe.held(sample((8, WIDTH), 1), {"tp": R}, DIMS, rank)
    up, down = (moe.held(each, {"tp": S(dim)}, DIMS, rank) for dim, each in ((1, WEIGHTS.up), (2, WEIGHTS.down)))
    bias = moe.held(sample((8, WIDTH), 2), {"tp": R}, DIMS, rank)
    ends = moe.held(torch.arange(1, EXPERTS + 1, dtype=torch.int32), {"tp": R}, DIMS, rank, wants=False)
    with spmd.local():
        return used(moe.experts(rows, up, down, ends), bias)


def test_a_bias_of_the_experts_is_added_before_the_partial_sum():
    reported(lambda rank: cut_experts(rank, lambda y, bias: y + bias), "tp", Code.PARTIAL_PLUS)
    reported(lambda rank: cut_experts(rank, lambda y, bias: y.add_(bias)), "tp", Code.PARTIAL_PLUS)
    reported(lambda rank: cut_experts(rank, lambda y, bias: F.silu(y)), "tp", Code.NOT_LINEAR)


SCALED = {
    "divided": lambda grad: grad / spmd.axis_size("ep"),
    "in place": lambda grad: grad.div_(spmd.axis_size("ep")),
    "times the inverse": lambda grad: grad * (1 / spmd.axis_size("ep")),
    "by ranks that count twice": lambda grad: grad / (spmd.axis_size("ep") * spmd.axis_size("efsdp")),
}


@pytest.mark.parametrize("how", SCALED)
def test_gradients_of_experts_are_divided_by_the_ranks_that_hold_others(how):
    dims = ParallelismDims(dp_shard=2, tp=2, ep=2)

    def program(rank):
        with spmd.set_current_mesh(moe.meshes()[1]):
            up = moe.held(WEIGHTS.up, moe.HELD, dims, rank)
            rows = spmd.assert_type(sample((EXPERTS // 2, 3, WIDTH), rank), {"efsdp": S(1), "ep": S(0)})
            torch.bmm(rows, up.mT).sum().backward()
            up.grad = moe.summed(up.grad, ("efsdp",))
            up.grad = SCALED[how](up.grad)

    assert "S(0)" in reported(program, "ep", Code.REDUCED, dims).what


def test_a_gradient_is_averaged_over_ranks_that_each_have_a_part_of_it():
    """What the fault is not: a mean over data ranks, of a sum."""

    def program(rank):
        gate = moe.held(WEIGHTS.gate, moe.BOTH, DIMS, rank)
        F.linear(moe.held(X, moe.TOKENS, DIMS, rank), gate).sum().backward()
        return moe.summed(gate.grad / (spmd.axis_size("dp") * spmd.axis_size("tp")), ("dp", "tp"))

    whole = WEIGHTS.gate.clone().requires_grad_()
    F.linear(X, whole).sum().backward()
    assert all(torch.equal(found, whole.grad / 4) for found in moe.on_ranks(DIMS, program))


UNSUMMED = {
    "as a divisor": (lambda counts: 1.0 / counts, Code.NOT_LINEAR),
    "as shares": (lambda counts: counts / counts.sum(), Code.NOT_LINEAR),
    "to move the bias": (lambda counts: torch.sign(counts.float().mean() - counts), Code.NOT_LINEAR),
    "compared with their mean": (lambda counts: counts > counts.float().mean(), Code.NOT_LINEAR),
    "added to what was counted": (lambda counts: counts + torch.ones(EXPERTS, dtype=torch.int64), Code.PARTIAL_PLUS),
    "as weights of a loss": (lambda counts: counts * counts, Code.PARTIAL_PRODUCT),
}


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("use", UNSUMMED)
def test_counts_are_used_before_their_sum(use, local):
    used, code = UNSUMMED[use]

    def program(rank):
        chosen = moe.held(sample((BATCH, LENGTH, 2), 3).long() % EXPERTS, moe.TOKENS, DIMS, rank, wants=False)
        counts = spmd.all_reduce(moe.counted(chosen), "tp", src=P, dst=R)
        if not local:
            return used(counts)
        with spmd.local():
            return used(counts)

    reported(program, "dp", code)


def test_counts_are_added_to_those_of_earlier_steps_before_their_sum():
    def program(rank):
        chosen = moe.held(sample((BATCH, LENGTH, 2), 3).long() % EXPERTS, moe.TOKENS, DIMS, rank, wants=False)
        total = moe.held(torch.zeros(EXPERTS, dtype=torch.int64), moe.BOTH, DIMS, rank, wants=False)
        places = chosen.flatten()
        total.scatter_add_(0, places, torch.ones_like(places))

    reported(program, "dp", Code.PARTIAL_PLUS)


def test_the_shared_rotary_key_meets_heads_as_it_is():
    def program(rank):
        kv = F.linear(moe.held(X, {"tp": I}, DIMS, rank), moe.held(sample((6, WIDTH), 2), {"tp": I}, DIMS, rank))
        c, r = kv.split([4, 2], -1)
        up = moe.held(sample((8, 4), 3), {"tp": S(0)}, DIMS, rank)
        own = F.linear(spmd.convert(c, "tp", src=I, dst=R), up).unflatten(-1, (-1, 2))
        with spmd.local():
            return torch.cat([own, r.unsqueeze(2).expand(-1, -1, own.shape[2], -1)], -1)

    assert "I -> R" in reported(program, "tp", Code.INVARIANT_MEETS).fix


def meeting(use, dims=DIMS):
    """Tokens and experts under the mesh of the tokens: `set_current_mesh(sparse)` was left out."""

    def program(rank):
        x, weights = moe.part(dims, rank, X, WEIGHTS)
        with spmd.set_current_mesh(moe.meshes()[0]):
            return use(x, weights)

    return program


def test_tokens_meet_experts_under_the_dense_mesh():
    """Experts are cut over ranks over which this mesh cuts the tokens, along another dim."""
    dims = ParallelismDims(dp_shard=2, tp=2, ep=2)
    program = meeting(lambda x, weights: torch.einsum("bld,ehd->bleh", x, weights.up), dims)
    problem = reported(program, "tp", Code.OTHER_SHARDS, dims)
    assert "S(0)" in problem.what
    assert "S(1)" in problem.what


def test_tokens_are_sent_to_experts_under_the_dense_mesh():
    def sent(x, weights):
        with spmd.local():
            return spmd.all_to_all(x.flatten(0, 1), "ep", src=V, dst=V, input_split_sizes=[1] * 4)

    problem = reported(meeting(sent), "ep", Code.MESH)
    assert "tp" in problem.what + problem.fix


WRONG = {
    "rows that are not all sent": ([1, 2], [2, 2], "add up to 4"),
    "the way back as the way there": ([3, 2], [2, 2], "add up to 4"),
    "a number too few": ([4], [2, 2], "2 numbers"),
    "a number below zero": ([5, -1], [2, 2], "2 numbers"),
}


@pytest.mark.parametrize("how", WRONG)
def test_an_exchange_of_other_rows_than_there_are(how):
    send, receive, fix = WRONG[how]

    def program(rank):
        rows = spmd.assert_type(torch.ones(4, 3), {"tp": V})
        sizes = {"input_split_sizes": send, "output_split_sizes": receive}
        return spmd.all_to_all(rows, "tp", src=V, dst=V, **sizes)

    assert fix in reported(program, "tp", Code.DOES_NOT_DIVIDE).fix


def test_lengths_of_one_rank_cut_what_every_rank_has():
    def program(rank):
        counts = spmd.assert_type(torch.tensor([1 + rank % 2, 3 - rank % 2]), {"tp": V})
        with spmd.local():
            return spmd.assert_type(torch.ones(4, 3), {"tp": R}).split(counts.tolist())

    reported(program, "tp", Code.RANK)
