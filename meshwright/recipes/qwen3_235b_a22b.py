"""Qwen3 235B-A22B over 128 devices, dp_shard 32 x tp 4, ep 32."""

from meshwright.models.qwen3_moe import qwen3_moe
from meshwright.train.config import ParallelConfig, TrainConfig, TrainingConfig

config = TrainConfig(
    model=qwen3_moe("235b-a22b"),
    parallel=ParallelConfig(dp_shard=32, tp=4, ep=32),
    training=TrainingConfig(length=8192, batch=32),
)
