"""Which ranks an axis joins: a value, equal where the ranks are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.comm.mesh_axis import MeshAxis
from meshwright.errors import SpmdTypeError


def test_axes_are_equal_by_their_ranks():
    assert MeshAxis.of(4, 2) == MeshAxis(((4, 2),), "cp") == MeshAxis(((2, 4), (2, 2)))
    assert hash(MeshAxis.of(4, 2)) == hash(MeshAxis(((2, 4), (1, 7), (2, 2))))
    assert MeshAxis.of(4, 2) != MeshAxis.of(4, 1)
    assert MeshAxis.of(1, 3) == MeshAxis.of(1)


def test_ranks_and_places():
    outer = MeshAxis(((2, 8), (2, 1)))
    assert outer.size == 4
    assert outer.ranks(5) == (4, 5, 12, 13)
    assert [outer.index(rank) for rank in outer.ranks(5)] == [0, 1, 2, 3]
    assert repr(outer) == "MeshAxis(2:8 2:1)"
    assert repr(MeshAxis(((2, 1),), "tp")) == "MeshAxis(tp 2:1)"


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=3),
    first=st.integers(0, 5),
)
def test_the_ranks_tell_the_axis(sizes, first):
    atoms, stride = [], 1
    for size, gap in sizes:
        atoms.insert(0, (size, stride * gap))
        stride *= size * gap
    axis = MeshAxis(tuple(atoms))
    assert MeshAxis.over(rank + first * stride for rank in axis.ranks(0)) == axis


@pytest.mark.parametrize("ranks", [(0, 1, 3), (0, 1, 2, 5), (0, 0), (3, 1), (0, 1, 4, 6)])
def test_ranks_in_no_regular_distance_are_no_axis(ranks):
    with pytest.raises(SpmdTypeError, match="in no regular distance"):
        MeshAxis.over(ranks)


@pytest.mark.parametrize(("size", "stride"), [(0, 1), (2, 0), (2, None), (-1, 1)])
def test_an_axis_has_ranks_at_a_distance(size, stride):
    with pytest.raises(SpmdTypeError, match="MeshAxis"):
        MeshAxis.of(size, stride)
