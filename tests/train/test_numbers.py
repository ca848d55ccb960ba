"""A number that no run can have is told before anything starts, by `check` and by `train`, with what to say."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.audit import check
from meshwright.errors import ConfigError
from meshwright.models.llama3 import Llama3
from meshwright.models.rope import RopeScaling
from meshwright.train import numbers
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig
from meshwright.train.preflight import preflight, started

ELSEWHERE = ("model.", "parallel.")
"""Sections whose numbers are judged where they are used: by the model, and by the mesh."""
NONSENSE = [0, -1, -7, 10**30, math.nan, math.inf, -math.inf, 1.5, -0.5, "8", True]


def config(**sections):
    return TrainConfig(
        model=Llama3(dim=16, layers=1, heads=4, kv_heads=2, hidden=32, vocab=64),
        training=TrainingConfig(length=16, batch=4),
        parallel=ParallelConfig(tp=2),
        **sections,
    )


def changed(whole, path, value):
    section, name = path.split(".")
    return replace(whole, **{section: replace(getattr(whole, section), **{name: value})})


def numeric(whole, prefix=""):
    """The fields that hold numbers, by their path."""
    hints = get_type_hints(type(whole))
    for field in fields(whole):
        value = getattr(whole, field.name)
        if is_dataclass(value):
            yield from numeric(value, f"{prefix}{field.name}.")
        elif hints[field.name] in (int, float, int | None, float | None):
            yield f"{prefix}{field.name}"


def test_every_number_of_a_recipe_is_in_the_table():
    assert {path for path in numeric(config()) if not path.startswith(ELSEWHERE)} == set(numbers.RANGES)


def test_what_a_recipe_says_by_default_is_right():
    assert numbers.problems(config()) == []


@settings(max_examples=25)
@given(path=st.sampled_from(sorted(numbers.RANGES)), value=st.sampled_from(NONSENSE))
def test_whatever_a_number_is_a_recipe_is_judged_and_never_fails(path, value):
    """Told by `check` at the field, with what to say, or taken; and what is told of it is told by `train` too."""
    given = changed(config(), path, value)
    told = [problem for problem in check(given, ranks=lambda dims: (0,)).told if problem.where == path]
    assert [problem.what for problem in numbers.problems(given)] == [problem.what for problem in told]
    for problem in told:
        assert problem.fix
    if told:
        with pytest.raises(ConfigError) as refused:
            preflight(given, 2)
        assert [problem for problem in refused.value.problems if problem.where == path] == told


@pytest.mark.parametrize("path", sorted(numbers.RANGES))
def test_what_is_no_number_is_told_of_every_field(path):
    for value in (math.nan, "8", True, 10**30):
        if path.startswith("data.") and value == 10**30:
            continue  # told by the data, of a vocabulary; any seed will do
        (problem,) = numbers.problems(changed(config(), path, value))
        assert problem.where == path
        assert repr(value) in problem.what or str(value) in problem.what


@settings(max_examples=25)
@given(path=st.sampled_from(sorted(numbers.RANGES)), data=st.data())
def test_the_ends_of_a_range_are_in_it_or_not_as_its_words_say(path, data):
    """`from 2 to 8`, `above 0`, `to below 1`: held against the text that is printed as the fix."""
    each = numbers.RANGES[path]
    words = str(each)
    for end, included in ((each.low, "from" in words), (each.high, "below" not in words)):
        if math.isfinite(end):
            assert each.holds(each.kind(end)) is included
    if math.isfinite(each.low):
        assert not each.holds(each.kind(each.low) - 1)
    if math.isfinite(each.high):
        assert not each.holds(each.kind(each.high) + 1)
    if math.isfinite(each.low) and each.kind is int:
        assert each.holds(data.draw(st.integers(int(each.low), int(min(each.high, 10**9)))))


@settings(max_examples=10)
@given(wrong=st.lists(st.sampled_from(sorted(numbers.RANGES)), min_size=1, max_size=4, unique=True))
def test_all_of_them_are_told_at_once_and_the_rest_is_judged(wrong):
    given = config()
    for path in wrong:
        given = changed(given, path, math.nan)
    assert {problem.where for problem in numbers.problems(given)} == set(wrong)
    assert numbers.problems(numbers.mended(given)) == []
    report = check(given, ranks=lambda dims: (0,))
    assert set(wrong) <= {problem.where for problem in report.told}
    assert report.traffic


@pytest.mark.parametrize(
    "wrong",
    [{"factor": 0.0}, {"factor": math.nan}, {"low": 0.0}, {"low": 4.0}, {"high": math.inf}, {"length": 0}],
    ids=str,
)
def test_numbers_of_the_scaling(wrong):
    given = replace(config(), model=replace(config().model, scaling=RopeScaling(**wrong)))
    problems = check(given, ranks=lambda dims: (0,)).told
    assert problems
    assert all(problem.where.startswith("model.scaling.") and problem.fix for problem in problems)


@settings(max_examples=10)
@given(processes=st.integers(1, 6), tp=st.sampled_from([1, 2]), dp=st.sampled_from([1, 2]))
def test_processes_that_are_said_are_as_many_as_the_degrees_say(processes, tp, dp):
    given = changed(replace(config(), parallel=ParallelConfig(tp=tp, dp_shard=dp)), "launch.processes", processes)
    problems = started(given)
    assert bool(problems) is (processes != tp * dp)
    assert all(problem.where == "launch.processes" and problem.fix for problem in problems)
    assert started(replace(given, launch=config().launch)) == []
