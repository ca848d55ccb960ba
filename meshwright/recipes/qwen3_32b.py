"""Qwen3 32B over 64 devices, dp_shard 8 x tp 8."""

from meshwright.models.qwen3 import qwen3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=qwen3("32b"),
    parallel=ParallelConfig(dp_shard=8, tp=8),
    training=TrainingConfig(length=8192, batch=8),
)
