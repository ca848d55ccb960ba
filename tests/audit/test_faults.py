"""What is wrong with a recipe's types is told once, where it stands, with a fix that makes it right."""

from __future__ import annotations

import pytest

from meshwright.models.layouts import state
from meshwright.types.kinds import S
from tests.audit.recipes import CONTRACTS, FOUR, OTHERS, REGIONS, SILENT, applied, at, declares, judged, recipe

PARALLEL = [
    {"dp_shard": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "sequence_parallel": False},
    {"cp": 2, "tp": 4},
]
ALL = [*FOUR, *OTHERS, *REGIONS]
TOLD = [*ALL, *CONTRACTS, *SILENT]


@pytest.mark.parametrize("parallel", PARALLEL, ids=str)
@pytest.mark.parametrize(("fault", "where"), TOLD, ids=[where for _, where in TOLD])
def test_one_fault_is_one_problem_at_its_place(fault, where, parallel):
    report = judged(recipe(fault, **parallel))
    assert [problem.where for problem in report.problems] == [where]
    assert report.problems[0].fix
    assert not report.right


@pytest.mark.parametrize("parallel", PARALLEL, ids=str)
@pytest.mark.parametrize("fault", [fault for fault, _ in ALL], ids=[where for _, where in ALL])
def test_its_fix_applied_is_right(fault, parallel):
    (problem,) = judged(recipe(fault, **parallel)).problems
    assert judged(recipe(fault, applied(problem), **parallel)).problems == []


@pytest.mark.parametrize("parallel", PARALLEL, ids=str)
def test_four_faults_are_told_in_one_run_by_module(parallel):
    faults = [fault for fault, _ in FOUR]
    report = judged(recipe(*faults, **parallel))
    assert [problem.where for problem in report.problems] == [where for _, where in FOUR]
    assert judged(recipe(*faults, *map(applied, report.problems), **parallel)).right


def test_a_fault_of_every_block_is_told_as_one():
    def everywhere(modules, plan):
        for number in range(len(modules.blocks)):
            declares(f"blocks.{number}.attention.wq", state_shardings={"weight": state(S(1))})(modules, plan)

    report = judged(recipe(everywhere, dp_shard=2, tp=2))
    assert [problem.where for problem in report.told] == [
        "blocks.0-4.attention.wq.sharding_config.state_shardings['weight']"
    ]
    assert len(report.problems) == 5


def test_a_fault_beyond_the_blocks_that_are_judged_is_found():
    def late(modules, plan):
        at(modules, "blocks.40.attention_norm").sharding_config.state_shardings = {"weight": state(S(0))}

    report = judged(recipe(late, layers=64, tp=2))
    assert [problem.where.partition(".sharding_config")[0] for problem in report.problems] == [
        "blocks.40.attention_norm"
    ]


def test_a_message_says_what_was_declared_what_is_wrong_and_what_to_write():
    (problem,) = judged(recipe(FOUR[1][0], tp=2, sequence_parallel=False)).problems
    assert problem.what.startswith("{dp:R, cp:R, tp:R}: on axis 'tp' input is I and weight is R, in rms_norm(")
    assert problem.why
    assert problem.fix == """state_shardings['weight'] = {"dp": R, "cp": R, "tp": I}"""
