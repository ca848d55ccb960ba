"""The order of samples: fixed by (seed, epoch), shared by any number of ranks, resumed to the last sample."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import ConfigError
from meshwright.train.data.packing import IGNORE, Batch, count_rows
from meshwright.train.data.stream import BatchStream, OrderedPass, Share, epoch_order

PAD = 10_000
PINNED = [2, 4, 7, 5, 0, 6, 3, 1]

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=12)
row_length = st.integers(1, 9)
each_rank_takes = st.integers(1, 4)
ranks = st.integers(1, 5)


def stream(split, *, length=4, global_batch=2, rank=0, ranks=1, seed=0, corpus="c"):
    share = Share(global_batch=global_batch, rank=rank, ranks=ranks)
    return BatchStream(split, corpus=corpus, padding=PAD, length=length, share=share, seed=seed)


def one_pass(split, *, length, global_batch, rank=0, ranks=1):
    return OrderedPass(
        split, padding=PAD, length=length, share=Share(global_batch=global_batch, rank=rank, ranks=ranks)
    )


def fields(batch: Batch) -> list[torch.Tensor]:
    return [batch.tokens, batch.labels, batch.positions, batch.documents]


def same(left: Batch, right: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(fields(left), fields(right), strict=True))


def joined(parts) -> Batch:
    """The global batch of which `parts` are the ranks' slices."""
    return Batch(*(torch.cat(tensors) for tensors in zip(*map(fields, parts), strict=True)))


