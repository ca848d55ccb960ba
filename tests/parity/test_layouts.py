"""Which layouts are tried, and how one is written."""

from __future__ import annotations

from itertools import combinations

import pytest

from meshwright.errors import ConfigError
from meshwright.parity.layouts import DEGREES, SCHEDULES, covering, every, named, parse, world_of
from meshwright.train.config import ParallelConfig


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_covering_set_has_every_axis_and_schedule_and_no_layout_twice(ranks):
    found = covering(ranks)
    assert len({named(layout) for layout in found}) == len(found)
    assert max(map(world_of, found)) == ranks
    assert all(any(getattr(layout, axis) > 1 for layout in found) for axis in DEGREES)
    assert {layout.schedule for layout in found if layout.pp > 1} == set(SCHEDULES)
    assert {layout.sequence_parallel for layout in found if layout.tp > 1} == {True, False}


def test_from_four_ranks_on_every_pair_and_from_eight_every_three():
    for ranks, many in ((4, 2), (8, 3)):
        on = {tuple(axis for axis in DEGREES if getattr(layout, axis) > 1) for layout in covering(ranks)}
        assert set(combinations(DEGREES, many)) <= on


def test_all_layouts_hold_the_covering_ones_and_more():
    names = {named(layout) for layout in every(4)}
    assert {named(layout) for layout in covering(4)} < names
    assert {"tp=3", "pp=4,schedule=zbv", "dp_replicate=2,pp=2,schedule=gpipe"} <= names
    assert all(2 <= world_of(layout) <= 4 for layout in every(4))


def test_what_is_written_is_read_back():
    for layout in [*every(4), ParallelConfig(pp=2, micro_batches=4)]:
        assert parse(named(layout)) == layout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dp_shrad=2", "did you mean 'dp_shard'"),
        ("tp", "tp ''"),
        ("tp=0", "tp '0'"),
        ("tp=two", "tp 'two'"),
        ("pp=2,schedule=1b1f", "did you mean '1f1b'"),
        ("tp=2,sequence_parallel=maybe", "sequence_parallel 'maybe'"),
        ("backend=spmd_types", "no field 'backend'"),
    ],
)
def test_a_layout_that_is_none_is_one_clear_error(text, told):
    with pytest.raises(ConfigError, match=f"--layout {text}: .*{told}"):
        parse(text)
