"""A mixture of experts gives what `transformers` gives with the same weights."""

from __future__ import annotations

import pytest
import torch

from meshwright.models.experts import Experts
from meshwright.models.feed_forward import FeedForward
from meshwright.models.layers import Linear
from meshwright.models.moe import MoE, Routed
from meshwright.models.router import Choice, Router

DIM, HIDDEN, EXPERTS, ACTIVE = 32, 24, 8, 2


def linear(inside: int, out: int) -> Linear.Config:
    return Linear.Config(in_features=inside, out_features=out)


def moe(shared: int = 0, **choice) -> MoE:
    """shared: the width of what every token passes; 0: nothing."""
    config = MoE.Config(
        routed=Routed.Config(
            router=Router.Config(
                gate=linear(DIM, EXPERTS), choice=Choice.Config(experts=EXPERTS, active=ACTIVE, **choice)
            ),
            experts=Experts.Config(experts=EXPERTS, dim=DIM, hidden=HIDDEN),
        ),
        shared=FeedForward.Config(w1=linear(DIM, shared), w2=linear(shared, DIM), w3=linear(DIM, shared))
        if shared
        else None,
    )
    return config.build()


def random_weights(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for each in (*module.parameters(), *module.buffers()):
        each.data.copy_(torch.randn(each.shape, generator=generator) * 0.3)
    return module


def take_over(mine: MoE, theirs: torch.nn.Module) -> None:
    experts = theirs.experts
    mine.routed.router.gate.weight.data.copy_(theirs.gate.weight)
    for target, source in zip(("w1", "w3"), experts.gate_up_proj.data.chunk(2, 1), strict=True):
        getattr(mine.routed.experts, target).data.copy_(source)
    mine.routed.experts.w2.data.copy_(experts.down_proj)
    if mine.shared is not None:
        for target, source in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
            getattr(mine.shared, target).weight.data.copy_(getattr(theirs.shared_experts, source).weight)


def assert_same(mine: MoE, theirs: torch.nn.Module) -> None:
    """In values and in the gradient of what comes in."""
    x = torch.randn(3, 10, DIM, generator=torch.Generator().manual_seed(1))
    grad = torch.randn(3, 10, DIM, generator=torch.Generator().manual_seed(2))
    results = []
    for each in (lambda x: mine(x)[0], theirs):
        given = x.clone().requires_grad_()
        y = each(given)
        results.append((y, *torch.autograd.grad(y, given, grad)))
    for found, true in zip(*results, strict=True):
        assert true.std() > 0.1
        assert (found - true).abs().max() < 1e-5 * true.abs().max()


def test_qwen3():
    module = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")
    theirs = random_weights(
        module.Qwen3MoeSparseMoeBlock(
            module.Qwen3MoeConfig(
                num_experts=EXPERTS,
                num_experts_per_tok=ACTIVE,
                hidden_size=DIM,
                moe_intermediate_size=HIDDEN,
                norm_topk_prob=True,
                experts_implementation="eager",
            )
        )
    )
    mine = moe()
    take_over(mine, theirs)
    assert_same(mine, theirs)


def test_deepseek_v3():
    module = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    theirs = random_weights(
        module.DeepseekV3MoE(
            module.DeepseekV3Config(
                n_routed_experts=EXPERTS,
                num_experts_per_tok=ACTIVE,
                hidden_size=DIM,
                moe_intermediate_size=HIDDEN,
                n_shared_experts=2,
                n_group=4,
                topk_group=2,
                routed_scaling_factor=2.5,
                norm_topk_prob=True,
                experts_implementation="eager",
            )
        )
    )
    mine = moe(2 * HIDDEN, score="sigmoid", groups=4, active_groups=2, scale=2.5, biased=True)
    take_over(mine, theirs)
    mine.routed.router.choice.bias.copy_(theirs.gate.e_score_correction_bias)
    assert_same(mine, theirs)


def test_counts_and_the_auxiliary_loss_are_handed_on():
    module = random_weights(moe(balance=0.1))
    x = torch.randn(3, 10, DIM, generator=torch.Generator().manual_seed(1))
    y, counts, auxiliary = module(x)
    _, _, true_counts, true_auxiliary = module.routed.router(x)
    assert y.shape == x.shape
    assert torch.equal(counts, true_counts)
    assert counts.sum() == 3 * 10 * ACTIVE
    assert torch.equal(auxiliary, true_auxiliary)
    assert random_weights(moe())(x)[2] is None


def test_every_parameter_has_a_gradient():
    """The router's by the weights of the chosen; the loss alone trains it."""
    module = random_weights(moe(HIDDEN))
    y, _, _ = module(torch.randn(3, 10, DIM, generator=torch.Generator().manual_seed(1)))
    y.square().sum().backward()
    assert all(param.grad.abs().sum() > 0 for param in module.parameters())
