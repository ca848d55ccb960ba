"""AdamW on what is trained, and a rate that goes up in a line and down half a cosine."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from meshwright.train.config import OptimizerConfig
from meshwright.train.optimizer import adamw, rate_at

TOP = OptimizerConfig(rate=1.0, warmup=10, floor=0.1)


class TestRate:
    @pytest.mark.parametrize(("step", "rate"), [(1, 0.1), (5, 0.5), (10, 1.0)])
    def test_it_goes_up_in_a_line(self, step, rate):
        assert rate_at(step, 100, TOP) == pytest.approx(rate)

    def test_then_down_half_a_cosine(self):
        assert rate_at(55, 100, TOP) == pytest.approx(0.55)  # half way, half way down
        assert rate_at(33, 102, TOP) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))

    @pytest.mark.parametrize("steps", [11, 12, 100])
    def test_the_last_step_has_the_floor(self, steps):
        assert rate_at(steps, steps, TOP) == pytest.approx(0.1)

    def test_without_warm_up_it_begins_near_the_top(self):
        assert rate_at(1, 1000, OptimizerConfig(rate=1.0, warmup=0)) == pytest.approx(1.0, rel=1e-4)

    def test_one_step_without_warm_up_is_the_last_one(self):
        assert rate_at(1, 1, OptimizerConfig(rate=1.0, warmup=0, floor=0.25)) == 0.25

    @pytest.mark.parametrize("warmup", [20, 40])
    def test_a_warm_up_longer_than_the_run_never_comes_down(self, warmup):
        rates = [rate_at(step, 20, OptimizerConfig(rate=1.0, warmup=warmup)) for step in range(1, 21)]
        assert rates == pytest.approx([step / warmup for step in range(1, 21)])

    @given(steps=st.integers(1, 60), warmup=st.integers(0, 70), floor=st.floats(0, 1), rate=st.floats(1e-6, 1.0))
    def test_it_rises_to_the_top_and_falls_to_the_floor(self, steps, warmup, floor, rate):
        config = OptimizerConfig(rate=rate, warmup=warmup, floor=floor)
        rates = [rate_at(step, steps, config) for step in range(1, steps + 1)]
        up, down = rates[:warmup], rates[warmup:]
        assert up == sorted(up)
        assert down == sorted(down, reverse=True)
        assert all(0 < value <= rate * (1 + 1e-12) for value in up)
        assert all(floor * rate * (1 - 1e-12) <= value <= rate * (1 + 1e-12) for value in down)


class TestAdamW:
    @staticmethod
    def model():
        model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
        model[2].weight.requires_grad_(False)
        return model

    def test_matrices_are_decayed_and_vectors_are_not(self):
        model = self.model()
        optimizer = adamw(model.parameters(), OptimizerConfig(weight_decay=0.3))
        decay = {id(param): group["weight_decay"] for group in optimizer.param_groups for param in group["params"]}
        trained = {name: decay[id(param)] for name, param in model.named_parameters() if id(param) in decay}
        assert trained == {"0.weight": 0.3, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0, "2.bias": 0.0}

    def test_the_settings_arrive(self):
        config = OptimizerConfig(rate=0.5, beta1=0.7, beta2=0.8, epsilon=1e-3)
        for group in adamw(self.model().parameters(), config).param_groups:
            assert (group["lr"], group["betas"], group["eps"]) == (0.5, (0.7, 0.8), 1e-3)

    @pytest.mark.parametrize("kept", ["0.weight", "0.bias"])
    def test_a_kind_without_parameters_is_left_out(self, kept):
        model = self.model()
        for name, param in model.named_parameters():
            param.requires_grad_(name == kept)
        (group,) = adamw(model.parameters(), OptimizerConfig()).param_groups
        assert len(group["params"]) == 1

    def test_where_nothing_is_trained_a_step_moves_nothing(self):
        """As on a pipeline stage whose layers are all frozen."""
        model = self.model().requires_grad_(False)
        before = [param.clone() for param in model.parameters()]
        adamw(model.parameters(), OptimizerConfig()).step()
        assert all(map(torch.equal, model.parameters(), before))

    def test_it_is_torchs_own_loop(self):
        config = OptimizerConfig(rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6, weight_decay=0.2)
        mine, true = (nn.Linear(4, 3, bias=False) for _ in range(2))
        true.load_state_dict(mine.state_dict())
        ours = adamw(mine.parameters(), config)
        settings = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.2}
        theirs = torch.optim.AdamW(true.parameters(), **settings, foreach=False, fused=False)
        for seed in range(3):
            for model in (mine, true):
                model.weight.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
            ours.step()
            theirs.step()
        assert torch.allclose(mine.weight, true.weight, rtol=1e-6)

    def test_its_first_step_is_the_formulas(self):
        """Without decay it moves by the rate, against the sign of the gradient; decay is apart from that."""
        param = nn.Parameter(torch.tensor([[1.0, -2.0]]))
        model = nn.ParameterList([param])
        optimizer = adamw(model.parameters(), OptimizerConfig(rate=0.1, weight_decay=0.5, epsilon=1e-12))
        param.grad = torch.tensor([[3.0, -0.001]])
        optimizer.step()
        expected = torch.tensor([[1.0, -2.0]]) * (1 - 0.1 * 0.5) - 0.1 * torch.tensor([[1.0, -1.0]])
        assert torch.allclose(param.detach(), expected)
