"""From any layout to any other: the planned steps are possible one after the other, and lead there."""

import itertools
import math
import subprocess
import sys
from collections.abc import Iterable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import Transition, plan
from meshwright.types.transition import Op, Step
from tests.sampling import layouts
from tests.types.exhaustive import fewest_bytes, legal_steps


def _walk(src: SpmdLayout, steps: Iterable[Step]) -> SpmdLayout:
    """The layout after `steps`, each of which must start from the layout that it meets."""
    layout = src
    for step in steps:
        for dim in {kind.dim for kind in step.before.values() if isinstance(kind, Shard)}:
            leaving = step.before.sharding(dim)
            assert layout.sharding(dim)[-len(leaving) :] == leaving, "only the innermost axes can go"
        assert all(layout[axis] is kind for axis, kind in step.before.items())
        layout = layout.replace(**step.after)  # last, and so the innermost of their dims
    return layout


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
    assert not plan(layout, layout)


@given(src=layouts(unsharded=VALUES), dst=layouts(unsharded=VALUES))
def test_no_plan_visits_a_layout_twice(src, dst):
    if _reachable(src, dst):
        steps = plan(src, dst)
        seen = {_walk(src, steps[:count]) for count in range(len(steps) + 1)}
        assert len(seen) == len(steps) + 1


def layout(**types: SpmdType) -> SpmdLayout:
    return SpmdLayout(types)


@pytest.mark.parametrize(
    ("src", "dst", "steps"),
    [
        (layout(dp=P, cp=P), layout(dp=R, cp=R), ["(dp,cp): P -> R all_reduce"]),
        (layout(cp=S(1), tp=S(1)), layout(cp=R, tp=R), ["(cp,tp): S(1) -> R all_gather"]),
        (layout(tp=S(1), cp=S(1)), layout(cp=I, tp=I), ["(tp,cp): S(1) -> I all_gather"]),
        (layout(cp=P, tp=P), layout(cp=S(1), tp=S(1)), ["(cp,tp): P -> S(1) reduce_scatter"]),
        (layout(cp=P, tp=P), layout(tp=S(1), cp=S(1)), ["(tp,cp): P -> S(1) reduce_scatter"]),
        (layout(cp=S(0), tp=S(0)), layout(cp=S(1), tp=S(1)), ["(cp,tp): S(0) -> S(1) all_to_all"]),
        (layout(cp=S(0), tp=S(0)), layout(tp=S(0), cp=S(0)), ["(cp,tp): S(0)@(cp,tp) -> S(0)@(tp,cp) all_to_all"]),
        (
            layout(cp=S(0), tp=S(1)),
            layout(tp=S(0), cp=S(1)),
            ["(cp,tp): S(0)@cp S(1)@tp -> S(0)@tp S(1)@cp all_to_all"],
        ),
        (layout(dp=P, cp=P), layout(dp=R, cp=I), ["(dp,cp): P -> I all_reduce", "dp: I -> R retag"]),
        (layout(cp=I, tp=I), layout(cp=R, tp=R), ["(cp,tp): I -> R retag"]),
    ],
)
def test_neighbours_are_one_step_over_the_flattened_axis(src, dst, steps):
    assert [str(step) for step in plan(src, dst, {"dp": 2, "cp": 3, "tp": 4})] == steps


def test_shards_with_stated_lengths_move_one_axis_at_a_time():
    src, dst = layout(cp=S(0, (3, 1)), tp=S(0)), layout(cp=R, tp=R)
    assert [step.axes for step in plan(src, dst)] == [("tp",), ("cp",)]


DEGREES = st.fixed_dictionaries({axis: st.integers(2, 4) for axis in ("dp", "cp", "tp")})


@settings(max_examples=250, deadline=None)
@given(src=layouts(dims=2, unsharded=VALUES), dst=layouts(dims=2, unsharded=VALUES), degree=DEGREES)
def test_no_way_moves_fewer_bytes(src, dst, degree):
    if _reachable(src, dst):
        unit = math.prod(degree.values()) ** 2
        assert Fraction(sum(plan(src, dst, degree).moved(unit)), unit) == fewest_bytes(src, dst, degree)


@settings(max_examples=60, deadline=None)
@given(src=layouts(dims=2, unsharded=VALUES), dst=layouts(dims=2, unsharded=VALUES), degree=DEGREES)
def test_every_step_of_a_plan_is_legal(src, dst, degree):
    if _reachable(src, dst):
        met = src
        for step in plan(src, dst, degree):
            after = met.replace(**step.after)
            assert after in {end for _, _, end in legal_steps(met, src, dst)}
            met = after


def test_the_degrees_decide_which_way_is_shorter():
    """To turn two cuts around, or to gather both and cut one again."""
    src, dst = layout(cp=S(0), tp=S(0)), layout(cp=R, tp=S(0))
    assert [step.op for step in plan(src, dst, {"cp": 2, "tp": 4})] == [Op.ALL_TO_ALL, Op.ALL_GATHER]
    assert [step.op for step in plan(src, dst, {"cp": 4, "tp": 1})] == [Op.ALL_GATHER, Op.SLICE]


def test_plans_are_alike_in_every_process():
    """Ranks that chose different ways of equal cost would wait for one another."""
    program = (
        "from meshwright.types.kinds import *; from meshwright.types.planner import plan\n"
        "print(*plan({'a': P, 'b': S(0), 'c': S(0), 'd': P}, {'c': R, 'd': S(0), 'a': S(0), 'b': P}), sep='; ')"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


def test_a_plan_prints_its_steps_with_their_bytes():
    made = plan({"dp": S(0), "tp": P}, {"dp": R, "tp": S(1)}, {"dp": 2, "tp": 4})
    assert str(made).splitlines() == [
        "[·@dp]{tp:P} -> [·, ·@tp]{dp:R}",
        "step            over  ranks  types      bytes",
        "reduce_scatter  tp    4      P -> S(1)  0.75 x",
        "all_gather      dp    2      S(0) -> R  0.25 x",
        "in all 1 x (x: the bytes that a rank holds before)",
    ]
    assert made.table((16, 8), itemsize=4).splitlines()[2:] == [
        "reduce_scatter  tp    4      P -> S(1)  192 B",
        "all_gather      dp    2      S(0) -> R  64 B",
        "in all 256 B",
    ]
    assert made.bytes((16, 8), itemsize=4) == 256
    assert str(plan({"tp": R}, {"tp": R})).endswith("nothing to do")


def test_a_plan_for_experts_is_made_on_request():
    assert [step.op for step in plan({"tp": R}, {"tp": I}, expert_mode=True)] == [Op.RETAG]


def test_an_axis_of_one_rank_costs_nothing():
    made = plan({"dp": S(0), "tp": P}, {"dp": R, "tp": R}, {"tp": 2})
    assert sum(made.moved(4)) == 4


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
    assert change.steps == plan(change.src, change.dst).steps
