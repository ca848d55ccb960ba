"""The tokens of each expert are counted on every rank: P on all axes that split them, summed once before use.

A layer without balancing is skipped, the later ones are not.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from tests.audit.expert_recipes import MovesItself, OwnCounts, UnsummedCounts, becomes
from tests.audit.recipes import at
from tests.audit.recipes import judged as checked
from tests.cases.mixtures import CHOICE, mixtures, planted
from tests.check.judged import judged, refusal, says
from tests.denotation import local
from tests.models.specs import small_deepseek_v3
from tests.parity.harness import global_batch, laid_out, on_threads, one_device

R, P, S = spmd.R, spmd.P, spmd.S
DIMS = ParallelismDims(dp_shard=2, cp=2, tp=2)
SPLIT = {"dp": S(0), "cp": S(1), "tp": S(1)}
EXPERTS = 5

COUNTS = {
    "one_hot": lambda chosen: F.one_hot(chosen, EXPERTS).sum((0, 1)),
    "compared": lambda chosen: (chosen[..., None] == torch.arange(EXPERTS)).sum((0, 1)),
    "flattened": lambda chosen: F.one_hot(chosen.flatten(), EXPERTS).sum(0),
    "added by place": lambda chosen: torch.zeros(EXPERTS, dtype=torch.long).index_add(
        0, chosen.flatten(), torch.ones_like(chosen).flatten()
    ),
    "scattered": lambda chosen: torch.zeros(EXPERTS, dtype=torch.long).scatter_add(
        0, chosen.flatten(), torch.ones_like(chosen).flatten()
    ),
}


def summed(counts, axes):
    for axis in axes:
        counts = spmd.all_reduce(counts, axis, src=P, dst=R)
    return counts


def counted(chosen, dims, count, use):
    """`use(counts)` where each rank counts its own tokens."""

    def program(rank):
        mine = spmd.assert_type(local(SPLIT, chosen, dims, rank), SPLIT)
        counts = count(mine)
        assert spmd.layout_of(counts) == dict.fromkeys(SPLIT, P)
        return use(counts)

    return program


def drawn(dims, seed, rows=1, length=2):
    shape = rows * dims.dp_shard, length * dims.cp * dims.tp
    return torch.randint(EXPERTS, shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=12)
@given(
    degrees=st.tuples(*[st.sampled_from([1, 2])] * 3),
    count=st.sampled_from(sorted(COUNTS)),
    order=st.sampled_from(list(permutations(("dp", "cp", "tp")))),
    rows=st.integers(2, 3),
    seed=st.integers(0, 99),
)
def test_summed_over_all_axes_it_is_the_number_of_tokens(degrees, count, order, rows, seed):
    dims = ParallelismDims(dp_shard=degrees[0], cp=degrees[1], tp=degrees[2])
    chosen = drawn(dims, seed, rows)
    expected = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
    use = lambda counts: summed(counts, order).tolist()  # noqa: E731
    assert judged(counted(chosen, dims, COUNTS[count], use), dims) == [expected] * dims.world


@pytest.mark.parametrize("left", ["dp", "cp", "tp"])
@pytest.mark.parametrize(
    "use",
    [
        lambda counts: counts.tolist(),
        lambda counts: (counts.double().mean() - counts).sign(),
        lambda counts: counts > 1,
        lambda counts: counts.max(),
        lambda counts: counts.double() / counts.sum(),
    ],
    ids=["read", "bias update", "compared", "max", "fraction"],
)
def test_one_axis_left_out_is_refused_and_the_fix_sums_over_it(left, use):
    axes = [axis for axis in SPLIT if axis != left]
    problem = refusal(counted(drawn(DIMS, 1), DIMS, COUNTS["one_hot"], lambda counts: use(summed(counts, axes))), DIMS)
    says(problem, left, "P", "P -> R: all_reduce(")
    judged(counted(drawn(DIMS, 1), DIMS, COUNTS["one_hot"], lambda counts: use(summed(counts, SPLIT))), DIMS)


def test_it_is_summed_once():
    twice = counted(drawn(DIMS, 1), DIMS, COUNTS["one_hot"], lambda counts: summed(summed(counts, SPLIT), ["cp"]))
    says(refusal(twice, DIMS), "cp", "R, P", "leave the call out")


def updated(layers, dims, chosen):
    """The biases of all layers, moved by what was counted over all ranks; None for a layer without balancing."""

    def program(rank):
        mine = spmd.assert_type(local(SPLIT, chosen, dims, rank), SPLIT)
        biases = []
        for balanced in layers:
            if not balanced:
                biases.append(None)
                continue
            counts = summed(COUNTS["one_hot"](mine), SPLIT).double()
            bias = spmd.assert_type(torch.zeros(EXPERTS, dtype=torch.float64), dict.fromkeys(SPLIT, R))
            bias.add_((counts.mean() - counts).sign(), alpha=0.001)
            biases.append(bias.tolist())
        return biases

    return program


@settings(max_examples=6)
@given(layers=st.lists(st.booleans(), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_layer_without_balancing_is_skipped_and_the_later_ones_are_not(layers, seed):
    chosen = drawn(DIMS, seed)
    counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).double()
    expected = ((counts.mean() - counts).sign() * 0.001).tolist()
    for found in judged(updated(layers, DIMS, chosen), DIMS):
        assert found == [pytest.approx(expected) if balanced else None for balanced in layers]


def test_unsummed_counts_would_move_the_biases_of_the_ranks_apart():
    chosen = drawn(DIMS, 1)
    found = run_ranks(DIMS, lambda rank: COUNTS["one_hot"](local(SPLIT, chosen, DIMS, rank)).tolist())
    assert len(set(map(tuple, found))) > 1


def test_a_counter_takes_no_sum_that_is_still_owed():
    def program(rank):
        mine = spmd.assert_type(local(SPLIT, drawn(DIMS, 1), DIMS, rank), SPLIT)
        counter = spmd.assert_type(torch.zeros(EXPERTS, dtype=torch.long), dict.fromkeys(SPLIT, R))
        counter += COUNTS["one_hot"](mine)

    says(refusal(program, DIMS), "dp", "P, R")


@settings(max_examples=8)
@given(config=mixtures(balance="bias"), seed=st.integers(0, 99))
def test_a_models_counts_and_biases_are_those_of_one_device(config, seed):
    batches = [global_batch(config, seed), global_batch(config, seed + 1)]
    mine, true = on_threads(config, batches), one_device(config, batches)
    tokens = 2 * config.training.batch * config.training.length
    for name, counts in true.loads.items():
        assert counts.sum() == tokens * config.model.active
        assert torch.equal(mine.loads[name], counts)
    even = all((counts == counts[0]).all() for counts in true.loads.values())
    for name, bias in true.biases.items():
        assert even or bias.abs().max() > 0
        assert torch.equal(mine.biases[name], bias)


@settings(max_examples=6)
@given(
    balanced=st.lists(st.booleans(), min_size=2, max_size=4),
    layout=st.sampled_from([{"tp": 2, "ep": 2}, {"cp": 2}, {"dp_shard": 2, "tp": 2, "ep": 4}]),
    seed=st.integers(0, 99),
)
def test_a_routers_without_a_bias_is_skipped_and_the_later_ones_are_not(balanced, layout, seed):
    def some(modules, plan):
        for number, wanted in enumerate(balanced, start=1):
            choice = at(modules, f"blocks.{number}.feed_forward.routed.router.choice")
            if not wanted:
                choice.biased = False
                choice.sharding_config = replace(choice.sharding_config, state_shardings={})

    plain = laid_out(small_deepseek_v3(layers=1 + len(balanced), balance_rate=0.1), **layout)
    config = planted(plain, some)
    batches = [global_batch(config, seed)]
    mine, true = on_threads(config, batches), one_device(config, batches)
    learned = [f"blocks.{n}.feed_forward.routed.router.choice.bias" for n, wanted in enumerate(balanced, 1) if wanted]
    assert sorted(mine.biases) == sorted(learned)
    for name in learned:
        counts = true.loads[f"experts of layer {name.split('.')[1]}"]
        moved = (counts.double().mean() - counts).sign() * 0.1
        torch.testing.assert_close(mine.biases[name].double(), moved, rtol=1e-6, atol=0)


@settings(max_examples=6)
@given(
    config=mixtures([{"dp_shard": 2, "ep": 2}, {"tp": 2, "ep": 2}, {"cp": 2}, {"dp_shard": 2, "tp": 2, "ep": 4}]),
    balance=st.sampled_from(["bias", "loss"]),
)
def test_a_router_that_uses_what_it_counted_itself_is_refused(config, balance):
    config = replace(config, model=replace(config.model, balance=balance))
    faulty = {"bias": [MovesItself], "loss": [OwnCounts, UnsummedCounts]}[balance]
    if balance == "loss" and config.parallel.tp * config.parallel.cp == 1:
        faulty = []  # the charge is of whole sequences, which each rank has
    for choice in faulty:
        (problem,) = checked(planted(config, becomes(CHOICE, choice))).problems
        assert problem.where.startswith(f"{CHOICE}.forward: ")
        assert problem.fix
    assert checked(config).right
