"""A run that was stopped and resumed is the run that was not: the same losses, the same samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.train.config import CheckpointConfig, OptimizerConfig, TrainingConfig
from tests.corpora import corpus_of
from tests.marks import slow
from tests.parity.harness import laid_out, small
from tests.train.checkpoint import programs
from tests.train.checkpoint.layouts import LAYOUTS, PIPELINES, configs, on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

LENGTH = 16


def recipe(vocab, steps, every, batch=4):
    training = TrainingConfig(steps=steps, length=LENGTH, batch=batch, validate_every=2, validation_batches=2)
    return replace(
        small(vocab=vocab),
        training=training,
        optimizer=OptimizerConfig(rate=1e-2, warmup=2),
        checkpoint=CheckpointConfig(every=every),
    )


FEW = [
    name if name in ("fsdp 2 x tp 2", "cp 2", *list(PIPELINES)[:1]) else slow(name) for name in (*LAYOUTS, *PIPELINES)
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_of(tmp_path_factory.mktemp("corpus"), length=LENGTH).folder


def measured(records):
    """All that is computed, to the last bit."""
    return [(record.step, record.loss, record.grad_norm, record.validation_loss, record.tokens) for record in records]


@pytest.mark.parametrize("layout", FEW)
def test_its_losses_are_those_of_the_run_that_was_not_stopped(layout, corpus, tmp_path):
    config = configs(recipe(320, steps=6, every=3), LAYOUTS | PIPELINES)[layout]
    folder, stopped, other = (str(tmp_path / name) for name in ("whole", "stopped", "other"))
    for path in (folder, stopped, other):
        (tmp_path / path / "checkpoints").mkdir(parents=True)
    through = on_ranks(config, programs.trained, config, corpus, folder)
    first = on_ranks(config, programs.trained, config, corpus, stopped, None, 3)
    rest = on_ranks(config, programs.trained, config, corpus, other, f"{stopped}/checkpoints/step-3")
    for (true, _, held), (before, _, _), (after, _, resumed) in zip(through, first, rest, strict=True):
        assert [record.step for record in after] == [4, 5, 6]
        assert measured(before + after) == measured(true)
        assert all(torch.equal(resumed[name][2], value) for name, (_, _, value) in held.items())
    assert first[0][0][-1].seconds < rest[0][0][0].seconds, "time goes on too; the first rank's is kept"


def test_the_samples_of_a_run_with_two_stops_are_those_of_one_without(tmp_path):
    """Case 45: two and a half epochs on one rank, stopped amid the first and the second, and resumed over other data
    ranks each time. Every sample comes once an epoch."""
    rows, batch = 16, 4
    corpus = programs.numbered(rows, LENGTH)
    base = recipe(320, steps=10, every=1, batch=batch)
    (tmp_path / "checkpoints").mkdir()
    folder = str(tmp_path)
    stops = [({}, 3), ({"dp_shard": 2}, 7), ({"dp_replicate": 2, "dp_shard": 2}, 0)]

    ids, checkpoint = [], None
    for layout, stop in stops:
        config = laid_out(base, **layout)
        parts = on_ranks(config, programs.trained, config, corpus, folder, checkpoint, stop)
        by_step = zip(*(taken for _, taken, _ in parts), strict=True)
        ids += [first // LENGTH for ranks in by_step for part in ranks for first in part]
        checkpoint = f"{folder}/checkpoints/step-{stop}"

    _, through, _ = programs.trained(0, replace(laid_out(base), checkpoint=CheckpointConfig()), corpus, folder)
    assert ids == [first // LENGTH for step in through for first in step]
    assert len(ids) == 2.5 * rows
    assert sorted(ids[:rows]) == sorted(ids[rows : 2 * rows]) == list(range(rows))
    assert len(set(ids[2 * rows :])) == rows // 2
    assert ids[:rows] != ids[rows : 2 * rows]


def test_a_run_keeps_what_is_due_and_its_last(tmp_path):
    corpus = programs.numbered(16, LENGTH)
    base = recipe(320, steps=5, every=2)
    for keep, left in ((1, {"step-5"}), (2, {"step-4", "step-5"}), (9, {"step-2", "step-4", "step-5"})):
        config = laid_out(replace(base, checkpoint=CheckpointConfig(every=2, keep=keep)))
        (tmp_path / str(keep) / "checkpoints").mkdir(parents=True)
        programs.trained(0, config, corpus, str(tmp_path / str(keep)))
        assert {path.name for path in (tmp_path / str(keep) / "checkpoints").iterdir()} == left


def test_nothing_is_kept_where_nothing_is_asked_for(tmp_path):
    programs.trained(0, laid_out(recipe(320, steps=2, every=0)), programs.numbered(16, LENGTH), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_random_numbers_go_on_where_they_were(tmp_path):
    config = laid_out(recipe(320, steps=2, every=2))
    (tmp_path / "checkpoints").mkdir()
    torch.manual_seed(5)
    programs.trained(0, config, programs.numbered(16, LENGTH), str(tmp_path))
    true = torch.rand(3)
    torch.manual_seed(6)
    programs.load_each(0, [(config, str(tmp_path / "checkpoints" / "step-2"))])
    assert torch.equal(torch.rand(3), true)