def row_numbers(batches, length) -> list[int]:
    """Which row of the split each row of `batches` is."""
    return [first // length for batch in batches for first in batch.tokens[:, 0].tolist()]


@given(lengths=lengths, length=row_length, each=each_rank_takes, ranks=ranks, seed=st.integers(0, 2**40))
def test_the_ranks_together_take_what_one_rank_would(split_of, lengths, length, each, ranks, seed):
    split, order = split_of(lengths), {"length": length, "global_batch": each * ranks, "seed": seed}
    parts = zip(*(stream(split, **order, rank=rank, ranks=ranks) for rank in range(ranks)), strict=True)
    for whole, slices in islice(zip(stream(split, **order), parts, strict=True), 4):
        assert all(len(part.tokens) == each for part in slices)
        assert same(joined(slices), whole)


@given(lengths=lengths, length=row_length, global_batch=st.integers(1, 40), seed=st.integers(0, 9))
def test_every_epoch_has_each_row_once_however_large_the_batch(split_of, lengths, length, global_batch, seed):
    split = split_of(lengths)
    rows = count_rows(split, length)
    batches = islice(stream(split, length=length, global_batch=global_batch, seed=seed), -(-3 * rows // global_batch))
    taken = row_numbers(batches, length)
    for epoch in range(3):
        assert sorted(taken[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_is_pinned():
    assert epoch_order(8, seed=1, epoch=0).tolist() == PINNED
    assert np.random.PCG64(np.random.SeedSequence([1, 0])).random_raw(8).argsort().tolist() == PINNED


@given(
    lengths=lengths,
    length=row_length,
    ranks=st.sampled_from([1, 2, 3, 4, 6]),
    others=st.sampled_from([1, 2, 3, 4, 6]),
    steps=st.integers(0, 9),
)
def test_a_resumed_stream_is_the_same_also_with_other_ranks(split_of, lengths, length, ranks, others, steps):
    split, order = split_of(lengths), {"length": length, "global_batch": 12, "seed": 5}
    whole = stream(split, **order)
    first = stream(split, **order, rank=ranks - 1, ranks=ranks)
    for _ in range(steps):
        next(whole)
        next(first)
    resumed = [stream(split, **order, rank=rank, ranks=others) for rank in range(others)]
    for each in resumed:
        each.load_state_dict(first.state_dict())
    for _ in range(3):
        assert same(joined([next(each) for each in resumed]), next(whole))


def test_a_state_says_how_far_it_is_and_is_plain_data(split_of):
    running = stream(split_of([9, 9]), length=4, global_batch=2, seed=3, corpus="tales")
    next(running)
    assert running.state_dict() == {"step": 1, "corpus": "tales", "seed": 3, "length": 4, "global_batch": 2}


@pytest.mark.parametrize(
    ("changed", "where", "message"),
    [
        ({"corpus": "other"}, "data.path", "the saved stream has corpus 'c', this one 'other'"),
        ({"seed": 1}, "data.seed", "the saved stream has seed 0, this one 1"),
        ({"length": 5}, "length", "the saved stream has length 4, this one 5"),
        ({"global_batch": 4}, "global_batch", "the saved stream has global_batch 2, this one 4"),
    ],
)
def test_a_stream_in_another_order_refuses_the_state(split_of, changed, where, message):
    split = split_of([9, 9])
    state = stream(split).state_dict()
    other = stream(split, **changed)
    with pytest.raises(ConfigError) as error:
        other.load_state_dict(state)
    assert [(problem.where, problem.what) for problem in error.value.problems] == [(where, message)]


def test_all_differences_are_named_at_once(split_of):
    split = split_of([9, 9])
    with pytest.raises(ConfigError) as error:
        stream(split, seed=1, length=5).load_state_dict(stream(split).state_dict())
    assert [problem.where for problem in error.value.problems] == ["data.seed", "length"]


@given(lengths=lengths, length=row_length, each=each_rank_takes, ranks=ranks)
def test_validation_has_each_row_once_and_ends_on_all_ranks_together(split_of, lengths, length, each, ranks):
    split, order = split_of(lengths), {"length": length, "global_batch": each * ranks}
    passes = [list(one_pass(split, **order, rank=rank, ranks=ranks)) for rank in range(ranks)]
    assert len({len(batches) for batches in passes}) == 1

    batches = [batch for slices in zip(*passes, strict=True) for batch in slices]
    tokens = torch.cat([batch.tokens.flatten() for batch in batches])
    labels = torch.cat([batch.labels.flatten() for batch in batches])
    assert tokens[tokens != PAD].tolist() == list(range(sum(lengths)))
    predicted = [token + 1 for token in range(sum(lengths)) if token + 1 not in split.bounds]
    assert labels[labels != IGNORE].tolist() == predicted


@pytest.mark.parametrize(("rows", "real_on_each"), [(3, [1, 1, 1, 0]), (5, [2, 1, 1, 1]), (1, [1, 0, 0, 0])])
def test_ranks_with_fewer_real_rows_fill_up_with_padding(split_of, rows, real_on_each):
    split = split_of([4] * rows)
    passes = [list(one_pass(split, length=4, global_batch=4, rank=rank, ranks=4)) for rank in range(4)]
    assert [len(batches) for batches in passes] == [-(-rows // 4)] * 4
    real = [sum(bool((batch.labels != IGNORE).any()) for batch in batches) for batches in passes]
    assert real == real_on_each
    assert sum(int((batch.labels != IGNORE).sum()) for batches in passes for batch in batches) == rows * 3


def test_a_pass_can_be_taken_again(split_of):
    validation = one_pass(split_of([5, 6]), length=4, global_batch=2)
    assert len(validation) == 2
    assert all(same(first, second) for first, second in zip(validation, validation, strict=True))


def test_nothing_held_out_is_a_pass_of_no_batch(split_of):
    assert list(one_pass(split_of([]), length=4, global_batch=2)) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"global_batch": 10, "ranks": 4}, "10 rows cannot be shared by 4 ranks"),
        ({"global_batch": 0, "ranks": 4}, "0 rows cannot be shared by 4 ranks"),
        ({"global_batch": 8, "ranks": 4, "rank": 4}, "there is no rank 4 of 4"),
        ({"global_batch": 8, "ranks": 4, "rank": -1}, "there is no rank -1 of 4"),
    ],
)
def test_a_batch_that_the_ranks_cannot_share(values, message):
    with pytest.raises(ConfigError, match=message):
        Share(**values)


@pytest.mark.parametrize(("global_batch", "fix"), [(10, "a global_batch of 8 or 12"), (3, "a global_batch of 4")])
def test_the_fix_names_batches_that_can_be_shared(global_batch, fix):
    with pytest.raises(ConfigError, match=fix):
        Share(global_batch=global_batch, ranks=4)
