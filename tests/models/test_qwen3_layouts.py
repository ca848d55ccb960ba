"""The layouts of Qwen3, as `meshwright check` judges them: the norm of a head meets shards of heads under any tp."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import recipes
from meshwright.audit.check import check
from meshwright.core.sharding import ShardingConfig
from meshwright.models.layouts import activation, kv_activation, state
from meshwright.train.config import ParallelConfig
from meshwright.types.kinds import I, S

MIXES = [
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"tp": 8},
    {"tp": 8, "sequence_parallel": False},
    {"dp_shard": 2, "cp": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "pp": 2},
]


def laid_out(parallel):
    return replace(recipes.find("qwen3_debug"), parallel=ParallelConfig(**parallel))


@pytest.mark.parametrize("parallel", MIXES, ids=str)
def test_they_are_right(parallel):
    report = check(laid_out(parallel))
    assert report.problems == []
    assert report.right
    assert report.typed


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize(("norm", "heads"), [("q_norm", activation(S(2))), ("k_norm", kv_activation(S(2)))])
def test_a_weight_whose_gradient_nobody_sums_is_refused(norm, heads, sequence_parallel):
    """Also where the norms of the stream are I: the other operand's sharding decides, no flag does."""

    def layouts(spec, modules, plan):
        spec.declare(modules, plan)
        getattr(modules.blocks[0].attention, norm).sharding_config = ShardingConfig(
            state_shardings={"weight": state(I)}, in_src_shardings={"x": heads}, out_src_shardings=heads
        )

    config = laid_out({"tp": 2, "sequence_parallel": sequence_parallel})
    (problem,) = check(replace(config, layouts=layouts)).problems
    assert problem.where.startswith(f"blocks.0.attention.{norm}")
    assert "tp" in problem.what
    assert "R" in problem.fix


@pytest.mark.parametrize(("tp", "right"), [(2, True), (4, True), (8, True), (3, False), (16, False)])
def test_heads_that_do_not_split_are_refused_with_the_legal_degrees(tp, right):
    report = check(laid_out({"tp": tp, "sequence_parallel": False}))
    assert report.right is right
    if not right:
        assert any("--parallel.tp 1, 2, 4 or 8" in problem.fix for problem in report.problems)
