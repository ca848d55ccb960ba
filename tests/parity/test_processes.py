"""One step on real processes over gloo, parameters stored by FSDP, equals one device. Covers replicas bit for bit."""

from __future__ import annotations

import pytest

from tests.marks import slow
from tests.parity.harness import assert_same, global_batch, laid_out, largest_error, one_device, small
from tests.parity.processes import on_processes

OF_FOUR = [
    {"dp_shard": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "sequence_parallel": False},
    {"dp_replicate": 2, "dp_shard": 2},
    {"dp_replicate": 2, "tp": 2},
    {"dp_shard": 4},
    {"dp_replicate": 4},
    {"tp": 4},
    {"dp_shard": 2, "cp": 2},
    {"cp": 2, "tp": 2},
]
OF_TWO = [{"dp_shard": 2}, {"dp_replicate": 2}, {"tp": 2}, {"tp": 2, "sequence_parallel": False}]


@pytest.fixture(scope="module")
def batches():
    return [global_batch(small(), seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def alone(batches):
    return one_device(small(), batches)


@pytest.mark.parametrize(("world", "layouts"), [slow(4, OF_FOUR), (2, OF_TWO)])
def test_every_layout_equals_one_device_in_either_order(world, layouts, alone, batches):
    configs = [laid_out(small(), **layout) for layout in layouts]
    outcomes = on_processes([*configs, *reversed(configs)], batches, world)
    for outcome in outcomes:
        assert_same(outcome, alone)
    first, again = outcomes[: len(configs)], outcomes[: len(configs) - 1 : -1]
    for once, repeated in zip(first, again, strict=True):
        assert once.loss == repeated.loss
        assert largest_error(once.updated, repeated.updated)[0] == 0.0
