"""Llama 3.1 405B over 512 devices, dp_shard 64 x tp 8."""

from meshwright.models.llama3 import llama3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=llama3("405b"),
    parallel=ParallelConfig(dp_shard=64, tp=8),
    training=TrainingConfig(length=8192, batch=64),
)
