"""Experts under every parallelism: as one device, and the backends to the last bit.

Loss, norm, every gradient, updated weights, the tokens that each expert counted, and the biases that learn from them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.parity.layouts import covering, every, named, world_of
from meshwright.parity.refusals import refusal
from meshwright.parity.shapes import Shapes
from meshwright.train.config import ComputeConfig, ParallelConfig
from tests.marks import first, slow
from tests.parity.experts import small_experts
from tests.parity.harness import (
    assert_same,
    global_batch,
    laid_out,
    largest_error,
    on_threads,
    one_device,
)
from tests.parity.processes import on_processes
from tests.parity.test_backends import agree
from tests.parity.test_compute import assert_compiled_once

FAMILIES = ("qwen3", "deepseek")
CHOICES = {"as it chooses": {}, "leaning": {}, "idle": {}, "one": {"active": 1}}
"""How routers are made to choose -> other numbers of the model."""
OF_TWO = {
    "qwen3": [{"dp_shard": 2, "ep": 2}, {"tp": 2}],
    "deepseek": [{"cp": 2, "ep": 2}, {"tp": 2, "ep": 2}, {"pp": 2}],
}
OF_FOUR = {
    "qwen3": [
        {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
        {"dp_shard": 2, "tp": 2, "ep": 4, "sequence_parallel": False},
    ],
    "deepseek": [{"dp_shard": 2, "tp": 2, "ep": 2}, {"dp_shard": 2, "pp": 2, "ep": 2}],
}
MORE_OF_FOUR = [{"dp_shard": 4, "ep": 2}, {"dp_shard": 2, "cp": 2, "ep": 4}]


def experts(family, towards):
    return small_experts(family, "" if towards == "as it chooses" else towards, **CHOICES[towards])


def assert_equal_choices(mine, true):
    """Whole numbers, and what is made of them alone."""
    for kind in ("loads", "biases"):
        found, wanted = getattr(mine, kind), getattr(true, kind)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), kind


@pytest.fixture(scope="module")
def truth():
    """What one device does, by family and choice."""
    found = {}

    def of(family, towards):
        if (family, towards) not in found:
            config = experts(family, towards)
            batches = [global_batch(config, seed) for seed in (0, 1)]
            found[family, towards] = config, batches, one_device(config, batches)
        return found[family, towards]

    return of


SIMULATED = [layout for layout in covering(4, experts=True) if layout.pp == 1 and world_of(layout) == 4]


@pytest.mark.parametrize(
    ("towards", "family"),
    [
        ("idle", "qwen3"),
        slow("one", "deepseek"),
        *(slow(towards, family) for towards in ("as it chooses", "leaning") for family in FAMILIES),
        slow("idle", "deepseek"),
        slow("one", "qwen3"),
    ],
)
def test_whatever_routers_choose(truth, family, towards):
    config, batches, alone = truth(family, towards)
    if towards == "idle":
        assert all(tokens[1] == 0 for tokens in alone.loads.values())
    if towards == "one":
        assert all((tokens > 0).sum() == 1 for tokens in alone.loads.values())
    for layout in SIMULATED:
        laid = replace(config, parallel=layout)
        if refusal(laid) is None:
            mine = on_threads(laid, batches)
            assert_same(mine, alone)
            assert_equal_choices(mine, alone)


def test_most_layouts_were_tried():
    tried = [layout for layout in SIMULATED if refusal(replace(experts("qwen3", "idle"), parallel=layout)) is None]
    assert {layout.ep for layout in tried} == {1, 2, 4}
    assert len(tried) > len(SIMULATED) / 2


@pytest.mark.parametrize("family", first(reversed(FAMILIES), 1))
def test_backends_agree_to_the_last_bit(family):
    agree(small_experts(family), 2, OF_TWO[family])
    agree(small_experts(family), 4, OF_FOUR[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_backends_agree_under_the_layouts_of_the_other_family_and_more(family):
    (other,) = (each for each in FAMILIES if each != family)
    agree(small_experts(family), 2, OF_TWO[other])
    agree(small_experts(family), 4, [*OF_FOUR[other], *MORE_OF_FOUR])


KEPT_OTHERWISE = [{"recompute": "full"}, {"recompute": "selective"}, {"recompute": "ops"}, {"offload": True}]
OF_EXPERTS = [{"dp_shard": 2, "ep": 2}, {"tp": 2, "ep": 2}, {"tp": 2}]


def computed(family, layout, **compute):
    config = small_experts(family, "idle")
    return replace(laid_out(config, **layout), compute=ComputeConfig(**compute))


@pytest.mark.parametrize("family", first(FAMILIES, 1))
def test_an_exchange_that_is_done_again_takes_the_same_routes(family):
    """What is computed again in backward counts nothing twice, and changes no bit."""
    batches = [global_batch(computed(family, {}), seed) for seed in (0, 1)]
    configs = [computed(family, layout, **how) for layout in OF_EXPERTS for how in ({}, *KEPT_OTHERWISE)]
    outcomes = iter(on_processes(configs, batches, 2))
    for layout in OF_EXPERTS:
        plain = next(outcomes)
        for how in KEPT_OTHERWISE:
            found = next(outcomes)
            assert (found.loss, found.grad_norm) == (plain.loss, plain.grad_norm), (layout, how)
            assert largest_error(found.updated, plain.updated)[0] == 0.0, (layout, how)
            assert_equal_choices(found, plain)


@pytest.mark.parametrize("layout", first([{"tp": 2, "ep": 2}, {"dp_shard": 2, "ep": 2}, {"tp": 2}], 1), ids=str)
def test_in_bfloat16_backends_agree_too(layout):
    """The gate scores in float32 on each of them."""
    config = computed("deepseek", {}, precision="bfloat16")
    batches = [global_batch(config, seed) for seed in (0, 1)]
    backends = ("spmd_types", "full_dtensor", "partial_dtensor")
    erased, *others = on_processes([laid_out(config, backend=b, **layout) for b in backends], batches, 2)
    for other in others:
        assert (other.loss, other.grad_norm) == (erased.loss, erased.grad_norm)
        assert_equal_choices(other, erased)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", OF_EXPERTS, ids=str)
def test_blocks_with_experts_compile_once_though_their_loads_change(family, layout):
    config = computed(family, layout, compile=True)
    assert_compiled_once(config, [global_batch(config, seed) for seed in (0, 1)])


MOST = 8


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("world", range(2, MOST + 1))
@pytest.mark.parametrize("towards", ["leaning", "idle", "one"])
def test_every_layout_equals_one_device(family, towards, world):
    """All ranks simulated, or, where there is a pipeline, each a process."""
    layouts = [layout for layout in every(MOST, experts=True) if world_of(layout) == world and layout.ep in (1, 2, 4)]
    plain = experts(family, towards)
    configs = [shaped(plain, layout) for layout in layouts if layout.schedule == "1f1b"]
    tried = [config for config in configs if refusal(config) is None]
    assert tried
    for config in tried:
        batches = [global_batch(config, seed) for seed in (0, 1)]
        alone = one_device(config, batches)
        piped = config.parallel.pp > 1
        mine = on_processes([config], batches, world)[0] if piped else on_threads(config, batches)
        assert_same(mine, alone)
        assert_equal_choices(mine, alone)


def shaped(config, layout: ParallelConfig):
    """Rows and tokens that the layout divides, and blocks enough."""
    shapes = Shapes.of(config, layout)
    training = replace(config.training, length=shapes.length, batch=shapes.rows * 2, accumulate=2)
    model = replace(config.model, layers=max(config.model.layers, shapes.blocks))
    return replace(config, parallel=layout, training=training, model=model)


def test_a_layout_is_written_with_its_experts():
    assert named(ParallelConfig(dp_shard=2, tp=2, ep=4)) == "dp_shard=2,tp=2,ep=4"
