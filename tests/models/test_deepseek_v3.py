"""Logits equal those of `transformers`' DeepSeek-V3 with the same weights; sizes are the published ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from meshwright.models.deepseek_v3 import SIZES, DeepseekV3, deepseek_v3
from meshwright.models.rope import Yarn, in_halves
from meshwright.train.assemble import Assembly, on_meta
from meshwright.train.config import TrainConfig
from tests.models.reference import NAMES, assert_same_logits, stirred, their_state
from tests.models.specs import small_deepseek_v3
from tests.parity.harness import alone_on_cpu

transformers = pytest.importorskip("transformers")

LATENT = {
    **NAMES,
    "attention.wq_a": "self_attn.q_a_proj",
    "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.wq_b": "self_attn.q_b_proj",
    "attention.wkv_a": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_norm": "self_attn.kv_a_layernorm",
    "attention.wkv_b": "self_attn.kv_b_proj",
}


def their_model(spec: DeepseekV3):
    rope = {"rope_type": "default", "rope_theta": spec.theta}
    if spec.scaling is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": spec.scaling.factor,
            "beta_slow": spec.scaling.beta_slow,
            "beta_fast": spec.scaling.beta_fast,
            "mscale": spec.scaling.mscale,
            "mscale_all_dim": spec.scaling.mscale_all_dim,
            "original_max_position_embeddings": spec.scaling.length,
        }
    config = transformers.DeepseekV3Config(
        vocab_size=spec.vocab,
        hidden_size=spec.dim,
        intermediate_size=spec.hidden,
        moe_intermediate_size=spec.expert_hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        n_shared_experts=spec.shared_experts,
        n_routed_experts=spec.experts,
        routed_scaling_factor=spec.route_scale,
        kv_lora_rank=spec.kv_latent,
        q_lora_rank=spec.q_latent or None,
        qk_rope_head_dim=spec.rope_dim,
        qk_nope_head_dim=spec.nope_dim,
        v_head_dim=spec.value_dim,
        n_group=spec.groups,
        topk_group=spec.active_groups,
        num_experts_per_tok=spec.active,
        first_k_dense_replace=spec.dense_layers,
        rms_norm_eps=spec.epsilon,
        tie_word_embeddings=spec.tied,
        rope_parameters=rope,
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    return transformers.DeepseekV3ForCausalLM(config).eval()


def in_pairs(halves: Tensor) -> Tensor:
    """Rows in their order: features that turn together are neighbours."""
    pairs = torch.stack(halves.chunk(2, -2), -2).flatten(-3, -2)
    assert torch.equal(in_halves(pairs), halves)
    return pairs


def state_of(spec: DeepseekV3):
    """What they call the states of a model: with the rows of rotary features in their order."""
    names = LATENT if spec.q_latent else {**LATENT, "attention.wq_b": "self_attn.q_proj"}

    def state(run: Assembly) -> dict[str, Tensor]:
        found = their_state(run, names)
        for number in range(spec.layers):
            for part, heads in (("wq_b", spec.heads), ("wkv_a", 1)):
                name = f"model.layers.{number}.{names[f'attention.{part}']}.weight"
                rows = found[name].unflatten(0, (heads, -1))
                still, turning = rows[:, : -spec.rope_dim], rows[:, -spec.rope_dim :]
                found[name] = torch.cat((still, in_pairs(turning)), 1).flatten(0, 1)
        return found

    return state


SHAPES = {
    "groups of experts": {},
    "queries from the stream, one group": {"q_latent": 0, "groups": 1, "active_groups": 1},
    "experts in every block, two shared": {"dense_layers": 0, "shared_experts": 2, "route_scale": 1.0},
    "stretched, tied": {"scaling": Yarn(length=16), "tied": True, "heads": 3, "value_dim": 5},
    "stretched in the middle, with louder turning features": {
        "scaling": Yarn(factor=4.0, length=2048, mscale=0.7, mscale_all_dim=0.3),
        "rope_dim": 16,
    },
    "no experts": {"dense_layers": 2},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_the_reference(shape):
    config = small_deepseek_v3(**SHAPES[shape])
    assert_same_logits(config, their_model(config.model), stirred(alone_on_cpu(config)), state_of(config.model))


def test_the_order_of_rotary_rows_counts():
    """With our order of rows the reference has other logits."""
    config = small_deepseek_v3()
    with pytest.raises(AssertionError):
        assert_same_logits(config, their_model(config.model), state=lambda run: their_state(run, LATENT))


def test_the_published_size_has_the_published_number_of_parameters():
    spec = deepseek_v3("671b")
    model, _ = on_meta(TrainConfig(model=spec))
    sizes = {name: param.numel() for name, param in model.named_parameters()}
    of_experts = sum(size for name, size in sizes.items() if ".experts." in name)
    total = sum(sizes.values())
    assert math.isclose(total, 671.0e9, rel_tol=0.001)
    assert math.isclose(total - of_experts * (1 - spec.active / spec.experts), 37.5e9, rel_tol=0.01)


def test_every_size_is_tested_or_for_debugging():
    assert set(SIZES) == {"671b", "debug"}


def test_only_biased_routers_have_a_bias_and_only_charged_ones_a_charge():
    for balance, names in (("none", (False, False)), ("bias", (True, False)), ("loss", (False, True))):
        model, _ = on_meta(small_deepseek_v3(balance=balance))
        biased = any(name.endswith("choice.bias") for name in model.state_dict())
        assert (biased, model.charge is not None) == names


WRONG = [
    ({"active": 9, "active_groups": 4}, "active", "8"),
    ({"groups": 3}, "groups", "2"),
    ({"groups": 8}, "groups", "4"),
    ({"groups": 1}, "active_groups", "1"),
    ({"active_groups": 5}, "active_groups", "4"),
    ({"active_groups": 1}, "active_groups", "2"),
    ({"dense_layers": 3}, "dense_layers", "2"),
    ({"rope_dim": 5}, "rope_dim", "6"),
]


@pytest.mark.parametrize(("numbers", "field", "value"), WRONG, ids=str)
def test_numbers_that_do_not_fit_are_told_with_those_that_do(numbers, field, value):
    spec = small_deepseek_v3(**numbers).model
    (problem,) = spec.problems()
    assert (problem.where, problem.fix) == (f"model.{field}", f"--model.{field.replace('_', '-')} {value}")
    setattr(spec, field, int(value))
    assert spec.problems() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dense_layers", -1),
        ("groups", 0),
        ("kv_latent", 0),
        ("q_latent", -1),
        ("route_scale", 0.0),
        ("balance_rate", math.inf),
        ("balance", "bais"),
    ],
)
def test_numbers_that_count_nothing_are_told(field, value):
    (problem,) = small_deepseek_v3(**{field: value}).model.problems()
    assert problem.where == f"model.{field}"
    assert problem.fix.startswith(f"--model.{field.replace('_', '-')} ")


def test_what_a_model_may_do_without_may_be_absent():
    assert small_deepseek_v3(dense_layers=0, shared_experts=0, q_latent=0).model.problems() == []


@pytest.mark.parametrize("name", ["factor", "beta_slow", "beta_fast", "length", "mscale", "mscale_all_dim"])
def test_numbers_of_the_scaling_are_in_their_ranges(name):
    (problem, *_) = small_deepseek_v3(scaling=Yarn(**{name: -1})).model.problems()
    assert problem.where == f"model.scaling.{name}"
    assert small_deepseek_v3(scaling=Yarn()).model.problems() == []


def test_wavelengths_that_are_stretched_differ():
    assert small_deepseek_v3(theta=1.0).model.problems() == []
    (problem,) = small_deepseek_v3(theta=1.0, scaling=Yarn()).model.problems()
    assert (problem.where, problem.fix) == ("model.theta", "--model.theta above 1")
