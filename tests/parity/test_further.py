"""A step that learns from the token after the next equals one device under every parallelism, on every backend."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from meshwright.comm.transport import Alone
from meshwright.train.compute import problems
from meshwright.train.config import ComputeConfig
from meshwright.train.data.packing import IGNORE, look_ahead
from meshwright.train.stages import ORDERS, SPLITS_BACKWARD
from meshwright.train.step import own_part, train_step, validate
from tests.parity.experts import small_experts
from tests.parity.harness import assert_same, global_batch, laid_out, on_threads, one_device, rows
from tests.parity.processes import on_processes
from tests.parity.test_backends import agree
from tests.parity.test_compute import assert_compiled_once
from tests.parity.test_experts import assert_equal_choices
from tests.processes import ranks
from tests.train.step_programs import on_process

ON_THREADS = [
    {"cp": 2},
    {"cp": 4},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"dp_shard": 2, "ep": 2},
    {"tp": 2, "ep": 2},
    {"tp": 2, "ep": 2, "sequence_parallel": False},
    {"cp": 2, "tp": 2, "ep": 4},
]
OF_TWO = [
    {"pp": 2},
    {"pp": 2, "schedule": "zbv"},
    {"dp_shard": 2, "ep": 2},
    {"tp": 2},
    {"cp": 2},
]
KINDS = {"a table for each end": {}, "one table, routers charged": {"tied": True, "balance": "loss"}}


def ahead(**numbers):
    """3 blocks, 2 of them with experts, and 8 rows."""
    config = small_experts("deepseek", **{"further": 1, "layers": 3, **numbers})
    return replace(config, training=replace(config.training, batch=8))


@pytest.fixture(scope="module")
def batches():
    return [global_batch(ahead(), seed) for seed in (0, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_equals_one_device(kind, batches):
    config = ahead(**KINDS[kind])
    alone = one_device(config, batches)
    for layout in ON_THREADS:
        mine = on_threads(laid_out(config, **layout), batches)
        assert_same(mine, alone)
        assert_equal_choices(mine, alone)


def test_what_lies_ahead_is_of_the_whole_row_however_it_is_cut(batches):
    """A rank's last token has its next on another rank."""
    whole = look_ahead(batches[0])
    labels, documents = batches[0].labels, batches[0].documents
    goes_on = documents[:, 1:] == documents[:, :-1]
    assert torch.equal(whole.ahead_labels[:, :-1], torch.where(goes_on, labels[:, 1:], IGNORE))
    assert torch.equal(whole.ahead[:, :-1][goes_on], whole.tokens[:, 1:][goes_on])
    for size in (2, 4, 8):
        for index in range(size):
            cp = Alone("cp")
            cp.size, cp.index = size, index
            part = own_part(whole, cp)
            at = own_part(replace(whole, tokens=torch.arange(16).expand(8, 16)), cp).tokens
            assert torch.equal(part.ahead, whole.ahead.gather(1, at))
            assert torch.equal(part.ahead_labels, whole.ahead_labels.gather(1, at))


def test_backends_agree_to_the_last_bit():
    agree(ahead(), 2, OF_TWO)


@pytest.mark.parametrize("kind", KINDS)
def test_every_schedule_equals_one_device(kind, batches):
    """Both ends have the table: one rank where the stages turn, two elsewhere."""
    config = ahead(**KINDS[kind])
    alone = one_device(config, batches)
    layouts = [laid_out(config, pp=2, schedule=schedule) for schedule in ORDERS]
    legal = [layout for layout in layouts if not problems(layout)]
    for outcome in on_processes(legal, batches, 2):
        assert_same(outcome, alone)
        assert_equal_choices(outcome, alone)
    assert len(layouts) - len(legal) == (len(SPLITS_BACKWARD) if config.model.tied else 0)


def test_a_table_at_both_ends_of_the_prediction_is_refused_where_a_schedule_splits_its_backward():
    for schedule in ORDERS:
        for tied, further, pp in itertools.product((False, True), (0, 1), (1, 2)):
            config = laid_out(ahead(tied=tied, further=further), pp=pp, schedule=schedule)
            wrong = tied and further and pp > 1 and schedule in SPLITS_BACKWARD
            assert [problem.where for problem in problems(config)] == (["model.tied"] if wrong else [])


COMPUTED = [
    ({"dp_shard": 2, "ep": 2}, {"recompute": "full", "loss_chunks": 4}),
    ({"dp_shard": 2}, {"recompute": "ops", "reshard": "always"}),
    ({"tp": 2}, {"recompute": "selective", "loss_chunks": 2}),
    ({"pp": 2, "schedule": "zbv"}, {"recompute": "full", "loss_chunks": 2}),
]


def test_however_it_is_computed(batches):
    alone = one_device(ahead(), batches)
    configs = [replace(laid_out(ahead(), **layout), compute=ComputeConfig(**how)) for layout, how in COMPUTED]
    for outcome in on_processes(configs, batches, 2):
        assert_same(outcome, alone)
        assert_equal_choices(outcome, alone)


def between_steps(rank, config, batch):
    """Losses of the steps of two runs, of which one validates in between; its validation loss, first and last."""
    plain, validated = on_process(rank, config), on_process(rank, config)
    dp = plain.backend.view["dp"]
    own = rows(batch, dp.index, dp.size)
    batches = [rows(own, index, config.parallel.filling) for index in range(config.parallel.filling)]
    steps, found = [[], []], []
    for number in (1, 2, 3):
        steps[0].append(train_step(plain, batches, step=number, rate=1e-2, max_norm=1.0).loss)
        found.append(validate(validated, [own]))
        steps[1].append(train_step(validated, batches, step=number, rate=1e-2, max_norm=1.0).loss)
    return steps, found


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"pp": 2}], ids=str)
def test_validation_predicts_the_next_token_alone_and_disturbs_no_step(layout, batches):
    for (plain, validated), found in ranks(2).run(between_steps, laid_out(ahead(), **layout), batches[0]):
        assert plain == validated
        assert found == pytest.approx(validated, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"tp": 2}, {"dp_shard": 2, "ep": 2}, {"pp": 2}], ids=str)
def test_it_compiles_once(layout, batches):
    config = replace(laid_out(ahead(), **layout), compute=ComputeConfig(compile=True))
    assert_compiled_once(config, batches)
