"""What is held out depends on contents alone, and there is always something on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import DataError
from meshwright.train.data.holdout import hold_out


def hold(lengths, share, hashes=None):
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    hashes = np.array(range(len(lengths)) if hashes is None else hashes, dtype=np.uint64)
    train, validation = hold_out(bounds, hashes, share)
    return [tuple(span) for span in train.tolist()], [tuple(span) for span in validation.tolist()]


def test_the_smallest_hashes_are_held_out_in_the_order_of_the_text():
    train, validation = hold([2, 3, 2, 4], 0.5, hashes=[5, 1, 9, 3])
    assert train == [(0, 2), (5, 7)]
    assert validation == [(2, 5), (7, 11)]


def test_nothing_is_held_out_of_a_share_of_nothing():
    assert hold([2, 3], 0) == ([(0, 2), (2, 5)], [])


def test_a_document_without_a_word_is_not_held_out():
    train, validation = hold([1, 3, 1, 3], 0.5, hashes=[0, 2, 1, 3])
    assert validation == [(1, 4)]
    assert train == [(0, 1), (4, 5), (5, 8)]


@pytest.mark.parametrize(("share", "held"), [(0.001, 1), (0.5, 2), (0.999, 2)])
def test_however_small_or_large_the_share_one_document_is_left_on_each_side(share, held):
    train, validation = hold([2, 2, 2], share)
    assert (len(train), len(validation)) == (3 - held, held)


@pytest.mark.parametrize(("share", "cut"), [(0.02, 98), (0.3, 70), (0.001, 98), (0.999, 2)])
def test_a_single_document_is_cut_by_tokens(share, cut):
    assert hold([100], share) == ([(0, cut)], [(cut, 100)])


def test_beside_empty_documents_the_only_one_with_words_is_cut():
    assert hold([1, 10, 1], 0.5) == ([(0, 1), (1, 6), (11, 12)], [(6, 11)])


@pytest.mark.parametrize("lengths", [[3], [1], [1, 1], [1, 2]])
def test_too_little_to_hold_out(lengths):
    with pytest.raises(DataError, match="nothing can be held out of the text") as error:
        hold(lengths, 0.02)
    assert error.value.problems[0].where == "data.validation"
    assert "data.validation 0" in error.value.problems[0].fix


@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=30).filter(lambda all: sum(n > 1 for n in all) > 1),
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 99),
)
def test_both_sides_have_documents_and_every_token_is_on_one(lengths, share, seed):
    hashes = np.random.default_rng(seed).integers(0, 2**63, len(lengths))
    train, validation = hold(lengths, share, hashes)
    assert train
    assert validation
    tokens = [token for start, end in train + validation for token in range(start, end)]
    assert sorted(tokens) == list(range(sum(lengths)))
    worthy = sum(length > 1 for length in lengths)
    assert abs(len(validation) - share * worthy) <= 1
