"""Logits equal those of `transformers`' Qwen3 with the same weights; sizes are the published ones."""

from __future__ import annotations

import math

import pytest

from meshwright.models.qwen3 import SIZES, Qwen3, qwen3
from meshwright.train.assemble import on_meta
from meshwright.train.config import TrainConfig
from tests.models.reference import assert_same_logits
from tests.parity.harness import alone_on_cpu, small_qwen3

transformers = pytest.importorskip("transformers")


def their_model(spec: Qwen3):
    config = transformers.Qwen3Config(
        vocab_size=spec.vocab,
        hidden_size=spec.dim,
        intermediate_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.epsilon,
        tie_word_embeddings=spec.tied,
        rope_parameters={"rope_type": "default", "rope_theta": spec.theta},
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    return transformers.Qwen3ForCausalLM(config).eval()


@pytest.mark.parametrize(
    "numbers",
    [{}, {"kv_heads": 8, "head_dim": 16}, {"kv_heads": 1, "tied": True, "head_dim": 2}],
    ids=["grouped", "one key a query, wide heads", "one key for all, tied, narrow heads"],
)
def test_logits_equal_the_reference(numbers):
    config = small_qwen3(**numbers)
    assert_same_logits(config, their_model(config.model))


def test_the_norms_of_heads_count():
    """Other weights of the norms, which begin as ones, give other logits, and the reference's."""
    config = small_qwen3()
    run = alone_on_cpu(config)
    attention = run.model.blocks["0"].attention
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.data = norm.weight.data.clone().uniform_(0.5, 2.0)
    assert_same_logits(config, their_model(config.model), run)


NUMBERS = {
    "0.6b": (0.596e9, True),
    "1.7b": (1.72e9, True),
    "4b": (4.02e9, True),
    "8b": (8.19e9, False),
    "14b": (14.77e9, False),
    "32b": (32.76e9, False),
}


@pytest.mark.parametrize("size", NUMBERS)
def test_sizes_have_the_published_number_of_parameters(size):
    count, tied = NUMBERS[size]
    model, _ = on_meta(TrainConfig(model=qwen3(size)))
    assert math.isclose(sum(param.numel() for param in model.parameters()), count, rel_tol=0.005)
    assert qwen3(size).tied is tied


def test_every_size_is_tested_or_for_debugging():
    assert set(SIZES) == {*NUMBERS, "debug"}


def test_a_head_of_the_right_width_is_no_problem_and_another_is():
    assert qwen3("debug").problems() == []
    (problem,) = small_qwen3(head_dim=7).model.problems()
    assert (problem.where, problem.fix) == ("model.head_dim", "--model.head-dim 8")
    (problem,) = small_qwen3(kv_heads=3).model.problems()
    assert problem.where == "model.kv_heads"
    (problem,) = small_qwen3(head_dim=0).model.problems()
    assert problem.where == "model.head_dim"
