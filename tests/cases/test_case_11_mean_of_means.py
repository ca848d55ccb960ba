"""The loss is one sum divided once by the number of valid tokens over all ranks: no mean of means, never NaN.

Rank 0 has token losses 1, 2, 3; rank 1 has 6 and two ignored: 3.0, not 4.0.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.scope import current_mesh
from meshwright.comm.threads import run_ranks
from meshwright.train.assemble import assemble, local_backend, run_dims
from meshwright.train.data import Batch
from meshwright.train.data.packing import IGNORE
from meshwright.train.step import over_data, train_step, valid_tokens, validate
from tests.cases.backends import everywhere
from tests.parity.harness import alone_on_cpu, assert_same, global_batch, laid_out, one_device, rows, small
from tests.parity.processes import on_processes


def batch_with(valid: list[int]) -> Batch:
    """Rows of which the first so many labels count."""
    config = small()
    config.training.batch = len(valid)
    batch = global_batch(config)
    labels = torch.randint(config.model.vocab, batch.labels.shape, generator=torch.Generator().manual_seed(3))
    for row, count in enumerate(valid):
        labels[row, count:] = IGNORE
    return Batch(batch.tokens, labels, batch.positions, batch.documents)


def on_ranks(layout, work):
    """`work(run, rank's data axis)` on every rank."""
    config = laid_out(small(), **layout)
    dims = run_dims(config)

    def body(rank: int):
        view = current_mesh()
        run = assemble(config, local_backend(dims, rank, view), view["world"], torch.device("cpu"))
        return work(run, view["dp"])

    return run_ranks(dims, body, {**DENSE, **WORLD})


@pytest.mark.parametrize(
    ("losses", "mean"),
    [([[1, 2, 3], [6, None, None]], 3.0), ([[4, None], [None, None]], 4.0), ([[1], [2, 3, 4], [10, None]], 4.0)],
)
def test_the_shown_loss_is_the_mean_over_all_valid_tokens(losses, mean):
    def shown(run, dp) -> float:
        mine = [loss for loss in losses[dp.index] if loss is not None]
        labels = torch.tensor([[0 if loss is not None else IGNORE for loss in losses[dp.index]]])
        valid = valid_tokens(run, [Batch(labels, labels, labels, labels)])
        return (over_data(run, torch.tensor(float(sum(mine)))) / valid).item()

    assert on_ranks({"dp_shard": len(losses)}, shown) == [mean] * len(losses)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 16), min_size=4, max_size=4).filter(any), st.sampled_from([2, 4]))
def test_any_spread_of_valid_tokens_gives_the_loss_of_one_device(valid, dp):
    batch = batch_with(valid)
    alone = train_step(alone_on_cpu(small()), [batch], step=1, rate=0.0, max_norm=1.0)
    measured = on_ranks(
        {"dp_shard": dp},
        lambda run, axis: train_step(run, [rows(batch, axis.index, axis.size)], step=1, rate=0.0, max_norm=1.0),
    )
    for mine in measured:
        assert mine.loss == pytest.approx(alone.loss, rel=1e-5)
        assert mine.grad_norm == pytest.approx(alone.grad_norm, rel=1e-5)


def test_a_rank_whose_tokens_are_all_ignored_adds_nothing():
    batch = batch_with([16, 5, 0, 0])
    alone = validate(alone_on_cpu(small()), [batch])
    shown = on_ranks({"dp_shard": 2, "tp": 2}, lambda run, dp: validate(run, [rows(batch, dp.index, dp.size)]))
    assert shown == [pytest.approx(alone, rel=1e-6)] * 4


def test_no_valid_token_anywhere_is_zero_and_not_nan():
    batch = batch_with([0, 0])
    measured = train_step(alone_on_cpu(small()), [batch], step=1, rate=0.0, max_norm=1.0)
    assert (measured.loss, measured.grad_norm) == (0.0, 0.0)


def test_micro_batches_of_different_weight_are_one_sum():
    """Not the mean of the micro-batches' means: they have 16 + 9 and 2 + 1 valid tokens."""
    whole = batch_with([16, 9, 2, 1])
    run = alone_on_cpu(small())
    one = train_step(run, [whole], step=1, rate=0.0, max_norm=1.0)
    two = train_step(run, [rows(whole, 0, 2), rows(whole, 1, 2)], step=1, rate=0.0, max_norm=1.0)
    means = [train_step(run, [rows(whole, i, 2)], step=1, rate=0.0, max_norm=1.0).loss for i in range(2)]
    assert two.loss == pytest.approx(one.loss, rel=1e-6)
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert all(first != second for first, second in pairwise([sum(means) / 2, one.loss]))


@pytest.mark.parametrize("valid", [[16, 9, 0, 0], [0, 0, 1, 3], [0, 0, 0, 0]], ids=str)
def test_on_every_backend_and_through_a_pipeline(valid):
    """Data ranks and micro-batches without a valid token among others; and no valid token at all."""
    batches = [batch_with(valid)]
    alone = one_device(small(), batches)
    assert (alone.loss == 0.0) is not any(valid)
    for outcome in on_processes(everywhere(small(), [{"dp_shard": 2}, {"pp": 2}]), batches, 2):
        assert_same(outcome, alone)
