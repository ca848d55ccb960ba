"""A recipe is judged whole: arithmetic, contracts, and the types of a step on every rank that can differ."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from meshwright import recipes
from meshwright.audit import check
from meshwright.audit.check import corners
from meshwright.audit.condense import runs
from meshwright.comm.grid import ParallelismDims
from meshwright.models.feed_forward import FeedForward
from meshwright.train.assemble import run_dims
from meshwright.train.config import ParallelConfig
from meshwright.types.axes import CP, TP
from meshwright.types.kinds import I, R, S
from tests.audit.recipes import FOUR, declares, judged, recipe, wrong_dim

MIXES = [
    {},
    {"dp_shard": 2},
    {"dp_replicate": 2, "dp_shard": 2},
    {"tp": 2},
    {"tp": 4, "sequence_parallel": False},
    {"tp": 8},  # more ranks than key/value heads
    {"cp": 2},
    {"cp": 4, "tp": 2},
    {"dp_shard": 2, "cp": 2, "tp": 2, "sequence_parallel": False},
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 8},
]


@pytest.mark.parametrize("parallel", MIXES, ids=str)
def test_the_debug_llama_is_right_under_every_layout(parallel):
    config = replace(recipes.find("llama3_debug"), parallel=ParallelConfig(**parallel))
    report = check(config, "llama3_debug")
    assert report.problems == []
    assert report.right
    assert report.typed
    assert report.judged == corners(run_dims(config))


@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_is_right(name):
    report = judged(recipes.find(name))
    assert report.problems == []
    assert report.typed


def test_sixteen_thousand_ranks_need_no_more_than_four():
    config = recipes.find("llama3_405b")
    config = replace(
        config,
        parallel=ParallelConfig(dp_shard=128, cp=16, tp=8),
        training=replace(config.training, batch=128),
    )
    report = check(config, "llama3_405b")
    assert report.right
    assert report.world == 16_384
    assert report.judged == (0, 1, 8, 128, 16_383)


def test_the_corners_are_the_first_one_on_each_axis_and_the_last():
    assert corners(ParallelismDims()) == (0,)
    assert corners(ParallelismDims(dp_replicate=2, dp_shard=3, cp=2, tp=4, tp_copy=2)) == (0, 1, 2, 4, 8, 24, 47)


class TestProblemsDoNotHideOneAnother:
    def test_arithmetic_and_types(self):
        config = recipe(declares("embedding", out_dst_shardings=None), tp=2)
        report = judged(replace(config, training=replace(config.training, length=17, steps=0)))
        assert [problem.where for problem in report.problems] == [
            "training.steps",
            "training.length",
            "embedding.sharding_config.out_dst_shardings",
        ]

    def test_heads_that_do_not_split_stand_alone(self):
        report = judged(recipe(tp=3))
        assert [problem.where for problem in report.told] == ["training.length", "blocks.0-4.attention"]
        assert not report.typed

    def test_degrees_that_cannot_be(self):
        report = judged(recipe(tp=0))
        assert [problem.where for problem in report.problems] == ["parallel.tp"]
        assert report.traffic == []

    def test_a_layouts_function_that_fails(self):
        def broken(modules, plan):
            raise KeyError("no such block")

        (problem,) = judged(recipe(broken)).problems
        assert problem.where.startswith("layouts, ")
        assert "KeyError" in problem.what

    def test_what_the_storage_of_the_run_refuses(self):
        weight = {"dp": I, CP: R, TP: S(0)}
        report = judged(recipe(declares("head", state_shardings={"weight": weight}), dp_shard=2, tp=2))
        assert [problem.where for problem in report.problems] == ["head.weight"]

    def test_a_module_whose_shapes_do_not_divide_is_left_out_and_the_rest_is_judged(self):
        config = recipe(declares("blocks.3.attention.wq", state_shardings={"weight": {"dp": R, CP: R, TP: S(1)}}), tp=2)
        report = judged(replace(config, model=replace(config.model, vocab=63)))
        assert [problem.where for problem in report.problems] == [
            "embedding.sharding_config.state_shardings['weight']",
            "blocks.3.attention.wq.sharding_config.state_shardings['weight']",
            "head.sharding_config.state_shardings['weight']",
        ]


def test_of_a_run_of_equal_blocks_two_stand_for_all():
    assert runs("aaaaa") == [range(0, 1), range(1, 5)]
    assert runs("abaab") == [range(0, 1), range(1, 2), range(2, 3), range(3, 4), range(4, 5)]
    assert runs("aaabbb") == [range(0, 1), range(1, 3), range(3, 4), range(4, 6)]
    assert runs("") == []


def test_no_process_group_is_made():
    program = (
        "import torch.distributed as dist; from meshwright.audit import check; from meshwright import recipes;"
        "assert check(recipes.find('llama3_debug')).right; assert not dist.is_initialized()"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


@torch.library.custom_op("meshwright_tests::unheard_of", mutates_args=())
def unheard_of(x: torch.Tensor) -> torch.Tensor:
    """An op of which nobody knows what it does to a sharded tensor."""
    return x.clone()


unheard_of.register_fake(torch.empty_like)


def test_an_op_without_a_rule_is_told_apart(monkeypatch):
    def forward(self, x):
        return unheard_of(self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x)))

    monkeypatch.setattr(FeedForward, "forward", forward)
    report = judged(recipe(wrong_dim, tp=2))
    assert [problem.where.partition(": ")[0] for problem in report.told] == [
        "blocks.0-4.feed_forward.forward",
        "blocks.3.attention.wq.sharding_config.state_shardings['weight']",
    ]
    assert [problem.where for problem in report.known] == [FOUR[2][1]]
