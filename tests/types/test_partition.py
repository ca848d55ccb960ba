"""A spec says dim by dim what a layout says axis by axis."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, Shard
from meshwright.types.layout import SpmdLayout
from meshwright.types.partition import PartitionSpec
from tests.sampling import layouts


@given(layout=layouts())
def test_there_and_back(layout):
    others = layout.only(lambda axis: axis not in layout.sharded)
    assert PartitionSpec.of(layout).layout(others) is layout
    assert PartitionSpec.of(layout, dims=5).layout(others) is layout


def test_what_is_no_axis_is_told_without_the_place_where_it_lies():
    with pytest.raises(SpmdTypeError, match=r"dim 0: a object names no axes"):
        PartitionSpec(object())


def test_entries_are_axes_outermost_first():
    spec = PartitionSpec("dp", None, ("tp", "cp"))
    assert spec.layout({"ep": P}) == {"dp": S(0), "ep": P, "tp": S(2), "cp": S(2)}
    assert spec.layout().sharding(2) == ("tp", "cp")
    assert PartitionSpec.of({"dp": S(0), "tp": R}, dims=3) == ("dp", None, None)
    assert PartitionSpec().layout() is SpmdLayout({})


def test_it_is_a_value():
    spec = PartitionSpec("dp", None, ("tp", "cp"))
    assert spec == PartitionSpec("dp", None, ("tp", "cp"))
    assert pickle.loads(pickle.dumps(spec)) == copy.copy(spec) == spec
    assert repr(spec) == "PartitionSpec('dp', None, ('tp', 'cp'))"
    assert eval(repr(spec)) == spec


@pytest.mark.parametrize("entries", [("tp", "tp"), (("tp", "dp"), "dp"), ((),), (3,), (["tp"],)])
def test_what_names_no_axes_or_one_twice_is_refused(entries):
    with pytest.raises(SpmdTypeError):
        PartitionSpec(*entries)


@pytest.mark.parametrize("others", [{"dp": R}, {"tp": S(1)}])
def test_the_others_are_other_axes_that_cut_nothing(others):
    with pytest.raises(SpmdTypeError, match="beside PartitionSpec"):
        PartitionSpec("dp").layout(others)


@pytest.mark.parametrize(("kind", "dims"), [(S(0, (3, 1)), None), (S(2), 2)])
def test_a_spec_has_even_shards_of_dims_that_there_are(kind, dims):
    assert isinstance(kind, Shard)
    with pytest.raises(SpmdTypeError, match="axis 'tp'"):
        PartitionSpec.of({"tp": kind, "dp": I}, dims)
