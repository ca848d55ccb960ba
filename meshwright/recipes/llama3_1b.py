"""Llama 3.2 1B over 8 devices, dp_shard 8."""

from meshwright.models.llama3 import llama3
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=llama3("1b"),
    parallel=ParallelConfig(dp_shard=8),
    training=TrainingConfig(length=8192, batch=8),
)
