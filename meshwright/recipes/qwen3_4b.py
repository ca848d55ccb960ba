"""Qwen3 4B over 8 devices, dp_shard 8."""

from meshwright.models.qwen3 import qwen3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=qwen3("4b"),
    parallel=ParallelConfig(dp_shard=8),
    training=TrainingConfig(length=8192, batch=8),
)
