"""Mixtures of experts are right in every layout, and each fault that they have had is told where it stands."""

from __future__ import annotations

import re

import pytest

from meshwright.audit import Report, check
from meshwright.codes import Code
from meshwright.models.dispatch import AllToAll
from meshwright.models.layouts import activation, state
from meshwright.parity.layouts import every, named, world_of
from meshwright.parity.refusals import refusal
from meshwright.train.assemble import run_dims
from meshwright.train.config import TrainConfig
from meshwright.types.kinds import I, P, R, S
from meshwright.types.planner import Transition
from tests.audit.expert_recipes import (
    CHOICE,
    EXPERTS,
    FAMILIES,
    GATE,
    Averaged,
    BackAsOut,
    Biased,
    Evenly,
    EvenlyBothWays,
    Hooked,
    MovesItself,
    OneShort,
    OwnCounts,
    Scaled,
    Swapped,
    UnsummedCounts,
    becomes,
    recipe,
    sends_as,
    states,
    with_region,
)
from tests.audit.recipes import applied, declares, judged, region
from tests.marks import first
from tests.parity.test_experts import shaped

SPREAD = {"dp_shard": 2, "tp": 2, "ep": 4}
CUT = {"dp_shard": 2, "tp": 2}
"""Without ep tp has a part of every expert."""
SEQUENCES = [SPREAD, {"cp": 2, "ep": 2}, {"cp": 2, "tp": 2, "ep": 4}]
"""Where ranks that route have parts of a sequence."""
KEY = "blocks.2.attention.shared_key"


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def only(report: Report):
    """The one problem of a report."""
    (problem,) = report.problems
    assert problem.fix
    return problem


class TestTheGate:
    @pytest.mark.parametrize("parallel", [SPREAD, CUT, {"tp": 4, "ep": 4, "sequence_parallel": False}], ids=str)
    def test_its_gradient_is_not_summed_over_tp(self, family, parallel):
        """Ranks route different tokens, or have a part of each expert: either way a part of the gradient."""
        fault = states(GATE, weight=state(I))
        problem = only(judged(recipe(family, fault, **parallel)))
        assert problem.where == f"{GATE}.sharding_config.state_shardings['weight']"
        assert "on axis 'tp' weight is I" in problem.what
        assert problem.code is Code.INVARIANT_MEETS
        assert judged(recipe(family, fault, applied(problem), **parallel)).right

    def test_its_gradient_is_not_summed_over_data_ranks(self, family):
        problem = only(judged(recipe(family, states(GATE, weight={**state(R), "dp": I}), **SPREAD)))
        assert problem.where == f"{GATE}.weight"
        assert problem.what == "I on 'dp'"
        assert problem.fix == "'dp': R"

    @pytest.mark.parametrize(("parallel", "wrong", "right"), [(SPREAD, P, S(1)), (CUT, R, P)], ids=["spread", "cut"])
    def test_the_gradient_of_its_scores_is_of_another_type(self, family, parallel, wrong, right):
        problem = only(judged(recipe(family, region(CHOICE, logits=activation(wrong)), **parallel)))
        assert problem.where == f"{CHOICE}.sharding_config.local_map.in_grad_shardings['logits']"
        assert f"tp:{wrong}" in problem.what
        assert problem.fix.startswith(f"{{dp:S(0), tp:{right}}}, or ")
        assert judged(recipe(family, region(CHOICE, logits=activation(right)), **parallel)).right


def test_a_bias_of_the_experts_is_added_before_their_sum(family):
    problem = only(judged(recipe(family, becomes(EXPERTS, Biased, b2=state(R)), **CUT)))
    assert problem.where.startswith(f"{EXPERTS}.forward: expert_recipes.py:")
    assert problem.code is Code.PARTIAL_PLUS
    assert "on axis 'tp' input is P and other is R, and they are added" in problem.what
    assert "R -> P: convert(other, 'tp', src=R, dst=P)" in problem.fix
    once = Transition(state(R), state(P))  # the same convert, declared
    assert judged(recipe(family, becomes(EXPERTS, Biased, b2=once), **CUT)).right


@pytest.mark.parametrize("scaled", [Averaged, Hooked, Scaled])
@pytest.mark.parametrize("parallel", [SPREAD, {"dp_shard": 2, "ep": 2}], ids=str)
def test_gradients_of_experts_are_not_divided_by_ep(family, scaled, parallel):
    """In a function of its own, by a hook, by a factor of what goes forward."""
    problem = only(judged(recipe(family, becomes(EXPERTS, scaled), **parallel)))
    assert "expert_recipes.py:" in problem.where
    assert "the ranks of 'ep' are a value" in problem.what


