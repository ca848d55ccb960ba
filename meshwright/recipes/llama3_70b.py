"""Llama 3 70B over 256 devices, dp_shard 32 x tp 8."""

from meshwright.models.llama3 import llama3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=llama3("70b"),
    parallel=ParallelConfig(dp_shard=32, tp=8),
    training=TrainingConfig(length=8192, batch=32),
)
