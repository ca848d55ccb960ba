"""Whole models with experts: every layout equals one device, and `meshwright check` finds it right."""

from __future__ import annotations

import pytest
import torch

from meshwright.audit.check import check
from tests.marks import first
from tests.models.specs import small_deepseek_v3, small_qwen3_moe
from tests.parity.harness import assert_same, global_batch, laid_out, on_threads, one_device
from tests.parity.processes import on_processes

LAYOUTS = [
    {"tp": 2},
    {"tp": 2, "sequence_parallel": False},
    {"tp": 2, "ep": 2},
    {"tp": 2, "ep": 2, "sequence_parallel": False},
    {"cp": 2, "tp": 2},
    {"cp": 2, "ep": 2},
    {"dp_shard": 2, "ep": 2},
    {"dp_shard": 2, "tp": 2, "ep": 4},
]
MODELS = {
    "charged": small_qwen3_moe(),
    "biased, with groups and shared experts": small_deepseek_v3(),
}


@pytest.mark.parametrize("model", MODELS)
def test_every_layout_equals_one_device(model):
    config = MODELS[model]
    batches = [global_batch(config, seed) for seed in (0, 1)]
    alone = one_device(config, batches)
    assert all(grad.abs().max() > 0 for name, grad in alone.grads.items() if "routed" in name)
    for layout in LAYOUTS:
        assert_same(on_threads(laid_out(config, **layout), batches), alone)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_the_declared_layouts_are_right(model, layout):
    report = check(laid_out(MODELS[model], **layout))
    assert report.problems == []
    assert report.right
    assert report.typed


@pytest.mark.parametrize("layout", first([{"tp": 2, "ep": 2}, {"tp": 2}, {"dp_shard": 2, "ep": 2}], 1), ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_the_backends_agree_to_the_last_bit(model, layout):
    config = MODELS[model]
    batches = [global_batch(config)]
    backends = ("spmd_types", "full_dtensor", "partial_dtensor")
    erased, *others = on_processes([laid_out(config, backend=b, **layout) for b in backends], batches, 2)
    assert_same(erased, one_device(config, batches))
    for other in others:
        assert (other.loss, other.grad_norm) == (erased.loss, erased.grad_norm)
        assert all(torch.equal(other.updated[name], erased.updated[name]) for name in erased.updated)
