"""The planner's benchmark draws transitions that are planned, and times each once and again."""

from __future__ import annotations

import math

from benchmarks.planner import DEGREE, measure


def test_it_measures_plans_on_five_axes_of_16384_ranks():
    times = measure(10, seed=1)
    assert math.prod(DEGREE.values()) == 16_384
    assert len({(each.made.src, each.made.dst) for each in times}) == 10
    assert all(set(each.made.src) == set(DEGREE) and each.made.degree == DEGREE for each in times)
    assert any(len(each.made) > 1 for each in times)
