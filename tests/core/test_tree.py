"""A tree of layouts has the structure of an output; what is made of one has the structure of the last tree given."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.core.tree import Unlike, is_leaf, map_tree
from meshwright.types.kinds import I, R, S
from meshwright.types.layout import SpmdLayout

Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize("leaf", [SpmdLayout({"tp": R}), SpmdLayout({}), {"tp": R, "dp": S(0)}, {}, None, 3, "x"])
def test_leaves(leaf):
    assert is_leaf(leaf)
    assert map_tree(lambda x: (x, "seen"), leaf) == (leaf, "seen")


@pytest.mark.parametrize("tree", [(R,), [R], (), {"y": {"tp": R}}, {"y": ({"tp": R}, None)}, {"y": None}])
def test_branches(tree):
    assert not is_leaf(tree)


trees = st.recursive(
    st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner, min_size=1), max_leaves=8
)


@given(trees)
def test_a_tree_mapped_by_nothing_is_itself(tree):
    assert map_tree(lambda x: x, tree) == tree


@given(trees)
def test_every_leaf_is_met_with_what_stands_in_its_place(tree):
    numbered = map_tree(lambda x: x + 1, tree)
    assert map_tree(lambda before, after: after - before == 1 and after, tree, numbered) == numbered


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        [1, 2],
        Pair(1, 2),
        {"a": 1, "b": 2},
        OrderedDict(b=2, a=1),
        defaultdict(int, a=1, b=2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_result_is_built_like_the_value(value):
    declared = {"a": {"tp": R}, "b": {"tp": I}} if isinstance(value, dict) else ({"tp": R}, {"tp": I})
    found = map_tree(lambda layout, x: x * 10, declared, value)
    assert type(found) is type(value)
    assert list(found) == (list(value) if isinstance(value, dict) else [10, 20])
    if isinstance(value, dict):
        assert found == {"a": 10, "b": 20}
        assert value == {"a": 1, "b": 2}  # the value itself is not written to


@pytest.mark.parametrize(
    ("declared", "value", "says"),
    [
        ((R, R), (1, 2, 3), "a tuple of 2, but it is a tuple of 3"),
        ((R, R), 1, "a tuple of 2, but it is one tensor"),
        ((R, R), None, "a tuple of 2, but it is None"),
        ([R], {"a": 1}, "a list of 1, but it is a dict of a"),
        ({"a": (R,)}, {"b": (1,)}, "a dict of a, but it is a dict of b"),
        ({"a": (R,)}, {"a": (1,), "b": 2}, "a dict of a, but it is a dict of a, b"),
        (((R, R), R), ((1,), 2), "a tuple of 2, but it is a tuple of 1"),
    ],
)
def test_trees_that_are_not_built_alike(declared, value, says):
    with pytest.raises(Unlike, match=says):
        map_tree(lambda layout, x: x, declared, value)
