"""Qwen3 14B over 32 devices, dp_shard 8 x tp 4."""

from meshwright.models.qwen3 import qwen3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=qwen3("14b"),
    parallel=ParallelConfig(dp_shard=8, tp=4),
    training=TrainingConfig(length=8192, batch=8),
)
