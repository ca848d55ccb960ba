"""A rank's training: its share of the data, its steps, when it validates, and what it reports."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.threads import run_ranks
from meshwright.errors import RunError
from meshwright.train.assemble import run_dims
from meshwright.train.config import OptimizerConfig, TrainingConfig
from meshwright.train.optimizer import rate_at
from meshwright.train.trainer import Trainer, split_rows
from tests.corpora import corpus_of
from tests.parity.harness import alone_on_cpu, global_batch, laid_out, small
from tests.train import step_programs as programs

LENGTH = 16


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_of(tmp_path_factory.mktemp("corpus"), length=LENGTH)


def recipe(vocab=320, *, optimizer=None, **training):
    settings = {"steps": 4, "length": LENGTH, "batch": 4, "validate_every": 2, "validation_batches": 3, **training}
    return replace(
        small(vocab=vocab), training=TrainingConfig(**settings), optimizer=optimizer or OptimizerConfig(warmup=2)
    )


def records_of(config, corpus):
    """Of one device."""
    run, records = alone_on_cpu(config), []
    Trainer(config, run, corpus, run.gradients.world).train(records.append)
    return records


def records_on_threads(config, corpus):
    dims = run_dims(config)

    def program(rank):
        run, records = programs.on_thread(rank, dims, config), []
        Trainer(config, run, corpus, run.gradients.world).train(records.append)
        return records

    return run_ranks(dims, program, {**DENSE, **WORLD})


class TestRecords:
    def test_one_a_step_with_what_was_trained_on(self, corpus):
        records = records_of(recipe(), corpus)
        assert [record.step for record in records] == [1, 2, 3, 4]
        assert [record.tokens for record in records] == [4 * LENGTH * step for step in (1, 2, 3, 4)]
        assert [record.rate for record in records] == [
            rate_at(step, 4, OptimizerConfig(warmup=2)) for step in (1, 2, 3, 4)
        ]
        assert all(record.memory_gib > 0 and record.tokens_per_second > 0 for record in records)

    def test_the_loss_falls(self, corpus):
        config = recipe(steps=20, optimizer=OptimizerConfig(rate=1e-2, warmup=2))
        records = records_of(config, corpus)
        assert records[-1].loss < 0.8 * records[0].loss
        assert records[-1].validation_loss < 0.9 * records[0].validation_loss

    @pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}, {"dp_shard": 2, "tp": 2}], ids=str)
    def test_every_rank_reports_what_one_device_does(self, corpus, layout):
        config = recipe(validate_every=1)
        alone = records_of(config, corpus)
        for mine in records_on_threads(laid_out(config, **layout), corpus):
            for record, true in zip(mine, alone, strict=True):
                assert record.loss == pytest.approx(true.loss, rel=1e-5)
                assert record.grad_norm == pytest.approx(true.grad_norm, rel=1e-4)
                assert record.validation_loss == pytest.approx(true.validation_loss, rel=1e-5)
                assert record.tokens == true.tokens

    def test_micro_batches_change_nothing(self, corpus):
        once, twice = (records_of(recipe(accumulate=parts), corpus) for parts in (1, 2))
        assert [record.loss for record in twice] == pytest.approx([record.loss for record in once], rel=1e-5)


class TestValidation:
    @pytest.mark.parametrize(
        ("steps", "every", "validated"),
        [(4, 2, [1, 2, 4]), (5, 2, [1, 2, 4, 5]), (3, 100, [1, 3]), (1, 1, [1]), (3, 1, [1, 2, 3])],
    )
    def test_after_the_first_step_the_last_and_every_so_many(self, corpus, steps, every, validated):
        records = records_of(recipe(steps=steps, validate_every=every), corpus)
        assert [record.step for record in records if record.validation_loss is not None] == validated

    def test_none_where_none_is_wanted(self, corpus):
        assert all(record.validation_loss is None for record in records_of(recipe(validation_batches=0), corpus))

    def test_none_where_nothing_is_held_out(self, tmp_path):
        corpus = corpus_of(tmp_path, length=LENGTH, validation=0.0)
        assert all(record.validation_loss is None for record in records_of(recipe(), corpus))

    def test_each_sees_the_same_text(self, corpus):
        """At a rate of zero the loss stays."""
        records = records_of(recipe(validate_every=1, optimizer=OptimizerConfig(rate=0.0)), corpus)
        assert len({record.validation_loss for record in records}) == 1
        assert len({record.loss for record in records}) == 4


def test_a_step_that_fails_is_not_reported(corpus):
    config = recipe(optimizer=OptimizerConfig(rate=1e30, warmup=0, floor=1.0))
    records = []
    run = alone_on_cpu(config)
    with pytest.raises(RunError, match=r"step 2: .*nothing was updated"):
        Trainer(config, run, corpus, run.gradients.world).train(records.append)
    assert [record.step for record in records] == [1]


class TestRows:
    @pytest.mark.parametrize("parts", [1, 2, 4])
    def test_micro_batches_have_equally_many_rows_in_order(self, parts):
        batch = global_batch(small())
        pieces = split_rows(batch, parts)
        assert [len(piece.tokens) for piece in pieces] == [4 // parts] * parts
        for field in ("tokens", "labels", "positions", "documents"):
            assert torch.equal(torch.cat([getattr(piece, field) for piece in pieces]), getattr(batch, field))
