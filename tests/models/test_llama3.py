"""Logits equal those of `transformers`' Llama with the same weights; sizes are the published ones."""

from __future__ import annotations

import math

import pytest

from meshwright.models.llama3 import SIZES, Llama3, llama3
from meshwright.models.rope import RopeScaling
from meshwright.train.assemble import on_meta
from meshwright.train.config import TrainConfig
from tests.models.reference import assert_same_logits
from tests.parity.harness import small

transformers = pytest.importorskip("transformers")


def their_model(spec: Llama3):
    rope = {"rope_type": "default", "rope_theta": spec.theta}
    if spec.scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": spec.scaling.factor,
            "low_freq_factor": spec.scaling.low,
            "high_freq_factor": spec.scaling.high,
            "original_max_position_embeddings": spec.scaling.length,
        }
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.dim,
        intermediate_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        rms_norm_eps=spec.epsilon,
        tie_word_embeddings=spec.tied,
        rope_parameters=rope,
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"kv_heads": 8},
        {"kv_heads": 1, "tied": True},
        {"kv_heads": 2, "tied": True, "scaling": RopeScaling(factor=32.0, length=32)},
    ],
    ids=["grouped", "one key a query", "one key for all, tied", "stretched, tied"],
)
def test_logits_equal_the_reference(numbers):
    config = small(**numbers)
    assert_same_logits(config, their_model(config.model))


PUBLISHED = {"1b": 1.24e9, "3b": 3.21e9, "8b": 8.03e9, "70b": 70.6e9, "405b": 405.9e9}


@pytest.mark.parametrize(("size", "count"), PUBLISHED.items())
def test_sizes_have_the_published_number_of_parameters(size, count):
    model, _ = on_meta(TrainConfig(model=llama3(size)))
    assert math.isclose(sum(param.numel() for param in model.parameters()), count, rel_tol=0.005)


def test_every_size_is_tested_or_for_debugging():
    assert set(SIZES) == {*PUBLISHED, "debug"}
