"""Routers choose what those of `transformers` choose, and count and weigh what they chose."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import axis
from meshwright.comm.threads import run_ranks
from meshwright.core.place import Place
from meshwright.models.layers import ExactLinear, Linear
from meshwright.models.router import Choice, Router
from meshwright.types.kinds import S
from meshwright.types.layout import SpmdLayout


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def choice(bias: Tensor | None = None, **numbers) -> Choice:
    module = Choice.Config(biased=bias is not None, **numbers).build()
    if bias is not None:
        module.bias.copy_(bias)
    return module


def spread_out(weights: Tensor, chosen: Tensor, experts: int) -> Tensor:
    """[..., k] -> [..., experts], zeros where an expert was not chosen: of any order of the k."""
    return weights.new_zeros(*weights.shape[:-1], experts).scatter(-1, chosen, weights)


def assert_same(
    mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], shape: tuple[int, ...], experts: int
) -> None:
    weights, chosen = (each.view(*shape, -1) for each in theirs)
    found, true = spread_out(*mine, experts), spread_out(weights, chosen, experts)
    assert torch.equal(mine[1].sort().values, chosen.sort().values)
    assert (found - true).abs().max() <= 1e-6 * true.abs().max()


def gate(dim: int, experts: int, weight: Tensor, config: Choice.Config, kind: type[Linear] = Linear) -> Router:
    router = Router.Config(gate=kind.Config(in_features=dim, out_features=experts), choice=config).build()
    router.gate.weight.data.copy_(weight)
    return router


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("experts", "active"), [(8, 2), (16, 4), (128, 8)])
def test_qwen3(experts, active, normalized):
    theirs = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")
    config = theirs.Qwen3MoeConfig(
        num_experts=experts, num_experts_per_tok=active, norm_topk_prob=normalized, hidden_size=32
    )
    reference = theirs.Qwen3MoeTopKRouter(config)
    reference.weight.data = random(experts, 32)
    x = random(3, 10, 32, seed=1)
    mine = gate(32, experts, reference.weight, Choice.Config(experts=experts, active=active, normalized=normalized))
    weights, chosen, counts, auxiliary = mine(x)
    _, *true = reference(x)
    assert_same((weights, chosen), tuple(true), (3, 10), experts)
    assert counts.tolist() == torch.bincount(chosen.flatten(), minlength=experts).tolist()
    assert auxiliary is None


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(
    ("experts", "active", "groups", "active_groups"), [(8, 2, 1, 1), (16, 4, 4, 2), (32, 8, 8, 4), (16, 4, 8, 2)]
)
def test_deepseek_v3(experts, active, groups, active_groups, normalized):
    theirs = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = theirs.DeepseekV3Config(
        n_routed_experts=experts,
        num_experts_per_tok=active,
        n_group=groups,
        topk_group=active_groups,
        norm_topk_prob=normalized,
        routed_scaling_factor=2.5,
        hidden_size=32,
    )
    reference = theirs.DeepseekV3TopkRouter(config)
    reference.weight.data = random(experts, 32) * 0.3
    reference.e_score_correction_bias.data = random(experts, seed=2) * 0.5
    x = random(3, 10, 32, seed=1)
    numbers = Choice.Config(
        experts=experts,
        active=active,
        score="sigmoid",
        groups=groups,
        active_groups=active_groups,
        normalized=normalized,
        scale=2.5,
        biased=True,
    )
    mine = gate(32, experts, reference.weight, numbers, ExactLinear)
    mine.choice.bias.copy_(reference.e_score_correction_bias)
    weights, chosen, _, _ = mine(x)
    with torch.no_grad():
        _, *true = reference(x)
    assert_same((weights, chosen), tuple(true), (3, 10), experts)
    no_bias = spread_out(*gate(32, experts, reference.weight, replace_bias(numbers))(x)[:2], experts)
    assert not torch.equal(no_bias != 0, spread_out(weights, chosen, experts) != 0)

    for each in (mine, reference):
        for weight in each.parameters():
            weight.data = weight.data.bfloat16()
    weights, chosen, _, _ = mine(x.bfloat16())
    with torch.no_grad():
        logits, true_weights, true_chosen = reference(x.bfloat16())
    assert torch.equal(mine.gate(x.bfloat16()).view(-1, experts), logits), "not scored in float32"
    assert weights.dtype is torch.bfloat16
    assert torch.equal(chosen.view(-1, active).sort().values, true_chosen.sort().values)
    found, true = (
        spread_out(w.float(), c, experts)
        for w, c in ((weights.view(-1, active), chosen.view(-1, active)), (true_weights, true_chosen))
    )
    assert (found - true).abs().max() <= 2**-8 * true.abs().max()


def replace_bias(config: Choice.Config) -> Choice.Config:
    values = {name: getattr(config, name) for name in ("experts", "active", "score", "groups", "active_groups")}
    return Choice.Config(**values)


def by_hand(scores: list[float], bias: list[float], groups: int, active_groups: int, active: int) -> set[int]:
    size = len(scores) // groups
    biased = [a + b for a, b in zip(scores, bias, strict=True)]
    members = [range(g * size, (g + 1) * size) for g in range(groups)]
    best = sorted(range(groups), key=lambda g: -sum(sorted((biased[e] for e in members[g]), reverse=True)[:2]))
    allowed = [e for g in best[:active_groups] for e in members[g]]
    return set(sorted(allowed, key=lambda e: -biased[e])[:active])


@given(
    order=st.permutations(range(12)),
    biases=st.permutations(range(12)),
    shape=st.sampled_from([(1, 1), (2, 1), (3, 1), (3, 2), (6, 2), (6, 3)]),
    active=st.integers(1, 4),
)
def test_groups_by_hand(order, biases, shape, active):
    """Scores and biases are such that no two sums are equal, also below zero."""
    logits, bias = (torch.tensor([float(n) for n in each]) for each in (order, biases))
    bias = (bias.double() ** 1.5 / 7 - 3).float()
    groups, active_groups = shape
    module = choice(
        bias, experts=12, active=active, score="sigmoid", groups=groups, active_groups=active_groups, normalized=False
    )
    weights, chosen, counts, _ = module((logits / 3 - 2).view(1, 1, -1))
    scores = (logits / 3 - 2).sigmoid()
    assert set(chosen.flatten().tolist()) == by_hand(scores.tolist(), bias.tolist(), *shape, active)
    assert torch.equal(weights.flatten(), scores[chosen.flatten()])
    assert counts.sum() == active


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_bias_chooses_and_weighs_nothing(score):
    logits = random(2, 3, 8).requires_grad_()
    module = choice(torch.tensor([0.0] * 6 + [5.0] * 2), experts=8, active=2, score=score)
    weights, chosen, counts, _ = module(logits)
    assert counts.tolist() == [0] * 6 + [6] * 2
    scores = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
    true = scores.gather(-1, chosen)
    assert torch.allclose(weights, true / true.sum(-1, keepdim=True))
    assert not module.bias.requires_grad
    assert list(module.state_dict()) == ["bias"]
    assert (module.bias.dtype, list(choice(experts=8, active=2).state_dict())) == (torch.float32, [])


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_scores_are_in_float32_and_weights_in_the_dtype_of_the_logits(score):
    logits = random(2, 3, 8).bfloat16().requires_grad_()
    weights, chosen, _, auxiliary = choice(experts=8, active=3, score=score, balance=0.1, scale=2.0)(logits)
    exact, again, _, true = choice(experts=8, active=3, score=score, balance=0.1, scale=2.0)(logits.float())
    assert weights.dtype == torch.bfloat16
    assert auxiliary.dtype == torch.float32
    assert torch.equal(weights, exact.bfloat16())
    assert torch.equal(chosen, again)
    assert torch.equal(auxiliary, true)
    (weights.sum() + auxiliary).backward()
    assert logits.grad.dtype == torch.bfloat16


def test_scores_that_are_all_zero_give_no_nan():
    weights, *_ = choice(experts=4, active=2, score="sigmoid")(torch.full((1, 1, 4), -200.0))
    assert weights.tolist() == [[[0.0, 0.0]]]


def balance_by_hand(logits: Tensor, score: str, active: int, weight: float) -> Tensor:
    """For each sequence, the weighted sum over experts of frequency times mean share, once for every token."""
    length, experts = logits.shape[1:]
    total = logits.new_zeros(())
    for sequence in logits:
        scores = sequence.softmax(-1) if score == "softmax" else sequence.sigmoid()
        chosen = scores.topk(active).indices
        for e in range(experts):
            frequency = (chosen == e).sum().item() * experts / (active * length)
            total = total + weight * length * frequency * (scores[:, e] / scores.sum(-1)).mean()
    return total


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_auxiliary_loss_by_hand(score):
    logits = random(3, 10, 8).requires_grad_()
    *_, found = choice(experts=8, active=2, score=score, balance=0.3)(logits)
    true = balance_by_hand(logits, score, 2, 0.3)
    assert torch.allclose(found, true)
    assert torch.allclose(*(torch.autograd.grad(each, logits)[0] for each in (found, true)), atol=1e-6)


def test_an_even_choice_has_the_least_auxiliary_loss():
    """balance times the number of tokens; when all go to the same experts it is experts / active times that."""
    even = torch.eye(4).repeat(1, 2, 1) * 50
    one = torch.tensor([50.0, 0, 0, 0]).expand(1, 8, 4)
    *_, least = choice(experts=4, active=1, balance=0.5)(even)
    *_, most = choice(experts=4, active=1, balance=0.5)(one)
    assert torch.allclose(least, torch.tensor(0.5 * 8))
    assert torch.allclose(most, torch.tensor(0.5 * 8 * 4))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("cp", [2, 5])
def test_with_the_sequence_cut_over_ranks_the_auxiliary_losses_add_up(cp, score):
    """To that of the whole sequences, and so do counts and gradients."""
    logits = random(3, 10, 8)
    config = Choice.Config(experts=8, active=2, score=score, balance=0.3)

    def program(rank: int) -> list[Tensor]:
        module = config.build()
        module.localize(Place({}, {}, {"logits": SpmdLayout({"cp": S(1)})}, {"cp": axis("cp")}))
        part = logits.chunk(cp, 1)[axis("cp").index].clone().requires_grad_()
        weights, chosen, counts, auxiliary = module(part)
        (grad,) = torch.autograd.grad(auxiliary, part)
        return [weights, chosen, grad, counts, auxiliary.detach()]

    found = [list(each) for each in zip(*run_ranks(ParallelismDims(cp=cp), program), strict=True)]
    whole = logits.clone().requires_grad_()
    weights, chosen, counts, auxiliary = config.build()(whole)
    (grad,) = torch.autograd.grad(auxiliary, whole)
    for parts, true in zip(found[:3], (weights, chosen, grad), strict=True):
        assert torch.allclose(torch.cat(parts, 1), true, atol=1e-6)
    assert torch.equal(sum(found[3]), counts)
    assert torch.allclose(sum(found[4]), auxiliary)


GOOD = [(8, 1, 1, 1), (8, 8, 1, 1), (8, 2, 4, 1), (8, 8, 4, 4), (8, 4, 2, 1)]
BAD = [(8, 0, 1, 1), (8, 9, 1, 1), (8, 3, 4, 1), (8, 2, 3, 2), (8, 2, 8, 2), (8, 2, 4, 5), (8, 2, 4, 0), (8, 2, 0, 1)]


@pytest.mark.parametrize("numbers", GOOD + BAD, ids=str)
def test_numbers_that_leave_no_choice_are_refused(numbers):
    experts, active, groups, active_groups = numbers
    config = Choice.Config(experts=experts, active=active, groups=groups, active_groups=active_groups)
    problems = config.problems("router.choice", ParallelismDims())
    assert len(problems) == (numbers in BAD)
    if numbers in GOOD:
        _, chosen, _, _ = config.build()(random(1, 5, experts))
        assert all(len(set(each)) == active for each in chosen[0].tolist())
    else:
        assert problems[0].where == "router.choice"
        assert "groups = 1" in problems[0].fix
