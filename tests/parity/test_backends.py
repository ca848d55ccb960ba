"""The three backends agree to the last bit, in loss, gradient norm, every gradient and every updated weight."""

from __future__ import annotations

import pytest

from tests.parity.harness import assert_same, global_batch, laid_out, largest_error, one_device, small
from tests.parity.processes import on_processes

DTENSORS = ("full_dtensor", "partial_dtensor")
OF_TWO = [{"dp_shard": 2}, {"dp_replicate": 2}, {"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"cp": 2}, {"pp": 2}]
OF_FOUR = [
    {"dp_replicate": 2, "dp_shard": 2},
    {"dp_shard": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "sequence_parallel": False},
    {"dp_shard": 2, "cp": 2},
    {"dp_shard": 2, "pp": 2},
    {"cp": 2, "tp": 2},
    {"tp": 4},
    {"tp": 2, "pp": 2, "schedule": "zbv"},
]


@pytest.fixture(scope="module")
def batches():
    return [global_batch(small(), seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def alone(batches):
    return one_device(small(), batches)


@pytest.mark.parametrize(("world", "layouts"), [(2, OF_TWO), (4, OF_FOUR)])
def test_backends_agree_to_the_last_bit(world, layouts, alone, batches):
    backends = ("spmd_types", *DTENSORS)
    configs = [laid_out(small(), backend=backend, **layout) for layout in layouts for backend in backends]
    outcomes = iter(on_processes(configs, batches, world))
    for layout in layouts:
        erased = next(outcomes)
        assert_same(erased, alone)
        for backend in DTENSORS:
            found = next(outcomes)
            assert (found.loss, found.grad_norm) == (erased.loss, erased.grad_norm), (layout, backend)
            assert largest_error(found.grads, erased.grads)[0] == 0.0, (layout, backend)
            assert largest_error(found.updated, erased.updated)[0] == 0.0, (layout, backend)
