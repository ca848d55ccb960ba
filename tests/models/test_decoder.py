"""What a unit of a decoder costs: the weights that a token meets."""

from __future__ import annotations

import pytest

from meshwright.models.deepseek_v3 import deepseek_v3
from meshwright.train.assemble import on_meta
from meshwright.train.config import TrainConfig
from meshwright.train.stages import even
from tests.models.specs import small_deepseek_v3, small_qwen3_moe
from tests.parity.harness import small

DIM, VOCAB, EXPERT = 32, 64, 3 * 32 * 24
"""Of the small models with experts; elements of one expert."""


def costs(config):
    return on_meta(config)[0].costs()


def elements(module):
    return sum(param.numel() for param in module.parameters())


def test_a_token_meets_all_of_a_block_without_experts():
    model = on_meta(small())[0]
    assert model.costs() == [0, *map(elements, model.blocks.values()), model.head.weight.numel()]


@pytest.mark.parametrize("active", [1, 2, 8])
def test_of_experts_it_meets_those_that_are_active(active):
    config = small_qwen3_moe(active=active)
    model = on_meta(config)[0]
    for cost, block in zip(model.costs()[1:-1], model.blocks.values(), strict=True):
        assert cost == elements(block) - (8 - active) * EXPERT


def test_experts_that_every_token_passes_count_whole():
    one, two = (costs(small_deepseek_v3(shared_experts=count)) for count in (1, 2))
    assert [more - less for more, less in zip(two, one, strict=True)] == [0, 0, EXPERT, 0]


def test_a_further_prediction_is_a_block_a_projection_and_a_head_more():
    plain, further = (costs(small_deepseek_v3(further=further)) for further in (0, 1))
    assert further[:-1] == plain[:-1]
    assert further[-1] == 2 * VOCAB * DIM + 2 * DIM * DIM + 3 * DIM + plain[-2]


def test_a_pipeline_of_the_published_size_is_cut_as_its_tokens_meet_weights():
    """A block with 256 experts has the arithmetic of one without any, though so many more elements."""
    found = costs(TrainConfig(model=deepseek_v3("671b")))
    assert found[4] == pytest.approx(found[1], rel=0.01)
    stages = [sum(found[unit] for unit in cut) for cut in even(found, 16)]
    assert max(stages) < 1.15 * sum(found) / 16
