"""A tensor on another naming of the same ranks: every rank holds what it held, or the change is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.comm.grid import DENSE, LOSS, STORAGE, ParallelismDims
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, Shard, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.mesh_axis import reinterpreted
from tests.sampling import layouts

DIMS = ParallelismDims(dp_replicate=2, dp_shard=4, cp=2, tp=2, ep=8)
DENSE_AXES = {name: DENSE[name] for name in ("dp", "cp", "tp")}
VIEWS = {"dense": DENSE_AXES, "sparse": DIMS.sparse(), "storage": STORAGE, "loss": {**LOSS, "tp": DENSE["tp"]}}
SHAPE = (32, 32)


def axes(view):
    return {name: DIMS.mesh_axis(parts) for name, parts in VIEWS[view].items()}


def held(layout, view, rank):
    """What the rank holds of a tensor of `SHAPE`, and of what kind it is where it is whole."""
    degree, index = DIMS.degrees(VIEWS[view]), DIMS.index(rank, VIEWS[view])
    spans = [layout.span(dim, length, degree, index) for dim, length in enumerate(SHAPE)]
    kinds = {"R": 1, "I": 1, "V": 1, "P": 1}
    for axis, kind in layout.items():
        if not isinstance(kind, Shard):
            kinds[kind.letter] *= degree[axis]
    return spans, kinds


@pytest.mark.parametrize("to", VIEWS)
@pytest.mark.parametrize("view", VIEWS)
@given(data=st.data())
def test_every_rank_holds_what_it_held(view, to, data):
    layout = data.draw(layouts(tuple(VIEWS[view]), dims=2))
    assume(all(math.prod(DIMS.degrees(VIEWS[view])[a] for a in layout.sharding(dim)) <= 32 for dim in range(2)))
    try:
        found = reinterpreted(layout, axes(view), axes(to))
    except SpmdTypeError:
        if view == to:
            raise
        return
    assert set(found) == set(VIEWS[to])
    for rank in range(DIMS.world):
        assert held(found, to, rank) == held(layout, view, rank)
    assert reinterpreted(found, axes(to), axes(view)) is layout


def test_dense_to_sparse():
    """Tokens cut over all data axes and tp, as experts see them."""
    tokens = SpmdLayout({"dp": S(0), "cp": S(0), "tp": S(0)})
    assert reinterpreted(tokens, axes("dense"), axes("sparse")) == {"dp_replicate": S(0), "efsdp": S(0), "ep": S(0)}
    assert reinterpreted({"dp": P, "cp": P, "tp": R}, axes("dense"), axes("loss")) == {"loss": P, "tp": R}


@pytest.mark.parametrize("kind", [R, I, V, P])
def test_a_type_of_a_flattened_axis_is_that_of_its_parts(kind):
    parts = {"a": (2, 4), "b": (4, 1)}
    assert reinterpreted({"a": kind, "b": kind}, parts, {"ab": (8, 1)}) == {"ab": kind}
    assert reinterpreted({"ab": kind}, {"ab": (8, 1)}, parts) == {"a": kind, "b": kind}


def test_a_flattened_axis_cuts_over_its_parts_outermost_first():
    parts, whole = {"a": (2, 4), "b": (4, 1)}, {"ab": (8, 1)}
    assert reinterpreted({"ab": S(1)}, whole, parts).sharding(1) == ("a", "b")
    assert reinterpreted({"a": S(1), "b": S(1)}, parts, whole) == {"ab": S(1)}


@pytest.mark.parametrize(
    ("layout", "src", "dst", "told"),
    [
        (
            {"b": S(0), "a": S(0)},
            {"a": (2, 4), "b": (4, 1)},
            {"ab": (8, 1)},
            "axis 'ab': dim 0 is cut .* another order",
        ),
        ({"a": R, "b": I}, {"a": (2, 4), "b": (4, 1)}, {"ab": (8, 1)}, "axis 'ab': .* R on 'a' and I on 'b'"),
        ({"a": R}, {"a": (2, 4)}, {"ab": (8, 1)}, "axis 'ab': .* R on 'a' and untyped"),
        (
            {"ab": P},
            {"ab": (8, 1)},
            {"b": (4, 1)},
            "axis 'ab': the tensor is P over 2 of its ranks, which no axis of b",
        ),
        ({"x": R}, {"x": (6, 1)}, {"y": (4, 1), "z": (2, 4)}, "axis 'x': it runs over 6 ranks"),
        ({"ab": S(0, (1,) * 8)}, {"ab": (8, 1)}, {"a": (2, 4), "b": (4, 1)}, "axis 'a': .* states lengths"),
        ({"tpp": R}, {"dp": (2, 2), "tp": (2, 1)}, {"dp": (2, 2)}, "axis 'tpp': no such axis .* mean 'tp'"),
        ({"ab": R, "b": R}, {"ab": (8, 1), "b": (4, 1)}, {"ab": (8, 1)}, "axis 'b': 'ab' joins some of the same ranks"),
        ({"ab": R}, {"ab": (8, 1)}, {"ab": (8, 1), "b": (4, 1)}, "axis 'b': 'ab' joins some of the same ranks"),
    ],
)
def test_what_has_no_one_type_is_refused(layout, src, dst, told):
    with pytest.raises(SpmdTypeError, match=told):
        reinterpreted(layout, src, dst)


def test_stated_lengths_stay_with_their_axis():
    uneven = S(0, (3, 1))
    assert reinterpreted({"tp": uneven}, {"tp": (2, 1)}, {"model": (2, 1)}) == {"model": uneven}


def test_axes_of_one_rank_are_left_out():
    assert reinterpreted({"dp": P, "tp": R}, {"dp": (1, 1), "tp": (2, 1)}, {"tp": (2, 1), "ep": (1, 2)}) == {"tp": R}


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(SpmdTypeError) as error:
        reinterpreted({"sp": R}, {"dp": (2, 2), "tp": (2, 1)}, {})
    assert error.value.problems[0].fix == "one of 'dp', 'tp'"
