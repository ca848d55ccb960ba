"""What one step leaves on ranks, put together again, and held against one device."""

from __future__ import annotations

import math

import pytest
import torch

from meshwright.errors import RunError
from meshwright.parity.compare import Off, first_off, largest_error
from meshwright.parity.outcome import KINDS, Part, together

WHOLE = torch.arange(1.0, 5.0)
TRAINED = ("grads", "means", "squares")


def part(span: range = range(4), bias: bool = True, **differs: torch.Tensor) -> Part:
    """A rank's part of `weight`, and of a `bias` after it that may not be trained."""
    kinds = {kind: {"weight": differs.get(kind, WHOLE[span.start : span.stop])} for kind in KINDS}
    for kind in KINDS:
        if bias or kind not in TRAINED:
            kinds[kind]["bias"] = torch.ones(2)
    return Part(1.0, 1.0, {"weight": ([span], (4,)), "bias": ([range(2)], (2,))}, **kinds)


def test_parts_become_the_whole():
    outcome = together([part(range(2)), part(range(2, 4))])
    assert torch.equal(outcome.grads["weight"], WHOLE)
    assert outcome.apart == set()
    assert first_off(outcome, together([part()])) == []


def test_what_is_trained_on_one_device_alone_is_infinitely_off():
    found, true = together([part(bias=False)] * 2), together([part()])
    assert largest_error(found, true) == math.inf
    assert first_off(found, true) == [Off("grads", "bias", math.inf)]


def test_nan_on_one_rank_is_apart_from_a_number_on_another():
    spoilt = WHOLE.clone()
    spoilt[1] = torch.nan
    for parts in ([part(grads=spoilt), part()], [part(), part(grads=spoilt)]):
        outcome = together(parts)
        assert outcome.apart == {("grads", "weight")}
        assert torch.equal(outcome.grads["weight"].isnan(), parts[0].grads["weight"].isnan())


def test_nan_on_all_ranks_is_equal_and_wrong():
    spoilt = torch.full((4,), torch.nan)
    outcome = together([part(grads=spoilt)] * 2)
    assert outcome.apart == set()
    assert largest_error(outcome, together([part()])) == math.inf


def test_elements_that_no_rank_holds_are_an_error():
    with pytest.raises(RunError) as error:
        together([part(range(2)), part(range(1, 3))])
    assert [problem.where for problem in error.value.problems] == ["weight"]
    assert error.value.problems[0].what == "1 of 4 elements of its weights are held by no rank"
