"""Rows: every token once, and each knows its document, its place in it and the token that follows."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.train.data.packing import IGNORE, count_rows, look_ahead, pack

PAD = 10_000


def test_short_documents_share_a_row(split_of):
    batch = pack(split_of([3, 2, 1]), np.array([0]), length=6, padding=PAD)
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert batch.labels.tolist() == [[1, 2, IGNORE, 4, IGNORE, IGNORE]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0]]
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 2]]


def test_a_document_that_a_row_end_cuts_keeps_its_label_and_goes_on_as_a_new_segment(split_of):
    batch = pack(split_of([2, 6]), np.array([0, 1]), length=4, padding=PAD)
    assert batch.tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch.labels.tolist() == [[1, IGNORE, 3, 4], [5, 6, 7, IGNORE]]
    assert batch.positions.tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
    assert batch.documents.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


def test_a_document_that_ends_with_the_row_has_no_label_from_the_next(split_of):
    batch = pack(split_of([4, 4]), np.array([0, 1]), length=4, padding=PAD)
    assert batch.labels.tolist() == [[1, 2, 3, IGNORE], [5, 6, 7, IGNORE]]


def test_the_last_row_is_padded_with_a_document_of_its_own(split_of):
    batch = pack(split_of([5, 2]), np.array([1]), length=4, padding=PAD)
    assert batch.tokens.tolist() == [[4, 5, 6, PAD]]
    assert batch.labels.tolist() == [[IGNORE, 6, IGNORE, IGNORE]]
    assert batch.positions.tolist() == [[0, 0, 1, 0]]
    assert batch.documents.tolist() == [[0, 1, 1, 2]]


def test_a_row_beyond_the_last_is_one_document_of_padding(split_of):
    batch = pack(split_of([5]), np.array([2, 7]), length=3, padding=PAD)
    assert batch.tokens.tolist() == [[PAD] * 3] * 2
    assert batch.labels.tolist() == [[IGNORE] * 3] * 2
    assert batch.positions.tolist() == [[0, 1, 2]] * 2
    assert batch.documents.tolist() == [[0, 0, 0]] * 2


def test_all_four_are_int64_of_batch_by_length(split_of):
    batch = pack(split_of([5, 9]), np.array([0, 1, 2]), length=4, padding=PAD)
    for tensor in (batch.tokens, batch.labels, batch.positions, batch.documents):
        assert (tensor.dtype, tensor.shape) == (torch.int64, (3, 4))


lengths = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@given(lengths=lengths, length=st.integers(1, 15))
def test_every_token_is_an_input_exactly_once(split_of, lengths, length):
    split = split_of(lengths)
    rows = pack(split, np.arange(count_rows(split, length)), length=length, padding=PAD)
    inputs = rows.tokens[rows.tokens != PAD]
    assert inputs.tolist() == list(range(sum(lengths)))


@given(lengths=lengths, length=st.integers(1, 15))
def test_rows_are_what_a_walk_over_the_tokens_gives(split_of, lengths, length):
    split = split_of(lengths)
    batch = pack(split, np.arange(count_rows(split, length)), length=length, padding=PAD)

    owner = [document for document, size in enumerate(lengths) for _ in range(size)]
    for row in range(count_rows(split, length)):
        segment, position, before = -1, 0, None
        for column in range(length):
            token = row * length + column
            document = owner[token] if token < len(owner) else "padding"
            if document != before:
                segment, position, before = segment + 1, 0, document
            follows = token + 1 < len(owner) and document == owner[token + 1]
            assert batch.tokens[row, column] == (token if token < len(owner) else PAD)
            assert batch.labels[row, column] == (token + 1 if follows else IGNORE)
            assert batch.positions[row, column] == position
            assert batch.documents[row, column] == segment
            position += 1


def test_what_lies_ahead_ends_with_the_document_and_with_the_row(split_of):
    batch = look_ahead(pack(split_of([3, 6]), np.array([0, 1]), length=6, padding=PAD))
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, PAD, PAD, PAD]]
    assert batch.ahead[0].tolist() == [1, 2, 2, 4, 5, 5]
    assert batch.ahead_labels.tolist() == [[2, IGNORE, IGNORE, 5, 6, IGNORE], [8, IGNORE, IGNORE, *[IGNORE] * 3]]


@given(lengths=lengths, length=st.integers(1, 15))
def test_the_token_after_the_next_is_of_the_same_document_and_row(split_of, lengths, length):
    split = split_of(lengths)
    batch = look_ahead(pack(split, np.arange(count_rows(split, length)), length=length, padding=PAD))
    bounds = np.cumsum([0, *lengths])
    for row, column in np.ndindex(*batch.tokens.shape):
        token = int(batch.tokens[row, column])
        if token == PAD:
            assert batch.ahead_labels[row, column] == IGNORE
            continue
        end = int(bounds[np.searchsorted(bounds, token, side="right")])
        follows = column + 1 < length and token + 2 < end
        assert batch.ahead_labels[row, column] == (token + 2 if follows else IGNORE)
        if follows:
            assert batch.ahead[row, column] == token + 1
