"""Qwen3 30B-A3B over 16 devices, dp_shard 16, ep 16."""

from meshwright.models.qwen3_moe import qwen3_moe
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=qwen3_moe("30b-a3b"),
    parallel=ParallelConfig(dp_shard=16, ep=16),
    training=TrainingConfig(length=8192, batch=16),
)
