"""A step through a pipeline equals one device: every schedule, inside it FSDP or tp, tied tables too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.train.stages import ORDERS
from tests.parity.harness import assert_same, global_batch, laid_out, one_device, small
from tests.parity.processes import on_processes

INSIDE = {2: {}, 4: {"dp_shard": 2}}


def deep(**numbers: object):
    """4 blocks and 8 rows."""
    config = small(layers=4, **numbers)
    return replace(config, training=replace(config.training, batch=8))


@pytest.mark.parametrize("world", INSIDE)
@pytest.mark.parametrize("tied", [False, True])
def test_every_schedule_equals_one_device(world, tied):
    config = deep(tied=tied)
    batches = [global_batch(config, seed) for seed in (0, 1)]
    alone = one_device(config, batches)
    layouts = [laid_out(config, pp=2, schedule=schedule, **INSIDE[world]) for schedule in ORDERS]
    for outcome in on_processes(layouts, batches, world):
        assert_same(outcome, alone)


def test_more_micro_batches_than_ranks_and_stages_of_one_unit():
    config = deep()
    batches = [global_batch(config, 3)]
    alone = one_device(config, batches)
    layouts = [
        laid_out(config, pp=4, micro_batches=8),
        laid_out(config, pp=4, micro_batches=8, schedule="gpipe"),
        laid_out(config, pp=2, tp=2, micro_batches=4, schedule="interleaved_1f1b"),
        laid_out(config, pp=2, cp=2, micro_batches=4),
    ]
    for outcome in on_processes(layouts, batches, 4):
        assert_same(outcome, alone)
