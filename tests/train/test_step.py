"""One optimizer step: micro-batches add up, and nothing is updated by a step that is not finite on some rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from meshwright.comm.grid import DENSE, WORLD
from meshwright.comm.threads import run_ranks
from meshwright.errors import RunError
from meshwright.train.assemble import run_dims
from meshwright.train.data.packing import IGNORE
from meshwright.train.step import train_step, validate
from meshwright.train.trainer import split_rows
from tests.parity.harness import (
    alone_on_cpu,
    assert_same,
    global_batch,
    laid_out,
    largest_error,
    on_threads,
    one_device,
    small,
)
from tests.processes import ranks
from tests.train import step_programs as programs

BATCH = global_batch(small())
LAYOUTS = [{"dp_shard": 2}, {"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"dp_shard": 2, "tp": 2}]
SPOILS = [programs.weight, programs.infinite_weight, programs.gradient]


def on_each_thread(config, program):
    dims = run_dims(config)
    return run_ranks(dims, lambda rank: program(rank, programs.on_thread(rank, dims, config)), {**DENSE, **WORLD})


class TestAccumulation:
    @pytest.mark.parametrize("parts", [2, 4])
    def test_micro_batches_add_up_to_the_batch(self, parts):
        """Each has another number of valid tokens, the last none: sums are divided once."""
        pieces = split_rows(BATCH, parts)
        assert len({int((piece.labels != IGNORE).sum()) for piece in pieces}) == parts
        assert_same(one_device(small(), pieces), one_device(small(), [BATCH]))

    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    def test_on_many_ranks_too(self, layout):
        """Gradients are compared: Adam answers the rounding of one that is nearly zero with a whole step."""
        mine = on_threads(laid_out(small(), **layout), split_rows(BATCH, 2))
        true = one_device(small(), [BATCH])
        assert (mine.loss, mine.grad_norm) == pytest.approx((true.loss, true.grad_norm), rel=1e-6)
        assert largest_error(mine.grads, true.grads)[0] < 1e-5

    def test_the_same_batch_twice_counts_twice(self):
        once, twice = one_device(small(), [BATCH]), one_device(small(), [BATCH, BATCH])
        assert_same(twice, once)  # twice the sum over twice the tokens

    def test_gradients_of_an_earlier_step_are_gone(self):
        run = alone_on_cpu(small())
        first = train_step(run, [BATCH], step=1, rate=0.0, max_norm=1.0)
        again = train_step(run, [BATCH], step=2, rate=0.0, max_norm=1.0)
        assert first == again


class TestMeasured:
    def test_the_loss_is_the_mean_over_the_valid_tokens_of_all_ranks(self):
        run = alone_on_cpu(small())
        with torch.no_grad():
            logits = run.model(BATCH.tokens, BATCH.positions, BATCH.documents)
        true = F.cross_entropy(logits.flatten(0, 1).double(), BATCH.labels.flatten(), ignore_index=IGNORE).item()
        assert train_step(run, [BATCH], step=1, rate=0.1, max_norm=1.0).loss == pytest.approx(true, rel=1e-6)

    def test_the_norm_is_the_one_before_clipping(self):
        run = alone_on_cpu(small())
        measured = train_step(run, [BATCH], step=1, rate=0.0, max_norm=1e-3)
        grads = torch.cat([param.grad.flatten() for param in run.model.parameters()])
        assert measured.grad_norm > 0.1
        assert grads.norm().item() == pytest.approx(1e-3, rel=1e-5)

    def test_where_no_token_is_valid_the_loss_is_zero(self):
        run = alone_on_cpu(small())
        empty = replace(BATCH, labels=torch.full_like(BATCH.labels, IGNORE))
        measured = train_step(run, [empty], step=1, rate=0.1, max_norm=1.0)
        assert (measured.loss, measured.grad_norm) == (0.0, 0.0)
        assert all(param.isfinite().all() for param in run.model.parameters())

    def test_the_rate_is_that_of_the_step(self):
        run = alone_on_cpu(small())
        before = [param.detach().clone() for param in run.model.parameters()]
        train_step(run, [BATCH], step=1, rate=0.0, max_norm=1.0)
        assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
        train_step(run, [BATCH], step=2, rate=0.5, max_norm=1.0)
        assert not any(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))


class TestNotFinite:
    """On one rank alone."""

    @pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    @pytest.mark.parametrize("last", [False, True])
    def test_all_ranks_stop_before_the_update_with_the_same_words(self, spoil, layout, last):
        config = laid_out(small(), **layout)
        where = run_dims(config).world - 1 if last else 0
        found = on_each_thread(
            config, lambda rank, run: programs.spoiled(run, [BATCH], spoil if rank == where else programs.nothing)
        )
        assert len(set(found)) == 1
        raised, unchanged, updated = found[0]
        assert raised.startswith("step 7: ")
        assert "nothing was updated" in raised
        assert "grad_norm" in raised
        assert unchanged
        assert not updated

    @pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
    @pytest.mark.parametrize("layout", [{"dp_shard": 2, "tp": 2}, {"dp_replicate": 2, "dp_shard": 2}], ids=str)
    def test_so_do_real_ranks_under_fsdp(self, spoil, layout):
        found = ranks(4).run(programs.spoiled_process, laid_out(small(), **layout), [BATCH], spoil, 2)
        assert len(set(found)) == 1
        raised, unchanged, updated = found[0]
        assert raised.startswith("step 7: ")
        assert unchanged
        assert not updated

    def test_a_run_that_is_whole_goes_on(self):
        found = on_each_thread(
            laid_out(small(), tp=2), lambda rank, run: programs.spoiled(run, [BATCH], programs.nothing)
        )
        assert found == [("", False, True)] * 2

    def test_only_what_is_not_finite_is_named(self):
        run = alone_on_cpu(small())
        programs.gradient(run)
        with pytest.raises(RunError) as error:
            train_step(run, [BATCH], step=3, rate=1.0, max_norm=1.0)
        assert error.value.problems[0].what.startswith("grad_norm")
        assert "loss" not in error.value.problems[0].what


class TestValidation:
    BATCHES = (BATCH, global_batch(small(), seed=1))

    def mean(self, run):
        total, valid = 0.0, 0
        for batch in self.BATCHES:
            with torch.no_grad():
                logits = run.model(batch.tokens, batch.positions, batch.documents)
            labels = batch.labels.flatten()
            total += F.cross_entropy(logits.flatten(0, 1).double(), labels, ignore_index=IGNORE, reduction="sum").item()
            valid += int((labels != IGNORE).sum())
        return total / valid

    def test_it_is_the_mean_over_all_valid_tokens(self):
        run = alone_on_cpu(small())
        assert validate(run, self.BATCHES) == pytest.approx(self.mean(run), rel=1e-6)

    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    def test_on_every_rank_alike(self, layout):
        found = on_each_thread(
            laid_out(small(), **layout), lambda rank, run: validate(run, programs.share(run, self.BATCHES))
        )
        assert len(set(found)) == 1
        assert found[0] == pytest.approx(self.mean(alone_on_cpu(small())), rel=1e-6)

    def test_it_leaves_no_gradient_and_changes_nothing(self):
        plain, validated = alone_on_cpu(small()), alone_on_cpu(small())
        validate(validated, self.BATCHES)
        assert all(param.grad is None for param in validated.model.parameters())
        for run in (plain, validated):
            train_step(run, [BATCH], step=1, rate=0.1, max_norm=1.0)
        weights = ({name: param.detach() for name, param in run.model.named_parameters()} for run in (plain, validated))
        assert largest_error(*weights)[0] == 0.0

    @pytest.mark.parametrize("layout", [{"dp_shard": 2, "tp": 2}, {"dp_replicate": 2, "dp_shard": 2}], ids=str)
    def test_under_fsdp_it_sees_the_updated_weights(self, layout):
        run = alone_on_cpu(small())
        before = validate(run, self.BATCHES)
        train_step(run, self.BATCHES, step=1, rate=1e-3, max_norm=1.0)
        expected = [before, validate(run, self.BATCHES), validate(run, self.BATCHES)]
        assert before != expected[1]
        for found in ranks(4).run(programs.validated, laid_out(small(), **layout), self.BATCHES):
            assert found == pytest.approx(expected, rel=1e-5)

    def test_of_nothing_it_is_zero(self):
        assert validate(alone_on_cpu(small()), []) == 0.0
