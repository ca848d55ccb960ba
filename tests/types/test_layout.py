"""A layout is one type per axis, and the order of the axes that cut one dim."""

import copy
import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, V
from meshwright.types.layout import SpmdLayout
from tests.sampling import AXES, layouts


@given(layout=layouts(sizes=True))
def test_equal_layouts_are_the_same_object(layout):
    assert SpmdLayout(dict(layout)) is layout
    assert SpmdLayout(layout) is layout
    assert copy.deepcopy(layout) is layout
    assert pickle.loads(pickle.dumps(layout)) is layout
    assert layout == dict(layout)


def test_the_order_of_axes_matters_where_they_shard_one_dim():
    assert SpmdLayout({"cp": S(0), "tp": S(0)}) is not SpmdLayout({"tp": S(0), "cp": S(0)})
    assert SpmdLayout({"cp": S(0), "tp": S(0)}).sharding(0) == ("cp", "tp")


def test_the_order_of_axes_does_not_matter_elsewhere():
    assert SpmdLayout({"cp": S(0), "tp": S(1)}) is SpmdLayout({"tp": S(1), "cp": S(0)})
    assert SpmdLayout({"dp": R, "tp": P}) is SpmdLayout({"tp": P, "dp": R})


@given(layout=layouts(sizes=True))
def test_the_dual_swaps_types_and_keeps_the_order(layout):
    assert layout.dual.dual is layout
    assert {axis: layout.dual[axis] for axis in layout} == {axis: kind.dual for axis, kind in layout.items()}
    assert all(layout.dual.sharding(dim) == layout.sharding(dim) for dim in range(3))


@given(layout=layouts(), axis=st.sampled_from(AXES), dim=st.integers(0, 2))
def test_a_replaced_axis_becomes_the_innermost_of_its_dim(layout, axis, dim):
    others = [other for other in layout.sharding(dim) if other != axis]
    replaced = layout.replace(**{axis: S(dim)})
    assert replaced.sharding(dim) == (*others, axis)
    assert all(replaced[other] is layout[other] for other in layout if other != axis)


def test_sharded_and_partial_axes():
    layout = SpmdLayout({"dp": S(0), "cp": P, "tp": S(0), "ep": V, "pp": I})
    assert layout.sharded == ("dp", "tp")
    assert layout.partial == ("cp",)
    assert layout.only(lambda axis: axis != "tp") is SpmdLayout({"dp": S(0), "cp": P, "ep": V, "pp": I})


def test_a_layout_maps_axis_names_to_types():
    with pytest.raises(SpmdTypeError, match="axis 3"):
        SpmdLayout({3: R})
    with pytest.raises(SpmdTypeError, match="'tp' is one of R, I, V, P"):
        SpmdLayout({"tp": "R"})


def _chunks(positions, parts):
    """Cut a list as `torch.chunk` does, but always into `parts` lists."""
    full = -(-len(positions) // parts)
    return [positions[i * full : (i + 1) * full] for i in range(parts)]


@given(length=st.integers(0, 13), degrees=st.tuples(st.integers(1, 4), st.integers(1, 4)), order=st.booleans())
def test_a_dim_cut_over_two_axes_is_cut_over_the_outer_and_each_piece_over_the_inner(length, degrees, order):
    outer, inner = ("cp", "tp") if order else ("tp", "cp")
    layout = SpmdLayout({outer: S(0), inner: S(0)})
    degree = dict(zip((outer, inner), degrees, strict=True))
    for o, i in itertools.product(range(degree[outer]), range(degree[inner])):
        expected = _chunks(_chunks(list(range(length)), degree[outer])[o], degree[inner])[i]
        assert list(layout.span(0, length, degree, {outer: o, inner: i})) == expected


@given(pieces=st.lists(st.integers(0, 4), min_size=1, max_size=4), tail=st.integers(1, 3))
def test_stated_sizes_cut_where_they_say(pieces, tail):
    layout = SpmdLayout({"tp": S(1, tuple(pieces)), "dp": R})
    degree = {"tp": len(pieces), "dp": 2}
    positions = list(range(sum(pieces)))
    for rank, size in enumerate(pieces):
        start = sum(pieces[:rank])
        index = {"tp": rank, "dp": 1}
        assert list(layout.span(1, len(positions), degree, index)) == positions[start : start + size]
        assert layout.local_shape((tail, len(positions)), degree, index) == (tail, size)


def test_an_uneven_outer_cut_with_an_even_inner_one():
    layout = SpmdLayout({"cp": S(0, (6, 2)), "tp": S(0)})
    degree = {"cp": 2, "tp": 2}
    spans = [layout.span(0, 8, degree, {"cp": c, "tp": t}) for c in range(2) for t in range(2)]
    assert [list(span) for span in spans] == [[0, 1, 2], [3, 4, 5], [6], [7]]


def test_axes_that_are_off_cut_nothing():
    layout = SpmdLayout({"cp": S(0), "tp": S(0)})
    assert layout.span(0, 6, {"tp": 2}, {"tp": 1}) == range(3, 6)


@pytest.mark.parametrize("sizes", [(3, 3), (5,), (2, 2, 1)])
def test_sizes_that_do_not_fit_the_dim_or_the_axis_are_refused(sizes):
    with pytest.raises(ValueError, match="cannot cut 5 positions over 2 ranks"):
        SpmdLayout({"tp": S(0, sizes)}).span(0, 5, {"tp": 2}, {"tp": 0})
