"""Logits equal those of `transformers`' Qwen3 with experts and the same weights; sizes are the published ones."""

from __future__ import annotations

import math

import pytest

from meshwright.models.qwen3_moe import SIZES, Qwen3Moe, qwen3_moe
from meshwright.train.assemble import on_meta
from meshwright.train.config import TrainConfig
from tests.models.reference import assert_same_logits, stirred
from tests.models.specs import small_qwen3_moe
from tests.parity.harness import alone_on_cpu

transformers = pytest.importorskip("transformers")


def their_model(spec: Qwen3Moe):
    config = transformers.Qwen3MoeConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.dim,
        moe_intermediate_size=spec.expert_hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        num_experts=spec.experts,
        num_experts_per_tok=spec.active,
        norm_topk_prob=True,
        rms_norm_eps=spec.epsilon,
        tie_word_embeddings=spec.tied,
        rope_parameters={"rope_type": "default", "rope_theta": spec.theta},
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    return transformers.Qwen3MoeForCausalLM(config).eval()


@pytest.mark.parametrize(
    "numbers",
    [
        {"balance": "none"},
        {"balance": "loss", "kv_heads": 8, "experts": 5, "active": 3},
        {"kv_heads": 1, "tied": True, "active": 1},
        {"experts": 4, "active": 4},
    ],
    ids=["grouped", "one key a query, charged", "one key for all, tied, one expert a token", "every expert"],
)
def test_logits_equal_the_reference(numbers):
    config = small_qwen3_moe(**numbers)
    assert_same_logits(config, their_model(config.model), stirred(alone_on_cpu(config)))


PUBLISHED = {"30b-a3b": (30.53e9, 3.35e9), "235b-a22b": (235.1e9, 22.2e9)}


@pytest.mark.parametrize("size", PUBLISHED)
def test_sizes_have_the_published_numbers_of_parameters_and_of_active_ones(size):
    spec = qwen3_moe(size)
    model, _ = on_meta(TrainConfig(model=spec))
    sizes = {name: param.numel() for name, param in model.named_parameters()}
    of_experts = sum(size for name, size in sizes.items() if ".experts." in name)
    total, active = sum(sizes.values()), sum(sizes.values()) - of_experts * (1 - spec.active / spec.experts)
    assert math.isclose(total, PUBLISHED[size][0], rel_tol=0.005)
    assert math.isclose(active, PUBLISHED[size][1], rel_tol=0.01)


def test_every_size_is_tested_or_for_debugging():
    assert set(SIZES) == {*PUBLISHED, "debug"}


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_right(size):
    assert qwen3_moe(size).problems() == []


def test_numbers_that_do_not_fit_are_told():
    (problem,) = small_qwen3_moe(active=9).model.problems()
    assert (problem.where, problem.fix) == ("model.active", "--model.active 8")
    (problem,) = small_qwen3_moe(head_dim=7).model.problems()
    assert problem.where == "model.head_dim"
    (problem,) = small_qwen3_moe(kv_heads=3).model.problems()
    assert problem.where == "model.kv_heads"
