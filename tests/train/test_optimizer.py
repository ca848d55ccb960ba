"""The learning rate goes up in a line and down half a cosine; matrices are decayed and vectors are not."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from meshwright.train.config import OptimizerConfig
from meshwright.train.optimizer import adamw, rate_at


def rates(steps: int, **settings: float) -> list[float]:
    config = OptimizerConfig(rate=1.0, **settings)
    return [rate_at(step, steps, config) for step in range(1, steps + 1)]


def test_up_and_down():
    found = rates(20, warmup=4, floor=0.1)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a > b for a, b in pairwise(found[3:]))
    assert found[11] == pytest.approx(0.55)  # half way down, half of what lies above the floor
    assert found[-1] == pytest.approx(0.1)


def test_no_warm_up_begins_near_the_top_and_ends_at_the_floor():
    found = rates(10, warmup=0, floor=0.0)
    assert found[0] > 0.95
    assert found[-1] == pytest.approx(0.0)


def test_a_warm_up_longer_than_the_run_only_goes_up():
    assert rates(3, warmup=6) == [1 / 6, 2 / 6, 3 / 6]


def test_a_run_that_is_all_warm_up_ends_at_the_top():
    assert rates(5, warmup=5)[-1] == 1.0


def test_decay_and_freezing():
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    model[1].bias.requires_grad_(False)
    groups = adamw(model, OptimizerConfig(weight_decay=0.3)).param_groups
    decayed, plain = ({id(param) for param in group["params"]} for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert decayed == {id(model[0].weight)}
    assert plain == {id(model[0].bias), id(model[1].weight)}


def test_it_is_adamw():
    """Against torch's own loop on the same gradients."""
    config = OptimizerConfig(rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6, weight_decay=0.2)
    mine, true = (nn.Linear(4, 3, bias=False) for _ in range(2))
    with torch.no_grad():
        true.weight.copy_(mine.weight)
    ours = adamw(mine, config)
    theirs = torch.optim.AdamW(
        true.parameters(), lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2, foreach=False, fused=False
    )
    for seed in range(3):
        for model in (mine, true):
            model.weight.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        ours.step()
        theirs.step()
    assert torch.allclose(mine.weight, true.weight, rtol=1e-6)
