"""Layers are cut into stages of even cost, and stages laid over ranks as the schedule wants."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.train.config import ParallelConfig
from meshwright.train.stages import ORDERS, even, problems, rank_of, stages_of


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_no_cut_has_a_cheaper_dearest_stage(costs, data):
    parts = data.draw(st.integers(1, len(costs)))
    cuts = even(costs, parts)
    assert [unit for cut in cuts for unit in cut] == list(range(len(costs)))
    assert all(cuts)
    every = (
        max(sum(costs[a:b]) for a, b in pairwise((0, *inner, len(costs))))
        for inner in combinations(range(1, len(costs)), parts - 1)
    )
    assert max(sum(costs[unit] for unit in cut) for cut in cuts) == min(every)


@pytest.mark.parametrize(
    ("schedule", "held"), [("1f1b", [(0,), (1,)]), ("interleaved_1f1b", [(0, 2), (1, 3)]), ("zbv", [(0, 3), (1, 2)])]
)
def test_stages_go_round_or_turn(schedule, held):
    order = ORDERS[schedule]
    assert [stages_of(rank, 2, order) for rank in range(2)] == held
    assert all(rank_of(stage, 2, order) == rank for rank in range(2) for stage in held[rank])


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"schedule": "zbv"}, "parallel.schedule"),
        ({"micro_batches": 4}, "parallel.micro_batches"),
        ({"pp": 9}, "parallel.pp"),
        ({"pp": 5, "schedule": "zbv"}, "parallel.pp"),
        ({"pp": 4, "micro_batches": 2}, "parallel.micro_batches"),
        ({"pp": 2, "micro_batches": 0}, "parallel.micro_batches"),
        ({"pp": 2, "micro_batches": -2}, "parallel.micro_batches"),
        ({"pp": 4, "micro_batches": 9, "schedule": "interleaved_1f1b"}, "parallel.micro_batches"),
    ],
)
def test_what_does_not_fit_is_named(wrong, where):
    (problem,) = problems(ParallelConfig(**wrong), units=8, accumulate=1)
    assert problem.where == where


def test_what_fits():
    for schedule in ORDERS:
        assert problems(ParallelConfig(pp=2, schedule=schedule), units=8, accumulate=3) == []