class TestCounts:
    @pytest.mark.parametrize("parallel", SEQUENCES, ids=str)
    def test_the_charge_is_of_parts_of_sequences(self, family, parallel):
        problem = only(judged(charged(family, OwnCounts, **parallel)))
        assert problem.where.startswith(f"{CHOICE}.forward: router.py:")
        assert problem.code is Code.LENGTH
        assert all(f"'{axis}'" in problem.what + problem.fix for axis in ("cp", "tp") if axis in parallel)
        assert "spmd.size(x, 1, " in problem.fix

    @pytest.mark.parametrize("parallel", SEQUENCES, ids=str)
    def test_they_are_multiplied_before_their_sum(self, family, parallel):
        problem = only(judged(charged(family, UnsummedCounts, **parallel)))
        assert problem.where.startswith(f"{CHOICE}.forward: expert_recipes.py:")
        assert problem.code is Code.PARTIAL_PRODUCT
        axis = "cp" if "cp" in parallel else "tp"
        assert f"on axis '{axis}' input is P and other is P" in problem.what
        assert problem.fix == f"P -> R: all_reduce(input, '{axis}', src=P, dst=R)"

    @pytest.mark.parametrize("plain", SEQUENCES, ids=str)
    def test_summed_as_the_fix_says_they_are_right(self, family, plain):
        """What stands in the tree makes just these sums."""
        assert judged(recipe(family, numbers={"balance": "loss"}, **plain)).right

    @pytest.mark.parametrize("parallel", [SPREAD, CUT, {"cp": 2, "tp": 2, "ep": 4}, {"tp": 2, "ep": 2}], ids=str)
    def test_a_bias_moves_by_what_a_rank_counted(self, family, parallel):
        problem = only(judged(recipe(family, becomes(CHOICE, MovesItself), numbers={"balance": "bias"}, **parallel)))
        assert problem.where.startswith(f"{CHOICE}.forward: expert_recipes.py:")
        assert problem.code is Code.NOT_LINEAR
        axis = "dp" if "dp_shard" in parallel else "cp" if "cp" in parallel else "tp"
        assert f"on axis '{axis}' input is P, and sign is not linear in it" in problem.what
        assert f"P -> R: all_reduce(input, '{axis}', src=P, dst=R)" in problem.fix


def charged(family: str, choice, **parallel: object) -> TrainConfig:
    """The router of a block chooses in another way, and is charged for uneven loads."""
    return recipe(family, becomes(CHOICE, choice), numbers={"balance": "loss"}, **parallel)


class TestTheRegionOfTheExperts:
    def test_it_runs_on_the_axes_of_the_others(self, family):
        problem = next(iter(judged(recipe(family, with_region(EXPERTS, mesh="dense"), **SPREAD)).problems))
        assert problem.where == f"{EXPERTS}.sharding_config.local_map.mesh"
        assert "'ep'" in problem.why
        assert 'mesh="sparse"' in problem.fix
        assert judged(recipe(family, with_region(EXPERTS, mesh="sparse"), **SPREAD)).right

    @pytest.mark.parametrize("parallel", [SPREAD, CUT], ids=["spread", "cut"])
    def test_it_says_nothing_of_gradients(self, family, parallel):
        fault = with_region(EXPERTS, in_grad_shardings={})
        report = judged(recipe(family, fault, **parallel))
        field = f"{EXPERTS}.sharding_config.local_map.in_grad_shardings"
        assert [problem.where for problem in report.problems] == [
            f"{field}[{name!r}]" for name in ("chosen", "weights", "x")
        ]
        on_tp = S(1) if parallel is SPREAD else P
        for problem in report.problems:
            assert "where R meets S inside a region the gradient is P" in problem.why
            assert f": {{dp:S(0), tp:{on_tp}}}, or None if it has no gradient" in problem.fix
        right = activation(on_tp)
        mended = with_region(EXPERTS, in_grad_shardings={"x": right, "weights": right, "chosen": None})
        assert judged(recipe(family, fault, mended, **parallel)).right

    @pytest.mark.parametrize("name", ["x", "weights"])
    def test_it_says_that_there_is_no_gradient(self, family, name):
        problem = only(judged(recipe(family, region(EXPERTS, **{name: None}), **SPREAD)))
        assert problem.where == f"{EXPERTS}.sharding_config.local_map.in_grad_shardings[{name!r}]"
        assert problem.fix == f'\'{name}\': {{"dp": S(0), "cp": S(1), "tp": S(1)}}'

    @pytest.mark.parametrize("dispatch", [Swapped, BackAsOut, OneShort])
    @pytest.mark.parametrize("parallel", [SPREAD, {"dp_shard": 2, "ep": 2}], ids=str)
    def test_rows_are_not_those_that_are_dealt(self, family, dispatch, parallel):
        problem = only(judged(recipe(family, becomes(EXPERTS, sends_as(dispatch)), **parallel)))
        assert problem.where.startswith(f"{EXPERTS}.forward: ")
        assert problem.code is Code.SHAPE
        assert re.search(r"rows are sent, \d+ in all, of a tensor of \d+ rows", problem.what)
        assert problem.fix == "the rows sent to each rank, as `deal` of the axis gives them"

    @pytest.mark.parametrize("dispatch", [Evenly, EvenlyBothWays])
    def test_rows_are_sent_that_nobody_expects(self, family, dispatch):
        problem = only(judged(recipe(family, becomes(EXPERTS, sends_as(dispatch)), **SPREAD)))
        assert problem.where.startswith(f"{EXPERTS}.forward: ")
        assert problem.code is Code.SHAPE
        assert "were dealt on the way out" in problem.what

    def test_a_subclass_that_deals_as_the_axis_says_is_right(self, family):
        assert judged(recipe(family, becomes(EXPERTS, sends_as(AllToAll)), **SPREAD)).right


