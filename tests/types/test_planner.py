"""From any layout to any other: the planned steps are possible one after the other, and lead there."""

import itertools

import pytest
from hypothesis import given, settings

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition, plan
from meshwright.types.transition import Op, Step
from tests.sampling import layouts


def _walk(src: SpmdLayout, steps: tuple[Step, ...]) -> SpmdLayout:
    """The layout after `steps`, each of which must start from the layout that it meets."""
    types = dict(src)
    for step in steps:
        assert types[step.axis] is step.src
        if isinstance(step.src, Shard):
            assert SpmdLayout(types).sharding(step.src.dim)[-1] == step.axis, "only the innermost axis can go"
        del types[step.axis]
        types[step.axis] = step.dst  # last, and so the innermost of its dim
    return SpmdLayout(types)


def _reachable(src: SpmdLayout, dst: SpmdLayout) -> bool:
    """No axis goes from R to I, which is for experts."""
    return not any((src[axis], dst[axis]) == (R, I) for axis in src)


VALUES: tuple[SpmdType, ...] = (R, I, P)


@settings(max_examples=500)
@given(src=layouts(unsharded=VALUES), dst=layouts(unsharded=VALUES))
def test_the_steps_lead_from_any_layout_to_any_other(src, dst):
    if _reachable(src, dst):
        assert _walk(src, plan(src, dst)) is dst
    else:
        with pytest.raises(SpmdTypeError, match="for experts only"):
            plan(src, dst)


def _two_axes() -> list[SpmdLayout]:
    kinds = (R, I, P, S(0), S(1))
    return list({SpmdLayout({a: x, b: y}) for a, b in (("cp", "tp"), ("tp", "cp")) for x in kinds for y in kinds})


def test_every_pair_of_layouts_on_two_axes():
    pairs = [(src, dst) for src, dst in itertools.product(_two_axes(), repeat=2) if _reachable(src, dst)]
    assert len(pairs) > 400
    for src, dst in pairs:
        assert _walk(src, plan(src, dst)) is dst


@given(layout=layouts())
def test_nothing_to_do_takes_no_step(layout):
    assert plan(layout, layout) == ()


@given(src=layouts(unsharded=VALUES), dst=layouts(unsharded=VALUES))
def test_no_plan_visits_a_layout_twice(src, dst):
    if _reachable(src, dst):
        steps = plan(src, dst)
        seen = {_walk(src, steps[:count]) for count in range(len(steps) + 1)}
        assert len(seen) == len(steps) + 1


def test_two_axes_of_one_dim_change_places():
    src, dst = SpmdLayout({"cp": S(0), "tp": S(0)}), SpmdLayout({"tp": S(0), "cp": S(0)})
    assert [str(step) for step in plan(src, dst)] == [
        "tp: S(0) -> R all_gather",
        "cp: S(0) -> R all_gather",
        "tp: R -> S(0) slice",
        "cp: R -> S(0) slice",
    ]


def test_the_inner_axis_of_a_dim_goes_without_touching_the_outer():
    src = SpmdLayout({"cp": S(0), "tp": S(0)})
    assert [step.axis for step in plan(src, SpmdLayout({"cp": S(0), "tp": R}))] == ["tp"]


def test_what_shrinks_the_tensor_comes_first():
    src, dst = SpmdLayout({"dp": S(0), "tp": P}), SpmdLayout({"dp": R, "tp": S(1)})
    assert [step.op for step in plan(src, dst)] == [Op.REDUCE_SCATTER, Op.ALL_GATHER]


def test_both_sides_name_the_same_axes():
    with pytest.raises(SpmdTypeError, match="name ep on both sides or on neither"):
        plan(SpmdLayout({"tp": R}), SpmdLayout({"tp": P, "ep": R}))


def test_a_list_becomes_whole_where_nothing_else_counts_dims():
    src, dst = SpmdLayout({"dp": P, "tp": V}), SpmdLayout({"dp": R, "tp": R})
    assert _walk(src, plan(src, dst)) is dst


@pytest.mark.parametrize(("src", "dst"), [(V, R), (V, P), (R, V), (P, V)])
@pytest.mark.parametrize(("other_src", "other_dst"), [(S(0), S(0)), (S(1), R), (P, S(0)), (V, R)])
def test_a_list_does_not_become_whole_under_the_dims_of_another_axis(src, dst, other_src, other_dst):
    with pytest.raises(SpmdTypeError, match=r"redistribute\(x, '..', src=., dst=.\) on its own"):
        plan(SpmdLayout({"tp": src, "dp": other_src}), SpmdLayout({"tp": dst, "dp": other_dst}))


def test_a_transition_takes_plain_dicts():
    change = Transition({"tp": I}, {"tp": R})
    assert (change.src, change.dst) == (SpmdLayout({"tp": I}), SpmdLayout({"tp": R}))
    assert change == Transition(change.src, change.dst)
    assert change.steps == plan(change.src, change.dst)
