"""Models with latent attention and mixtures of experts that are small enough for many ranks."""

from __future__ import annotations

from dataclasses import replace

from meshwright.models.deepseek_v3 import DeepseekV3
from meshwright.models.qwen3_moe import Qwen3Moe
from meshwright.parity.shapes import EPSILON
from meshwright.train.config import OptimizerConfig, TrainConfig
from tests.parity.harness import small_qwen3

OPTIMIZER = OptimizerConfig(epsilon=EPSILON)


def small_qwen3_moe(**numbers: object) -> TrainConfig:
    """A Qwen3 of 2 blocks with 8 experts, of which 2 see a token."""
    config = small_qwen3()
    sizes = {**vars(config.model), "experts": 8, "active": 2, "expert_hidden": 24, **numbers}
    del sizes["hidden"]
    return replace(config, model=Qwen3Moe(**sizes), optimizer=OPTIMIZER)


def small_deepseek_v3(**numbers: object) -> TrainConfig:
    """A DeepSeek-V3 of a block without experts and one with 8, of which 3 see a token, from 2 of 4 groups."""
    sizes = {
        "dim": 32,
        "layers": 2,
        "heads": 8,
        "hidden": 48,
        "vocab": 64,
        "std": 0.2,
        "dense_layers": 1,
        "experts": 8,
        "active": 3,
        "expert_hidden": 24,
        "shared_experts": 1,
        "groups": 4,
        "active_groups": 2,
        "q_latent": 12,
        "kv_latent": 10,
        "nope_dim": 4,
        "rope_dim": 6,
        "value_dim": 8,
    }
    return replace(small_qwen3(), model=DeepseekV3(**{**sizes, **numbers}), optimizer=OPTIMIZER)


def small_latent(**numbers: object) -> TrainConfig:
    """The same with two blocks without experts: its attention is what is left to look at."""
    return small_deepseek_v3(**{"dense_layers": 2, **numbers})