@pytest.mark.parametrize("split", [True, False])
def test_the_shared_rotary_key_is_not_gathered(split):
    family = "deepseek_v3"
    parallel = {**SPREAD, "sequence_parallel": split}
    lies = activation(S(1) if split else I)
    problem = only(judged(recipe(family, declares(KEY, in_dst_shardings=None), **parallel)))
    assert problem.where == f"{KEY}.sharding_config.local_map.in_grad_shardings['shared']"
    assert "or another in_dst_shardings['shared']" in problem.fix
    assert judged(recipe(family, declares(KEY, in_dst_shardings={"shared": activation(R)}), **parallel)).right
    both = declares(KEY, in_dst_shardings=None), region(KEY, shared=lies.dual)
    problem = judged(recipe(family, *both, **parallel)).problems[0]
    assert problem.where.startswith(f"{KEY}.forward: ")
    if not split:
        assert problem.code is Code.INVARIANT_MEETS
        assert "on axis 'tp' input is I" in problem.what
        assert "I -> R: convert(input, 'tp', src=I, dst=R)" in problem.fix


EXPERT = "blocks.*.feed_forward.routed.experts"


def believed(config: TrainConfig) -> set[tuple[str, str]]:
    """What a report on a mixture may take on trust: what its regions claim, and gradients that have no values."""
    dims = run_dims(config)
    if dims.world == dims.pp:
        return set()  # there is no axis to be a sum or a part on
    tp = ["tp"] if dims.tp_copy == 1 else [axis for axis in ("tp_kv", "tp_copy") if getattr(dims, axis) > 1]
    routed = {"dp": "S(0)", "cp": "S(1)", **(dict.fromkeys(tp, "S(1)") if dims.ep > 1 else {})}
    on = {"dp": dims.dp_replicate * dims.dp_shard, "cp": dims.cp, **dict.fromkeys(tp, dims.tp)}
    found = {(EXPERT, f"V on axis {axis!r} is {kind}") for axis, kind in routed.items() if on[axis] > 1}
    found |= {(EXPERT, f"the values of {name}.backward") for name in ("_Picked",)}
    if dims.tp > 1:
        found |= {(where, f"V on axis {axis!r} is P") for where in ("embedding", "CrossEntropy") for axis in tp}
        found |= {("CrossEntropy", "the values of _SplitCrossEntropy.backward")}
    return found


def assert_right(config: TrainConfig) -> None:
    report = check(config)
    assert report.problems == [], named(config.parallel)
    assert report.typed
    assert all(each.reason for each in report.trusted)
    found = {(re.sub(r"blocks\.\d+", "blocks.*", each.where), each.what) for each in report.trusted}
    assert found == believed(config), named(config.parallel)


LAYOUTS = [
    {},
    SPREAD,
    CUT,
    {"dp_shard": 2, "tp": 2, "ep": 2, "sequence_parallel": False},
    {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    {"cp": 2, "tp": 2, "ep": 4},
    {"dp_shard": 2, "cp": 2},
    {"dp_shard": 2, "pp": 2, "ep": 2},
]


@pytest.mark.parametrize("parallel", first(LAYOUTS, 4), ids=str)
def test_it_is_right_forward_and_backward_and_in_the_optimizer(family, parallel):
    assert_right(recipe(family, **parallel))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", range(2, 9))
def test_it_is_right_in_every_layout(family, world):
    """A pipeline of each number of stages; a schedule orders what is the same."""
    layouts = [each for each in every(8, experts=True) if world_of(each) == world and each.schedule == "1f1b"]
    tried = [config for layout in layouts if refusal(config := shaped(recipe(family), layout)) is None]
    assert tried
    for config in tried:
        assert_right(config)
