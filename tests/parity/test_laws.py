"""A fault that is made on purpose in a tensor is called by its law, and a right tensor by none."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.parity.laws import Held, of_some_ranks, scaled, unsummed, weighted, words

FACTORS = {"tp": 2, "cp": 5, "number of micro-batches": 3}


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


TRUE = drawn(0, 6, 4)
WHOLE = (slice(0, 6), slice(0, 4))


@pytest.mark.parametrize(
    ("ratio", "law"),
    [
        (2, "x tp"),
        (1 / 2, "/ tp"),
        (5, "x cp"),
        (1 / 5, "/ cp"),
        (3, "x number of micro-batches"),
        (1 / 3, "/ number of micro-batches"),
        (10, "x tp x cp"),
        (2 / 5, "x tp / cp"),
        (-1, "sign"),
        (-2, "sign, x tp"),
        (0, "no gradient: not trained"),
        (1.7, "x 1.7"),
    ],
)
def test_one_number_for_all_elements(ratio, law):
    found = scaled(ratio * TRUE, TRUE, FACTORS)
    assert found is not None
    assert found.words == law
    assert found.ratio == pytest.approx(ratio, abs=1e-6)


def test_factors_of_one_size_are_both_named():
    assert words(2.0, {"dp_shard": 2, "tp": 2}) == "x dp_shard or x tp"


def test_what_is_no_single_number_has_none():
    assert scaled(TRUE, TRUE, FACTORS) is None
    assert scaled(drawn(1, 6, 4), TRUE, FACTORS) is None
    assert scaled(torch.zeros(3), torch.zeros(3), FACTORS) is None


def test_what_is_no_number_at_all():
    assert scaled(TRUE * torch.nan, TRUE, FACTORS).words == "not a number"
    assert scaled(TRUE, torch.zeros(6, 4), FACTORS).words == "not zero, as it should be"


@given(seed=st.integers(0, 99), ratio=st.floats(0.05, 20), noise=st.floats(0, 1e-6))
def test_rounding_hides_no_ratio(seed, ratio, noise):
    true = drawn(seed, 8)
    found = scaled(ratio * true + noise * drawn(seed + 1, 8), true, {})
    assert found is None if abs(ratio - 1) < 1e-3 else found.ratio == pytest.approx(ratio, rel=1e-3)


def parts_of(axis: str, number: int) -> list[Held]:
    """Ranks of dp 2 x tp 2, each of which has its own part over `axis` alone."""
    parts = [drawn(seed, 6, 4) for seed in range(number)]
    true_places = [{"dp": dp, "tp": tp} for dp in range(2) for tp in range(2)]
    return [Held(at, WHOLE, parts[at[axis]]) for at in true_places]


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_a_sum_that_was_not_made_names_its_axis(axis):
    held = parts_of(axis, 2)
    found = unsummed(held, drawn(0, 6, 4) + drawn(1, 6, 4))
    assert found.words == f"one rank's part only: the sum over {axis} is missing"
    assert unsummed(held, drawn(7, 6, 4)) is None


def test_a_sum_that_was_not_made_over_two_axes():
    parts = [drawn(seed, 6, 4) for seed in range(4)]
    held = [Held({"dp": rank // 2, "tp": rank % 2}, WHOLE, part) for rank, part in enumerate(parts)]
    assert unsummed(held, sum(parts)).words == "one rank's part only: the sum over dp and tp is missing"


def test_a_sum_that_was_not_made_of_shards():
    """Sharded over tp, and each shard a part over dp."""
    parts = [drawn(seed, 6, 4) for seed in range(2)]
    halves = [slice(0, 3), slice(3, 6)]
    held = [
        Held({"dp": dp, "tp": tp}, (halves[tp], slice(0, 4)), parts[dp][halves[tp]])
        for dp in range(2)
        for tp in range(2)
    ]
    assert unsummed(held, sum(parts)).words == "one rank's part only: the sum over dp is missing"


def test_wrong_on_one_rank_alone():
    halves = [slice(0, 3), slice(3, 6)]
    held = [Held({"tp": rank}, (cut, slice(0, 4)), TRUE[cut] * (1 + 2 * rank)) for rank, cut in enumerate(halves)]
    assert of_some_ranks(held, TRUE).words == "off on rank 1 alone"
    assert of_some_ranks([Held({}, WHOLE, TRUE)], TRUE) is None


def test_parts_that_are_missing_or_count_otherwise():
    parts = [drawn(seed, 6, 4) for seed in range(3)]
    assert weighted(parts[2], parts, "micro-batch", "micro-batches").words == "the part of micro-batch 3 only"
    both = weighted(parts[0] + parts[2], parts, "micro-batch", "micro-batches")
    assert both.words == "the part of micro-batches 1, 3 only"
    uneven = weighted(2 * parts[0] + 1.5 * parts[1] + parts[2], parts, "data rank", "data ranks")
    assert uneven.words.startswith("each data rank counts otherwise: x 2, x 1.5, x 1;")
    assert weighted(drawn(9, 6, 4), parts, "data rank", "data ranks") is None
