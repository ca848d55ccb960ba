"""One step under every small layout equals one device: simulated ranks, parameters as compute sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.parity.harness import (
    assert_same,
    global_batch,
    laid_out,
    largest_error,
    on_threads,
    one_device,
    small,
    small_qwen3,
)

LAYOUTS = [
    {"dp_shard": 2},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"tp": 4},
    {"dp_shard": 2, "tp": 2},
    {"dp_shard": 2, "tp": 2, "sequence_parallel": False},
    {"dp_replicate": 2, "dp_shard": 2},
    {"tp": 8},  # more ranks than the 4 key/value heads: neighbours share one
    {"tp": 8, "sequence_parallel": False},
    {"dp_shard": 2, "tp": 4},
    {"dp_shard": 4, "tp": 2},
    {"cp": 2},
    {"cp": 4},
    {"cp": 2, "tp": 2},
    {"cp": 2, "tp": 2, "sequence_parallel": False},
    {"dp_shard": 2, "cp": 2, "tp": 2},
    {"cp": 2, "tp": 8},
]


@pytest.fixture(scope="module")
def batches():
    return [global_batch(small(), seed) for seed in (0, 1)]  # two micro-batches: gradients add up


@pytest.fixture(scope="module")
def alone(batches):
    return one_device(small(), batches)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_layout_equals_one_device(layout, alone, batches):
    assert_same(on_threads(laid_out(small(), **layout), batches), alone)


@pytest.mark.parametrize("layout", [{"tp": 2}, {"dp_shard": 2, "tp": 2, "sequence_parallel": False}], ids=str)
def test_a_tied_head_and_stretched_angles_equal_one_device(layout, batches):
    from meshwright.models.rope import RopeScaling

    config = small(tied=True, scaling=RopeScaling(length=8))
    mine, true = on_threads(laid_out(config, **layout), batches), one_device(config, batches)
    assert_same(mine, true)
    assert "head.weight" not in mine.weights  # one tensor, by its first name


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("layout", [{"tp": 2}, {"tp": 8}, {"cp": 2, "tp": 4}, {"dp_shard": 2, "tp": 2}], ids=str)
def test_a_norm_of_each_head_equals_one_device(layout, sequence_parallel, batches):
    config = small_qwen3(kv_heads=2)
    laid = laid_out(config, sequence_parallel=sequence_parallel, **layout)
    assert_same(on_threads(laid, batches), one_device(config, batches))


def test_no_layout_is_the_measure_of_the_others(batches):
    """Run in reverse order, in one process, each layout gives the bits that it gave before; and each pair agrees."""
    few = [{}, {"tp": 2}, {"dp_shard": 2}, {"dp_shard": 2, "tp": 2}]
    forward = [on_threads(laid_out(small(), **layout), batches) for layout in few]
    backward = [on_threads(laid_out(small(), **layout), batches) for layout in reversed(few)][::-1]
    for once, again in zip(forward, backward, strict=True):
        assert once.loss == again.loss
        assert once.grad_norm == again.grad_norm
        assert largest_error(once.updated, again.updated)[0] == 0.0
    for mine in forward:
        for true in forward:
            assert_same(mine, true)


def test_the_comparison_can_fail(alone, batches):
    other = global_batch(small(), seed=2)
    with pytest.raises(AssertionError):
        assert_same(on_threads(laid_out(small(), tp=2), [batches[0], other]), alone)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_any_number_of_key_value_heads(kv_heads):
    config = small(kv_heads=kv_heads)
    batches = [global_batch(config)]
    assert_same(on_threads(laid_out(config, tp=4), batches), one_device(config, batches))


def test_another_seed_starts_elsewhere(batches):
    config = small()
    other = replace(config, training=replace(config.training, seed=8))
    error, _ = largest_error(one_device(other, batches).weights, one_device(config, batches).weights)
    assert error > 0.1
    assert torch.isfinite(torch.tensor(error))
