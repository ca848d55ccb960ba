"""The three backends agree to the last bit, in loss, gradient norm, every gradient and every updated weight."""

from __future__ import annotations

import pytest

from tests.marks import slow
from tests.parity.harness import assert_same, global_batch, laid_out, largest_error, one_device, small, small_qwen3
from tests.parity.processes import on_processes

DTENSORS = ("full_dtensor", "partial_dtensor")
OF_TWO = [{"dp_shard": 2}, {"dp_replicate": 2}, {"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"cp": 2}, {"pp": 2}]
OF_FOUR = [
    {"dp_replicate": 2, "dp_shard": 2},
    {"dp_shard": 2, "tp": 2, "sequence_parallel": False},
    {"cp": 2, "tp": 2},
    {"tp": 2, "pp": 2, "schedule": "zbv"},
]
MORE_OF_FOUR = [{"dp_shard": 2, "tp": 2}, {"dp_shard": 2, "cp": 2}, {"dp_shard": 2, "pp": 2}, {"tp": 4}]


QWEN3_OF_TWO = [{"tp": 2}, {"pp": 2}]
QWEN3_OF_FOUR = [{"tp": 4}, {"dp_shard": 2, "tp": 2, "sequence_parallel": False}, {"cp": 2, "tp": 2}]


def agree(config, world, layouts):
    """Every backend under every layout does what one device does, and all do the same to the last bit."""
    batches = [global_batch(config, seed) for seed in (0, 1)]
    alone = one_device(config, batches)
    backends = ("spmd_types", *DTENSORS)
    configs = [laid_out(config, backend=backend, **layout) for layout in layouts for backend in backends]
    outcomes = iter(on_processes(configs, batches, world))
    for layout in layouts:
        erased = next(outcomes)
        assert_same(erased, alone)
        for backend in DTENSORS:
            found = next(outcomes)
            assert (found.loss, found.grad_norm) == (erased.loss, erased.grad_norm), (layout, backend)
            assert largest_error(found.grads, erased.grads)[0] == 0.0, (layout, backend)
            assert largest_error(found.updated, erased.updated)[0] == 0.0, (layout, backend)


@pytest.mark.parametrize(("world", "layouts"), [(2, OF_TWO), (4, OF_FOUR), slow(4, MORE_OF_FOUR)])
def test_backends_agree_to_the_last_bit(world, layouts):
    agree(small(), world, layouts)


@pytest.mark.parametrize(("world", "layouts"), [(2, QWEN3_OF_TWO), slow(4, QWEN3_OF_FOUR)])
def test_a_norm_of_each_head_too(world, layouts):
    """Two key heads: under tp 4 neighbours share one. The head is tied, also to the other end of a pipeline."""
    agree(small_qwen3(kv_heads=2, tied=True), world, layouts)
